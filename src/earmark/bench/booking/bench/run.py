"""A run: rounds of every workload on every contender, interleaved on one server, and what they came to."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
from typing import TYPE_CHECKING, Any, Protocol

import asyncpg
import msgspec
import redis as redis_py

from earmark.bench.booking.bench import cells, ground, limits, lone, memory, outage, sqlite, two
from earmark.bench.booking.bench.figures import RATIOS, Figures, meets
from earmark.bench.booking.bench.grown import Grown
from earmark.bench.booking.bench.limits import RedisLimit
from earmark.bench.booking.bench.memory import Weighed
from earmark.bench.booking.bench.pgbench import Pgbench
from earmark.bench.booking.bench.plan import (
    CONTESTS,
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
    Plan,
    schedule,
)
from earmark.bench.booking.bench.workloads import DEADLOCK
from earmark.bench.booking.strategies import STRATEGIES
from earmark.errors import EarmarkError, SetupError
from earmark.server import gc_tuning
from earmark.version import __version__

if TYPE_CHECKING:
    from earmark.bench.booking.bench.figures import Reading
    from earmark.bench.booking.bench.ground import Ground
    from earmark.bench.booking.bench.house import House
    from earmark.bench.booking.bench.plan import Cell

BROKEN = (EarmarkError, OSError, ExceptionGroup, asyncpg.PostgresError, asyncpg.InterfaceError, redis_py.RedisError)
LIMIT_SECONDS = 1.0
MUST_BE_ZERO = ("oversold", "double_charged", "lost")


class Watch(Protocol):
    """Somebody who is told how a run goes on."""

    def say(self, said: str) -> None:
        """Something is being prepared."""
        ...

    def measured(self, figures: Figures, cell: Cell, share: float) -> None:
        """A cell is done, and which share of the run is over."""
        ...


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run showed, and where."""

    plan: Plan
    figures: Figures
    versions: dict[str, str]
    cores: int
    absent: dict[str, str]
    """Contenders and workloads that did not take part, and why."""
    settings: dict[str, str] = {}
    """Of the database, as it says itself."""
    sweep: dict[int, float] = {}
    """Of pgbench: flows per second by the number of clients."""
    redis_limit: RedisLimit | None = None
    weighed: Weighed | None = None

    @property
    def zeros(self) -> dict[str, int]:
        """What must be zero, counted in the database over all cells of ours."""
        return {count: self.figures.total(count) for count in MUST_BE_ZERO}

    @property
    def flaws(self) -> list[str]:
        """What must never be. Whoever does it has no speed worth telling."""
        said = {
            "oversold": "seats or units were sold more than once",
            "double_charged": "bookings were paid twice, or payments used twice",
            "lost": "bookings that a client was told it has are not there",
        }
        found = [f"{number} {said[count]}" for count, number in self.zeros.items() if number]
        if seen := self.figures.errors_seen:
            kinds = ", ".join(f"{count} of {name}" for name, count in sorted(seen.items()))
            found.append(f"clients of ours got errors instead of answers: {kinds}")
        if self.weighed and self.weighed.growth > memory.GROWTH_MAX:
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


async def run(plan: Plan, *, database: str | None, redis: str | None, watch: Watch) -> Result:
    """Measure."""
    figures, session = Figures(), Session(plan, watch)
    try:
        if plan.contests and set(plan.workloads) & NEED_POSTGRES:
            needed = {name for contest in plan.contests for name in contest.contenders}
            servers = REDLOCK_SERVERS if REDLOCK in needed else 1 if needed & NEED_REDIS else 0
            async with ground.prepared(database, redis, redis_servers=servers) as place:
                await session.prepare(place)
                await _rounds(session, figures)
        else:
            await _rounds(session, figures)
        weighed = await _weigh(plan, database, redis, watch) if MEMORY in plan.workloads else None
    finally:
        gc_tuning.as_found()
    return Result(
        plan=plan,
        figures=figures,
        versions=_versions() | session.versions,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        absent=session.absent,
        settings=session.settings,
        sweep=session.pgbench.sweep if session.pgbench else {},
        redis_limit=session.redis_limit,
        weighed=weighed,
    )


async def _rounds(session: Session, figures: Figures) -> None:
    every = list(schedule(session.plan, absent=session.absent))
    for number, cell in enumerate(every):
        figures.add(cell, await session.measure(cell))
        session.watch.measured(figures, cell, (number + 1) / len(every))


