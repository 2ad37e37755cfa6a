"""The growth cells: the same flows where there is little and where there is much."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from earmark.bench.booking.bench import cells, growth, workloads
from earmark.bench.booking.bench.house import Counted
from earmark.bench.booking.bench.plan import FEW, GROWTH, MANY, OURS, Cell
from earmark.bench.booking.ports import Place
from earmark.bench.booking.strategies import STRATEGIES
from earmark.errors import SetupError
from earmark.server import gc_tuning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.bench.booking.bench.figures import Reading
    from earmark.bench.booking.bench.ground import Ground
    from earmark.bench.booking.bench.house import House
    from earmark.bench.booking.bench.meter import Meter
    from earmark.bench.booking.bench.plan import Plan
    from earmark.bench.booking.bench.workloads import Tally
    from earmark.bench.booking.ports import Strategy, Want


class Pass(NamedTuple):
    """What one crowd did, and what is in the tables of it, if these are about to be emptied."""

    tally: Tally
    counted: Counted | None
    database_seconds: float | None


WARM_PASSES = 4
"""As many as it takes until a process has heard of every event so often that it remembers their seats."""


class Grown:
    """Two databases, one small and one that has grown, what is still for sale in the latter, and who sells in both.

    The sellers stay, as a server does that has run for a while.
    """

    def __init__(self, few: House, many: House, *, past: growth.Past, meter: Meter) -> None:
        self._few = few
        self._many = many
        self._sellers: dict[str, Strategy] = {}
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
        for name, house in ((FEW, few), (MANY, many)):
            seller = grown._sellers[name] = await STRATEGIES[OURS].open(Place(database=house.url))
            ground.close_at_end(seller.close)
        await grown._warm(grown._sellers[MANY], many, plan)
        for _ in range(WARM_PASSES):
            await grown._pass(MANY, plan)
        grown._before = await many.count(grown._events)
        ground.rest()
        return grown

    async def measure(self, plan: Plan) -> dict[str, Reading]:
        """Passes of as many flows as the small house has seats for, one here and one there, until both had their time.

        They take turns because a machine's speed changes from one second to the next by more than they differ.
        """
        passes: dict[str, list[Pass]] = {FEW: [], MANY: []}
        while any(sum(done.tally.seconds for done in those) < plan.seconds for those in passes.values()):
            for name in sorted(passes, reverse=len(passes[FEW]) % 2 == 1):
                passes[name].append(await self._pass(name, plan))
            if not passes[MANY][-1].tally.answered:
                raise SetupError(problem="The grown database is sold out: measure growth for a shorter time.")
        return {name: await self._reading(name, those) for name, those in passes.items()}

    async def _reading(self, name: str, passes: list[Pass]) -> Reading:
        tally = cells.merged([done.tally for done in passes])
        cells.check(Cell(workload=GROWTH, contender=name, round=0), tally)
        counted = _sum([done.counted for done in passes if done.counted])
        if name == MANY:
            counted = await self._count_many(tally)
        spent = [done.database_seconds for done in passes if done.database_seconds is not None]
        return cells.reading(GROWTH, tally, counted, database_seconds=sum(spent) if spent else None)

    async def _pass(self, name: str, plan: Plan) -> Pass:
        flows = plan.sizes.few_seats // plan.sizes.seats_each
        wants: Iterator[Want] = islice(self._free, flows)
        event_id = ""
        if name == FEW:
            event_id = await self._open_few(plan)
            wants = workloads.apart(event_id, flows=flows, seats_each=plan.sizes.seats_each)
        gc_tuning.put_away()
        before = self._meter.read()
        tally = await workloads.crowd(self._sellers[name], wants, clients=plan.clients, seconds=None)
        after = self._meter.read()
        counted = None
        if name == FEW:
            # It was empty when it was last looked at: by a plan for that, counting takes as long as selling.
            await self._few.tidy()
            counted = await self._few.count([event_id], confirmed=tally.confirmed, held=tally.held)
        spent = None if before is None or after is None else after - before
        return Pass(tally=tally, counted=counted, database_seconds=spent)

    async def _open_few(self, plan: Plan) -> str:
        """The small database as it was, with an event that nobody has heard of; and its plans made before the clock.

        To empty and to analyse a table undoes the plans that are made for it, and an event of an old name would be
        remembered with its seats given away: the small one would pay for both, and the grown one look the better.
        """
        await self._few.empty()
        self._turn += 1
        event_id = f"bench-few-{self._turn}"
        await self._few.open_event(event_id, seats=plan.sizes.few_seats)
        await self._warm(self._sellers[FEW], self._few, plan)
        return event_id

    async def _warm(self, strategy: Strategy, house: House, plan: Plan) -> None:
        """Before fresh statistics and after them: plans made for an empty table would hold the small one back."""
        flows = plan.sizes.warm(plan.clients)
        for last in (False, True):
            self._turn += 1
            warm = f"bench-warm-{self._turn}"
            await house.open_event(warm, seats=flows * plan.sizes.seats_each)
            wants = workloads.apart(warm, flows=flows, seats_each=plan.sizes.seats_each)
            await workloads.crowd(strategy, wants, clients=plan.clients, seconds=None)
            if not last:
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
