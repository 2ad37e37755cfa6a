"""Commands about the database: migrate, verify."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from earmark import config, wiring

Database = Annotated[
    str | None,
    Parameter(help="`postgresql://user@host/name` or `sqlite:///file.sqlite3`. Else EARMARK_DATABASE_URL."),
]


def migrate(
    *,
    database: Database = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Only say what would be done.")] = False,
) -> None:
    """Bring a database up to date, or make a new one ready."""
    url = config.read(os.environ, database_url=database).database_url
    steps = asyncio.run(wiring.migrate(url, dry_run=dry_run))
    out = Console(highlight=False, soft_wrap=True)
    for step in steps:
        out.print(f"{'would apply' if dry_run else 'applied'} {step}")
    if not steps:
        out.print("The schema is current.")


def verify(
    *,
    database: Database = None,
    rows: Annotated[
        int, Parameter(validator=Number(gte=1, lte=10_000), help="How many rows to name per broken rule, at most.")
    ] = 20,
) -> int:
    """Check the promises on a live database: no seat sold twice, no booking resolved twice, no count that drifted.

    Reads only. Exits with 1 and names the rows when a promise is broken.
    """
    url = config.read(os.environ, database_url=database).database_url
    return asyncio.run(_verify(url, rows=rows))


async def _verify(url: str, *, rows: int) -> int:
    store = await wiring.open_store(url)
    try:
        await store.check()
        flaws = await store.find_flaws(limit=rows)
    finally:
        await store.close()
    out = Console(highlight=False, soft_wrap=True)
    for flaw in flaws:
        out.print(f"[red]BROKEN[/] {flaw.promise}: {flaw.rule}\n       {flaw.row}", markup=True)
    if flaws:
        out.print("1 row breaks a promise." if len(flaws) == 1 else f"{len(flaws)} rows break a promise.")
        return 1
    out.print("clean: every seat has at most one live owner, every count is right, every booking resolved at most once")
    return 0
