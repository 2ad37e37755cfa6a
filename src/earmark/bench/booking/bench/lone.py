"""One client alone, with one contender and then with another, in turns of less than a tenth of a second.

What is compared is less than a millisecond, and a machine's speed changes from one second to the next by more than they
differ: only what is measured in the same moment can be compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.bench import cells, workloads
from earmark.bench.booking.bench.plan import CONTESTS, LONE, OURS, Cell
from earmark.server import gc_tuning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.bench.booking.bench.cells import Site
    from earmark.bench.booking.bench.figures import Reading
    from earmark.bench.booking.bench.plan import Plan
    from earmark.bench.booking.bench.workloads import Tally
    from earmark.bench.booking.ports import Strategy, Want

TOGETHER = ("cte", OURS)
"""Who takes turns: those that a ratio is made of."""
TURNS = 5


class Seller:
    """One contender in an event of its own, and what its client has heard so far."""

    def __init__(self, cell: Cell, strategy: Strategy, site: Site) -> None:
        self.cell = cell
        self.event_id = cells.fresh_name(cell)
        self._strategy = strategy
        self._site = site
        self._wants: Iterator[Want] = iter(())
        self._tallies: list[Tally] = []
        self._spent = 0.0

    async def prepare(self, plan: Plan) -> None:
        """Seats enough, and a warming up."""
        sizes, house = plan.sizes, self._site.house
        flows = max(int(sizes.lone_flows_per_second_max * plan.seconds * CONTESTS[LONE].share), TURNS)
        warm = f"{self.event_id}-warm"
        await house.open_event(self.event_id, seats=flows * sizes.seats_each)
        await house.open_event(warm, seats=sizes.warm(1) * sizes.seats_each)
        await house.tidy()
        warming = workloads.apart(warm, flows=sizes.warm(1), seats_each=sizes.seats_each)
        await workloads.crowd(self._strategy, warming, clients=1, seconds=None)
        self._wants = workloads.apart(self.event_id, flows=flows, seats_each=sizes.seats_each)

    async def work(self, *, seconds: float) -> None:
        """One turn."""
        before = self._site.meter.read()
        self._tallies.append(await workloads.crowd(self._strategy, self._wants, clients=1, seconds=seconds))
        after = self._site.meter.read()
        self._spent += (after or 0.0) - (before or 0.0)

    async def reading(self) -> Reading:
        """All turns together."""
        tally = cells.merged(self._tallies)
        cells.check(self.cell, tally)
        counted = await self._site.house.count([self.event_id], confirmed=tally.confirmed, held=tally.held)
        spent = None if self._site.meter.read() is None else self._spent
        return cells.reading(LONE, tally, counted, database_seconds=spent)

    async def close(self) -> None:
        """Let go of connections."""
        await self._strategy.close()


async def measure(number: int, plan: Plan, site: Site) -> dict[str, Reading]:
    """One cell of each."""
    sellers: list[Seller] = []
    try:
        for name in TOGETHER:
            cell = Cell(round=number, workload=LONE, contender=name)
            sellers.append(Seller(cell, await site.open(name, workload=LONE), site))
        for seller in sellers:
            await seller.prepare(plan)
        gc_tuning.put_away()
        for turn in range(TURNS):
            for seller in sellers if turn % 2 else reversed(sellers):
                await seller.work(seconds=plan.seconds * CONTESTS[LONE].share / TURNS)
        return {seller.cell.contender: await seller.reading() for seller in sellers}
    finally:
        for seller in sellers:
            await seller.close()
