"""Opens connections to a SQLite file or to memory, with the settings that every one of them needs."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from earmark.errors import SetupError

OLDEST = (3, 35, 0)
STATEMENTS_CACHED = 256
BUSY_MS = 5_000
"""How long a reader, or a migration, waits for another process."""
OVERWRITE = "PRAGMA secure_delete = ON"
"""What a row leaves behind in its page is overwritten: an erasure finds no older copies. Some SQLites are built so."""

_SCHEME = "sqlite:///"


def file_of(place: str | Path) -> Path:
    """The file that a path or a URL names: `sqlite:///here.db`, or with a fourth slash from the root."""
    named = str(place)
    if named.startswith(_SCHEME):
        named = named.removeprefix(_SCHEME)
    elif named.startswith("sqlite:"):
        raise SetupError(problem=f"{place} names no file: write sqlite:///file.db, or sqlite:////from/the/root.db")
    if not named or ":memory:" in named:
        raise SetupError(
            problem="The SQLite store needs a file, which all its connections share; memory is not shared."
        )
    return Path(named).absolute()


def connect(file: Path, *, mode: str) -> sqlite3.Connection:
    """A connection as Earmark uses it. `mode` is SQLite's own: ro, rw, or rwc, which makes the file.

    It may be handed from thread to thread, and is never used by two at once.
    """
    return _connect(f"{file.as_uri()}?mode={mode}")


def connect_memory() -> sqlite3.Connection:
    """An empty database in memory, which ends with this connection. No other connection can open it."""
    return _connect(":memory:")


def use_wal(connection: sqlite3.Connection) -> None:
    """Let readers see the last commit while the writer writes. The file keeps this setting."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise SetupError(
            problem=f"SQLite cannot use its write-ahead log here (it says {mode}): put the file on a local disk."
        )


def _connect(database: str) -> sqlite3.Connection:
    _check_version()
    connection = sqlite3.connect(
        database,
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS_CACHED,
        timeout=BUSY_MS / 1000,
    )
    connection.row_factory = sqlite3.Row
    try:
        # FULL: a commit is on the disk before it is acknowledged, also when the power fails.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(OVERWRITE)
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -16000")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_version() -> None:
    if sqlite3.sqlite_version_info < OLDEST:
        needed = ".".join(map(str, OLDEST[:2]))
        raise SetupError(
            problem=f"Earmark needs SQLite {needed} or newer; this Python brings {sqlite3.sqlite_version}."
        )
