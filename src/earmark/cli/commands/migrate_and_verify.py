"""Commands about the database: migrate it, and verify its promises."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime, timedelta
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from earmark import config
from earmark.cli.compare_payments_with_gateway import compare
from earmark.clock import SystemClock
from earmark.engine.ports.gateway import Gateway, GatewayRefused, GatewaySilent
from earmark.engine.ports.store import Flaw, Store
from earmark.errors import SetupError
from earmark.observability.redaction import redact
from earmark.store.both_databases.pending_migrations import ANY_CODE, LockPatience, Migration
from earmark.wiring import gateways, open_and_maintain_databases

Database = Annotated[
    str | None,
    Parameter(help="`postgresql://user@host/name` or `sqlite:///file.sqlite3`. Else EARMARK_DATABASE_URL."),
]

WRONG_USAGE = 2
"""The exit code for a request that the command cannot fulfil."""
WHY_NOT = (
    "verify reads every row of the database, test and live, in one snapshot, and no API key may read all of it. "
    "Run `earmark verify --database postgresql://user@host/name` where the database can be reached."
)


def migrate(
    *,
    database: Database = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Only say what would be done.")] = False,
    lock_seconds: Annotated[
        float,
        Parameter(validator=Number(gte=0.01, lte=3600), help="How long to wait for one lock."),
    ] = LockPatience().lock_seconds,
    wait_seconds: Annotated[
        float, Parameter(validator=Number(gte=0, lte=86_400), help="How long to retry a step before giving up.")
    ] = LockPatience().seconds_max,
    application_role: Annotated[
        str | None,
        Parameter(
            help="Grant this role of PostgreSQL what servers and workers need. It cannot change a table or a guard."
        ),
    ] = None,
) -> None:
    """Bring a database up to date, or make a new one ready."""
    settings = config.read(os.environ, database_url=database)
    err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    patience = LockPatience(lock_seconds=lock_seconds, seconds_max=wait_seconds)
    steps = asyncio.run(
        open_and_maintain_databases.migrate(
            settings.database_url,
            dry_run=dry_run,
            patience=patience,
            tell=lambda line: err.print(redact(line)),
            application_role=application_role,
        )
    )
    out = Console(highlight=False, soft_wrap=True)
    for step in steps:
        out.print(f"{'would apply' if dry_run else 'applied'} {step}{_needs(step)}")
    if not steps:
        out.print("The schema is current.")


def _needs(step: Migration) -> str:
    """A warning for a migration that older code cannot run on."""
    if step.oldest_code == ANY_CODE:
        return ""
    return f" (code older than migration {step.oldest_code:04} may not run on it)"


def verify(
    *,
    url: Annotated[
        str | None,
        Parameter(help="A service cannot be verified over HTTP: this says why, and what to run instead."),
    ] = None,
    database: Database = None,
    rows: Annotated[
        int, Parameter(validator=Number(gte=1, lte=10_000), help="How many rows to name per broken rule, at most.")
    ] = 20,
    books: Annotated[
        bool, Parameter(negative="", help="Also compare our payments with the records of every gateway.")
    ] = False,
    days: Annotated[
        int, Parameter(validator=Number(gte=1, lte=3650), help="How many days of records to compare.")
    ] = 30,
) -> int:
    """Check the promises on a live database, without changing it.

    No seat sold twice, no booking resolved twice, no count that drifted. Exits with 1 and names the rows when a promise
    is broken.
    """
    if service := url or (None if _is_named(database) else os.environ.get("EARMARK_URL")):
        err = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        err.print(f"earmark: {redact(service)} cannot be verified over HTTP: {WHY_NOT}")
        return WRONG_USAGE
    settings = config.read(os.environ, database_url=database)
    return asyncio.run(_verify(settings, rows=rows, days=days if books else None))


def _is_named(database: str | None) -> bool:
    """Whether an option or the environment names a database; a machine that only uses a service has neither."""
    (origin,) = (one for one in config.trace(os.environ, database_url=database) if one.setting.name == "database_url")
    return origin.source != "default"


async def _verify(settings: config.Settings, *, rows: int, days: int | None) -> int:
    out = Console(highlight=False, soft_wrap=True)
    store = await open_and_maintain_databases.open_store(settings.database_url)
    try:
        await store.check()
        flaws = await store.find_flaws(limit=rows)
        if days is not None:
            flaws += await _compare(store, settings, since=SystemClock().now() - timedelta(days=days), out=out)
    finally:
        await store.close()
    for flaw in flaws:
        out.print(f"[red]BROKEN[/] {flaw.promise}: {flaw.rule}\n       {flaw.row}", markup=True)
    if flaws:
        out.print("1 row breaks a promise." if len(flaws) == 1 else f"{len(flaws)} rows break a promise.")
        return 1
    out.print(
        "clean: every seat has at most one active owner, every count is right, every booking resolved at most once"
    )
    return 0


async def _compare(store: Store, settings: config.Settings, *, since: datetime, out: Console) -> list[Flaw]:
    """Compare each gateway's records with ours; differences of open payments are printed, but are no flaws."""
    opened = gateways.open_gateways(settings, store.accounts)
    try:
        if not opened:
            raise SetupError(problem="There are no books to compare with: no gateway is set up here.")
        return [flaw for gateway in opened.values() for flaw in await _beside(store, gateway, since=since, out=out)]
    finally:
        for gateway in opened.values():
            await gateway.close()


async def _beside(store: Store, gateway: Gateway, *, since: datetime, out: Console) -> list[Flaw]:
    try:
        found = await compare(store, gateway, since=since)
    except (GatewaySilent, GatewayRefused) as silence:
        raise SetupError(problem=f"The books of {gateway.name} cannot be read: {silence}") from silence
    for waits in found.still_open:
        out.print(f"[yellow]still open[/] {waits.row}", markup=True)
    summary = (
        f"books of {gateway.name}: {found.agree} agree, {len(found.still_open)} still open, {len(found.flaws)} wrong"
    )
    out.print(f"{summary}; {found.foreign} charges there carry no id of ours" if found.foreign else summary)
    return found.flaws
