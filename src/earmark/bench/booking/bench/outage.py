"""The hot seats while Redis breaks down: it is flushed over and over, then killed, then back with nothing in it.

The clock does not stop for it. What matters is counted in the database afterwards, as in every cell: that no seat has
two owners and no booking is lost, whatever Redis has forgotten.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redis import asyncio as redis

from earmark.bench.booking.bench import cells
from earmark.bench.booking.bench.plan import CONTESTS, OUTAGE
from earmark.errors import SetupError

if TYPE_CHECKING:
    from earmark.bench.booking.bench.cells import Site
    from earmark.bench.booking.bench.figures import Reading
    from earmark.bench.booking.bench.plan import Cell, Plan
    from earmark.testservers import Valkey

FLUSHES = 10


class Breaking:
    """What is done to a Redis, and what that cost it."""

    def __init__(self, server: Valkey, *, seconds: float) -> None:
        self._server = server
        self._seconds = seconds
        self.keys_lost = 0

    async def run(self) -> None:
        """A third of the time is quiet, a third has flushes, and then it is gone for half of what is left."""
        await asyncio.sleep(self._seconds / 3)
        async with redis.Redis.from_url(self._server.url) as client:
            for _ in range(FLUSHES):
                self.keys_lost += await client.dbsize()
                await client.flushall()
                await asyncio.sleep(self._seconds / 3 / FLUSHES)
        await asyncio.to_thread(self._server.kill)
        await asyncio.sleep(self._seconds / 6)
        await asyncio.to_thread(self._server.start)


async def measure(cell: Cell, plan: Plan, site: Site, server: Valkey) -> Reading:
    """One cell. A run in which nothing was lost has shown nothing, and says so."""
    breaking = Breaking(server, seconds=plan.seconds * CONTESTS[OUTAGE].share)
    reading = await cells.measure(cell, plan, site, meanwhile=breaking.run)
    if not breaking.keys_lost:
        raise SetupError(problem="Redis had nothing to lose when it was flushed: measure for longer.")
    return reading
