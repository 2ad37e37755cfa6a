"""A run as tables in Markdown, for a page that says what the last run came to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.bench.figures import BESIDE, RATIOS, times
from earmark.bench.booking.bench.plan import ALL_OURS, CONTESTS, LONE, PGBENCH
from earmark.bench.booking.bench.screen import zeros
from earmark.bench.booking.strategies import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from earmark.bench.booking.bench.figures import Figures, Ratio
    from earmark.bench.booking.bench.run import Result

TITLES = {PGBENCH: "`pgbench` with the tuned statement"}
COLUMNS = {"sold_per_second": "seats/s", "p50_ms": "hold p50 ms", "p99_ms": "p99 ms", "database_us": "database µs"}
UNKNOWN = "·"


def tables(result: Result) -> str:
    """One for each workload, one of the ratios, and the line that must be all zeros."""
    figures = result.figures
    parts = [_contest(figures, workload) for workload in figures.readings]
    parts += [_table(("ratio", "what", "found", "must be", "aim"), _ratios(figures)), f"{zeros(result)}."]
    parts += [_limits(result)] if result.redis_limit else []
    return "\n\n".join(parts) + "\n"


def _contest(figures: Figures, workload: str) -> str:
    contest = CONTESTS[workload]
    known = {name: values for name in COLUMNS if (values := figures.medians(workload, name))}
    rates = figures.medians(workload)

    def rows() -> Iterator[tuple[str, ...]]:
        for name in contest.contenders:
            if name in rates:
                shown = [f"{rates[name]:,.0f}"]
                shown += [_number(values.get(name), exact=workload == LONE) for values in known.values()]
                yield _title(name), *shown

    heading = (f"`{workload}`", contest.unit.replace(" per second", "/s"), *(COLUMNS[name] for name in known))
    return f"{contest.title}. {contest.said}\n\n{_table(heading, rows())}"


def _title(name: str) -> str:
    title = TITLES.get(name) or (STRATEGIES[name].title if name in STRATEGIES else f"`{name}`")
    return f"**{title}**" if name in ALL_OURS else title


def _number(value: float | None, *, exact: bool) -> str:
    return UNKNOWN if value is None else f"{value:,.2f}" if exact else f"{value:,.0f}"


def _ratios(figures: Figures) -> Iterator[tuple[str, ...]]:
    for ratio in (*RATIOS, *BESIDE):
        if (found := figures.ratio(ratio)) is not None:
            yield f"`{ratio.name}`", ratio.said, times(found), _bound(ratio, ratio.floor), _bound(ratio, ratio.aim)


def _bound(ratio: Ratio, bound: float | None) -> str:
    return "" if bound is None else f"{'at most' if ratio.less else 'at least'} {bound:g}"


def _limits(result: Result) -> str:
    limit = result.redis_limit
    assert limit is not None
    tried = ", ".join(f"{clients}: {rate:,.0f}" for clients, rate in sorted(result.sweep.items()))
    pgbench = f" `pgbench`, flows per second by clients: {tried}." if tried else ""
    return f"The same machine: {limit.sets_per_second:,.0f} pipelined SETs per second in Redis, by {limit.by}.{pgbench}"


def _table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(heading)
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
