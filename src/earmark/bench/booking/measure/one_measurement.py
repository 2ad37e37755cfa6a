"""One measurement: a new event, a contender that is warmed up, the clients, and then the count in the database."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from earmark.bench.booking.measure import concurrent_client_workloads as workloads
from earmark.bench.booking.measure.measurement_plan import (
    CONNECTIONS,
    CONNECTIONS_ELSE,
    FLASH,
    HOT,
    LONE,
    OURS,
    OUTAGE,
    SKU,
    UNIFORM,
    WORKLOADS,
)
from earmark.bench.booking.measure.results import MeasurementResult, curve, p50_p99, sample
from earmark.bench.booking.strategies import STRATEGIES
from earmark.bench.booking.strategy_protocol import StrategySettings
from earmark.bench.describe_failed_run import broke_off
from earmark.bench.process_stats import spent
from earmark.errors import SetupError
from earmark.server import gc_tuning

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from earmark.bench.booking.measure.concurrent_client_workloads import ClientTally
    from earmark.bench.booking.measure.measurement_plan import BookingPlan, Measurement
    from earmark.bench.booking.strategy_protocol import Strategy, Want
    from earmark.bench.prepare_and_count_rows import BenchDatabase, CountedRows
    from earmark.bench.process_stats import DatabaseCpu

PRIMER = "bench-primer"
_numbers = itertools.count(1)


class MeasurementSetup:
    """The database and Redis that measurements use."""

    def __init__(self, database: BenchDatabase, *, database_cpu: DatabaseCpu, redis: tuple[str, ...] = ()) -> None:
        self.database = database
        self.database_cpu = database_cpu
        self.redis = redis

    async def open(self, contender: str, *, workload: str) -> Strategy:
        """A contender with its own connections, in the number that suits it for this workload."""
        place = StrategySettings(
            database=self.database.url,
            redis=self.redis,
            connections=CONNECTIONS.get(workload, {}).get(contender, CONNECTIONS_ELSE),
        )
        return await STRATEGIES[contender].open(place)


class ClientLoad:
    """What the clients of a measurement do."""

    def __init__(
        self,
        wants: Iterator[Want],
        *,
        clients: int,
        seconds: float | None,
        confirm: bool = True,
        granted: Callable[[Want], object] = lambda _want: None,
    ) -> None:
        self.wants = wants
        self.clients = clients
        self.seconds = seconds
        self.confirm = confirm
        self.granted = granted

    async def run(self, strategy: Strategy) -> ClientTally:
        """Run the clients, all at once."""
        return await workloads.run_clients(
            strategy,
            self.wants,
            clients=self.clients,
            seconds=self.seconds,
            confirm=self.confirm,
            granted=self.granted,
        )


def fresh_name(measurement: Measurement) -> str:
    """The id of an event that no other measurement uses."""
    return f"bench-{measurement.workload}-{measurement.contender}-{next(_numbers)}"


async def prime(setup: MeasurementSetup, plan: BookingPlan) -> None:
    """Some sales and some holds, as any shop has.

    PostgreSQL plans a statement by the statistics of its tables. For an empty table it chooses a scan instead of the
    key, and a peer would keep that slow plan until its connections are closed.
    """
    sizes = plan.sizes
    await setup.database.open_event(PRIMER, seats=sizes.primer * sizes.seats_each, units=sizes.primer)
    strategy = await setup.open(OURS, workload=UNIFORM)
    try:
        sales = workloads.apart(PRIMER, flows=sizes.primer, seats_each=sizes.seats_each)
        await ClientLoad(sales, clients=plan.clients, seconds=None).run(strategy)
        holds = workloads.units(PRIMER, flows=sizes.primer, first=sizes.primer)
        await ClientLoad(holds, clients=plan.clients, seconds=None, confirm=False).run(strategy)
    finally:
        await strategy.close()
    await setup.database.tidy()


async def measure(
    measurement: Measurement,
    plan: BookingPlan,
    setup: MeasurementSetup,
    *,
    meanwhile: Callable[[], Coroutine[None, None, None]] | None = None,
) -> MeasurementResult:
    """One of the workloads that every strategy can run; `meanwhile` starts together with the clients."""
    event_id, sizes = fresh_name(measurement), plan.sizes
    load = await _prepare(measurement.workload, event_id, plan, setup.database)
    warm, flows = f"{event_id}-warm", sizes.warm(load.clients)
    warming = workloads.apart(warm, flows=flows, seats_each=sizes.seats_each)
    if measurement.workload == SKU:
        warming = workloads.units(warm, flows=flows)
    await setup.database.open_event(warm, seats=flows * sizes.seats_each, units=flows)
    await setup.database.tidy()
    strategy = await setup.open(measurement.contender, workload=measurement.workload)
    try:
        # Connections are open and statements are prepared before the time is taken, for all contenders alike.
        await ClientLoad(warming, clients=load.clients, seconds=None, confirm=load.confirm).run(strategy)
        gc_tuning.freeze_startup_objects()
        before = setup.database_cpu.read()
        async with asyncio.TaskGroup() as beside:
            if meanwhile is not None:
                beside.create_task(meanwhile())
            tally = await load.run(strategy)
        cpu = spent(before, setup.database_cpu.read())
    finally:
        await strategy.close()
    check(measurement, tally)
    counted = await setup.database.count([event_id], confirmed=tally.confirmed, held=tally.held)
    return reading(measurement.workload, tally, counted, database_seconds=cpu)


async def _prepare(workload: str, event_id: str, plan: BookingPlan, database: BenchDatabase) -> ClientLoad:
    sizes, seconds = plan.sizes, plan.seconds * WORKLOADS[workload].share
    flows = max(int(sizes.flows_per_second_max * seconds), plan.clients)
    if workload in {HOT, OUTAGE}:
        await database.open_event(event_id, seats=sizes.hot_block * sizes.hot_blocks)
        blocks = workloads.SeatBlocks(
            event_id,
            block=sizes.hot_block,
            blocks=sizes.hot_blocks,
            share=sizes.hot_share,
            seats_each=sizes.seats_each,
        )
        return ClientLoad(blocks.wants(), clients=plan.clients, seconds=seconds, granted=blocks.granted)
    if workload == FLASH:
        await database.open_event(event_id, seats=sizes.flash_seats)
        wants = workloads.flash(event_id, seats=sizes.flash_seats, per_seat=sizes.flash_per_seat)
        return ClientLoad(wants, clients=plan.clients, seconds=None)
    if workload == SKU:
        await database.open_event(event_id, units=flows * 2)
        wants = workloads.units(event_id, flows=flows * 2)
        return ClientLoad(wants, clients=plan.clients, seconds=seconds, confirm=False)
    clients = plan.clients
    if workload == LONE:
        clients, flows = 1, max(int(sizes.lone_flows_per_second_max * seconds), 1)
    await database.open_event(event_id, seats=flows * sizes.seats_each)
    wants = workloads.apart(event_id, flows=flows, seats_each=sizes.seats_each)
    return ClientLoad(wants, clients=clients, seconds=seconds)


def check(measurement: Measurement, tally: ClientTally) -> None:
    """End the run if most answers were errors: a rate of errors says nothing."""
    if tally.broken:
        assert tally.first_error is not None
        problem = broke_off(measurement.workload, measurement.contender, tally.first_error)
        raise SetupError(problem=problem) from tally.first_error


def reading(
    workload: str, tally: ClientTally, counted: CountedRows, *, database_seconds: float | None
) -> MeasurementResult:
    """What the clients measured, and what the database counted."""
    tried = workload in {HOT, OUTAGE, FLASH}
    done = tally.answered if tried else counted.held if workload == SKU else counted.confirmed
    p50, p99 = p50_p99(tally.waits)
    each = 1e6 / max(done, 1)
    return MeasurementResult(
        seconds=tally.seconds,
        rate=done / tally.seconds,
        sold_per_second=counted.seats / tally.seconds if tried else None,
        p50_ms=p50,
        p99_ms=p99,
        database_us=None if database_seconds is None else database_seconds * each,
        client_us=tally.client_seconds * each,
        answered=tally.answered,
        refused=tally.refused,
        errors=dict(tally.errors),
        counted=counted,
        waits=sample(tally.waits),
        curve=curve(tally.moments) if workload == FLASH else [],
    )


def merged(tallies: Sequence[ClientTally]) -> ClientTally:
    """Several passes, one after the other, as one tally."""
    whole = workloads.ClientTally()
    for tally in tallies:
        whole.seconds += tally.seconds
        whole.client_seconds += tally.client_seconds
        whole.waits += tally.waits
        whole.moments += tally.moments
        whole.held += tally.held
        whole.confirmed += tally.confirmed
        whole.refused += tally.refused
        whole.errors += tally.errors
        whole.first_error = whole.first_error or tally.first_error
    return whole
