"""The command that checks everything that Earmark depends on."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console

from earmark import config
from earmark.cli.commands import settings as show
from earmark.cli.commands.migrate_and_verify import Database
from earmark.cli.doctor import counts_and_invariants as of_counts
from earmark.cli.doctor import database as of_database
from earmark.cli.doctor import mails as of_mails
from earmark.cli.doctor import postgres_failover as of_failover
from earmark.cli.doctor import redis as of_redis
from earmark.cli.doctor import secrets as of_secrets
from earmark.cli.doctor import trusted_proxy_setting as of_proxies
from earmark.cli.doctor import unfinished_payments as of_payments
from earmark.cli.doctor import workers_and_backlog as of_work
from earmark.cli.doctor.findings import Finding, Level, problem
from earmark.clock import SystemClock
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import EarmarkError, Outage, SetupError
from earmark.locks import backend_from_url as addresses
from earmark.wiring import open_and_maintain_databases
from earmark.wiring import redis_locks_and_admission as redis_parts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.engine.ports.store import Clock, Store
    from earmark.store.both_databases.database_diagnostics import DatabaseFacts

COLOURS = {Level.OK: "green", Level.NOTE: "yellow", Level.PROBLEM: "red", Level.FIXED: "cyan"}
LEVEL_WIDTH = max(len(level.value) for level in Level)
CONNECTIONS_MAX = 4


def doctor(
    *,
    database: Database = None,
    redis: Annotated[
        str | None,
        Parameter(help="A Redis to check too. Else EARMARK_REDIS_URL; that of EARMARK_LOCKS_URL is checked as well."),
    ] = None,
    fix: Annotated[
        bool,
        Parameter(
            negative="",
            help="Correct what is safe to correct: end due holds, number entries, recount, delete old heartbeats.",
        ),
    ] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="", help="JSON on stdout.")] = False,
) -> int:
    """Check everything that Earmark depends on.

    Checks database, schema, clocks, poolers, durability, failover, secrets, Redis, workers, backlog, counts and
    payments, and says what to do about each problem. Exits with 1 when there is one.
    """
    found = asyncio.run(_collect(database, redis, fix=fix))
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        _print(found)
    return 1 if any(finding.level is Level.PROBLEM for finding in found) else 0


async def _collect(database: str | None, redis: str | None, *, fix: bool) -> list[Finding]:
    try:
        settings = config.read(os.environ, refuse_unknown=False, database_url=database, redis_url=redis)
    except SetupError as wrong:
        return [problem("settings", wrong.problem, "See `earmark config show`.")]
    return [finding async for finding in examine(settings, fix=fix, named="--database" if database else None)]


async def examine(
    settings: config.Settings, *, fix: bool = False, clock: Clock | None = None, named: str | None = None
) -> AsyncIterator[Finding]:
    """Run the checks, the database first: a problem there explains those that follow.

    `named` is the option that named the database, where none of the settings did.
    """
    clock = clock or SystemClock()
    for name, meant in config.unknown_variables(os.environ).items():
        advice = f"Is {meant} meant?" if meant else "Remove it."
        yield problem("settings", f"{name} is not a setting: no command starts while it is set.", advice)
    try:
        vitals = await open_and_maintain_databases.examine(settings.database_url, clock=clock)
    except EarmarkError as silence:
        because = getattr(silence, "because", None)
        said = f"The database cannot be used: {because or silence}"
        where = named or _variable_of("database_url")
        yield problem("database", said, f"{where} is {show.without_password(settings.database_url)}.")
    else:
        for finding in of_database.findings(vitals):
            yield finding
        if fix and (reason := of_failover.why_no_write(vitals.replication)):
            fix = False
            yield problem(
                "failover",
                f"--fix changes nothing now: {reason}",
                "Repair that first, then run `earmark doctor --fix` again.",
            )
        if of_database.schema(vitals).level is not Level.PROBLEM:
            async for finding in _within(settings, vitals, fix=fix):
                yield finding
    async for finding in _redis(settings, clock):
        yield finding


def _variable_of(name: str) -> str:
    """The variable that a setting came from; its own name where it has its default."""
    (origin,) = (one for one in config.trace(os.environ) if one.setting.name == name)
    return origin.setting.variable if origin.source == "default" else origin.source


async def _redis(settings: config.Settings, clock: Clock) -> AsyncIterator[Finding]:
    """Each Redis once: those of admission, then those that only the locks use."""
    for_admission = addresses.addresses_of(settings.redis_url) if settings.redis_url else []
    for url in for_admission:
        for finding in await of_redis.findings(url, clock=clock, patience_seconds=settings.admission_timeout_seconds):
            yield finding
    for url in redis_parts.lock_addresses(settings):
        if url not in for_admission and of_redis.is_redis(url):
            for finding in await of_redis.findings(url, clock=clock, patience_seconds=None):
                yield finding


async def _within(settings: config.Settings, vitals: DatabaseFacts, *, fix: bool) -> AsyncIterator[Finding]:
    """Run the checks that need an open store. It is opened for a pooler where there is one, whatever the URL says."""
    url = settings.database_url
    if vitals.pooled and not vitals.told:
        url += f"{'&' if '?' in url else '?'}pgbouncer=true"
    try:
        store = await open_and_maintain_databases.open_store(url, connections_max=CONNECTIONS_MAX)
    except EarmarkError as silence:
        yield problem("database", f"The store cannot be opened: {silence}", "See the problems above.")
        return
    try:
        for finding in of_secrets.findings(settings, live_events=await _has_live_events(store)):
            yield finding
        for finding in of_proxies.findings(settings):
            yield finding
        async for finding in of_work.findings(store, settings, fix=fix):
            yield finding
        async for finding in of_mails.findings(store, settings):
            yield finding
        async for finding in of_counts.counts(store, fix=fix):
            yield finding
        async for finding in of_payments.money(store):
            yield finding
    except Outage as silence:
        yield problem(
            "database",
            f"The database stopped answering: {silence.facts() or silence}",
            "Look at it, and run `earmark doctor` again.",
        )
    finally:
        await store.close()


async def _has_live_events(store: Store) -> bool:
    return bool(await store.list_events(mode=Mode.LIVE, after=None, limit=1))


def _print(found: list[Finding]) -> None:
    out = Console(highlight=False, soft_wrap=True)
    for finding in found:
        level = f"[{COLOURS[finding.level]}]{finding.level.value:>{LEVEL_WIDTH}}[/]"
        out.print(f"{level}  {finding.check:<10}  {finding.said.replace('[', chr(92) + '[')}")
        if finding.advice and finding.level in {Level.PROBLEM, Level.NOTE}:
            out.print(f"{'':>{LEVEL_WIDTH}}  {'':<10}  → {finding.advice}", markup=False)
    count = sum(finding.level is Level.PROBLEM for finding in found)
    out.print(f"{count or 'No'} {'problems' if count > 1 else 'problem'} found.")
