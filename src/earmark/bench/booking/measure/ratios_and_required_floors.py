"""The ratios in which the booking bench compares contenders, and the floor that a ratio must reach if it has one."""

from __future__ import annotations

import msgspec

from earmark.bench.booking.measure.measurement_plan import (
    BATCHED,
    FEW,
    GROWTH,
    HOT,
    LONE,
    MANY,
    ONE_PROCESS,
    OURS,
    PGBENCH,
    SINGLE,
    SKU,
    SQLITE,
    TWO,
    TWO_PROCESSES,
    UNIFORM,
    WITH_REDIS,
)


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to compare, and what it must at least be."""

    name: str
    description: str
    workload: str
    ours: str
    theirs: str
    floor: float | None
    """What it must at least be, or at most where less is better."""
    aim: float | None
    figure: str = "rate"
    less: bool = False


RATIOS = (
    Ratio(
        name="uniform_vs_for_update",
        description="flows per second, over FOR UPDATE with a statement per row",
        workload=UNIFORM,
        ours=OURS,
        theirs="for_update",
        floor=8,
        aim=15,
    ),
    Ratio(
        name="uniform_vs_for_update_in_two_statements",
        description="flows per second, over FOR UPDATE in two statements",
        workload=UNIFORM,
        ours=OURS,
        theirs="for_update_in_two_statements",
        floor=5.5,
        aim=9,
    ),
    Ratio(
        name="uniform_vs_cte",
        description="flows per second, over one tuned statement per request",
        workload=UNIFORM,
        ours=OURS,
        theirs="cte",
        floor=3.5,
        aim=6,
    ),
    Ratio(
        name="uniform_vs_pgbench",
        description="flows per second, over pgbench with the same statements",
        workload=UNIFORM,
        ours=OURS,
        theirs=PGBENCH,
        floor=2.5,
        aim=4,
    ),
    Ratio(
        name="p99_vs_for_update",
        description="p99 of hold among 200 clients, over FOR UPDATE's",
        workload=UNIFORM,
        ours=OURS,
        theirs="for_update",
        floor=1 / 8,
        aim=1 / 20,
        figure="p99_ms",
        less=True,
    ),
    Ratio(
        name="lone_vs_cte",
        description="p50 of hold of one client alone, over one tuned statement's",
        workload=LONE,
        ours=OURS,
        theirs="cte",
        floor=1.25,
        aim=1.0,
        figure="p50_ms",
        less=True,
    ),
    Ratio(
        name="hot_vs_for_update",
        description="attempts answered per second where all want the same seats, with Redis in front, over FOR UPDATE",
        workload=HOT,
        ours=WITH_REDIS,
        theirs="for_update",
        floor=12,
        aim=25,
    ),
    Ratio(
        name="sku_vs_for_update",
        description="bookings per second of one hot pool, over FOR UPDATE",
        workload=SKU,
        ours=OURS,
        theirs="for_update",
        floor=20,
        aim=40,
    ),
    Ratio(
        name="sqlite_batched_vs_single",
        description="flows per second on SQLite, batched over one transaction per request",
        workload=SQLITE,
        ours=BATCHED,
        theirs=SINGLE,
        floor=4,
        aim=8,
    ),
    Ratio(
        name="two_processes_vs_one",
        description="flows per second of two server processes, over one",
        workload=TWO,
        ours=TWO_PROCESSES,
        theirs=ONE_PROCESS,
        floor=0.9,
        aim=1.2,
    ),
    Ratio(
        name="growth",
        description="flows per second where there is much, over where there is little",
        workload=GROWTH,
        ours=MANY,
        theirs=FEW,
        floor=0.75,
        aim=0.9,
    ),
)
"""Their names are keys of the JSON."""

BESIDE = (
    Ratio(
        name="hot_without_redis_vs_for_update",
        description="attempts answered per second where all want the same seats, without Redis, over FOR UPDATE",
        workload=HOT,
        ours=OURS,
        theirs="for_update",
        floor=None,
        aim=None,
    ),
    Ratio(
        name="hot_sold_vs_for_update",
        description="seats sold per second where all want the same, with Redis in front, over FOR UPDATE",
        workload=HOT,
        ours=WITH_REDIS,
        theirs="for_update",
        floor=None,
        aim=None,
        figure="sold_per_second",
    ),
    Ratio(
        name="hot_sold_without_redis_vs_for_update",
        description="seats sold per second where all want the same, without Redis, over FOR UPDATE",
        workload=HOT,
        ours=OURS,
        theirs="for_update",
        floor=None,
        aim=None,
        figure="sold_per_second",
    ),
)
"""Ratios that are shown and have no floor."""


def meets(ratio: Ratio, found: float) -> bool:
    """Whether a ratio reaches its floor."""
    return ratio.floor is None or (found <= ratio.floor if ratio.less else found >= ratio.floor)


def times(value: float) -> str:
    """A ratio, with enough digits to compare it with its floor."""
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"  # noqa: PLR2004
