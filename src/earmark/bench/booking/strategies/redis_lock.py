"""redis_lock: a lock in Redis for each seat, one after the other, then look and write as if alone.

    lock A1 ── lock A2 ── BEGIN ── look ── write ── COMMIT ── unlock
    lock A1: taken, "this seat is being booked"

The idea: Redis refuses losers in a millisecond, and they never reach the database. It is what most guides to
booking systems show.
The flaw: the lock ends by the clock, whatever its holder does. A process that is paused for longer than that (by a
garbage collector, a full disk, a machine that was moved) continues without its lock, does not know it, and writes. The
same happens when Redis fails over before the key was copied. The seat is then sold twice, without any error. Only the
database can refuse such a write, and here it has no rule to do so.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from earmark.bench.booking.strategies.shared_hold_and_confirm import (
    ConfirmRequest,
    HoldRefused,
    StrategyDatabase,
    TableStrategy,
    judge_pools,
    judge_seats,
)
from earmark.bench.booking.strategy_protocol import StrategyInfo, StrategySettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager
    from uuid import UUID

    from earmark.bench.booking.strategy_protocol import Want

CONNECTIONS = 50


class LocksPerSeat(ABC):
    """A lock for each seat, one after the other."""

    def __init__(self, clients: Sequence[Any], *, ttl_seconds: float) -> None:
        self._clients = clients
        self._ttl_seconds = ttl_seconds

    @asynccontextmanager
    async def all_of(self, names: Sequence[str]) -> AsyncIterator[None]:
        """Take each lock in sorted order; if one is taken, give back those before and refuse."""
        async with AsyncExitStack() as held:
            for name in sorted(names):
                await held.enter_async_context(self._one(name))
            yield

    @abstractmethod
    def _one(self, name: str) -> AbstractAsyncContextManager[None]:
        """One lock; raises `HoldRefused` if it is taken."""

    async def close(self) -> None:
        """Close the connections to the servers under test."""
        for client in self._clients:
            await client.aclose(close_connection_pool=True)


class RedisLocks(LocksPerSeat):
    """Locks of redis-py, as its documentation shows them."""

    @asynccontextmanager
    async def _one(self, name: str) -> AsyncIterator[None]:
        from redis.exceptions import LockNotOwnedError

        [client] = self._clients
        lock = client.lock(name, timeout=self._ttl_seconds, blocking=False)
        if not await lock.acquire():
            raise HoldRefused
        try:
            yield
        finally:
            # The lock ran out before this: the write is done, and nothing can be undone here.
            with contextlib.suppress(LockNotOwnedError):
                await lock.release()


class LockThenWrite(TableStrategy):
    """Lock in Redis, then write without a lock in the database."""

    def __init__(self, database: StrategyDatabase, locks: Any) -> None:
        super().__init__(database)
        self._locks = locks

    async def try_hold(self, want: Want) -> UUID:
        """Lock, look, write, unlock."""
        database = self.database
        names = [f"{want.event_id}:{name}" for name in (*want.seats, *want.pools)]
        async with self._locks.all_of(names), database.transaction() as connection:
            sale = await database.open_hold(connection, want)
            seats = judge_seats(want.seats, await database.look_at_seats(connection, want))
            pools = judge_pools(want.pools, await database.look_at_pools(connection, want))
            await database.pause()
            return await database.write_hold(connection, want, sale, seats=seats, pools=pools)

    async def try_confirm(self, paid: ConfirmRequest) -> None:
        """Lock the booking, look, write, unlock."""
        database = self.database
        async with self._locks.all_of([f"booking:{paid.booking_id}"]), database.transaction() as connection:
            await database.find_key(connection, paid.key, paid.request_hash)
            row = await connection.fetchrow(database.sql["look_at_booking"], paid.booking_id)
            await database.write_confirm(connection, row, paid)

    async def close(self) -> None:
        """Close the connections to the servers under test."""
        await self._locks.close()
        await super().close()


def connect(url: str) -> Any:
    """A client with a bounded pool: callers wait for a connection."""
    from redis import asyncio as redis

    pool = redis.BlockingConnectionPool.from_url(url, max_connections=CONNECTIONS, timeout=None)
    return redis.Redis.from_pool(pool)


async def _open(settings: StrategySettings) -> LockThenWrite:
    locks = RedisLocks([connect(settings.redis[0])], ttl_seconds=settings.lock_ttl_seconds)
    return LockThenWrite(await StrategyDatabase.open(settings), locks)


ABOUT = StrategyInfo(
    name="redis_lock",
    title="a Redis lock per seat, then look and write",
    safe=True,
    why="Right in front of a database that refuses a second sale by itself: then losers do not reach the database, and "
    "a lock that ran out too early costs a retry. Alone it makes double sales rare, not impossible: run `earmark "
    "race --expire` and see. And for a seat that is free it adds two round trips to all that the database does "
    "anyway.",
    open=_open,
)
