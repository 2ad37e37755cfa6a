"""One cell: a fresh house, a contender that is warmed up, the clients, and then the count in the database."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from earmark.bench.booking.bench import workloads
from earmark.bench.booking.bench.figures import Reading, curve, p50_p99, sample
from earmark.bench.booking.bench.plan import (
    CONNECTIONS,
    CONNECTIONS_ELSE,
    CONTESTS,
    FLASH,
    HOT,
    LONE,
    OURS,
    OUTAGE,
    SKU,
    UNIFORM,
)
from earmark.bench.booking.ports import Place
from earmark.bench.booking.strategies import STRATEGIES
from earmark.errors import SetupError
from earmark.server import gc_tuning

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from earmark.bench.booking.bench.house import Counted, House
    from earmark.bench.booking.bench.meter import Meter
    from earmark.bench.booking.bench.plan import Cell, Plan
    from earmark.bench.booking.bench.workloads import Tally
    from earmark.bench.booking.ports import Strategy, Want

PRIMER = "bench-primer"
_numbers = itertools.count(1)


class Site:
    """Where a cell is measured."""

    def __init__(self, house: House, *, meter: Meter, redis: tuple[str, ...] = ()) -> None:
        self.house = house
        self.meter = meter
        self.redis = redis

    async def open(self, contender: str, *, workload: str) -> Strategy:
        """A contender with connections of its own, as many as suit it there."""
        place = Place(
            database=self.house.url,
            redis=self.redis,
            connections=CONNECTIONS.get(workload, {}).get(contender, CONNECTIONS_ELSE),
        )
        return await STRATEGIES[contender].open(place)


class Load:
    """What the clients of a cell do, and in which house."""

    def __init__(
        self,
        wants: Iterator[Want],
        *,
        clients: int,
        seconds: float | None,
        confirm: bool = True,
        heard: Callable[[Want], object] = lambda _want: None,
    ) -> None:
        self.wants = wants
        self.clients = clients
        self.seconds = seconds
        self.confirm = confirm
        self.heard = heard

    async def run(self, strategy: Strategy) -> Tally:
        """The clients, all at once."""
        return await workloads.crowd(
            strategy,
            self.wants,
            clients=self.clients,
            seconds=self.seconds,
            confirm=self.confirm,
            heard=self.heard,
        )


def fresh_name(cell: Cell) -> str:
    """An event that no other cell has."""
    return f"bench-{cell.workload}-{cell.contender}-{next(_numbers)}"


async def prime(site: Site, plan: Plan) -> None:
    """Some sales and some standing holds, as any shop has.

    Statements are planned by what the tables were like when they were last analysed. In an empty shop the planner
    believes that a scan is as good as a key, and a peer would pay for that belief until its connections are closed.
    """
    sizes = plan.sizes
    await site.house.open_event(PRIMER, seats=sizes.primer * sizes.seats_each, units=sizes.primer)
    strategy = await site.open(OURS, workload=UNIFORM)
    try:
        sales = workloads.apart(PRIMER, flows=sizes.primer, seats_each=sizes.seats_each)
        await Load(sales, clients=plan.clients, seconds=None).run(strategy)
        holds = workloads.units(PRIMER, flows=sizes.primer, first=sizes.primer)
        await Load(holds, clients=plan.clients, seconds=None, confirm=False).run(strategy)
    finally:
        await strategy.close()
    await site.house.tidy()


async def measure(
    cell: Cell, plan: Plan, site: Site, *, meanwhile: Callable[[], Coroutine[None, None, None]] | None = None
) -> Reading:
    """One of the workloads that every strategy can do; `meanwhile` begins when the clock does."""
    event_id, sizes = fresh_name(cell), plan.sizes
    load = await _prepare(cell.workload, event_id, plan, site.house)
    warm, flows = f"{event_id}-warm", sizes.warm(load.clients)
    warming = workloads.apart(warm, flows=flows, seats_each=sizes.seats_each)
    if cell.workload == SKU:
        warming = workloads.units(warm, flows=flows)
    await site.house.open_event(warm, seats=flows * sizes.seats_each, units=flows)
    await site.house.tidy()
    strategy = await site.open(cell.contender, workload=cell.workload)
    try:
        # Connections are open and statements are known before the clock starts, for everybody alike.
        await Load(warming, clients=load.clients, seconds=None, confirm=load.confirm).run(strategy)
        gc_tuning.put_away()
        before = site.meter.read()
        async with asyncio.TaskGroup() as beside:
            if meanwhile is not None:
                beside.create_task(meanwhile())
            tally = await load.run(strategy)
        spent = _since(before, site.meter.read())
    finally:
        await strategy.close()
    check(cell, tally)
    counted = await site.house.count([event_id], confirmed=tally.confirmed, held=tally.held)
    return reading(cell.workload, tally, counted, database_seconds=spent)


async def _prepare(workload: str, event_id: str, plan: Plan, house: House) -> Load:
    sizes, seconds = plan.sizes, plan.seconds * CONTESTS[workload].share
    flows = max(int(sizes.flows_per_second_max * seconds), plan.clients)
    if workload in {HOT, OUTAGE}:
        await house.open_event(event_id, seats=sizes.hot_block * sizes.hot_blocks)
        blocks = workloads.Blocks(
            event_id,
            block=sizes.hot_block,
            blocks=sizes.hot_blocks,
            share=sizes.hot_share,
            seats_each=sizes.seats_each,
        )
        return Load(blocks.wants(), clients=plan.clients, seconds=seconds, heard=blocks.heard)
    if workload == FLASH:
        await house.open_event(event_id, seats=sizes.flash_seats)
        wants = workloads.flash(event_id, seats=sizes.flash_seats, per_seat=sizes.flash_per_seat)
        return Load(wants, clients=plan.clients, seconds=None)
    if workload == SKU:
        await house.open_event(event_id, units=flows * 2)
        wants = workloads.units(event_id, flows=flows * 2)
        return Load(wants, clients=plan.clients, seconds=seconds, confirm=False)
    clients = plan.clients
    if workload == LONE:
        clients, flows = 1, max(int(sizes.lone_flows_per_second_max * seconds), 1)
    await house.open_event(event_id, seats=flows * sizes.seats_each)
    wants = workloads.apart(event_id, flows=flows, seats_each=sizes.seats_each)
    return Load(wants, clients=clients, seconds=seconds)


def check(cell: Cell, tally: Tally) -> None:
    """Who mostly fails is not measured: a rate of errors says nothing."""
    if tally.broken:
        error = tally.first_error
        raise SetupError(
            problem=f"The run broke off in {cell.workload}, with {cell.contender}: {type(error).__name__}: {error}"
        ) from error


def reading(workload: str, tally: Tally, counted: Counted, *, database_seconds: float | None) -> Reading:
    """The clients' story and the database's, side by side."""
    tried = workload in {HOT, OUTAGE, FLASH}
    done = tally.answered if tried else counted.held if workload == SKU else counted.confirmed
    p50, p99 = p50_p99(tally.waits)
    each = 1e6 / max(done, 1)
    return Reading(
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


def _since(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def merged(tallies: Sequence[Tally]) -> Tally:
    """Several passes, one after the other, as one."""
    whole = workloads.Tally()
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
