"""redis_lock: a lock in Redis for each seat, one after the other, then look and write as if alone.

    lock A1 ── lock A2 ── BEGIN ── look ── write ── COMMIT ── unlock
    lock A1: taken, "somebody is booking this seat"

The idea: losers are sent away by Redis in a millisecond and never reach the database. It is what most guides to
booking systems show.
The flaw: the lock ends by the clock, whatever its holder is doing. A holder that is paused for longer than that (by a
garbage collector, a full disk, a machine that was moved) wakes up without its lock, does not know it, and writes. So
does one whose Redis failed over before the key was copied. The seat is then sold twice, and no error is seen
anywhere. Only the thing that is written to can refuse such a write, and here nothing asks it to.
"""

from __future__ import annotations

import contextlib
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from earmark.bench.booking.ports import About, Place
from earmark.bench.booking.strategies.ground import Ground, Paid, Peer, Refused, judge_pools, judge_seats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from uuid import UUID

    from earmark.bench.booking.ports import Want

CONNECTIONS = 50


class RedisLocks:
    """Locks of redis-py, as its documentation shows them."""

    def __init__(self, client: Any, *, ttl_seconds: float) -> None:
        self._client = client
        self._ttl_seconds = ttl_seconds

    @asynccontextmanager
    async def all_of(self, names: Sequence[str]) -> AsyncIterator[None]:
        """Each in turn, sorted; refused when somebody else has one, and then the ones before are given back."""
        async with AsyncExitStack() as held:
            for name in sorted(names):
                await held.enter_async_context(self._one(name))
            yield

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.aclose(close_connection_pool=True)

    @asynccontextmanager
    async def _one(self, name: str) -> AsyncIterator[None]:
        from redis.exceptions import LockNotOwnedError

        lock = self._client.lock(name, timeout=self._ttl_seconds, blocking=False)
        if not await lock.acquire():
            raise Refused
        try:
            yield
        finally:
            # Too late to do anything about it: the write is done.
            with contextlib.suppress(LockNotOwnedError):
                await lock.release()


class LockThenWrite(Peer):
    """Lock elsewhere, then write as if nobody else could."""

    def __init__(self, ground: Ground, locks: Any) -> None:
        super().__init__(ground)
        self._locks = locks

    async def try_hold(self, want: Want) -> UUID:
        """Lock, look, write, unlock."""
        ground = self.ground
        names = [f"{want.event_id}:{name}" for name in (*want.seats, *want.pools)]
        async with self._locks.all_of(names), ground.transaction() as step:
            sale = await ground.open_hold(step, want)
            seats = judge_seats(want.seats, await ground.look_at_seats(step, want))
            pools = judge_pools(want.pools, await ground.look_at_pools(step, want))
            await ground.pause()
            return await ground.write_hold(step, want, sale, seats=seats, pools=pools)

    async def try_confirm(self, paid: Paid) -> None:
        """Lock the booking, look, write, unlock."""
        ground = self.ground
        async with self._locks.all_of([f"booking:{paid.booking_id}"]), ground.transaction() as step:
            await ground.find_key(step, paid.key, paid.request_hash)
            row = await step.fetchrow(ground.sql["look_at_booking"], paid.booking_id)
            await ground.write_confirm(step, row, paid)

    async def close(self) -> None:
        """Let go of connections."""
        await self._locks.close()
        await super().close()


def connect(url: str) -> Any:
    """A client that makes callers wait for a connection rather than open one for each of them."""
    from redis import asyncio as redis

    pool = redis.BlockingConnectionPool.from_url(url, max_connections=CONNECTIONS, timeout=None)
    return redis.Redis.from_pool(pool)


async def _open(place: Place) -> LockThenWrite:
    locks = RedisLocks(connect(place.redis[0]), ttl_seconds=place.lock_ttl_seconds)
    return LockThenWrite(await Ground.open(place), locks)


ABOUT = About(
    name="redis_lock",
    title="a Redis lock per seat, then look and write",
    safe=True,
    why="Right in front of a database that refuses a second sale by itself: then the lock spares it the losers, and a "
    "lock that ran out too early costs a retry. Alone it makes double sales rare, not impossible: run `earmark "
    "race --expire` and see. And for a seat that is free it adds two round trips to all that the database does "
    "anyway.",
    open=_open,
)
