"""The writer: one thread with the one connection that writes, and the question whether a transaction was kept.

A caller may run out of time, or be cancelled, at any moment while the thread works on. Both then settle through the
caller's `Ticket`, once: either the caller gives up first, and nothing is kept for certain, or the commit has begun,
and only the journal can tell.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from earmark.errors import OutcomeUnknown, StoreUnavailable
from earmark.store.inline import drive
from earmark.store.sqlite.connection import connect, is_busy, is_full, is_silence, unavailable
from earmark.store.sqlite.transaction import SqliteTransaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from earmark.engine.ports.store import Clock, Transaction

T = TypeVar("T")

BUSY_ROUND_MS = 50
"""How long SQLite waits for another process's transaction before we look whether anybody still wants ours."""


class Ticket:
    """One caller's claim on the writer, with the moment at which it lapses."""

    def __init__(self, *, within: float) -> None:
        self.deadline = time.monotonic() + within
        self._settling = threading.Lock()
        self._given_up = False
        self._committing = False

    def give_up(self) -> bool:
        """The caller leaves. True when nothing will be kept, for certain; False when the commit has begun."""
        with self._settling:
            self._given_up = not self._committing
            return self._given_up

    def may_commit(self) -> bool:
        """The writer is about to commit. False when nobody waits for it any more."""
        with self._settling:
            self._committing = not self._given_up
            return self._committing

    @property
    def lapsed(self) -> bool:
        """Whether there is no sense in starting."""
        return self._given_up or time.monotonic() >= self.deadline


class Writer:
    """Everything here runs in the writer's thread."""

    def __init__(self, file: Path, *, clock: Clock, sql: Mapping[str, str]) -> None:
        self._file = file
        self._clock = clock
        self._sql = sql
        self._open: sqlite3.Connection | None = None

    def connection(self) -> sqlite3.Connection:
        """The one that writes; a new one after the last has failed us."""
        if self._open is None:
            self._open = connect(self._file, mode="rw")
            self._open.execute(f"PRAGMA busy_timeout = {BUSY_ROUND_MS}")
        return self._open

    def transact(self, work: Callable[[Transaction], Awaitable[T]], ticket: Ticket) -> T:
        """The whole transaction, in one go."""
        try:
            connection = self._begin(ticket)
        except sqlite3.Error as failure:
            if is_silence(failure):
                raise unavailable(failure) from failure
            raise
        transaction = SqliteTransaction(connection, clock=self._clock, sql=self._sql)
        try:
            result = drive(work, transaction)
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
        elif not ticket.may_commit():
            self._roll_back(connection)
            raise _too_late()
        else:
            self._commit(connection)
        return result

    def close(self) -> None:
        """After this the writer opens a new connection, if it is asked to write at all."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _begin(self, ticket: Ticket) -> sqlite3.Connection:
        """Wait for another process in short rounds: a caller who gives up shall not keep the next one waiting."""
        while not ticket.lapsed:
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
                # The commit may have reached the log and only its sync failed: who opens the file next will know.
                self.close()
                raise OutcomeUnknown from failure
            raise

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        """SQLite has undone some failures by itself. A connection that cannot even do this is let go."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()


def _too_late() -> StoreUnavailable:
    return StoreUnavailable(because="SQLite: the time for this transaction was over before it could be written")
