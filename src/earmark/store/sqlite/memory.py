"""The memory store, for tests, tutorials and the pytest plugin: SQLite in memory, driven inline on the event loop.

It is the SQLite store with all its guards, so it decides as SQLite does. It has one connection and no threads: no call
suspends, and the same seed gives the same run. Everything in it is gone when it is closed.
"""

from __future__ import annotations

import atexit
import weakref
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from earmark.errors import StoreUnavailable
from earmark.store import load_named_sql
from earmark.store.sqlite.migrate import apply_pending
from earmark.store.sqlite.open_connection import connect_memory
from earmark.store.sqlite.single_writer import Writer
from earmark.store.sqlite.store import SqliteStore

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping

    from earmark.engine.ports.store import Clock

T = TypeVar("T")


class MemoryStore(SqliteStore):
    """An empty, migrated SQLite database in memory. A store that is never closed is closed when it is collected."""

    def __init__(self, *, clock: Clock) -> None:
        super().__init__(MemoryAccess(clock=clock, sql=load_named_sql.statements("sqlite")), clock=clock)


class MemoryAccess:
    """One connection for transactions and reads, each of which runs to its end before another begins."""

    def __init__(self, *, clock: Clock, sql: Mapping[str, str]) -> None:
        self.file = Path(":memory:")
        self._connection: sqlite3.Connection | None = _new_database()
        self.writer = Writer(self._open, clock=clock, sql=sql)
        weakref.finalize(self, self._connection.close)

    async def read(self, look: Callable[[sqlite3.Connection], T], *, within: float) -> T:  # noqa: ARG002 (no wait)
        """Run now: nothing else can write in between."""
        return look(self.writer.connection())

    async def read_after_commit(self, look: Callable[[sqlite3.Connection], T], *, within: float) -> T:
        """Run now: no commit is ever under way."""
        return await self.read(look, within=within)

    async def close(self) -> None:
        """Drop the database with all that is in it."""
        self._connection = None
        self.writer.close()

    def _open(self) -> sqlite3.Connection:
        """The same connection each time: a second one would open another, empty database."""
        if self._connection is None:
            raise StoreUnavailable(because="SQLite: the store is closed")
        return self._connection


def _new_database() -> sqlite3.Connection:
    connection = connect_memory()
    _migrated().backup(connection)
    return connection


@cache
def _migrated() -> sqlite3.Connection:
    """An empty database with the current schema: made once in a process, since migrating takes longer than copying."""
    connection = connect_memory()
    atexit.register(connection.close)
    apply_pending(connection, without=())
    return connection
