"""Commands about locks: list them with holder, age and waiters, and break one."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console
from rich.prompt import Confirm
from rich.table import Table

from earmark import config
from earmark.cli.commands.run_under_lock import run
from earmark.locks import keys
from earmark.wiring import redis_locks_and_admission as redis_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from earmark.locks import Holding, Locks

Redis = Annotated[
    str | None,
    Parameter(
        help="Where the locks are: `redis://`, `sentinel://`, `cluster://`, several for a Redlock, or "
        "`postgresql://`. Else EARMARK_LOCKS_URL, else the first of EARMARK_REDIS_URL."
    ),
]
Prefix = Annotated[str, Parameter(help="What the names of the locks begin with in Redis.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="JSON on stdout.")]

locks = App(name="locks", help="Show which locks are held and by which process, and break one.", help_format="markdown")
locks.command(run)


@locks.command(name="list")
def list_(
    match: Annotated[str, Parameter(help="Only keys like this; `*` stands for anything.")] = "*",
    *,
    redis: Redis = None,
    prefix: Prefix = "earmark",
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=100_000), help="How many to show at most.")] = 1000,
    json: Json = False,
) -> None:
    """List the locks that are held: holder, age, time left, and how many wait."""
    found = _run(redis, prefix, lambda opened: opened.holdings(match=match, limit=limit))
    if json:
        _print_json(found)
        return
    out = Console(highlight=False, soft_wrap=True)
    if not found:
        out.print("No lock is held.")
        return
    out.print(_table(found))


@locks.command
def show(key: str, *, redis: Redis = None, prefix: Prefix = "earmark", json: Json = False) -> int:
    """Show one lock with its holder and the processes that wait for it. Exits with 1 when it is not held."""
    found = _run(redis, prefix, lambda opened: opened.find(key))
    if json:
        _print_json(found)
        return 0 if found else 1
    out = Console(highlight=False, soft_wrap=True)
    if found is None:
        out.print(f"{key} is not held.", markup=False)
        return 1
    fields = {
        "key": found.key,
        "holder": found.holder,
        "fence": "-" if found.fence is None else str(found.fence),
        "token": found.token,
        "held for": f"{found.age_seconds:.1f} s",
        "runs out in": f"{found.ttl_seconds:.1f} s",
        "waiting": str(len(found.waiters)),
    }
    for name, value in fields.items():
        out.print(f"{name:>11}  {value}", markup=False)
    for place, waiter in enumerate(found.waiters, start=1):
        out.print(f"{place:>11}. {waiter}", markup=False)
    return 0


@locks.command(name="break")
def break_(
    key: str,
    *,
    redis: Redis = None,
    prefix: Prefix = "earmark",
    yes: Annotated[bool, Parameter(negative="", help="Do not ask.")] = False,
) -> int:
    """Break a lock: its holder loses it, and the next in line gets it. Exits with 1 when it was not held.

    The holder is not notified: it continues until it notices. Only a fence prevents its late writes.
    """
    out = Console(highlight=False, soft_wrap=True)
    if not yes and not Confirm.ask(f"Break the lock on {key}? Its holder may still be running.", console=out):
        out.print("Not broken.")
        return 1
    if _run(redis, prefix, lambda opened: opened.evict(key)):
        out.print(f"The lock on {key} was broken.", markup=False)
        return 0
    out.print(f"{key} is not held.", markup=False)
    return 1


@locks.command
def stuck(
    *,
    older_than: Annotated[
        float, Parameter(validator=Number(gt=0), help="Seconds that no lock should be held for.")
    ] = 60.0,
    redis: Redis = None,
    prefix: Prefix = "earmark",
    json: Json = False,
) -> int:
    """List locks that are held for too long, and exit with 1 if there are any. Meant for a monitor."""
    found = _run(redis, prefix, lambda opened: opened.stuck(older_than=older_than))
    if json:
        _print_json(found)
    else:
        out = Console(highlight=False, soft_wrap=True)
        out.print(_table(found) if found else f"No lock is older than {older_than:g} s.")
    return 1 if found else 0


@locks.command
def check(names: Annotated[list[str], Parameter(help="Lock names to check.")]) -> int:
    """Check lock names: too broad, too narrow, or badly written. Exits with 1 when one is refused."""
    out = Console(highlight=False, soft_wrap=True)
    bad = 0
    for name in names:
        problems = keys.problems(name)
        bad += bool(problems)
        out.print(f"{name}: {'; '.join(problems) if problems else 'ok'}", markup=False)
    return 1 if bad else 0


def _run(url: str | None, prefix: str, work: Callable[[Locks], Coroutine[Any, Any, Any]]) -> Any:
    settings = config.read(os.environ, locks_url=url)

    async def run() -> Any:
        opened = redis_parts.open_locks(settings, prefix=prefix)
        try:
            return await work(opened)
        finally:
            await opened.close()

    return asyncio.run(run())


def _table(found: Sequence[Holding]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("key", overflow="fold")
    table.add_column("holder", overflow="fold")
    for name in ("held for", "runs out in", "waiting"):
        table.add_column(name, justify="right", no_wrap=True)
    for holding in found:
        table.add_row(
            _plain(holding.key),
            _plain(holding.holder),
            f"{holding.age_seconds:.1f} s",
            f"{holding.ttl_seconds:.1f} s",
            str(len(holding.waiters)),
        )
    return table


def _plain(text: str) -> str:
    return text.replace("[", "\\[")


def _print_json(found: Any) -> None:
    print(msgspec.json.format(msgspec.json.encode(found)).decode())  # noqa: T201
