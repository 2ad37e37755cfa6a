"""A run: rounds of every workload on every contender, interleaved on one server, and what they came to."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Protocol

import asyncpg
import msgspec
import redis as redis_py

from earmark.bench import postgres_and_redis_servers
from earmark.bench.booking.measure import (
    alternating_single_client_workload,
    one_measurement,
    redis_outage,
    server_memory_growth,
    sqlite_workload,
    two_engines_one_database,
)
from earmark.bench.booking.measure import redis_maximum_throughput as limits
from earmark.bench.booking.measure.concurrent_client_workloads import DEADLOCK
from earmark.bench.booking.measure.measurement_plan import (
    GROWTH,
    LONE,
    MEMORY,
    NEED_POSTGRES,
    NEED_REDIS,
    OUTAGE,
    PGBENCH,
    REDLOCK,
    REDLOCK_SERVERS,
    SQLITE,
    TWO,
    WITH_REDIS,
    WORKLOADS,
    BookingPlan,
    schedule,
)
from earmark.bench.booking.measure.pgbench import Pgbench
from earmark.bench.booking.measure.ratios_and_required_floors import RATIOS, meets
from earmark.bench.booking.measure.redis_maximum_throughput import RedisLimit
from earmark.bench.booking.measure.results import BookingFigures
from earmark.bench.booking.measure.server_memory_growth import ServerMemory
from earmark.bench.booking.measure.small_and_large_database_workload import GrowthWorkload
from earmark.bench.booking.strategies import STRATEGIES
from earmark.bench.describe_failed_run import broke_off
from earmark.bench.report.machine import installed_versions, usable_cores
from earmark.errors import EarmarkError, SetupError
from earmark.server import gc_tuning

if TYPE_CHECKING:
    from earmark.bench.booking.measure.measurement_plan import Measurement
    from earmark.bench.booking.measure.results import MeasurementResult
    from earmark.bench.postgres_and_redis_servers import BenchServers
    from earmark.bench.prepare_and_count_rows import BenchDatabase

BROKEN = (EarmarkError, OSError, ExceptionGroup, asyncpg.PostgresError, asyncpg.InterfaceError, redis_py.RedisError)
LIMIT_SECONDS = 1.0
MUST_BE_ZERO = ("oversold", "double_charged", "lost")


class BookingWatch(Protocol):
    """Shows the progress of a run."""

    def say(self, text: str) -> None:
        """Print which preparation begins."""
        ...

    def measured(self, figures: BookingFigures, measurement: Measurement, share: float) -> None:
        """A measurement is done; `share` of the run is over."""
        ...


class BookingResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run, and what it was measured with."""

    plan: BookingPlan
    figures: BookingFigures
    versions: dict[str, str]
    cores: int
    absent: dict[str, str]
    """Contenders and workloads that did not take part, and why."""
    settings: dict[str, str] = {}
    """The settings of the database, as it reports them."""
    sweep: dict[int, float] = {}
    """Of pgbench: flows per second by the number of clients."""
    redis_limit: RedisLimit | None = None
    weighed: ServerMemory | None = None

    @property
    def zeros(self) -> dict[str, int]:
        """What must be zero, counted in the database over all measurements of ours."""
        return {count: self.figures.total(count) for count in MUST_BE_ZERO}

    @property
    def flaws(self) -> list[str]:
        """What must never happen: a contender that does it has no speed worth reporting."""
        texts = {
            "oversold": "seats or units were sold more than once",
            "double_charged": "bookings were paid twice, or payments used twice",
            "lost": "bookings that a client was told it has are not there",
        }
        found = [f"{number} {texts[count]}" for count, number in self.zeros.items() if number]
        if seen := self.figures.errors_seen:
            kinds = ", ".join(f"{count} of {name}" for name, count in sorted(seen.items()))
            found.append(f"clients of ours got errors instead of answers: {kinds}")
        if self.weighed and self.weighed.growth > server_memory_growth.GROWTH_MAX:
            found.append(f"the process grew {self.weighed.growth:.2f} times between its first holds and its last")
        return found

    @property
    def durable(self) -> bool:
        """Whether what was acknowledged was on the disk. SQLite is always set up so."""
        return all(self.settings.get(name, "on") != "off" for name in ("fsync", "synchronous_commit"))

    @property
    def short(self) -> list[str]:
        """The ratios that are not what they must at least be."""
        found = ((ratio, self.figures.ratio(ratio)) for ratio in RATIOS)
        return [ratio.name for ratio, value in found if value is not None and not meets(ratio, value)]

    def plain(self) -> dict[str, Any]:
        """The whole, ready for JSON."""
        return {
            "ratios": self.figures.ratios(),
            "beside": self.figures.beside(),
            **self.zeros,
            "short": self.short,
            "durable": self.durable if self.figures.readings else None,
            "deadlocks_seen": self.figures.errors_seen.get(DEADLOCK, 0),
            "errors_seen": self.figures.errors_seen,
            "figures": self.figures.plain(),
            "limits": {
                "pgbench_flows_per_second": self.figures.medians("uniform").get(PGBENCH),
                "pgbench_by_clients": self.sweep,
                "redis": self.redis_limit,
            },
            "memory": self.weighed and {**msgspec.to_builtins(self.weighed), "growth": self.weighed.growth},
            "versions": self.versions,
            "machine": {"cores": self.cores},
            "settings": self.settings,
            "plan": self.plan,
            "rounds": self.plan.rounds,
            "seconds": self.plan.seconds,
            "clients": self.plan.clients,
            "absent": self.absent,
        }


