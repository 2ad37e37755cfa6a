"""The writer of a SQLite database: the one connection that writes, and whether a transaction was kept.

A caller may run out of time, or be cancelled, while the writer's thread works on. `TransactionDeadline` decides once,
under a lock, which of the two was first: the caller gave up, and nothing is kept for certain; or the commit has begun,
and only the journal tells whether it was kept.
"""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from earmark.errors import OutcomeUnknown, StoreUnavailable
from earmark.store.sqlite.driver_errors import is_busy, is_full, is_silence, unavailable
from earmark.store.sqlite.transaction_queries import SqliteTransaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from concurrent.futures import Executor

    from earmark.engine.ports.store import Clock, Transaction

T = TypeVar("T")

BUSY_ROUND_MS = 50
"""How long SQLite waits for another process's transaction before the writer checks that its caller still waits."""


class TransactionDeadline:
    """Until when one caller waits for the writer, and which of the two was first: giving up or the commit."""

    def __init__(self, *, within: float) -> None:
        self.deadline = time.monotonic() + within
        self._settling = threading.Lock()
        self._given_up = False
        self._committing = False

    def give_up(self) -> bool:
        """For a caller that leaves. True when nothing will be kept for certain; False when the commit has begun."""
        with self._settling:
            self._given_up = not self._committing
            return self._given_up

    def may_commit(self) -> bool:
        """Called by the writer before it commits. False when the caller has given up."""
        with self._settling:
            self._committing = not self._given_up
            return self._committing

    @property
    def lapsed(self) -> bool:
        """Whether the caller has given up or its time is over."""
        return self._given_up or time.monotonic() >= self.deadline


class Writer:
    """The connection that writes. With a file, everything here runs in the writer's thread."""

    def __init__(
        self, open_connection: Callable[[], sqlite3.Connection], *, clock: Clock, sql: Mapping[str, str]
    ) -> None:
        self._open_connection = open_connection
        self._clock = clock
        self._sql = sql
        self._open: sqlite3.Connection | None = None

    def connection(self) -> sqlite3.Connection:
        """The connection that writes; a new one after the last has failed."""
        if self._open is None:
            self._open = self._open_connection()
            self._open.execute(f"PRAGMA busy_timeout = {BUSY_ROUND_MS}")
        return self._open

    def transact(self, work: Callable[[Transaction], Awaitable[T]], deadline: TransactionDeadline) -> T:
        """Run a whole transaction, from begin to commit."""
        try:
            connection = self._begin(deadline)
        except sqlite3.Error as failure:
            if is_silence(failure):
                raise unavailable(failure) from failure
            raise
        transaction = SqliteTransaction(connection, clock=self._clock, sql=self._sql)
        try:
            result = run_to_end(work(transaction))
        except sqlite3.Error as failure:
            self._roll_back(connection)
            if is_silence(failure):
                raise unavailable(failure) from failure
            raise
        except BaseException:
            self._roll_back(connection)
            raise
        if not transaction.wrote:
            self._roll_back(connection)
        elif not deadline.may_commit():
            self._roll_back(connection)
            raise _too_late()
        else:
            self._commit(connection)
        return result

    async def run(self, work: Callable[[Transaction], Awaitable[T]], *, within: float) -> T:
        """Run the whole transaction before this returns, on the caller's thread."""
        return self.transact(work, TransactionDeadline(within=within))

    def close(self) -> None:
        """Close the connection; the next transaction opens a new one."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _begin(self, deadline: TransactionDeadline) -> sqlite3.Connection:
        """Wait for another process in short rounds: a caller that gives up does not keep the next one waiting."""
        while not deadline.lapsed:
            connection = self.connection()
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as failure:
                if not is_busy(failure):
                    self.close()
                    raise
            else:
                return connection
        raise _too_late()

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as failure:
            self._roll_back(connection)
            if is_busy(failure) or is_full(failure):
                raise unavailable(failure) from failure
            if is_silence(failure):
                # The commit may have reached the log and only its sync failed: the next connection will tell.
                self.close()
                raise OutcomeUnknown from failure
            raise

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        """SQLite has undone some failures by itself. A connection that cannot roll back is closed."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()


class ThreadWriter(Writer):
    """The same in a thread of its own, so that the event loop never waits for the disk."""

    def __init__(
        self, open_connection: Callable[[], sqlite3.Connection], *, clock: Clock, sql: Mapping[str, str]
    ) -> None:
        super().__init__(open_connection, clock=clock, sql=sql)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="earmark-writer")

    async def run(self, work: Callable[[Transaction], Awaitable[T]], *, within: float) -> T:
        """Run in the writer's thread. A caller that leaves early never leaves half a transaction behind."""
        deadline = TransactionDeadline(within=within)
        job = submit(self.thread, partial(contextvars.copy_context().run, self.transact, work, deadline))
        try:
            await asyncio.wait({job}, timeout=within)
        except asyncio.CancelledError:
            deadline.give_up()
            raise
        if job.done():
            return result_of(job)
        if deadline.give_up():
            raise StoreUnavailable(because=f"SQLite: no answer within {within:g} s; nothing was kept")
        raise OutcomeUnknown


def submit(executor: Executor, run: Callable[[], T]) -> asyncio.Future[T]:
    """Run a function in a thread of the store."""
    try:
        job = asyncio.wrap_future(executor.submit(run))
    except RuntimeError as closed:
        raise StoreUnavailable(because="SQLite: the store is closed") from closed
    # Fetch the exception, so that asyncio does not log it as lost when the caller has left.
    job.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return job


def result_of(job: asyncio.Future[T]) -> T:
    """What the function returned; closing the store cancels those that wait."""
    if job.cancelled():
        raise StoreUnavailable(because="SQLite: the store was closed")
    return job.result()


def _too_late() -> StoreUnavailable:
    return StoreUnavailable(because="SQLite: the time for this transaction was over before it could be written")


def run_to_end(work: Awaitable[T]) -> T:
    """Run a coroutine on this thread, without an event loop: it awaits only its transaction, which never waits."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a verb awaited something outside its transaction")
