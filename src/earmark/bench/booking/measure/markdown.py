"""The results of the booking bench as tables in Markdown, for docs/explanation/speed.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.measure.measurement_plan import ALL_OURS, LONE, PGBENCH, WORKLOADS
from earmark.bench.booking.measure.ratios_and_required_floors import BESIDE, RATIOS, times
from earmark.bench.booking.measure.show_progress_and_results import FIGURES, zeros
from earmark.bench.booking.strategies import STRATEGIES
from earmark.bench.report.tables import figure, markdown_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.bench.booking.measure.ratios_and_required_floors import Ratio
    from earmark.bench.booking.measure.results import BookingFigures
    from earmark.bench.booking.measure.run import BookingResult

TITLES = {PGBENCH: "`pgbench` with the tuned statement"}


def tables(result: BookingResult) -> str:
    """One table for each workload, one of the ratios, and the counts that must be zero."""
    figures = result.figures
    parts = [_workload(figures, workload) for workload in figures.readings]
    parts += [markdown_table(("ratio", "what", "found", "must be", "aim"), _ratios(figures)), f"{zeros(result)}."]
    parts += [_limits(result)] if result.redis_limit else []
    return "\n\n".join(parts) + "\n"


def _workload(figures: BookingFigures, workload: str) -> str:
    spec = WORKLOADS[workload]
    known = {name: values for name in FIGURES if (values := figures.medians(workload, name))}
    rates = figures.medians(workload)
    form = "{:,.2f}" if workload == LONE else "{:,.0f}"
    rows = (
        (_title(name), f"{rates[name]:,.0f}", *(figure(values.get(name), form) for values in known.values()))
        for name in spec.contenders
        if name in rates
    )
    heading = (f"`{workload}`", spec.unit.replace(" per second", "/s"), *(FIGURES[name] for name in known))
    return f"{spec.title}. {spec.description}\n\n{markdown_table(heading, rows)}"


def _title(name: str) -> str:
    title = TITLES.get(name) or (STRATEGIES[name].title if name in STRATEGIES else f"`{name}`")
    return f"**{title}**" if name in ALL_OURS else title


def _ratios(figures: BookingFigures) -> Iterator[tuple[str, ...]]:
    for ratio in (*RATIOS, *BESIDE):
        if (found := figures.ratio(ratio)) is not None:
            yield (
                f"`{ratio.name}`",
                ratio.description,
                times(found),
                _bound(ratio, ratio.floor),
                _bound(ratio, ratio.aim),
            )


def _bound(ratio: Ratio, bound: float | None) -> str:
    return "" if bound is None else f"{'at most' if ratio.less else 'at least'} {bound:g}"


def _limits(result: BookingResult) -> str:
    limit = result.redis_limit
    assert limit is not None
    tried = ", ".join(f"{clients}: {rate:,.0f}" for clients, rate in sorted(result.sweep.items()))
    pgbench = f" `pgbench`, flows per second by clients: {tried}." if tried else ""
    return f"The same machine: {limit.sets_per_second:,.0f} pipelined SETs per second in Redis, by {limit.by}.{pgbench}"
