"""redlock: as `redis_lock`, but a lock counts only when most of several independent Redis servers have granted it.

    A1 on server 1 ✓   server 2 ✓   server 3 ✗   → 2 of 3: locked, for what is left of its time

The idea: one Redis is one thing that can fail. With three or five, a lock can be had while some are down, and no
failover can lose it.
The flaw: it makes locking available, not writing safe. The lock still ends by the clock while its holder is paused,
and the holder does not know it. A server that restarts empty can vote twice. And every seat takes a request to every
server.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from contextlib import asynccontextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any

from earmark.bench.booking.strategies.redis_lock import LocksPerSeat, LockThenWrite, connect
from earmark.bench.booking.strategies.shared_hold_and_confirm import HoldRefused, StrategyDatabase
from earmark.bench.booking.strategy_protocol import StrategyInfo, StrategySettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

DRIFT_SHARE = 0.01
DRIFT_SECONDS = 0.002
ATTEMPTS_MAX = 3
RETRY_SECONDS_MAX = 0.05


class RedlockPerSeat(LocksPerSeat):
    """The algorithm as published: majority, elapsed time and drift, and another try after a split vote."""

    def __init__(self, clients: Sequence[Any], *, ttl_seconds: float) -> None:
        super().__init__(clients, ttl_seconds=ttl_seconds)
        release = (resources.files(__package__) / "lua" / "redlock_unlock.lua").read_text(encoding="utf-8")
        self._releases = [client.register_script(release) for client in clients]

    @asynccontextmanager
    async def _one(self, name: str) -> AsyncIterator[None]:
        token = secrets.token_hex(16)
        try:
            for _ in range(ATTEMPTS_MAX):
                votes, left = await self._ask(name, token)
                if votes > len(self._clients) // 2 and left > 0:
                    yield
                    return
                if not votes:
                    break
                # The votes are split and no client has most: each gives back, and tries again after a random time.
                await self._give_back(name, token)
                await asyncio.sleep(random.uniform(0, RETRY_SECONDS_MAX))  # noqa: S311 (not a secret)
            raise HoldRefused
        finally:
            # Also where it was refused: a minority may have granted it.
            await self._give_back(name, token)

    async def _ask(self, name: str, token: str) -> tuple[int, float]:
        """How many servers granted it, and for how long it can be relied on."""
        began = time.monotonic()
        asked = (client.set(name, token, nx=True, px=int(self._ttl_seconds * 1000)) for client in self._clients)
        votes = await asyncio.gather(*asked, return_exceptions=True)
        elapsed = time.monotonic() - began
        return sum(vote is True for vote in votes), self._ttl_seconds * (1 - DRIFT_SHARE) - DRIFT_SECONDS - elapsed

    async def _give_back(self, name: str, token: str) -> None:
        given_back = (release(keys=[name], args=[token]) for release in self._releases)
        await asyncio.gather(*given_back, return_exceptions=True)


async def _open(settings: StrategySettings) -> LockThenWrite:
    locks = RedlockPerSeat([connect(url) for url in settings.redis], ttl_seconds=settings.lock_ttl_seconds)
    return LockThenWrite(await StrategyDatabase.open(settings), locks)


ABOUT = StrategyInfo(
    name="redlock",
    title="a Redlock per seat over several Redis, then look and write",
    safe=True,
    why="Right where a lock must be had though a Redis is down, and where holding it twice costs work and not money. "
    "It does not make a sale safe, for the same pause breaks it as breaks one Redis: run `earmark race --expire`. "
    "If the database guards the write, one Redis is as safe and simpler; if it does not, five are not enough.",
    open=_open,
)
