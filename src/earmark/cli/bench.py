"""The command that measures."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from earmark import wiring
from earmark.lab import bench as lab


def bench(
    *,
    database: Annotated[str | None, Parameter(help="Where to measure. Else a new SQLite file.")] = None,
    clients: Annotated[int, Parameter(validator=Number(gte=1), help="How many buyers at once.")] = 200,
    flows: Annotated[int, Parameter(validator=Number(gte=1), help="How many bookings in all.")] = 4000,
    seats_each: Annotated[int, Parameter(validator=Number(gte=1, lte=100), help="How many seats each holds.")] = 3,
) -> int:
    """Measure hold and confirm on this machine. Counted in the database; exits with 1 when a count is off."""
    with tempfile.TemporaryDirectory(prefix="earmark-bench-") as folder:
        url = database or f"sqlite:////{Path(folder, 'bench.sqlite3').as_posix().lstrip('/')}"
        return asyncio.run(_bench(url, clients=clients, flows=flows, seats_each=seats_each))


async def _bench(url: str, *, clients: int, flows: int, seats_each: int) -> int:
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
