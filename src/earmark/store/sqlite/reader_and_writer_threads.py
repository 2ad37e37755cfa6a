"""How a SQLite store reaches its database: a file through threads, so that the event loop never waits for the disk.

One thread has the connection that writes, two threads read. `MemoryAccess` (in `memory.py`) does the same without
threads for a database in memory.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from earmark.errors import SetupError, StoreUnavailable
from earmark.store.sqlite.driver_errors import is_busy, is_silence, unavailable
from earmark.store.sqlite.open_connection import connect, use_wal
from earmark.store.sqlite.single_writer import ThreadWriter, Writer, result_of, submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Executor
    from pathlib import Path

    from earmark.engine.ports.store import Clock

T = TypeVar("T")

READERS = 2
READ_SECONDS = 10.0


class SqliteAccess(Protocol):
    """What the store needs of its database."""

    file: Path
    """The database's file, or `:memory:`."""

    @property
    def writer(self) -> Writer:
        """The connection that writes."""
        ...

    async def read(self, look: Callable[[sqlite3.Connection], T], *, within: float) -> T:
        """Run a function that only reads; all that it reads is as one commit left it."""
        ...

    async def read_after_commit(self, look: Callable[[sqlite3.Connection], T], *, within: float) -> T:
        """The same on the connection that writes: a commit that is under way has ended before it reads."""
        ...

    async def close(self) -> None:
        """Close every connection to the database."""
        ...


class FileAccess:
    """A file, which other processes may write to as well: they wait for each other."""

    def __init__(self, file: Path, *, clock: Clock, sql: Mapping[str, str]) -> None:
        self.file = file
        self.writer = ThreadWriter(lambda: connect(file, mode="rw"), clock=clock, sql=sql)
        self._reading = ThreadPoolExecutor(READERS, thread_name_prefix="earmark-reader")
        self._local = threading.local()
        self._readers: list[sqlite3.Connection] = []

    async def start(self) -> None:
        """Check that the file is there and can have a write-ahead log."""
        await self._run(self.writer.thread, self._start, within=READ_SECONDS)

    async def read(self, look: Callable[[sqlite3.Connection], T], *, within: float) -> T:
        """Run in a reader's thread, on one snapshot."""

        def read() -> T:
            with _snapshot(self._reader()) as connection:
                return look(connection)

        return await self._run(self._reading, read, within=within)

    async def read_after_commit(self, look: Callable[[sqlite3.Connection], T], *, within: float) -> T:
        """Run in the writer's thread, behind the transactions that were submitted before."""
        return await self._run(self.writer.thread, lambda: look(self.writer.connection()), within=within)

    async def close(self) -> None:
        """Interrupt reads, finish the transaction that runs, and begin none of those that wait."""
        for reader in self._readers:
            reader.interrupt()
        self._reading.shutdown(wait=False, cancel_futures=True)
        self.writer.thread.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._end)

    def _start(self) -> None:
        if not self.file.exists():
            raise SetupError(problem=f"There is no database at {self.file}. Run: earmark migrate --database …")
        try:
            use_wal(self.writer.connection())
        except sqlite3.DatabaseError as failure:
            if is_busy(failure):
                raise
            raise SetupError(problem=f"SQLite cannot use {self.file}: {failure}") from failure

    def _end(self) -> None:
        """Close the writer last: SQLite removes the log with the last connection, if that one may write."""
        self._reading.shutdown()
        self.writer.thread.shutdown()
        while self._readers:
            self._readers.pop().close()
        self.writer.close()

    def _reader(self) -> sqlite3.Connection:
        """The connection of the thread that runs this."""
        reader: sqlite3.Connection | None = getattr(self._local, "reader", None)
        if reader is None:
            reader = self._local.reader = connect(self.file, mode="ro")
            self._readers.append(reader)
        return reader

    async def _run(self, executor: Executor, read: Callable[[], T], *, within: float) -> T:
        job = submit(executor, read)
        try:
            await asyncio.wait({job}, timeout=within)
            if not job.done():
                raise StoreUnavailable(because=f"SQLite: no answer within {within:g} s")
            return result_of(job)
        except sqlite3.Error as failure:
            if is_silence(failure):
                raise unavailable(failure) from failure
            raise
        finally:
            job.cancel()


@contextmanager
def _snapshot(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("BEGIN")
    try:
        yield connection
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
