"""The growth cells: the same flows where there is little and where there is much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.lab.booking.bench import cells, growth, workloads
from earmark.lab.booking.bench.house import Counted
from earmark.lab.booking.bench.plan import FEW, OURS
from earmark.lab.booking.ports import Place
from earmark.lab.booking.strategies import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.lab.booking.bench.figures import Reading
    from earmark.lab.booking.bench.ground import Ground
    from earmark.lab.booking.bench.house import House
    from earmark.lab.booking.bench.meter import Meter
    from earmark.lab.booking.bench.plan import Cell, Plan
    from earmark.lab.booking.bench.workloads import Tally
    from earmark.lab.booking.ports import Strategy, Want

FEW_EVENT = "bench-few"
WARMINGS = 2


class Grown:
    """Two databases, one small and one that has grown, and what is still for sale in the latter."""

    def __init__(self, few: House, many: House, *, past: growth.Past, meter: Meter) -> None:
        self._few = few
        self._many = many
        self._meter = meter
        self._events = [f"past-{number}" for number in range(past.events)]
        self._free = past.free()
        self._before: Counted | None = None
        self._turn = 0

    @classmethod
    async def load(cls, ground: Ground, plan: Plan) -> Grown:
        """The past is loaded once, for all rounds."""
        few, many = await ground.database(), await ground.database()
        past = await growth.load(many, plan.sizes)
        grown = cls(few, many, past=past, meter=ground.meter)
        grown._before = await many.count(grown._events)
        ground.rest()
        return grown

    async def measure(self, cell: Cell, plan: Plan) -> Reading:
        """Passes of as many flows as the small house has seats for, until the cell's time is over."""
        house = self._few if cell.contender == FEW else self._many
        passes: list[tuple[Tally, Counted | None, float | None]] = []
        if cell.contender == FEW:
            await self._open_few(plan)
        strategy = await STRATEGIES[OURS].open(Place(database=house.url))
        try:
            await self._warm(strategy, house, plan)
            while not passes or sum(tally.seconds for tally, _, _ in passes) < plan.seconds:
                if passes and cell.contender == FEW:
                    await self._open_few(plan)
                passes.append(await self._pass(cell, plan, strategy, house))
        finally:
            await strategy.close()
        tally = cells.merged([tally for tally, _, _ in passes])
        cells.check(cell, tally)
        counted = _sum([counted for _, counted, _ in passes if counted])
        if cell.contender != FEW:
            counted = await self._count_many(tally)
        spent = [seconds for _, _, seconds in passes if seconds is not None]
        return cells.reading(cell.workload, tally, counted, database_seconds=sum(spent) if spent else None)

    async def _pass(
        self, cell: Cell, plan: Plan, strategy: Strategy, house: House
    ) -> tuple[Tally, Counted | None, float | None]:
        flows = plan.sizes.few_seats // plan.sizes.seats_each
        wants: Iterator[Want] = (
            workloads.apart(FEW_EVENT, flows=flows, seats_each=plan.sizes.seats_each)
            if cell.contender == FEW
            else (want for _, want in zip(range(flows), self._free, strict=False))
        )
        workloads.put_away_rubbish()
        before = self._meter.read()
        tally = await workloads.crowd(strategy, wants, clients=plan.clients, seconds=None)
        after = self._meter.read()
        counted = None
        if cell.contender == FEW:
            # It was empty when it was last looked at: by a plan for that, counting takes as long as selling.
            await house.tidy()
            counted = await house.count([FEW_EVENT], confirmed=tally.confirmed, held=tally.held)
        return tally, counted, None if before is None or after is None else after - before

    async def _open_few(self, plan: Plan) -> None:
        await self._few.empty()
        await self._few.open_event(FEW_EVENT, seats=plan.sizes.few_seats)
        await self._few.tidy()

    async def _warm(self, strategy: Strategy, house: House, plan: Plan) -> None:
        """Twice, with fresh statistics in between: plans made for an empty table would hold the small one back."""
        flows = plan.sizes.warm(plan.clients)
        for _ in range(WARMINGS):
            self._turn += 1
            warm = f"bench-warm-{self._turn}"
            await house.open_event(warm, seats=flows * plan.sizes.seats_each)
            wants = workloads.apart(warm, flows=flows, seats_each=plan.sizes.seats_each)
            await workloads.crowd(strategy, wants, clients=plan.clients, seconds=None)
            await house.tidy()

    async def _count_many(self, tally: Tally) -> Counted:
        """What came in addition to what was there."""
        assert self._before is not None
        now = await self._many.count(self._events, confirmed=tally.confirmed, held=tally.held)
        before, self._before = self._before, now
        return msgspec.structs.replace(now, confirmed=now.confirmed - before.confirmed, seats=now.seats - before.seats)


def _sum(counts: list[Counted]) -> Counted:
    fields = Counted.__struct_fields__
    return Counted(**{field: sum(getattr(counted, field) for counted in counts) for field in fields})
