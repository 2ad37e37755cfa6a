"""The commands that measure Earmark on this machine, each in servers of its own."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console

from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

bench = App(name="bench", help="Measure on this machine.")

Incident = Literal[
    "locked-row",
    "paused-server",
    "stopped-database",
    "paused-database",
    "restarted-read-only",
    "read-only",
    "frozen-primary",
]
Attacked = Literal[
    "paths",
    "texts",
    "bodies",
    "idempotency-keys",
    "card-testing",
    "denied-gateway",
    "card-numbers",
    "other-bodies",
    "account-codes",
    "pinning",
    "hoarding",
    "silent-connections",
    "slow-requests",
    "streams",
    "cookies",
    "wrong-keys",
    "public-pages",
    "inward-webhooks",
]
Workload = Literal["uniform", "hot", "outage", "flash", "sku", "lone", "growth", "sqlite", "two", "memory"]


@bench.command
def booking(
    *,
    workload: Annotated[
        list[Workload] | None,
        Parameter(negative="", help="What to measure; can be given several times. Else everything but `memory`."),
    ] = None,
    rounds: Annotated[int, Parameter(validator=Number(gte=1), help="How often everything is measured.")] = 3,
    seconds: Annotated[
        float, Parameter(validator=Number(gt=0, lte=600), help="How long, per workload, contender and round.")
    ] = 1.5,
    clients: Annotated[int, Parameter(validator=Number(gte=2, lte=2000), help="How many buyers at once.")] = 200,
    database: Annotated[
        str | None,
        Parameter(help="The PostgreSQL to measure on, in databases of our own. Else a private one is started."),
    ] = None,
    redis: Annotated[
        str | None, Parameter(help="The Redis to measure with; several, by commas, for a Redlock. Else private ones.")
    ] = None,
    html: Annotated[Path | None, Parameter(help="Write a report with plots here.")] = None,
    markdown: Annotated[Path | None, Parameter(help="Write the tables in Markdown here.")] = None,
    json: Annotated[bool, Parameter(negative="", help="One JSON object on stdout, and nothing else.")] = False,
) -> int:
    """Measure hold and confirm beside what people write by hand. Exits with 1 when a count in the database is off."""
    check_folder(html)
    check_folder(markdown)
    try:
        from earmark.bench.booking.measure import html_report, show_progress_and_results
        from earmark.bench.booking.measure import markdown as tables
        from earmark.bench.booking.measure import measurement_plan as plans
        from earmark.bench.booking.measure import run as runs
    except ModuleNotFoundError as missing:
        raise SetupError(
            problem="The bench needs extras: pip install 'earmark[postgres,redis,testservers]'"
        ) from missing
    chosen = tuple(dict.fromkeys(workload)) if workload else tuple(plans.WORKLOADS)
    plan = plans.BookingPlan(rounds=rounds, seconds=seconds, clients=clients, workloads=chosen)
    err, out = Console(stderr=True, highlight=False), Console(highlight=False)
    with show_progress_and_results.BookingProgress(out if out.is_terminal and not json else err, plan) as watch:
        result = asyncio.run(runs.run(plan, database=database, redis=redis, watch=watch))
    if html is not None:
        html.write_text(html_report.page(result, when=datetime.now(UTC)), encoding="utf-8")
    if markdown is not None:
        markdown.write_text(tables.tables(result), encoding="utf-8")
    return _end(result, err=err, show=None if json else lambda: show_progress_and_results.show(out, result))


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
    """Measure the locks beside those of other libraries, on one server. Exits with 1 when a lock had two holders."""
    check_folder(html)
    try:
        from earmark.bench.locks import html_report, lock_libraries, show_progress_and_results
        from earmark.bench.locks import run as runs
    except ModuleNotFoundError as missing:
        raise SetupError(problem="The locks need an extra: pip install 'earmark[redis]'") from missing
    plan = runs.LockPlan(rounds=rounds, seconds=seconds)
    err, out = Console(stderr=True, highlight=False), Console(highlight=False)
    with runs.server(redis) as url:
        field = lock_libraries.gather(url)
        for name in field.absent:
            err.print(f"{name} is not installed, and left out: pip install {name}", soft_wrap=True)
        with show_progress_and_results.LockProgress(out if out.is_terminal and not json else err, plan) as watch:
            result = runs.run(url, plan, field=field, watch=watch)
    if html is not None:
        html.write_text(html_report.page(result, when=datetime.now(UTC)), encoding="utf-8")
    return _end(result, err=err, show=None if json else lambda: show_progress_and_results.show(out, result))


@bench.command
def stream(
    *,
    readers: Annotated[int, Parameter(validator=Number(gte=1, lte=10_000), help="How many follow one event.")] = 1000,
    rate: Annotated[float, Parameter(validator=Number(gt=0, lte=10_000), help="Changes per second.")] = 200.0,
    seconds: Annotated[float, Parameter(validator=Number(gt=0, lte=600), help="How long changes are made.")] = 10.0,
    database: Annotated[
        str | None, Parameter(help="An empty database to measure on. Else a private PostgreSQL is started.")
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="One JSON object on stdout, and nothing else.")] = False,
) -> int:
    """Measure how soon readers of the live map see a change. Exits with 1 when a floor is missed."""
    try:
        from earmark.bench.stream import print_results
        from earmark.bench.stream import run as runs
    except ModuleNotFoundError as missing:
        raise SetupError(
            problem="The bench needs extras: pip install 'earmark[postgres,server,testservers]'"
        ) from missing
    plan = runs.StreamPlan(readers=readers, rate=rate, seconds=seconds)
    err, out = Console(stderr=True, highlight=False), Console(highlight=False)
    result = asyncio.run(runs.run(plan, database=database, watch=err.print))
    return _end(result, err=err, show=None if json else lambda: print_results.show(out, result))


@bench.command
def http(
    *,
    rounds: Annotated[int, Parameter(validator=Number(gte=1), help="How often everything is measured.")] = 5,
    seconds: Annotated[
        float, Parameter(validator=Number(gt=0, lte=600), help="How long, per contender and round.")
    ] = 4.0,
    connections: Annotated[
        int, Parameter(validator=Number(gte=1, lte=2000), help="How many buyers at once, each on a connection.")
    ] = 64,
    overload: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=1, lte=25_000),
            help="How many at once in the end: more than can be served. 6000 for each process unless you say.",
        ),
    ] = None,
    workers: Annotated[int, Parameter(validator=Number(gte=2, lte=64), help="Processes of every server.")] = 2,
    database: Annotated[
        str | None,
        Parameter(help="The PostgreSQL to measure on, in a database of our own. Else a private one is started."),
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="One JSON object on stdout, and nothing else.")] = False,
) -> int:
    """Measure holds over HTTP beside a FastAPI endpoint. Exits with 1 when a count is off or a ratio too small."""
    try:
        from earmark.bench.http import run as runs
        from earmark.bench.http import show_progress_and_results
        from earmark.bench.http.results import OVERLOAD_EACH, HttpPlan
    except ModuleNotFoundError as missing:
        needed = "pip install 'earmark[postgres,server,testservers]' fastapi"
        raise SetupError(problem=f"The bench needs more than Earmark itself: {needed}") from missing
    plan = HttpPlan(
        rounds=rounds,
        seconds=seconds,
        connections=connections,
        overload_connections=overload or min(OVERLOAD_EACH * workers, 25_000),
        workers=workers,
    )
    err, out = Console(stderr=True, highlight=False), Console(highlight=False)
    with show_progress_and_results.HttpProgress(out if out.is_terminal and not json else err) as watch:
        result = asyncio.run(runs.run(plan, database=database, watch=watch))
    return _end(result, err=err, show=None if json else lambda: show_progress_and_results.show(out, result))


@bench.command
def incidents(
    *,
    incident: Annotated[
        list[Incident] | None, Parameter(negative="", help="What goes wrong; can be given several times. Else all.")
    ] = None,
    seconds: Annotated[
        float | None, Parameter(validator=Number(gt=0, lte=600), help="How long each lasts. Else 20, `locked-row` 30.")
    ] = None,
    before: Annotated[float, Parameter(validator=Number(gt=0, lte=600), help="Seconds measured before it.")] = 10.0,
    after: Annotated[float, Parameter(validator=Number(gt=0, lte=600), help="Seconds measured after it.")] = 15.0,
    clients: Annotated[
        int | None,
        Parameter(validator=Number(gte=1, lte=2000), help="How many buyers at once. Else 24, `locked-row` 200."),
    ] = None,
    earmark: Annotated[
        Path | None, Parameter(help="Another `earmark` program to migrate and serve with. Else this one.")
    ] = None,
    markdown: Annotated[Path | None, Parameter(help="Write the tables in Markdown here.")] = None,
    json: Annotated[bool, Parameter(negative="", help="One JSON object on stdout, and nothing else.")] = False,
) -> int:
    """Measure how clients are answered during an incident, and after it. Exits with 1 when a floor is missed."""
    check_folder(markdown)
    try:
        from earmark.bench.incidents import result_tables
        from earmark.bench.incidents import run as runs
        from earmark.bench.incidents.faults import INCIDENTS
        from earmark.bench.incidents.results_and_required_floors import IncidentPlan
    except ModuleNotFoundError as missing:
        raise SetupError(
            problem="The bench needs extras: pip install 'earmark[postgres,server,testservers]'"
        ) from missing
    plan = IncidentPlan(
        incidents=tuple(dict.fromkeys(incident)) if incident else tuple(INCIDENTS),
        seconds=seconds,
        clients=clients,
        before_seconds=before,
        after_seconds=after,
        earmark=(str(earmark.absolute()),) if earmark else (),
    )
    err, out = Console(stderr=True, highlight=False), Console(highlight=False)
    result = asyncio.run(runs.run(plan, watch=lambda line: err.print(line, soft_wrap=True)))
    if markdown is not None:
        markdown.write_text(result_tables.markdown(result), encoding="utf-8")
    return _end(result, err=err, show=None if json else lambda: result_tables.show(out, result))


@bench.command
def attacks(
    *,
    attack: Annotated[
        list[Attacked] | None, Parameter(negative="", help="Which; can be given several times. Else all.")
    ] = None,
    rounds: Annotated[
        int, Parameter(validator=Number(gte=1, lte=20), help="How often each is measured, beside harmless load.")
    ] = 2,
    seconds: Annotated[float, Parameter(validator=Number(gt=0, lte=60), help="How long a phase lasts.")] = 1.5,
    earmark: Annotated[
        Path | None, Parameter(help="Another `earmark` program to migrate and serve with. Else this one.")
    ] = None,
    markdown: Annotated[Path | None, Parameter(help="Write the table in Markdown here.")] = None,
    json: Annotated[bool, Parameter(negative="", help="One JSON object on stdout, and nothing else.")] = False,
) -> int:
    """Attack a server of our own. Exits with 1 when an attack is not refused or bounded, or stalls other requests."""
    check_folder(markdown)
    try:
        from earmark.bench.attacks import result_tables
        from earmark.bench.attacks import run as runs
        from earmark.bench.attacks.results import AttackPlan
    except ModuleNotFoundError as missing:
        extras = "pip install 'earmark[postgres,redis,server,testservers,stripe]'"
        raise SetupError(problem=f"The attacks need extras: {extras}") from missing
    chosen = tuple(dict.fromkeys(attack)) if attack else tuple(runs.all_attacks())
    program = (str(earmark.absolute()),) if earmark else ()
    plan = AttackPlan(attacks=chosen, rounds=rounds, seconds=seconds, earmark=program)
    err, out = Console(stderr=True, highlight=False), Console(highlight=False)
    result = asyncio.run(runs.run(plan, watch=lambda line: err.print(line, soft_wrap=True)))
    if markdown is not None:
        markdown.write_text(result_tables.markdown(result), encoding="utf-8")
    return _end(result, err=err, show=None if json else lambda: result_tables.show(out, result))


class _BenchResult(Protocol):
    """What every bench returns."""

    @property
    def flaws(self) -> list[str]:
        """Violations and missed floors; any of them makes the exit code 1."""
        ...

    def plain(self) -> dict[str, Any]:
        """The whole result, ready for JSON."""
        ...


def _end(result: _BenchResult, *, err: Console, show: Callable[[], None] | None) -> int:
    """Show the result, or print JSON; then its flaws, and return the exit code."""
    if show:
        show()
    else:
        sys.stdout.write(msgspec.json.encode(result.plain()).decode() + "\n")
    for flaw in result.flaws:
        err.print(f"[red]earmark:[/] {flaw}", soft_wrap=True)
    return 1 if result.flaws else 0


def check_folder(page: Path | None) -> None:
    """Refuse a missing folder before anything is measured, rather than minutes later."""
    if page is not None and not page.absolute().parent.is_dir():
        raise SetupError(problem=f"There is no folder {page.absolute().parent} to write the report in.")
