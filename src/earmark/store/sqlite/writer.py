"""The writer of a SQLite database: the one connection that writes, and whether a transaction was kept.

A caller may run out of time, or be cancelled, while the writer's thread works on. `TransactionDeadline` decides once,
under a lock, which of the two was first: the caller gave up, and nothing is kept for certain; or the commit has begun,
and only the journal tells whether it was kept.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from earmark.errors import OutcomeUnknown, StoreUnavailable
from earmark.store.run_inline import run_inline
from earmark.store.sqlite.connection import is_busy, is_full, is_silence, unavailable
from earmark.store.sqlite.transaction import SqliteTransaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

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
            result = run_inline(work, transaction)
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


def _too_late() -> StoreUnavailable:
    return StoreUnavailable(because="SQLite: the time for this transaction was over before it could be written")