class Session:
    """What the cells of one run share."""

    def __init__(self, plan: Plan, watch: Watch) -> None:
        self.plan = plan
        self.watch = watch
        self.absent: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self.redis_limit: RedisLimit | None = None
        self.pgbench: Pgbench | None = None
        self._site: cells.Site | None = None
        self._number = 0
        self._place: Ground | None = None
        self._grown: Grown | None = None
        self._both: dict[str, Reading] = {}

    async def prepare(self, place: Ground) -> None:
        """Servers are there: see who cannot take part."""
        self._place = place
        chosen = {name for contest in self.plan.contests for name in contest.contenders}
        house = await place.database()
        self.versions["database"] = house.version
        self.settings = await house.settings(list(ground.SETTINGS))
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
                self.pgbench = Pgbench(place.pgbench, house, meter=place.meter, seats_each=sizes.seats_each)
        await self._move_in(house, number=0)

    async def _move_in(self, house: House, *, number: int) -> None:
        """Every round has a database of its own: the tidying between cells would take longer with each."""
        assert self._place is not None
        self.watch.say(f"log files, some sales and some holds to begin round {number + 1} with")
        # The first time all files of the log are made; after that they only have to be let go of.
        await self._place.settle(house, log_files=0 if number else self.plan.sizes.log_files)
        self._site = cells.Site(house, meter=self._place.meter, redis=self._place.redis)
        self._number = number
        if self.pgbench:
            self.pgbench.move_in(house)
        await cells.prime(self._site, self.plan)

    async def _grow(self) -> Grown:
        """Once, when it is needed."""
        if self._grown is None:
            assert self._place is not None
            sizes = self.plan.sizes
            seats = sizes.many_events * sizes.many_seats_each
            self.watch.say(f"loading {seats:,} seats and {sizes.many_bookings:,} bookings of the past")
            self._grown = await Grown.load(self._place, self.plan)
        return self._grown

    async def measure(self, cell: Cell) -> Reading:
        """One cell; what breaks it says where."""
        try:
            return await self._measure(cell)
        except SetupError:
            raise
        except (TimeoutError, EarmarkError, OSError, ExceptionGroup) as error:
            cause = _first(error)
            raise SetupError(
                problem=f"The run broke off in {cell.workload}, with {cell.contender}: {type(cause).__name__}: {cause}"
            ) from error

    async def _measure(self, cell: Cell) -> Reading:
        if cell.workload == SQLITE:
            return await sqlite.measure(cell, self.plan)
        assert self._place is not None
        if cell.workload != GROWTH and cell.round != self._number:
            await self._move_in(await self._place.database(), number=cell.round)
        if cell.workload in {GROWTH, TWO} or (cell.workload == LONE and cell.contender in lone.TOGETHER):
            # They take turns, so both are measured when the first of them is asked for.
            self._both = self._both or await self._in_turns(cell)
            return self._both.pop(cell.contender)
        return await self._alone(cell)

    async def _in_turns(self, cell: Cell) -> dict[str, Reading]:
        assert self._site is not None
        if cell.workload == GROWTH:
            return await (await self._grow()).measure(self.plan)
        if cell.workload == TWO:
            return await two.measure(self.plan, self._site)
        return await lone.measure(cell.round, self.plan, self._site)

    async def _alone(self, cell: Cell) -> Reading:
        plan = self.plan
        assert self._site is not None
        if cell.contender == PGBENCH:
            assert self.pgbench is not None
            seconds = plan.seconds * CONTESTS[cell.workload].share
            flows = max(int(plan.sizes.flows_per_second_max * (seconds + 1)), plan.clients)
            return await self.pgbench.measure(cells.fresh_name(cell), seconds=seconds, flows=flows)
        if cell.workload == OUTAGE:
            assert self._place is not None
            assert self._place.valkey is not None
            return await outage.measure(cell, plan, self._site, self._place.valkey)
        return await cells.measure(cell, plan, self._site)


async def _weigh(plan: Plan, database: str | None, redis: str | None, watch: Watch) -> Weighed:
    """On a database whose disk does not hold it up: what is weighed is the server in front of it."""
    sizes = plan.sizes
    settings = {**ground.SETTINGS, "fsync": "off", "synchronous_commit": "off"}
    async with ground.prepared(database, redis, redis_servers=1, settings=settings) as place:
        if not place.redis:
            raise SetupError(problem=f"A server is weighed with Redis in front: {place.no_redis}")
        watch.say(f"{sizes.memory_holds:,} holds over HTTP, and a server on the scales")
        return await memory.measure(
            await place.database(),
            redis=place.redis[0],
            first=sizes.memory_first,
            holds=sizes.memory_holds,
            clients=plan.clients,
            told=lambda done, weight: watch.say(f"{done:,} of {sizes.memory_holds:,} holds: {weight:.0f} MB"),
        )


def _versions() -> dict[str, str]:
    known = {"earmark": __version__, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    for package in ("asyncpg", "redis"):
        known[package] = importlib.metadata.version(package)
    return known


def _first(error: BaseException) -> BaseException:
    """What a group of tasks failed of."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
