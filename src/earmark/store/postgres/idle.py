"""A few connections that stay out of the pool between drafts: to go through it costs a draft a tenth more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.protocol import NO_TIMEOUT

from earmark.store.postgres.draft import Misremembered

if TYPE_CHECKING:
    from types import TracebackType

SETTLED = (asyncpg.PostgresError, Misremembered)
"""After these nothing is under way on a connection."""
CHANGED = (asyncpg.InvalidCachedStatementError, asyncpg.OutdatedSchemaCacheError)
"""A statement was prepared for tables or types that are not so any more. Nothing was done."""
CONNECTIONS_MAX = 6
"""The pool keeps the rest for everybody else."""


class Ended(Exception):
    """The server had ended the connection before anything was sent on it."""


class Prepared:
    """A connection, and the statements of drafts that were prepared on it.

    asyncpg finds a statement by its text and sets a timer for each call, which a lone client can feel. Here a statement
    is at hand, and whoever borrowed the connection has a timer for all that is done with it.
    """

    __slots__ = ("_statements", "bare")

    def __init__(self, bare: Any) -> None:
        self.bare = bare
        self._statements: dict[str, Any] = {}

    async def fetch(self, query: str, *arguments: object) -> list[Any]:
        """As the connection's own, but for one thing: after a change of its tables a statement fails once."""
        statement = self._statements.get(query)
        if statement is None:
            statement = self._statements[query] = await self.bare.prepare(query)
        try:
            found: list[Any] = await statement.fetch(*arguments, timeout=NO_TIMEOUT)
        except CHANGED:
            self._statements.clear()
            raise
        return found

    def is_open(self) -> bool:
        """Whether anything can still be sent on it, as far as is known here."""
        try:
            return not self.bare.is_closed()
        except asyncpg.InterfaceError:
            # It was cut, and has left the pool with that.
            return False

    def cut(self) -> None:
        """Whatever is under way on it ends here."""
        if self.is_open():
            self.bare.terminate()


class Idle:
    """The connections that wait for the next draft."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.waiting: list[Prepared] = []
        self.waiting_max = min(CONNECTIONS_MAX, pool.get_max_size() // 2)

    def connection(self, *, within: float) -> _Lent:
        """One of them, or a new one from the pool, for the length of a `with`; cut when that takes too long."""
        return _Lent(self, within)

    async def close(self) -> None:
        """Give them all back."""
        while self.waiting:
            await self.pool.release(self.waiting.pop().bare)


class _Lent:
    """A connection on loan. One that was left in the middle of a call is cut, and never used again."""

    __slots__ = ("_connection", "_idle", "_timer", "_within")

    def __init__(self, idle: Idle, within: float) -> None:
        self._idle = idle
        self._within = within
        self._connection: Prepared | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Prepared:
        waiting = self._idle.waiting
        while waiting:
            connection = waiting.pop()
            if connection.is_open():
                break
            await self._idle.pool.release(connection.bare)
        else:
            connection = Prepared(await self._idle.pool.acquire(timeout=self._within))
        self._connection = connection
        # A timer that cuts the connection costs less than a timeout around everything that is done with it.
        self._timer = asyncio.get_running_loop().call_later(self._within, connection.cut)
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = self._connection
        assert connection is not None
        assert self._timer is not None
        self._timer.cancel()
        if error is not None and not isinstance(error, SETTLED):
            connection.cut()
        if connection.is_open() and len(self._idle.waiting) < self._idle.waiting_max:
            self._idle.waiting.append(connection)
        else:
            await self._idle.pool.release(connection.bare)


def has_said_goodbye(error: BaseException) -> bool:
    """Whether nothing was sent, because the server's last word had been read already.

    Between that word and the end of the line pass some milliseconds, in which the connection still looks open.
    """
    return isinstance(error, asyncpg.InternalClientError) and str(error).startswith("cannot switch to state")


def reason(silence: BaseException) -> str:
    """What is known of why there was no answer."""
    return str(silence) or type(silence).__name__
