"""A few connections that stay out of the pool between optimistic writes: the pool costs each of them a tenth more."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.protocol import NO_TIMEOUT

from earmark.store.postgres.connections import is_open

if TYPE_CHECKING:
    from types import TracebackType

    from earmark.store.postgres.connections import PostgresConnections

CHANGED = (asyncpg.InvalidCachedStatementError, asyncpg.OutdatedSchemaCacheError)
"""A statement was prepared for tables or types that are not so any more. Nothing was done."""
CONNECTIONS_MAX = 6
"""The pool keeps the rest for reads and for transactions with locks."""


class PreparedConnection:
    """A connection, and the statements that were prepared on it.

    asyncpg finds a statement by its text and sets a timer for each call, which a single client can measure. Here the
    statement is found directly, and one timer covers all calls of a borrower.
    """

    __slots__ = ("_statements", "bare", "generation", "good_until", "is_busy", "timed_out", "warnings")

    def __init__(self, bare: Any) -> None:
        self.bare = bare
        self.generation = bare.generation
        self.good_until = bare.good_until
        self._statements: dict[str, Any] = {}
        self.is_busy = False
        """Whether something was sent on it that the server has not answered."""
        self.timed_out = False
        """Whether it was closed because its time was over."""
        self.warnings: list[Any] = []
        """What the server warned of since the last call."""

    async def fetch(self, query: str, *arguments: object) -> list[Any]:
        """As the connection's own, except that a statement fails once after a migration changed its tables."""
        self.is_busy = True
        statement = self._statements.get(query)
        try:
            if statement is None:
                statement = self._statements[query] = await self.bare.prepare(query)
            found: list[Any] = await statement.fetch(*arguments, timeout=NO_TIMEOUT)
        except asyncpg.PostgresError as told:
            # The server has answered, so no call is open.
            self.is_busy = False
            if isinstance(told, CHANGED):
                self._statements.clear()
            raise
        self.is_busy = False
        return found

    def is_open(self) -> bool:
        """Whether anything can still be sent on it, as far as is known here."""
        return is_open(self.bare)

    def hear(self, _: object, message: Any) -> None:
        """Keep a warning of the server."""
        if message.severity_en == "WARNING":
            self.warnings.append(message)


class IdleConnections:
    """The connections that wait for the next optimistic write."""

    def __init__(self, connections: PostgresConnections) -> None:
        self.connections = connections
        self.waiting: list[PreparedConnection] = []
        self.waiting_max = min(CONNECTIONS_MAX, connections.connections_max // 2)

    def connection(self, *, until: float) -> _LentConnection:
        """One of them, or a new one from the pool, for the length of a `with`; closed at `until`."""
        return _LentConnection(self, until)

    async def take(self, *, until: float) -> PreparedConnection:
        """One that can be used."""
        while self.waiting:
            connection = self.waiting.pop()
            if connection.is_open() and self.connections.is_fit(connection):
                return connection
            await self.give_back(connection)
        left = max(0.0, until - asyncio.get_running_loop().time())
        connection = PreparedConnection(await self.connections.acquire(within=left))
        connection.bare.add_log_listener(connection.hear)
        return connection

    async def give_back(self, connection: PreparedConnection) -> None:
        """Return it to the pool, without our log listener."""
        with contextlib.suppress(asyncpg.InterfaceError):  # it was cut
            connection.bare.remove_log_listener(connection.hear)
        await self.connections.release(connection.bare)

    async def close(self) -> None:
        """Give them all back."""
        while self.waiting:
            await self.give_back(self.waiting.pop())


class _LentConnection:
    """A borrowed connection. One that was left in the middle of a call is closed, and never used again."""

    __slots__ = ("_connection", "_idle", "_timer", "_until")

    def __init__(self, idle: IdleConnections, until: float) -> None:
        self._idle = idle
        self._until = until
        self._connection: PreparedConnection | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> PreparedConnection:
        self._connection = await self._idle.take(until=self._until)
        # A timer that closes the connection costs less than a timeout around every call on it.
        self._timer = asyncio.get_running_loop().call_at(self._until, self._time_over)
        return self._connection

    def _time_over(self) -> None:
        assert self._connection is not None
        self._connection.timed_out = True
        self._cut(self._connection)

    def _cut(self, connection: PreparedConnection) -> None:
        """Close it; a call that was open counts as an abandoned backend."""
        if connection.is_busy:
            self._idle.connections.abandon(connection.bare)
        elif connection.is_open():
            connection.bare.terminate()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = self._connection
        assert connection is not None
        assert self._timer is not None
        self._timer.cancel()
        # What counts is not an error but an answer that is still to come: then nothing else can be sent on it.
        if connection.is_busy:
            self._cut(connection)
        if connection.is_open() and len(self._idle.waiting) < self._idle.waiting_max:
            self._idle.waiting.append(connection)
        else:
            await self._idle.give_back(connection)
