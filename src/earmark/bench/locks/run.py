"""A run of the lock bench: rounds of every workload on every contender, interleaved on one server.

Within a round each workload is measured on all contenders, one right after the other, and the first contender is
another one in every round: what else the machine does meanwhile slows all alike. Keys carry a mark that is new for
every run, so that a server in use can be measured, and keys that ours leaves behind can be found; a waiter of another
library that was cancelled may leave a lock, which expires.
"""

from __future__ import annotations

import asyncio
import gc
import platform
import secrets
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import redis

from earmark.bench.describe_failed_run import broke_off
from earmark.bench.locks import compute_medians_and_fairness, lock_libraries, measure_rates_and_waits
from earmark.bench.locks.compute_medians_and_fairness import HANDOVER, LONE, SINGLE, SYNC, THREE, LockFigures
from earmark.bench.redis_version import redis_product
from earmark.bench.report.machine import usable_cores
from earmark.bench.rotate_contender_order import rotated
from earmark.errors import EarmarkError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SCHEMES = ("redis", "rediss", "unix")
PAIRS_MIN = 10
"""A single task or thread is measured in at least so many paired rounds."""
PAIR_SHARE = 1 / 3
"""A pass of a single task takes less than a millisecond, so that a third of the time is enough."""
HANDOVER_SHARE = 3
"""Unfair waiting takes time to show."""


class LockPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often each workload is measured."""

    rounds: int = 5
    seconds: float = 1.0
    """Per workload and contender, in each round."""

    @property
    def pairs(self) -> int:
        """How often a single task is measured in each round."""
        return -(-PAIRS_MIN // self.rounds)


class LockMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """One workload on one contender, once."""

    round: int
    workload: str
    contender: str


class LockResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run, and what it was measured with."""

    plan: LockPlan
    figures: LockFigures
    versions: dict[str, str]
    cores: int
    absent: tuple[str, ...]
    left: tuple[str, ...]
    """Keys of ours that were still on the server when all locks had been released."""

    @property
    def flaws(self) -> list[str]:
        """What a lock must never do: one that does it has no speed worth reporting."""
        found = [
            f"{contender} had two holders of one lock, {count} times"
            for contender, count in self.figures.overlaps.items()
            if count
        ]
        return [*found, f"locks of ours were left behind: {', '.join(self.left[:10])}"] if self.left else found

    def plain(self) -> dict[str, Any]:
        """The whole, ready for JSON."""
        return {
            "ratios": compute_medians_and_fairness.ratios(self.figures),
            "rivals": {
                workload: compute_medians_and_fairness.rival(self.figures, workload)
                for workload in compute_medians_and_fairness.WORKLOADS
            },
            "figures": compute_medians_and_fairness.plain(self.figures),
            "versions": self.versions,
            "machine": {"cores": self.cores},
            "rounds": self.plan.rounds,
            "seconds": self.plan.seconds,
            "overlaps": sum(self.figures.overlaps.values()),
            "left_behind": len(self.left),
            "absent": self.absent,
        }


def schedule(plan: LockPlan, *, tasks: Sequence[str], threads: Sequence[str]) -> Iterator[LockMeasurement]:
    """The order of all measurements."""
    for number in range(plan.rounds):
        for workload in (SINGLE, THREE):
            yield from _row(tasks, workload, number=number, turn=number)
        for workload, contenders in ((LONE, tasks), (SYNC, threads)):
            for pair in range(plan.pairs):
                yield from _row(contenders, workload, number=number, turn=number + pair)
        yield from _row(tasks, HANDOVER, number=number, turn=number)


def _row(contenders: Sequence[str], workload: str, *, number: int, turn: int) -> Iterator[LockMeasurement]:
    for contender in rotated(contenders, turn):
        yield LockMeasurement(round=number, workload=workload, contender=contender)


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """The server of the URL, or a private one that is stopped at the end."""
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
    plan: LockPlan,
    *,
    field: lock_libraries.LockContenders | None = None,
    watch: Callable[[LockFigures, LockMeasurement, float], None] = lambda _figures, _cell, _share: None,
) -> LockResult:
    """Measure all workloads. `watch` is called after every measurement with the figures so far and the share done."""
    product, mark = redis_product(url), f"bench-{secrets.token_hex(4)}"
    field = field or lock_libraries.gather(url)
    figures = LockFigures()
    measurements = list(
        schedule(plan, tasks=[one.name for one in field.tasks], threads=[one.name for one in field.threads])
    )
    # The collections below need not search the objects that exist now.
    gc.freeze()
    with asyncio.Runner() as runner:
        try:
            for number, measurement in enumerate(measurements):
                # No contender pays for the garbage of the one before.
                gc.collect()
                _measure(
                    measurement,
                    figures,
                    field=field,
                    plan=plan,
                    runner=runner,
                    name=f"{mark}:{measurement.contender}:{number}",
                )
                watch(figures, measurement, (number + 1) / len(measurements))
        finally:
            gc.unfreeze()
            for one in field.tasks:
                runner.run(one.close())
            for other in field.threads:
                other.close()
    return LockResult(
        plan=plan,
        figures=figures,
        versions={"python": platform.python_version(), "server": product, **lock_libraries.versions(field)},
        cores=usable_cores(),
        absent=field.absent,
        left=_left_behind(url, mark),
    )


def _measure(
    measurement: LockMeasurement,
    figures: LockFigures,
    *,
    field: lock_libraries.LockContenders,
    plan: LockPlan,
    runner: asyncio.Runner,
    name: str,
) -> None:
    try:
        if measurement.workload == SYNC:
            thread = next(one for one in field.threads if one.name == measurement.contender)
            took = measure_rates_and_waits.time_thread(partial(thread.once, name), seconds=plan.seconds * PAIR_SHARE)
            figures.add_latencies(SYNC, measurement.contender, took)
        else:
            contender = next(one for one in field.tasks if one.name == measurement.contender)
            runner.run(_measure_tasks(measurement.workload, contender, figures, seconds=plan.seconds, name=name))
    except (redis.RedisError, EarmarkError, TimeoutError, ExceptionGroup) as error:
        raise SetupError(problem=broke_off(measurement.workload, measurement.contender, error)) from error


async def _measure_tasks(
    workload: str, contender: lock_libraries.Contender, figures: LockFigures, *, seconds: float, name: str
) -> None:
    tasks = range(measure_rates_and_waits.TASKS)
    if workload == SINGLE:
        singles = [partial(contender.once, f"{name}:{task}") for task in tasks]
        figures.add_rate(
            SINGLE, contender.name, await measure_rates_and_waits.acts_per_second(singles, seconds=seconds)
        )
    elif workload == THREE:
        triples = [
            partial(contender.thrice, (f"{name}:{task}:a", f"{name}:{task}:b", f"{name}:{task}:c")) for task in tasks
        ]
        figures.add_rate(THREE, contender.name, await measure_rates_and_waits.acts_per_second(triples, seconds=seconds))
    elif workload == LONE:
        took = await measure_rates_and_waits.time_task(partial(contender.once, name), seconds=seconds * PAIR_SHARE)
        figures.add_latencies(LONE, contender.name, took)
    else:
        line = await measure_rates_and_waits.handover(partial(contender.turn, name), seconds=seconds * HANDOVER_SHARE)
        figures.add_line(contender.name, line)


def _left_behind(url: str, mark: str) -> tuple[str, ...]:
    """Keys of ours that this run made and that are still there."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return tuple(sorted(client.scan_iter(match=f"*{mark}:{lock_libraries.OURS}:*", count=1000)))
