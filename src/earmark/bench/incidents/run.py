"""A run: one incident after the other, each with fresh databases, a fresh server, and clients in their own process.

    warming up ─▶ before ─▶ incident ─▶ after ─▶ the last answers ─▶ the server is stopped ─▶ the count

The count compares every answer with the bookings in the database.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import msgspec

from earmark.bench.incidents import report as reports
from earmark.bench.incidents import system as systems
from earmark.bench.incidents.clients import Answer, Job
from earmark.bench.incidents.faults import INCIDENTS, sql, survivor
from earmark.bench.incidents.figures import Marks
from earmark.bench.incidents.report import Report, Result
from earmark.errors import SetupError
from earmark.testservers import ServerUnavailable
from earmark.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from earmark.bench.incidents.faults import Incident
    from earmark.bench.incidents.figures import Sample
    from earmark.bench.incidents.report import Plan
    from earmark.bench.incidents.system import System

LINE_MAX = 1024 * 1024 * 1024
BUYERS_SECONDS_MAX = 120.0
BROKEN = (OSError, ServerUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError)


async def run(plan: Plan, *, watch: Callable[[str], None]) -> Result:
    """All incidents of the plan, one after the other."""
    found = []
    for name in plan.incidents:
        try:
            found.append(await measure(name, plan, watch=watch))
        except BROKEN as error:
            raise SetupError(problem=f"{name} broke off: {type(error).__name__}: {error}") from error
    return Result(plan=plan, reports=found, versions={"earmark": __version__})


async def measure(name: str, plan: Plan, *, watch: Callable[[str], None]) -> Report:
    """One incident."""

    def tell(said: str) -> None:
        watch(f"{name}: {said} …")

    incident = INCIDENTS[name]
    tell("starting databases and a server")
    clients = plan.clients or incident.clients
    with tempfile.TemporaryDirectory(prefix="earmark-incidents-") as folder:
        log = Path(folder) / "server.log"
        async with systems.running(plan.earmark, with_standby=incident.with_standby, log=log) as system:
            await system.create_events(plan.events)
            async with _asking(_job(plan, system, clients=clients)) as crowd:
                samples, marks = await _go_through(incident, plan, system, watch=tell)
                tell("waiting for the last answers")
                answers = await crowd()
            survived = system.process.returncode is None
            await system.stop()
            buyers = await _buyers(system)
        tracebacks = log.read_text(encoding="utf-8", errors="replace").count("Traceback (most recent call last)")
    return reports.report(
        incident=name,
        said=incident.said,
        hot=incident.hot,
        clients=clients,
        answers=answers,
        samples=samples,
        marks=marks,
        buyers=buyers,
        tracebacks=tracebacks,
        survived=survived,
    )


async def _go_through(
    incident: Incident, plan: Plan, system: System, *, watch: Callable[[str], None]
) -> tuple[list[Sample], Marks]:
    """The phases, while the system is looked at once a second."""
    samples: list[Sample] = []
    began = time.monotonic()
    watching = asyncio.create_task(system.watch(samples, began=began))
    try:
        watch(f"warming up for {plan.warm_seconds:g} s, then {plan.before_seconds:g} s before")
        measured = began + plan.warm_seconds
        await asyncio.sleep(measured + plan.before_seconds - time.monotonic())
        lasts = plan.seconds or incident.seconds
        watch(f"{incident.said}, for {lasts:g} s")
        struck = time.monotonic()
        async with incident.happens(system):
            await asyncio.sleep(struck + lasts - time.monotonic())
        healed = time.monotonic()
        watch(f"over; {plan.after_seconds:g} s after")
        await asyncio.sleep(plan.after_seconds)
        return samples, Marks(measured=measured, struck=struck, healed=healed, ended=time.monotonic())
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def _job(plan: Plan, system: System, *, clients: int) -> Job:
    return Job(
        port=system.port,
        token=systems.TOKEN,
        events=system.events,
        pool=systems.POOL,
        clients=clients,
        timeout_seconds=plan.timeout_seconds,
        rest_seconds=plan.rest_seconds,
    )


@asynccontextmanager
async def _asking(job: Job) -> AsyncIterator[Callable[[], Awaitable[list[Answer]]]]:
    """The clients, once they have begun; called, they stop and say what they heard."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "earmark.bench.incidents.clients"), stdin=pipe, stdout=pipe, limit=LINE_MAX
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def tell(said: bytes) -> bytes:
        stdin.write(said + b"\n")
        if not (line := await stdout.readline()):
            raise SetupError(problem="The clients ended in the middle; what they said is above.")
        return line

    async def stop() -> list[Answer]:
        said = await tell(b"stop")
        await process.wait()
        return msgspec.json.decode(said, type=list[Answer])

    try:
        await tell(msgspec.json.encode(job))
        yield stop
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _buyers(system: System) -> set[str]:
    """Of every booking that there is."""
    connection = await system.connect(survivor(system))
    try:
        rows = await connection.fetch(sql("list_buyers"), system.events, timeout=BUYERS_SECONDS_MAX)
        return {row["buyer"] for row in rows}
    finally:
        await connection.close(timeout=10)
