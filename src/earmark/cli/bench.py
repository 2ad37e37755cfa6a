"""The commands that measure."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console

from earmark import wiring
from earmark.cli.logs import configure
from earmark.errors import SetupError
from earmark.lab import bench as lab

bench = App(name="bench", help="Measure on this machine.")


@bench.command
def booking(
    *,
    database: Annotated[str | None, Parameter(help="Where to measure. Else a new SQLite file.")] = None,
    clients: Annotated[int, Parameter(validator=Number(gte=1), help="How many buyers at once.")] = 200,
    flows: Annotated[int, Parameter(validator=Number(gte=1), help="How many bookings in all.")] = 4000,
    seats_each: Annotated[int, Parameter(validator=Number(gte=1, lte=100), help="How many seats each holds.")] = 3,
) -> int:
    """Measure hold and confirm on this machine. Counted in the database; exits with 1 when a count is off."""
    with tempfile.TemporaryDirectory(prefix="earmark-bench-") as folder:
        url = database or f"sqlite:////{Path(folder, 'bench.sqlite3').as_posix().lstrip('/')}"
        return asyncio.run(_booking(url, clients=clients, flows=flows, seats_each=seats_each))


async def _booking(url: str, *, clients: int, flows: int, seats_each: int) -> int:
    await wiring.migrate(url)
    engine = await wiring.open_engine(url)
    out = Console(highlight=False, soft_wrap=True)
    try:
        with out.status(f"{flows} bookings by {clients} buyers at once …"):
            figures = await lab.run(engine, clients=clients, flows=flows, seats_each=seats_each)
    finally:
        await engine.close()
    out.print(
        f"{figures.flows_per_second:,.0f} bookings/s (hold {seats_each} seats + confirm, {clients} at once), "
        f"hold p50 {figures.hold_p50_ms:.1f} ms, p99 {figures.hold_p99_ms:.1f} ms"
    )
    out.print(f"{figures.confirmed} of {flows} confirmed in the database, {figures.flaws} flaws")
    return 0 if figures.confirmed == flows and not figures.flaws else 1


@bench.command
def locks(
    *,
    redis: Annotated[str | None, Parameter(help="The Redis to measure on. Else a private one is started.")] = None,
    rounds: Annotated[int, Parameter(validator=Number(gte=3), help="How often everything is measured.")] = 5,
    seconds: Annotated[
        float, Parameter(validator=Number(gt=0, lte=600), help="How long, per workload, contender and round.")
    ] = 1.0,
    html: Annotated[Path | None, Parameter(help="Write a report with plots here.")] = None,
    json: Annotated[bool, Parameter(negative="", help="One JSON object on stdout, and nothing else.")] = False,
) -> int:
    """Measure the locks beside those of other libraries, on one server. Exits with 1 when a lock let two in."""
    if html is not None and not html.absolute().parent.is_dir():
        raise SetupError(problem=f"There is no folder {html.absolute().parent} to write the report in.")
    configure(verbose=False)
    try:
        from earmark.lab.locks import peers, report, screen
        from earmark.lab.locks import run as runs
    except ModuleNotFoundError as missing:
        raise SetupError(problem="The locks need an extra: pip install 'earmark[redis]'") from missing
    plan = runs.Plan(rounds=rounds, seconds=seconds)
    told, out = Console(stderr=True, highlight=False), Console(highlight=False)
    with runs.server(redis) as url:
        field = peers.gather(url)
        for name in field.absent:
            told.print(f"{name} is not installed, and left out: pip install {name}", soft_wrap=True)
        with screen.Screen(out if out.is_terminal and not json else told, plan) as watch:
            result = runs.run(url, plan, field=field, watch=watch)
    if json:
        sys.stdout.write(msgspec.json.encode(result.plain()).decode() + "\n")
    else:
        screen.show(out, result)
    if html is not None:
        html.write_text(report.page(result, when=datetime.now(UTC)), encoding="utf-8")
    for flaw in result.flaws:
        told.print(f"[red]earmark:[/] {flaw}", soft_wrap=True)
    return 1 if result.flaws else 0
