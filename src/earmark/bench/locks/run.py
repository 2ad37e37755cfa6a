"""A run: rounds of every workload on every contender, interleaved on one server.

Within a round each workload is measured on all contenders, one right after the other, and who begins changes with
every round: what the machine does meanwhile falls on everybody alike. Names carry a mark that is new for every run,
so that a server in use is safe to measure on, and what ours leaves behind can be told; a peer's waiter that was
cancelled in the middle of asking may leave a lock, which is gone when its time to live is over.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import secrets
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import redis

from earmark.bench.locks import figures as lab
from earmark.bench.locks import peers, workloads
from earmark.bench.locks.figures import HANDOVER, LONE, SINGLE, SYNC, THREE, Figures
from earmark.errors import EarmarkError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SCHEMES = ("redis", "rediss", "unix")
PAIRS_MIN = 10
"""One alone is measured in at least so many paired rounds."""
PAIR_SHARE = 1 / 3
"""A pass of one alone takes less than a millisecond, so that a third of a cell's time says enough."""
HANDOVER_SHARE = 3
"""Starving takes time to show."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often."""

    rounds: int = 5
    seconds: float = 1.0
    """Per workload and contender, in each round."""

    @property
    def pairs(self) -> int:
        """How often one alone is measured in each round."""
        return -(-PAIRS_MIN // self.rounds)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One workload on one contender, once."""

    round: int
    workload: str
    contender: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run showed, and where."""

    plan: Plan
    figures: Figures
    versions: dict[str, str]
    cores: int
    absent: tuple[str, ...]
    left: tuple[str, ...]
    """Names of ours that were still on the server when everybody had given everything back."""

    @property
    def flaws(self) -> list[str]:
        """What a lock must never do. One that does has no speed worth telling."""
        found = [
            f"{contender} let somebody in while another was inside, {count} times"
            for contender, count in self.figures.overlaps.items()
            if count
        ]
        return [*found, f"locks of ours were left behind: {', '.join(self.left[:10])}"] if self.left else found

    def plain(self) -> dict[str, Any]:
        """The whole, ready for JSON."""
        return {
            "ratios": lab.ratios(self.figures),
            "rivals": {workload: lab.rival(self.figures, workload) for workload in lab.WORKLOADS},
            "figures": lab.plain(self.figures),
            "versions": self.versions,
            "machine": {"cores": self.cores},
            "rounds": self.plan.rounds,
            "seconds": self.plan.seconds,
            "overlaps": sum(self.figures.overlaps.values()),
            "left_behind": len(self.left),
            "absent": self.absent,
        }


def schedule(plan: Plan, *, tasks: Sequence[str], threads: Sequence[str]) -> Iterator[Cell]:
    """Who is measured when."""
    for number in range(plan.rounds):
        for workload in (SINGLE, THREE):
            yield from _row(tasks, workload, number=number, turn=number)
        for workload, contenders in ((LONE, tasks), (SYNC, threads)):
            for pair in range(plan.pairs):
                yield from _row(contenders, workload, number=number, turn=number + pair)
        yield from _row(tasks, HANDOVER, number=number, turn=number)


def _row(contenders: Sequence[str], workload: str, *, number: int, turn: int) -> Iterator[Cell]:
    first = turn % len(contenders)
    for contender in (*contenders[first:], *contenders[:first]):
        yield Cell(round=number, workload=workload, contender=contender)


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """The server that a URL names, or a private one that is gone afterwards."""
    if url is not None:
        if urlsplit(url).scheme not in SCHEMES:
            known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            raise SetupError(problem=f"The locks are measured on one Redis: its URL begins with {known}.")
        yield url
        return
    from earmark.testservers import ServerUnavailable, start_valkey

    try:
        started = start_valkey()
    except ServerUnavailable as reason:
        raise SetupError(problem=f"Nothing to measure on: {reason} Or name a server with --redis URL.") from reason
    with started:
        yield started.url


def run(
    url: str,
    plan: Plan,
    *,
    field: peers.Field | None = None,
    watch: Callable[[Figures, Cell, float], None] = lambda _figures, _cell, _share: None,
) -> Result:
    """Measure. `watch` is told after every cell what is known by then, and which share of the run is over."""
    product, mark = _greet(url), f"bench-{secrets.token_hex(4)}"
    field = field or peers.gather(url)
    figures = Figures()
    cells = list(schedule(plan, tasks=[one.name for one in field.tasks], threads=[one.name for one in field.threads]))
    # What was there before is not searched for rubbish again at every cell.
    gc.freeze()
    with asyncio.Runner() as runner:
        try:
            for number, cell in enumerate(cells):
                # Nobody pays for the rubbish of the one before.
                gc.collect()
                _measure(cell, figures, field=field, plan=plan, runner=runner, name=f"{mark}:{cell.contender}:{number}")
                watch(figures, cell, (number + 1) / len(cells))
        finally:
            gc.unfreeze()
            for one in field.tasks:
                runner.run(one.close())
            for other in field.threads:
                other.close()
    return Result(
        plan=plan,
        figures=figures,
        versions={"python": platform.python_version(), "server": product, **peers.versions(field)},
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        absent=field.absent,
        left=_left_behind(url, mark),
    )


def _measure(
    cell: Cell, figures: Figures, *, field: peers.Field, plan: Plan, runner: asyncio.Runner, name: str
) -> None:
    try:
        if cell.workload == SYNC:
            thread = next(one for one in field.threads if one.name == cell.contender)
            took = workloads.alone_sync(partial(thread.once, name), seconds=plan.seconds * PAIR_SHARE)
            figures.add_latencies(SYNC, cell.contender, took)
        else:
            contender = next(one for one in field.tasks if one.name == cell.contender)
            runner.run(_measure_tasks(cell.workload, contender, figures, seconds=plan.seconds, name=name))
    except (redis.RedisError, EarmarkError, TimeoutError, ExceptionGroup) as error:
        cause = _first(error)
        raise SetupError(
            problem=f"The run broke off in {cell.workload}, with {cell.contender}: {type(cause).__name__}: {cause}"
        ) from error


async def _measure_tasks(
    workload: str, contender: peers.Contender, figures: Figures, *, seconds: float, name: str
) -> None:
    crew = range(workloads.TASKS)
    if workload == SINGLE:
        singles = [partial(contender.once, f"{name}:{task}") for task in crew]
        figures.add_rate(SINGLE, contender.name, await workloads.crowd(singles, seconds=seconds))
    elif workload == THREE:
        triples = [
            partial(contender.thrice, (f"{name}:{task}:a", f"{name}:{task}:b", f"{name}:{task}:c")) for task in crew
        ]
        figures.add_rate(THREE, contender.name, await workloads.crowd(triples, seconds=seconds))
    elif workload == LONE:
        took = await workloads.alone(partial(contender.once, name), seconds=seconds * PAIR_SHARE)
        figures.add_latencies(LONE, contender.name, took)
    else:
        line = await workloads.handover(partial(contender.turn, name), seconds=seconds * HANDOVER_SHARE)
        figures.add_line(contender.name, line)


def _first(error: BaseException) -> BaseException:
    """What a group of tasks failed of."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _greet(url: str) -> str:
    """The server's name and version, or a clear refusal."""
    try:
        with redis.Redis.from_url(url, socket_timeout=5) as client:
            about = client.info("server")
    except (redis.RedisError, ValueError) as error:
        raise SetupError(problem=f"The Redis to measure on does not answer: {error}") from error
    if "valkey_version" in about:
        return f"Valkey {about['valkey_version']}"
    return f"Redis {about['redis_version']}"


def _left_behind(url: str, mark: str) -> tuple[str, ...]:
    """Names of ours that this run made and that are still there."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return tuple(sorted(client.scan_iter(match=f"*{mark}:{peers.OURS}:*", count=1000)))
