"""A run: rounds of every contender, interleaved on one PostgreSQL; then far more at once than can be answered."""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import os
import platform
import resource
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import asyncpg
import msgspec

from earmark import config
from earmark.bench.booking.bench import ground
from earmark.bench.http import contenders
from earmark.bench.http.contenders import EMPTY, OURS, PEER
from earmark.bench.http.figures import Cell, Figures, Limits, Plan, Result
from earmark.bench.http.load import Heard, Job
from earmark.errors import EarmarkError, SetupError
from earmark.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.bench.booking.bench.house import House

ORDER = (OURS, PEER, EMPTY)
NEXT_ROUND = "round {number} of {rounds}: {name}"
LINE_MAX = 256 * 1024 * 1024
SPARE_FILES = 200
BROKEN = (EarmarkError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
_numbers = itertools.count(1)


class Watch(Protocol):
    """Somebody who is told how a run goes on."""

    def say(self, said: str) -> None:
        """Something begins."""
        ...

    def measured(self, figures: Figures, share: float) -> None:
        """A cell is done, and which share of the run is over."""
        ...


async def run(plan: Plan, *, database: str | None, watch: Watch) -> Result:
    """Measure."""
    plan = _within_limits(plan)
    watch.say("starting a database")
    try:
        async with ground.prepared(database, None) as place:
            house = await place.database()
            await place.settle(house, log_files=plan.log_files)
            watch.say("starting the servers")
            async with contenders.serving(house.url, workers=plan.workers, names=ORDER) as ports, _generator() as load:
                figures = await Site(plan, house, ports, load).measure(watch)
            return Result(
                plan=plan,
                figures=figures,
                versions=_versions(house),
                cores=len(os.sched_getaffinity(0)),
                settings=await house.settings(("fsync", "synchronous_commit")),
                limits=_limits(),
            )
    except SetupError:
        raise
    except BROKEN as error:
        raise SetupError(problem=f"The run broke off: {type(error).__name__}: {error}") from error


class Site:
    """The servers, the generator, and the database that they share."""

    def __init__(self, plan: Plan, house: House, ports: dict[str, int], load: asyncio.subprocess.Process) -> None:
        self._plan = plan
        self._house = house
        self._ports = ports
        self._load = load

    async def measure(self, watch: Watch) -> Figures:
        """Warm up; rounds; overload."""
        plan, figures = self._plan, Figures()
        for name in ORDER:
            watch.say(f"warming up {name}")
            await self._cell(name, seconds=plan.warm_seconds, connections=plan.connections)
        cells, done = plan.rounds * len(ORDER) + 1, 0
        for number in range(plan.rounds):
            # Who begins changes: what the machine does meanwhile falls on everybody alike.
            for name in ORDER if number % 2 == 0 else reversed(ORDER):
                watch.say(NEXT_ROUND.format(number=number + 1, rounds=plan.rounds, name=name))
                seconds = plan.seconds * (plan.empty_share if name == EMPTY else 1.0)
                figures.add(name, await self._cell(name, seconds=seconds, connections=plan.connections))
                done += 1
                watch.measured(figures, done / cells)
        watch.say(f"{plan.overload_connections} connections at once")
        figures.overload = await self._cell(OURS, seconds=plan.seconds, connections=plan.overload_connections)
        watch.measured(figures, 1.0)
        return figures

    async def _cell(self, name: str, *, seconds: float, connections: int) -> Cell:
        """A fresh event, tidy tables, the load, and then the count in the database."""
        plan, event_id = self._plan, f"bench-http-{name}-{next(_numbers)}"
        requests = max(int(plan.requests_per_second_max[name] * seconds), connections)
        if name != EMPTY:
            await self._house.open_event(event_id, seats=requests * plan.seats_each)
            await self._house.tidy()
        heard = await self._ask(
            Job(
                port=self._ports[name],
                connections=connections,
                seconds=seconds,
                token=contenders.TOKEN,
                event_id=event_id,
                seats_each=plan.seats_each,
                requests=requests,
            )
        )
        if name == EMPTY:
            return Cell(heard=heard)
        held = [UUID(one) for one in heard.ids]
        return Cell(
            heard=msgspec.structs.replace(heard, ids=[]), counted=await self._house.count([event_id], held=held)
        )

    async def _ask(self, job: Job) -> Heard:
        assert self._load.stdin is not None
        assert self._load.stdout is not None
        self._load.stdin.write(msgspec.json.encode(job) + b"\n")
        told = await self._load.stdout.readline()
        if not told:
            raise SetupError(problem="The load generator ended in the middle of a cell; what it said is above.")
        return msgspec.json.decode(told, type=Heard)


@asynccontextmanager
async def _generator() -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "earmark.bench.http.load"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_MAX,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _within_limits(plan: Plan) -> Plan:
    """As many connections as this machine lets a process have; the servers inherit what is asked for here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = plan.overload_connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        plan = msgspec.structs.replace(plan, overload_connections=min(plan.overload_connections, soft - SPARE_FILES))
    return plan


def _limits() -> Limits:
    """As the server reads them: whoever sets one for a run finds it in the figures."""
    found = config.read(os.environ)
    return Limits(**{name: getattr(found, name) for name in Limits.__struct_fields__})


def _versions(house: House) -> dict[str, str]:
    known = {"earmark": __version__, "python": platform.python_version(), "database": house.version}
    for package in ("asyncpg", "fastapi", "granian", "pydantic"):
        known[package] = importlib.metadata.version(package)
    return known
