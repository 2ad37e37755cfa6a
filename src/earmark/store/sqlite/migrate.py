"""Bring a SQLite file up to date, one process at a time, in one transaction."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from earmark.errors import SetupError, StoreUnavailable
from earmark.store.both_databases.pending_migrations import Applied, LockPatience, pending, tell_newer
from earmark.store.sqlite.driver_errors import is_busy, unavailable
from earmark.store.sqlite.open_connection import connect, file_of, use_wal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from earmark.store.both_databases.pending_migrations import Migration, Tell

logger = logging.getLogger("earmark.migrate")

_LEDGER = """
CREATE TABLE IF NOT EXISTS earmark_migrations (
    number     integer NOT NULL PRIMARY KEY,
    name       text    NOT NULL,
    checksum   text    NOT NULL,
    applied_at text    NOT NULL DEFAULT CURRENT_TIMESTAMP,
    -- The migration that code must have to run on this one.
    oldest_code integer
)
"""
_COLUMNS = "SELECT name FROM pragma_table_info('earmark_migrations')"


async def migrate(
    url_or_path: str | Path,
    *,
    dry_run: bool = False,
    without: Collection[str] = (),
    patience: LockPatience | None = None,
    tell: Tell = logger.warning,
) -> Sequence[Migration]:
    """Apply what is pending, all of it or nothing; with `dry_run`, only say what that would be."""
    file, patience = file_of(url_or_path), patience or LockPatience()
    if dry_run:
        return pending("sqlite", await asyncio.to_thread(_look, file), without=without)
    deadline = asyncio.get_running_loop().time() + patience.seconds_max
    tries = 0
    done: list[Migration] = []
    while True:
        try:
            steps, applied = await asyncio.to_thread(_migrate, file, without=without, seconds=patience.lock_seconds)
            done += steps
            break
        except StoreUnavailable:
            pause = patience.pause(tries)
            if asyncio.get_running_loop().time() + pause > deadline:
                raise
            tell(f"Another process writes to {file.name}; trying again in {pause:.1f} s")
        await asyncio.sleep(pause)
        tries += 1
    if not done:
        tell_newer("sqlite", applied, tell)
    return done


def _look(file: Path) -> dict[int, Applied]:
    """What was applied; a file that is not there stays so."""
    if not file.exists():
        return {}
    try:
        with closing(connect(file, mode="rw")) as connection:
            return read_applied(connection)
    except sqlite3.DatabaseError as failure:
        raise _translated(failure, file) from failure


def _migrate(
    file: Path, *, without: Collection[str], seconds: float
) -> tuple[Sequence[Migration], Mapping[int, Applied]]:
    """One try: what it applied, and what had been applied before."""
    try:
        with closing(connect(file, mode="rwc")) as connection:
            connection.execute(f"PRAGMA busy_timeout = {max(1, round(seconds * 1000))}")
            use_wal(connection)
            return apply_pending(connection, without=without)
    except sqlite3.DatabaseError as failure:
        raise _translated(failure, file) from failure


def _translated(failure: sqlite3.DatabaseError, file: Path) -> StoreUnavailable | SetupError:
    if is_busy(failure):
        return unavailable(failure)
    return SetupError(problem=f"SQLite cannot migrate {file}: {failure}")


def apply_pending(
    connection: sqlite3.Connection, *, without: Collection[str]
) -> tuple[Sequence[Migration], Mapping[int, Applied]]:
    """One transaction that locks out every other writer; closing the connection undoes what did not commit."""
    connection.execute("BEGIN IMMEDIATE")
    applied = read_applied(connection)
    steps = pending("sqlite", applied, without=without)
    connection.execute(_LEDGER)
    for step in steps:
        for statement in _statements(step.sql):
            connection.execute(statement)
        connection.execute(
            "INSERT INTO earmark_migrations (number, name, checksum, oldest_code) VALUES (?, ?, ?, ?)",
            (step.number, step.name, step.checksum, step.oldest_code),
        )
    connection.execute("COMMIT")
    return steps, applied


def _statements(script: str) -> Iterator[str]:
    """One by one, for `executescript` would commit what came before it."""
    gathered = ""
    for line in script.splitlines(keepends=True):
        gathered += line
        if sqlite3.complete_statement(gathered):
            yield gathered
            gathered = ""


def read_applied(connection: sqlite3.Connection) -> dict[int, Applied]:
    """What was applied, by number; empty on a new database."""
    ledger = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'earmark_migrations'"
    if connection.execute(ledger).fetchone() is None:
        return {}
    oldest_code = "oldest_code" if _has_oldest_code(connection) else "NULL"
    found = connection.execute(
        f"SELECT number, name, checksum, {oldest_code} AS oldest_code FROM earmark_migrations LIMIT 10000"  # noqa: S608 (ours)
    )
    return {
        row["number"]: Applied(name=row["name"], checksum=row["checksum"], oldest_code=row["oldest_code"])
        for row in found
    }


def _has_oldest_code(connection: sqlite3.Connection) -> bool:
    """The first development versions had no such column; their databases are refused with a sentence."""
    return any(row["name"] == "oldest_code" for row in connection.execute(_COLUMNS))
