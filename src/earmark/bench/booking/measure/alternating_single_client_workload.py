"""The workload of a single client: two contenders alternate in turns of less than a tenth of a second.

The latencies are below a millisecond, and the speed of a machine changes from one second to the next by more than they
differ: only what is measured at the same time can be compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.measure import concurrent_client_workloads, one_measurement
from earmark.bench.booking.measure.measurement_plan import LONE, OURS, WORKLOADS, Measurement
from earmark.server import gc_tuning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.bench.booking.measure.concurrent_client_workloads import ClientTally
    from earmark.bench.booking.measure.measurement_plan import BookingPlan
    from earmark.bench.booking.measure.one_measurement import MeasurementSetup
    from earmark.bench.booking.measure.results import MeasurementResult
    from earmark.bench.booking.strategy_protocol import Strategy, Want

TOGETHER = ("cte", OURS)
"""The contenders that a ratio compares: they alternate."""
TURNS = 5


class AlternatingContender:
    """One contender with an event of its own, and the answers to its client so far."""

    def __init__(self, measurement: Measurement, strategy: Strategy, setup: MeasurementSetup) -> None:
        self.measurement = measurement
        self.event_id = one_measurement.fresh_name(measurement)
        self._strategy = strategy
        self._setup = setup
        self._wants: Iterator[Want] = iter(())
        self._tallies: list[ClientTally] = []
        self._spent = 0.0

    async def prepare(self, plan: BookingPlan) -> None:
        """Create the events, and warm up."""
        sizes, database = plan.sizes, self._setup.database
        flows = max(int(sizes.lone_flows_per_second_max * plan.seconds * WORKLOADS[LONE].share), TURNS)
        warm = f"{self.event_id}-warm"
        await database.open_event(self.event_id, seats=flows * sizes.seats_each)
        await database.open_event(warm, seats=sizes.warm(1) * sizes.seats_each)
        await database.tidy()
        warming = concurrent_client_workloads.apart(warm, flows=sizes.warm(1), seats_each=sizes.seats_each)
        await concurrent_client_workloads.run_clients(self._strategy, warming, clients=1, seconds=None)
        self._wants = concurrent_client_workloads.apart(self.event_id, flows=flows, seats_each=sizes.seats_each)

    async def work(self, *, seconds: float) -> None:
        """Run the client for one turn."""
        before = self._setup.database_cpu.read()
        self._tallies.append(
            await concurrent_client_workloads.run_clients(self._strategy, self._wants, clients=1, seconds=seconds)
        )
        after = self._setup.database_cpu.read()
        self._spent += (after or 0.0) - (before or 0.0)

    async def reading(self) -> MeasurementResult:
        """The result of all turns together."""
        tally = one_measurement.merged(self._tallies)
        one_measurement.check(self.measurement, tally)
        counted = await self._setup.database.count([self.event_id], confirmed=tally.confirmed, held=tally.held)
        spent = None if self._setup.database_cpu.read() is None else self._spent
        return one_measurement.reading(LONE, tally, counted, database_seconds=spent)

    async def close(self) -> None:
        """Close the connections to the servers under test."""
        await self._strategy.close()


async def measure(number: int, plan: BookingPlan, setup: MeasurementSetup) -> dict[str, MeasurementResult]:
    """One measurement of each contender."""
    contenders: list[AlternatingContender] = []
    try:
        for name in TOGETHER:
            measurement = Measurement(round=number, workload=LONE, contender=name)
            contenders.append(AlternatingContender(measurement, await setup.open(name, workload=LONE), setup))
        for alternating in contenders:
            await alternating.prepare(plan)
        gc_tuning.freeze_startup_objects()
        for turn in range(TURNS):
            for alternating in contenders if turn % 2 else reversed(contenders):
                await alternating.work(seconds=plan.seconds * WORKLOADS[LONE].share / TURNS)
        return {alternating.measurement.contender: await alternating.reading() for alternating in contenders}
    finally:
        for alternating in contenders:
            await alternating.close()
