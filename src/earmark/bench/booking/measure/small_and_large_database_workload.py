"""The growth workload: the same flows on a small database and on one with a million bookings."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from earmark.bench.booking.measure import concurrent_client_workloads, fill_large_database, one_measurement
from earmark.bench.booking.measure.measurement_plan import FEW, GROWTH, MANY, OURS, Measurement
from earmark.bench.booking.strategies import STRATEGIES
from earmark.bench.booking.strategy_protocol import StrategySettings
from earmark.bench.prepare_and_count_rows import CountedRows
from earmark.bench.process_stats import spent
from earmark.errors import SetupError
from earmark.server import gc_tuning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.bench.booking.measure.concurrent_client_workloads import ClientTally
    from earmark.bench.booking.measure.measurement_plan import BookingPlan
    from earmark.bench.booking.measure.results import MeasurementResult
    from earmark.bench.booking.strategy_protocol import Strategy, Want
    from earmark.bench.postgres_and_redis_servers import BenchServers
    from earmark.bench.prepare_and_count_rows import BenchDatabase
    from earmark.bench.process_stats import DatabaseCpu


class GrowthPass(NamedTuple):
    """What the clients of one pass did; and the counted rows, if the tables are emptied afterwards."""

    tally: ClientTally
    counted: CountedRows | None
    database_seconds: float | None


WARM_PASSES = 4
"""Enough for a process to cache the seats of every event."""


class GrowthWorkload:
    """Two databases, one small and one large, the seats that are still free in the large one, and a strategy on each.

    The strategies stay open for all rounds, as in a server that has run for a while.
    """

    def __init__(
        self,
        few: BenchDatabase,
        many: BenchDatabase,
        *,
        past: fill_large_database.PastBookings,
        database_cpu: DatabaseCpu,
    ) -> None:
        self._few = few
        self._many = many
        self._strategies: dict[str, Strategy] = {}
        self._database_cpu = database_cpu
        self._events = [f"past-{number}" for number in range(past.events)]
        self._free = past.free()
        self._before: CountedRows | None = None
        self._turn = 0

    @classmethod
    async def load(cls, servers: BenchServers, plan: BookingPlan) -> GrowthWorkload:
        """Load the bookings of the past once, for all rounds."""
        few, many = await servers.database(), await servers.database()
        past = await fill_large_database.load(many, plan.sizes)
        growth = cls(few, many, past=past, database_cpu=servers.database_cpu)
        for name, database in ((FEW, few), (MANY, many)):
            strategy = growth._strategies[name] = await STRATEGIES[OURS].open(StrategySettings(database=database.url))
            servers.close_at_end(strategy.close)
        await growth._warm(growth._strategies[MANY], many, plan)
        for _ in range(WARM_PASSES):
            await growth._pass(MANY, plan)
        growth._before = await many.count(growth._events)
        servers.flush_disk()
        return growth

    async def measure(self, plan: BookingPlan) -> dict[str, MeasurementResult]:
        """Run passes on both databases in turn, until each had its time. A pass sells all seats of the small database.

        They take turns because the speed of a machine changes from one second to the next by more than they differ.
        """
        passes: dict[str, list[GrowthPass]] = {FEW: [], MANY: []}
        while any(sum(done.tally.seconds for done in those) < plan.seconds for those in passes.values()):
            for name in sorted(passes, reverse=len(passes[FEW]) % 2 == 1):
                passes[name].append(await self._pass(name, plan))
            if not passes[MANY][-1].tally.answered:
                raise SetupError(problem="The large database is sold out: measure growth for a shorter time.")
        return {name: await self._reading(name, those) for name, those in passes.items()}

    async def _reading(self, name: str, passes: list[GrowthPass]) -> MeasurementResult:
        tally = one_measurement.merged([done.tally for done in passes])
        one_measurement.check(Measurement(workload=GROWTH, contender=name, round=0), tally)
        counted = _sum([done.counted for done in passes if done.counted])
        if name == MANY:
            counted = await self._count_many(tally)
        known = [done.database_seconds for done in passes if done.database_seconds is not None]
        return one_measurement.reading(GROWTH, tally, counted, database_seconds=sum(known) if known else None)

    async def _pass(self, name: str, plan: BookingPlan) -> GrowthPass:
        flows = plan.sizes.few_seats // plan.sizes.seats_each
        wants: Iterator[Want] = islice(self._free, flows)
        event_id = ""
        if name == FEW:
            event_id = await self._open_few(plan)
            wants = concurrent_client_workloads.apart(event_id, flows=flows, seats_each=plan.sizes.seats_each)
        gc_tuning.freeze_startup_objects()
        before = self._database_cpu.read()
        tally = await concurrent_client_workloads.run_clients(
            self._strategies[name], wants, clients=plan.clients, seconds=None
        )
        cpu = spent(before, self._database_cpu.read())
        counted = None
        if name == FEW:
            # Its statistics are of an empty table: with plans for that, counting takes as long as selling.
            await self._few.tidy()
            counted = await self._few.count([event_id], confirmed=tally.confirmed, held=tally.held)
        return GrowthPass(tally=tally, counted=counted, database_seconds=cpu)

    async def _open_few(self, plan: BookingPlan) -> str:
        """The small database as it was, with a new event; its plans are made before the time is taken.

        TRUNCATE and ANALYZE discard the plans of a table, and the engine would remember the seats of an old event as
        taken: both would slow the small database only.
        """
        await self._few.empty()
        self._turn += 1
        event_id = f"bench-few-{self._turn}"
        await self._few.open_event(event_id, seats=plan.sizes.few_seats)
        await self._warm(self._strategies[FEW], self._few, plan)
        return event_id

    async def _warm(self, strategy: Strategy, database: BenchDatabase, plan: BookingPlan) -> None:
        """Warm up before new statistics and after them: plans for an empty table would slow the small database."""
        flows = plan.sizes.warm(plan.clients)
        for last in (False, True):
            self._turn += 1
            warm = f"bench-warm-{self._turn}"
            await database.open_event(warm, seats=flows * plan.sizes.seats_each)
            wants = concurrent_client_workloads.apart(warm, flows=flows, seats_each=plan.sizes.seats_each)
            await concurrent_client_workloads.run_clients(strategy, wants, clients=plan.clients, seconds=None)
            if not last:
                await database.tidy()

    async def _count_many(self, tally: ClientTally) -> CountedRows:
        """The rows that were added since the last count."""
        assert self._before is not None
        now = await self._many.count(self._events, confirmed=tally.confirmed, held=tally.held)
        before, self._before = self._before, now
        return msgspec.structs.replace(now, confirmed=now.confirmed - before.confirmed, seats=now.seats - before.seats)


def _sum(counts: list[CountedRows]) -> CountedRows:
    fields = CountedRows.__struct_fields__
    return CountedRows(**{field: sum(getattr(counted, field) for counted in counts) for field in fields})
