"""From a database URL to the store, the migrations and the maintenance commands of that kind of database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from earmark.clock import SystemClock
from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from earmark.engine.ports.store import Clock, Store
    from earmark.store.both_databases.database_diagnostics import DatabaseFacts
    from earmark.store.both_databases.pending_migrations import Migration
    from earmark.store.both_databases.replace_buyer_name_in_texts import Erasure

POSTGRES = {"postgres", "postgresql"}
CONNECTIONS_MAX = 12


async def open_store(database_url: str, *, clock: Clock | None = None, connections_max: int = CONNECTIONS_MAX) -> Store:
    """The store that a URL names: `postgresql://…`, `sqlite:///path` or `memory:`."""
    clock = clock or SystemClock()
    scheme = urlsplit(database_url).scheme
    if scheme in POSTGRES:
        postgres = _postgres()
        opened: Store = await postgres.PostgresStore.connect(database_url, clock=clock, connections_max=connections_max)
        return opened
    if scheme == "sqlite":
        from earmark.store.sqlite import SqliteStore

        return await SqliteStore.open(sqlite_path(database_url), clock=clock)
    if scheme == "memory":
        from earmark.store.sqlite.memory import MemoryStore

        return MemoryStore(clock=clock)
    raise SetupError(problem=_unknown(database_url))


async def migrate(
    database_url: str, *, dry_run: bool = False, without: Collection[str] = (), **waiting: Any
) -> Sequence[Migration]:
    """Bring a database up to date; what was applied, or with `dry_run` what would be.

    `waiting` is a `patience` (how long to wait for locks) and a `tell` that is called while waiting; on PostgreSQL,
    also the `application_role` to grant what servers need.
    """
    scheme = urlsplit(database_url).scheme
    if scheme in POSTGRES:
        postgres = _postgres()
        applied: Sequence[Migration] = await postgres.migrate(database_url, dry_run=dry_run, without=without, **waiting)
        return applied
    if waiting.pop("application_role", None) is not None:
        raise SetupError(problem="Only PostgreSQL has roles: leave --application-role out for this database.")
    if scheme == "sqlite":
        from earmark.store import sqlite

        return await sqlite.migrate(sqlite_path(database_url), dry_run=dry_run, without=without, **waiting)
    if scheme == "memory":
        return ()
    raise SetupError(problem=_unknown(database_url))


async def erase_buyer(
    database_url: str,
    buyer: str,
    *,
    dry_run: bool = False,
    rewrite: bool = False,
    clock: Clock | None = None,
    pseudonym: str | None = None,
) -> Erasure:
    """Replace a buyer's name by a pseudonym in every row; with `dry_run`, do the same and undo it.

    With `rewrite`, a file of SQLite is written anew.
    """
    from earmark.store.both_databases.replace_buyer_name_in_texts import new_pseudonym

    options: Any = {"pseudonym": pseudonym or new_pseudonym(), "dry_run": dry_run, "clock": clock or SystemClock()}
    scheme = urlsplit(database_url).scheme
    if scheme in POSTGRES:
        _postgres()
        from earmark.store.postgres import erase_buyer as erasure

        if rewrite:
            raise SetupError(
                problem="--rewrite is for SQLite. To rewrite PostgreSQL's tables, run VACUUM FULL in psql."
            )
        return await erasure.erase(database_url, buyer, **options)
    if scheme == "sqlite":
        from earmark.store.sqlite import erase_buyer as of_file

        return await of_file.erase(sqlite_path(database_url), buyer, rewrite=rewrite, **options)
    raise SetupError(problem=_unknown(database_url))


async def examine(database_url: str, *, clock: Clock | None = None) -> DatabaseFacts:
    """Read a database's state on a connection of its own, even with an old schema or settings that a store refuses."""
    if urlsplit(database_url).scheme in POSTGRES:
        _postgres()
        from earmark.store.postgres import database_diagnostics

        return await database_diagnostics.examine(database_url, clock=clock or SystemClock())
    if urlsplit(database_url).scheme == "sqlite":
        from earmark.store.sqlite import database_diagnostics as of_file

        return await of_file.examine(sqlite_path(database_url))
    raise SetupError(problem=_unknown(database_url))


def sqlite_path(database_url: str) -> Path:
    """`sqlite:///shop.sqlite3` is relative, `sqlite:////var/lib/shop.sqlite3` absolute."""
    parts = urlsplit(database_url)
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path:
        raise SetupError(problem=_unknown(database_url))
    return Path(path)


def _postgres() -> Any:
    try:
        from earmark.store import postgres
    except ImportError as missing:
        raise SetupError(problem="PostgreSQL needs an extra: pip install 'earmark[postgres]'") from missing
    return postgres


def _unknown(database_url: str) -> str:
    scheme = urlsplit(database_url).scheme or database_url
    return (
        f"Earmark does not know the database {scheme!r}: "
        "use postgresql://user@host/name, sqlite:///file.sqlite3 (relative) or sqlite:////path/file.sqlite3 (absolute)."
    )
