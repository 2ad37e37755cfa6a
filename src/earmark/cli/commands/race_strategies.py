"""The command that runs booking strategies against each other, and counts seats sold twice."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from earmark.cli.commands.bench import check_folder
from earmark.errors import SetupError


def race(
    *,
    strategy: Annotated[
        list[str] | None, Parameter(negative="", help="Race only this one; can be given several times. Else all.")
    ] = None,
    buyers: Annotated[int, Parameter(validator=Number(gte=2, lte=20_000), help="How many buyers at once.")] = 500,
    pause: Annotated[
        float, Parameter(validator=Number(gte=0, lte=10), help="Seconds between the read and the write.")
    ] = 0.05,
    expire: Annotated[
        bool, Parameter(negative="", help="Let the locks in Redis run out while their holders are paused.")
    ] = False,
    database: Annotated[
        str | None, Parameter(help="The PostgreSQL to race on, in databases of its own. Else a private one is started.")
    ] = None,
    redis: Annotated[
        str | None, Parameter(help="The Redis to lock in; several, by commas, for a Redlock. Else private ones.")
    ] = None,
    markdown: Annotated[Path | None, Parameter(help="Write the table in Markdown here.")] = None,
    json: Annotated[bool, Parameter(negative="", help="One JSON object on stdout, and nothing else.")] = False,
) -> int:
    """Let buyers race for the same seats, and count double sales.

    Each strategy sells on a database without the guards of the schema; those that sell a seat twice there (the naive
    one, and with --expire the locks that run out) once more with them. Exits with 1 when a claim broke: a strategy that
    calls itself safe sold a seat twice, or the naive one did not.
    """
    check_folder(markdown)
    try:
        import redis as _needed  # noqa: F401 (the strategies that lock in it import it when they are opened)

        from earmark.bench.booking.race import markdown as tables
        from earmark.bench.booking.race import postgres_and_redis_servers, run, show_progress_and_results
        from earmark.bench.booking.strategies import STRATEGIES
    except ModuleNotFoundError as missing:
        raise SetupError(problem="A race needs extras: pip install 'earmark[postgres,redis,testservers]'") from missing
    if unknown := [name for name in strategy or () if name not in STRATEGIES]:
        raise SetupError(problem=f"There is no strategy {unknown[0]}. There are {', '.join(STRATEGIES)}.")
    chosen = [name for name in STRATEGIES if name in (strategy or STRATEGIES)]
    plan = run.RacePlan(strategies=chosen, buyers=buyers, pause_seconds=pause, expire=expire)
    err, out = Console(stderr=True, highlight=False), Console(highlight=False)
    with (
        postgres_and_redis_servers.servers(database, redis, with_redis=plan.with_redis) as where,
        show_progress_and_results.RaceProgress(out if out.is_terminal and not json else err, plan) as watch,
    ):
        result = asyncio.run(run.run(where, plan, watch=watch))
    if markdown is not None:
        markdown.write_text(tables.table(result), encoding="utf-8")
    if json:
        sys.stdout.write(msgspec.json.encode(result.plain()).decode() + "\n")
    else:
        show_progress_and_results.show(out, result)
    for broken in result.broken:
        err.print(f"[red]earmark:[/] {broken}.", soft_wrap=True)
    return 1 if result.broken else 0