async def run(plan: BookingPlan, *, database: str | None, redis: str | None, watch: BookingWatch) -> BookingResult:
    """Measure all workloads of the plan."""
    figures, booking_run = BookingFigures(), BookingRun(plan, watch)
    try:
        if plan.specs and set(plan.workloads) & NEED_POSTGRES:
            needed = {name for spec in plan.specs for name in spec.contenders}
            servers = REDLOCK_SERVERS if REDLOCK in needed else 1 if needed & NEED_REDIS else 0
            async with postgres_and_redis_servers.prepared(database, redis, redis_servers=servers) as place:
                await booking_run.prepare(place)
                await _rounds(booking_run, figures)
        else:
            await _rounds(booking_run, figures)
        weighed = await _measure_memory(plan, database, redis, watch) if MEMORY in plan.workloads else None
    finally:
        gc_tuning.restore_defaults()
    return BookingResult(
        plan=plan,
        figures=figures,
        versions=installed_versions("asyncpg", "redis") | {"sqlite": sqlite3.sqlite_version} | booking_run.versions,
        cores=usable_cores(),
        absent=booking_run.absent,
        settings=booking_run.settings,
        sweep=booking_run.pgbench.sweep if booking_run.pgbench else {},
        redis_limit=booking_run.redis_limit,
        weighed=weighed,
    )


async def _rounds(booking_run: BookingRun, figures: BookingFigures) -> None:
    all_measurements = list(schedule(booking_run.plan, absent=booking_run.absent))
    for number, measurement in enumerate(all_measurements):
        figures.add(measurement, await booking_run.measure(measurement))
        booking_run.watch.measured(figures, measurement, (number + 1) / len(all_measurements))


