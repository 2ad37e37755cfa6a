"""A few connections that stay out of the pool between drafts: to go through it costs a draft a tenth more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg

from earmark.store.postgres.draft import Misremembered

if TYPE_CHECKING:
    from types import TracebackType

SETTLED = (asyncpg.PostgresError, Misremembered)
"""After these nothing is under way on a connection."""
CONNECTIONS_MAX = 6
"""The pool keeps the rest for everybody else."""


class Idle:
    """The connections that wait for the next draft."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.waiting: list[Any] = []
        self.waiting_max = min(CONNECTIONS_MAX, pool.get_max_size() // 2)

    def connection(self) -> _Lent:
        """One of them, or a new one from the pool, for the length of a `with`."""
        return _Lent(self)

    async def close(self) -> None:
        """Give them all back."""
        while self.waiting:
            await self.pool.release(self.waiting.pop())


class _Lent:
    """A connection on loan. One that was left in the middle of a call is cut, and never used again."""

    __slots__ = ("_connection", "_idle")

    def __init__(self, idle: Idle) -> None:
        self._idle = idle
        self._connection: Any = None

    async def __aenter__(self) -> Any:
        waiting = self._idle.waiting
        while waiting:
            self._connection = waiting.pop()
            if is_open(self._connection):
                return self._connection
            await self._idle.pool.release(self._connection)
        self._connection = await self._idle.pool.acquire()
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, SETTLED) and is_open(self._connection):
            self._connection.terminate()
        if is_open(self._connection) and len(self._idle.waiting) < self._idle.waiting_max:
            self._idle.waiting.append(self._connection)
        else:
            await self._idle.pool.release(self._connection)


def is_open(connection: Any) -> bool:
    """Whether anything can still be sent on it, as far as is known here."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        # It was cut, and has left the pool with that.
        return False
