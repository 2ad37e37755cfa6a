"""A run: one incident after the other, each with new databases, a new server, and clients in their own process.

    warm-up ─▶ before ─▶ incident ─▶ after ─▶ the last answers ─▶ the server is stopped ─▶ the count

The count compares every answer with the bookings in the database.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import msgspec

from earmark.bench.child_process_protocol import line_process
from earmark.bench.incidents import results_and_required_floors as reports
from earmark.bench.incidents import start_and_sample_tested_server as systems
from earmark.bench.incidents.analysis import PhaseTimes
from earmark.bench.incidents.clients import ClientAnswer, ClientsJob
from earmark.bench.incidents.faults import INCIDENTS, survivor
from earmark.bench.incidents.results_and_required_floors import IncidentReport, IncidentResult
from earmark.bench.named_sql import named_sql
from earmark.bench.server_command_host_and_key import TOKEN
from earmark.errors import SetupError
from earmark.testservers import ServerUnavailable
from earmark.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.bench.incidents.analysis import SystemSample
    from earmark.bench.incidents.faults import Incident
    from earmark.bench.incidents.results_and_required_floors import IncidentPlan
    from earmark.bench.incidents.start_and_sample_tested_server import SystemUnderTest

BUYERS_SECONDS_MAX = 120.0
BROKEN = (OSError, ServerUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError)


async def run(plan: IncidentPlan, *, watch: Callable[[str], None]) -> IncidentResult:
    """All incidents of the plan, one after the other."""
    found = []
    for name in plan.incidents:
        try:
            found.append(await measure(name, plan, watch=watch))
        except BROKEN as error:
            raise SetupError(problem=f"{name} broke off: {type(error).__name__}: {error}") from error
    return IncidentResult(plan=plan, reports=found, versions={"earmark": __version__})


async def measure(name: str, plan: IncidentPlan, *, watch: Callable[[str], None]) -> IncidentReport:
    """Measure what clients get before, during and after one incident."""

    def tell(said: str) -> None:
        watch(f"{name}: {said} …")

    incident = INCIDENTS[name]
    tell("starting databases and a server")
    clients = plan.clients or incident.clients
    with tempfile.TemporaryDirectory(prefix="earmark-incidents-") as folder:
        log = Path(folder) / "server.log"
        async with systems.running(plan.earmark, with_standby=incident.with_standby, log=log) as system:
            await system.create_events(plan.events)
            async with line_process("earmark.bench.incidents.clients") as load:
                load.send(msgspec.json.encode(_job(plan, system, clients=clients)))
                await load.expect_ready()
                samples, marks = await _run_phases(incident, plan, system, watch=tell)
                tell("waiting for the last answers")
                answers = await load.ask("stop", list[ClientAnswer])
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


async def _run_phases(
    incident: Incident, plan: IncidentPlan, system: SystemUnderTest, *, watch: Callable[[str], None]
) -> tuple[list[SystemSample], PhaseTimes]:
    """Run the phases, and sample the system once a second."""
    samples: list[SystemSample] = []
    began = time.monotonic()
    watching = asyncio.create_task(system.watch(samples, began=began))
    try:
        watch(f"warm-up for {plan.warm_seconds:g} s, then {plan.before_seconds:g} s before")
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
        return samples, PhaseTimes(measured=measured, struck=struck, healed=healed, ended=time.monotonic())
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def _job(plan: IncidentPlan, system: SystemUnderTest, *, clients: int) -> ClientsJob:
    return ClientsJob(
        port=system.port,
        token=TOKEN,
        events=system.events,
        pool=systems.POOL,
        clients=clients,
        timeout_seconds=plan.timeout_seconds,
        pause_seconds=plan.rest_seconds,
    )


async def _buyers(system: SystemUnderTest) -> set[str]:
    """The buyers of all bookings in the database."""
    connection = await system.connect(survivor(system))
    try:
        rows = await connection.fetch(
            named_sql(__package__, "list_buyers_and_lock_pool")["list_buyers"],
            system.events,
            timeout=BUYERS_SECONDS_MAX,
        )
        return {row["buyer"] for row in rows}
    finally:
        await connection.close(timeout=10)