class BookingRun:
    """What the measurements of one run share."""

    def __init__(self, plan: BookingPlan, watch: BookingWatch) -> None:
        self.plan = plan
        self.watch = watch
        self.absent: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self.redis_limit: RedisLimit | None = None
        self.pgbench: Pgbench | None = None
        self._setup: one_measurement.MeasurementSetup | None = None
        self._number = 0
        self._servers: BenchServers | None = None
        self._growth: GrowthWorkload | None = None
        self._both: dict[str, MeasurementResult] = {}

    async def prepare(self, place: BenchServers) -> None:
        """Use these servers, and find the contenders that cannot take part."""
        self._servers = place
        chosen = {name for spec in self.plan.specs for name in spec.contenders}
        bench_database = await place.database()
        self.versions["database"] = bench_database.version
        self.settings = await bench_database.settings(list(postgres_and_redis_servers.SETTINGS))
        if WITH_REDIS in chosen and WITH_REDIS not in STRATEGIES:
            self.absent[WITH_REDIS] = "this engine cannot be opened with Redis in front"
        if not place.redis:
            self.absent |= dict.fromkeys(chosen & NEED_REDIS, place.no_redis)
        else:
            self.redis_limit = await limits.measure_redis(place.redis[0], seconds=LIMIT_SECONDS)
        if place.valkey is None:
            self.absent[OUTAGE] = "a Redis that was named is not broken on purpose"
        if PGBENCH in chosen:
            if place.pgbench is None:
                self.absent[PGBENCH] = "the program is not installed"
            else:
                sizes = self.plan.sizes
                self.pgbench = Pgbench(
                    place.pgbench, bench_database, database_cpu=place.database_cpu, seats_each=sizes.seats_each
                )
        await self._use_database(bench_database, number=0)

    async def _use_database(self, bench_database: BenchDatabase, *, number: int) -> None:
        """Every round has a database of its own: in a shared one, each vacuum would take longer than the one before."""
        assert self._servers is not None
        self.watch.say(f"preparing log files, sales and holds for round {number + 1}")
        # The first round creates all log files; later rounds use them again.
        await self._servers.prepare_log(bench_database, log_files=0 if number else self.plan.sizes.log_files)
        self._setup = one_measurement.MeasurementSetup(
            bench_database, database_cpu=self._servers.database_cpu, redis=self._servers.redis
        )
        self._number = number
        if self.pgbench:
            self.pgbench.use_database(bench_database)
        await one_measurement.prime(self._setup, self.plan)

    async def _growth_workload(self) -> GrowthWorkload:
        """Loaded once, when it is first needed."""
        if self._growth is None:
            assert self._servers is not None
            sizes = self.plan.sizes
            seats = sizes.many_events * sizes.many_seats_each
            self.watch.say(f"loading {seats:,} seats and {sizes.many_bookings:,} bookings of the past")
            self._growth = await GrowthWorkload.load(self._servers, self.plan)
        return self._growth

    async def measure(self, measurement: Measurement) -> MeasurementResult:
        """One measurement; an error names its workload and contender."""
        try:
            return await self._measure(measurement)
        except SetupError:
            raise
        except (TimeoutError, EarmarkError, OSError, ExceptionGroup) as error:
            raise SetupError(problem=broke_off(measurement.workload, measurement.contender, error)) from error

    async def _measure(self, measurement: Measurement) -> MeasurementResult:
        if measurement.workload == SQLITE:
            return await sqlite_workload.measure(measurement, self.plan)
        assert self._servers is not None
        if measurement.workload != GROWTH and measurement.round != self._number:
            await self._use_database(await self._servers.database(), number=measurement.round)
        if measurement.workload in {GROWTH, TWO} or (
            measurement.workload == LONE and measurement.contender in alternating_single_client_workload.TOGETHER
        ):
            # They take turns, so that both are measured when the first of them is due.
            self._both = self._both or await self._alternating(measurement)
            return self._both.pop(measurement.contender)
        return await self._separate(measurement)

    async def _alternating(self, measurement: Measurement) -> dict[str, MeasurementResult]:
        assert self._setup is not None
        if measurement.workload == GROWTH:
            return await (await self._growth_workload()).measure(self.plan)
        if measurement.workload == TWO:
            return await two_engines_one_database.measure(self.plan, self._setup)
        return await alternating_single_client_workload.measure(measurement.round, self.plan, self._setup)

    async def _separate(self, measurement: Measurement) -> MeasurementResult:
        plan = self.plan
        assert self._setup is not None
        if measurement.contender == PGBENCH:
            assert self.pgbench is not None
            seconds = plan.seconds * WORKLOADS[measurement.workload].share
            flows = max(int(plan.sizes.flows_per_second_max * (seconds + 1)), plan.clients)
            return await self.pgbench.measure(one_measurement.fresh_name(measurement), seconds=seconds, flows=flows)
        if measurement.workload == OUTAGE:
            assert self._servers is not None
            assert self._servers.valkey is not None
            return await redis_outage.measure(measurement, plan, self._setup, self._servers.valkey)
        return await one_measurement.measure(measurement, plan, self._setup)


async def _measure_memory(
    plan: BookingPlan, database: str | None, redis: str | None, watch: BookingWatch
) -> ServerMemory:
    """With a database that does not wait for its disk: only the memory of the server is measured."""
    sizes = plan.sizes
    settings = {**postgres_and_redis_servers.SETTINGS, "fsync": "off", "synchronous_commit": "off"}
    async with postgres_and_redis_servers.prepared(database, redis, redis_servers=1, settings=settings) as place:
        if not place.redis:
            raise SetupError(problem=f"Memory is measured with Redis in front: {place.no_redis}")
        watch.say(f"{sizes.memory_holds:,} holds over HTTP, to measure the memory of a server")
        return await server_memory_growth.measure(
            await place.database(),
            redis=place.redis[0],
            first=sizes.memory_first,
            holds=sizes.memory_holds,
            clients=plan.clients,
            progress=lambda done, size: watch.say(f"{done:,} of {sizes.memory_holds:,} holds: {size:.0f} MB"),
        )
