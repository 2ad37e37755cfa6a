"""A run of the HTTP bench: rounds of every contender, interleaved on one PostgreSQL; then an overload."""

from __future__ import annotations

import itertools
import os
import resource
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import asyncpg
import msgspec

from earmark import config
from earmark.bench import postgres_and_redis_servers
from earmark.bench.child_process_protocol import line_process
from earmark.bench.http import measured_servers
from earmark.bench.http.load_generator import HttpAnswers, HttpJob
from earmark.bench.http.measured_servers import EMPTY, OURS, PEER
from earmark.bench.http.results import HttpFigures, HttpMeasurement, HttpPlan, HttpResult, ServerLimits
from earmark.bench.report.machine import installed_versions, usable_cores
from earmark.bench.server_command_host_and_key import TOKEN
from earmark.errors import EarmarkError, SetupError

if TYPE_CHECKING:
    from earmark.bench.child_process_protocol import LineProcess
    from earmark.bench.prepare_and_count_rows import BenchDatabase

ORDER = (OURS, PEER, EMPTY)
NEXT_ROUND = "round {number} of {rounds}: {name}"
LOAD_GENERATOR = "earmark.bench.http.load_generator"
SPARE_FILES = 200
BROKEN = (EarmarkError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
_numbers = itertools.count(1)


class HttpWatch(Protocol):
    """Shows the progress of a run."""

    def say(self, text: str) -> None:
        """A part of the run begins."""
        ...

    def measured(self, figures: HttpFigures, share: float) -> None:
        """A measurement is done; `share` of the run is over."""
        ...


async def run(plan: HttpPlan, *, database: str | None, watch: HttpWatch) -> HttpResult:
    """Measure all contenders, and the overload."""
    plan = _within_limits(plan)
    watch.say("starting a database")
    try:
        async with postgres_and_redis_servers.prepared(database, None) as place:
            bench_database = await place.database()
            await place.prepare_log(bench_database, log_files=plan.log_files)
            watch.say("starting the servers")
            async with (
                measured_servers.serving(bench_database.url, workers=plan.workers, names=ORDER) as ports,
                line_process(LOAD_GENERATOR) as load,
            ):
                figures = await HttpRun(plan, bench_database, ports, load).measure(watch)
            return HttpResult(
                plan=plan,
                figures=figures,
                versions=installed_versions("asyncpg", "fastapi", "granian", "pydantic")
                | {"database": bench_database.version},
                cores=usable_cores(),
                settings=await bench_database.settings(("fsync", "synchronous_commit")),
                limits=_limits(),
            )
    except SetupError:
        raise
    except BROKEN as error:
        raise SetupError(problem=f"The run broke off: {type(error).__name__}: {error}") from error


class HttpRun:
    """The servers, the load generator, and the database that they share."""

    def __init__(self, plan: HttpPlan, bench_database: BenchDatabase, ports: dict[str, int], load: LineProcess) -> None:
        self._plan = plan
        self._database = bench_database
        self._ports = ports
        self._load = load

    async def measure(self, watch: HttpWatch) -> HttpFigures:
        """Warm up, measure the rounds, then the overload."""
        plan, figures = self._plan, HttpFigures()
        for name in ORDER:
            watch.say(f"warm-up of {name}")
            await self._measure(name, seconds=plan.warm_seconds, connections=plan.connections)
        measurements, done = plan.rounds * len(ORDER) + 1, 0
        for number in range(plan.rounds):
            # The first contender changes: what else the machine does meanwhile slows all alike.
            for name in ORDER if number % 2 == 0 else reversed(ORDER):
                watch.say(NEXT_ROUND.format(number=number + 1, rounds=plan.rounds, name=name))
                seconds = plan.seconds * (plan.empty_share if name == EMPTY else 1.0)
                figures.add(name, await self._measure(name, seconds=seconds, connections=plan.connections))
                done += 1
                watch.measured(figures, done / measurements)
        watch.say(f"{plan.overload_connections} connections at once")
        figures.overload = await self._measure(OURS, seconds=plan.seconds, connections=plan.overload_connections)
        watch.measured(figures, 1.0)
        return figures

    async def _measure(self, name: str, *, seconds: float, connections: int) -> HttpMeasurement:
        """One measurement: a new event, vacuumed tables, the load, and then the count in the database."""
        plan, event_id = self._plan, f"bench-http-{name}-{next(_numbers)}"
        requests = max(int(plan.requests_per_second_max[name] * seconds), connections)
        if name != EMPTY:
            await self._database.open_event(event_id, seats=requests * plan.seats_each)
            await self._database.tidy()
        answers = await self._load.ask(
            HttpJob(
                port=self._ports[name],
                connections=connections,
                seconds=seconds,
                token=TOKEN,
                event_id=event_id,
                seats_each=plan.seats_each,
                requests=requests,
            ),
            HttpAnswers,
        )
        if name == EMPTY:
            return HttpMeasurement(answers=answers)
        held = [UUID(one) for one in answers.ids]
        return HttpMeasurement(
            answers=msgspec.structs.replace(answers, ids=[]), counted=await self._database.count([event_id], held=held)
        )


def _within_limits(plan: HttpPlan) -> HttpPlan:
    """As many connections as this machine allows a process; the servers inherit the limit that is set here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = plan.overload_connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        plan = msgspec.structs.replace(plan, overload_connections=min(plan.overload_connections, soft - SPARE_FILES))
    return plan


def _limits() -> ServerLimits:
    """The limits as the server reads them from the environment of this run."""
    found = config.read(os.environ)
    return ServerLimits(**{name: getattr(found, name) for name in ServerLimits.__struct_fields__})
