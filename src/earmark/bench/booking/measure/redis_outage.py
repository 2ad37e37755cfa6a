"""The hot seats while Redis fails: it is flushed again and again, then killed, then started without data.

The measurement goes on meanwhile. As in every measurement, the database is counted afterwards: no seat has two owners
and no booking is lost, whatever data Redis has lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redis import asyncio as redis

from earmark.bench.booking.measure import one_measurement
from earmark.bench.booking.measure.measurement_plan import OUTAGE, WORKLOADS
from earmark.errors import SetupError

if TYPE_CHECKING:
    from earmark.bench.booking.measure.measurement_plan import BookingPlan, Measurement
    from earmark.bench.booking.measure.one_measurement import MeasurementSetup
    from earmark.bench.booking.measure.results import MeasurementResult
    from earmark.testservers import Valkey

FLUSHES = 10


class RedisOutage:
    """The failures of a Redis, and how many keys they have removed."""

    def __init__(self, server: Valkey, *, seconds: float) -> None:
        self._server = server
        self._seconds = seconds
        self.keys_lost = 0

    async def run(self) -> None:
        """A third of the time without failures, a third with flushes, and half of the rest without Redis."""
        await asyncio.sleep(self._seconds / 3)
        async with redis.Redis.from_url(self._server.url) as client:
            for _ in range(FLUSHES):
                self.keys_lost += await client.dbsize()
                await client.flushall()
                await asyncio.sleep(self._seconds / 3 / FLUSHES)
        await asyncio.to_thread(self._server.kill)
        await asyncio.sleep(self._seconds / 6)
        await asyncio.to_thread(self._server.start)


async def measure(
    measurement: Measurement, plan: BookingPlan, setup: MeasurementSetup, server: Valkey
) -> MeasurementResult:
    """One measurement. It fails if Redis had no keys to lose, because then it has shown nothing."""
    failures = RedisOutage(server, seconds=plan.seconds * WORKLOADS[OUTAGE].share)
    reading = await one_measurement.measure(measurement, plan, setup, meanwhile=failures.run)
    if not failures.keys_lost:
        raise SetupError(problem="Redis had nothing to lose when it was flushed: measure for longer.")
    return reading
