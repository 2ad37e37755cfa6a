"""A few connections that stay out of the pool between drafts: to go through it costs a draft a tenth more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg

from earmark.store.postgres.draft import Misremembered

if TYPE_CHECKING:
    from types import TracebackType

SETTLED = (asyncpg.PostgresError, Misremembered)
"""After these nothing is under way on a connection."""
CONNECTIONS_MAX = 6
"""The pool keeps the rest for everybody else."""


class Ended(Exception):
    """The server had ended the connection before anything was sent on it."""


class Idle:
    """The connections that wait for the next draft."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.waiting: list[Any] = []
        self.waiting_max = min(CONNECTIONS_MAX, pool.get_max_size() // 2)

    def connection(self, *, within: float) -> _Lent:
        """One of them, or a new one from the pool, for the length of a `with`; cut when that takes too long."""
        return _Lent(self, within)

    async def close(self) -> None:
        """Give them all back."""
        while self.waiting:
            await self.pool.release(self.waiting.pop())


class _Lent:
    """A connection on loan. One that was left in the middle of a call is cut, and never used again."""

    __slots__ = ("_connection", "_idle", "_timer", "_within")

    def __init__(self, idle: Idle, within: float) -> None:
        self._idle = idle
        self._within = within
        self._connection: Any = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Any:
        waiting = self._idle.waiting
        while waiting:
            self._connection = waiting.pop()
            if is_open(self._connection):
                break
            await self._idle.pool.release(self._connection)
        else:
            self._connection = await self._idle.pool.acquire(timeout=self._within)
        # A timer that cuts the connection costs less than a timeout around everything that is done with it.
        self._timer = asyncio.get_running_loop().call_later(self._within, _cut, self._connection)
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._timer is not None
        self._timer.cancel()
        if error is not None and not isinstance(error, SETTLED):
            _cut(self._connection)
        if is_open(self._connection) and len(self._idle.waiting) < self._idle.waiting_max:
            self._idle.waiting.append(self._connection)
        else:
            await self._idle.pool.release(self._connection)


def _cut(connection: Any) -> None:
    if is_open(connection):
        connection.terminate()


def is_open(connection: Any) -> bool:
    """Whether anything can still be sent on it, as far as is known here."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        # It was cut, and has left the pool with that.
        return False


def has_said_goodbye(error: BaseException) -> bool:
    """Whether nothing was sent, because the server's last word had been read already.

    Between that word and the end of the line pass some milliseconds, in which the connection still looks open.
    """
    return isinstance(error, asyncpg.InternalClientError) and str(error).startswith("cannot switch to state")


def reason(silence: BaseException) -> str:
    """What is known of why there was no answer."""
    return str(silence) or type(silence).__name__
