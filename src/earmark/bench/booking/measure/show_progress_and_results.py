"""The booking bench on the terminal: progress and ratios during the run, all results at its end.

It is drawn between measurements and never during one, so that only the contender runs while its time is taken.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from earmark.bench.booking.measure.measurement_plan import ALL_OURS, LONE, MEMORY, WORKLOADS
from earmark.bench.booking.measure.ratios_and_required_floors import BESIDE, RATIOS, meets, times
from earmark.bench.report.progress import ProgressDisplay, progress_bar
from earmark.bench.report.tables import UNKNOWN, figure, list_versions, plural, terminal_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from earmark.bench.booking.measure.measurement_plan import BookingPlan, Measurement
    from earmark.bench.booking.measure.ratios_and_required_floors import Ratio
    from earmark.bench.booking.measure.results import BookingFigures
    from earmark.bench.booking.measure.run import BookingResult

FIGURES = {"sold_per_second": "seats/s", "p50_ms": "hold p50 ms", "p99_ms": "p99 ms", "database_us": "database µs"}
"""What is shown beside the rate, where it was measured, and its heading."""


class BookingProgress(ProgressDisplay):
    """Shows the current workload and the ratios so far."""

    def __init__(self, console: Console, plan: BookingPlan) -> None:
        super().__init__(console)
        self._plan = plan
        self._began = perf_counter()

    def say(self, text: str) -> None:
        """Show what is being prepared."""
        if self.is_live:
            self.draw(f"[dim]{text} …[/]")
        else:
            self.print_step(f"{text} …", step=text)

    def measured(self, figures: BookingFigures, measurement: Measurement, share: float) -> None:
        """Show the results so far, after one measurement."""
        text = f"round {measurement.round + 1} of {self._plan.rounds}: {WORKLOADS[measurement.workload].title}"
        if self.is_live:
            spent = perf_counter() - self._began
            progress = f"{text} · {measurement.contender} · about {spent / share - spent:.0f} s to go"
            table = workload_table(figures, measurement.workload)
            self.draw(table, "", ratio_table(figures, RATIOS), "", progress_bar(share, progress))
        else:
            self.print_step(text, step=(measurement.round, measurement.workload))


def show(console: Console, result: BookingResult) -> None:
    """All results, at the end of a run."""
    figures = result.figures
    for workload in figures.readings:
        console.print(f"[bold]{WORKLOADS[workload].title}[/] [dim]({workload})[/]")
        console.print(workload_table(figures, workload))
        console.print()
    if figures.readings:
        console.print(ratio_table(figures, (*RATIOS, *BESIDE)))
        console.print()
    for name, reason in result.absent.items():
        console.print(f"[dim]{name} did not take part: {reason}[/]")
    if result.redis_limit:
        limit = result.redis_limit
        console.print(f"[dim]Redis here: {limit.sets_per_second:,.0f} pipelined SETs per second ({limit.by}).[/]")
    if result.weighed:
        sizes = ", ".join(f"{holds:,}: {size:.0f} MB" for holds, size in sorted(result.weighed.megabytes.items()))
        console.print(f"{MEMORY}, by holds: {sizes}; grown {result.weighed.growth:.2f} times")
    plan, versions = result.plan, list_versions(result.versions, without=("database",))
    rounds = f"{plural(plan.rounds, 'round')} of {plan.seconds:g} s"
    database = result.versions.get("database", "SQLite")
    console.print(f"[dim]{rounds}, {plan.clients} clients, medians. {database}, {versions}; {result.cores} cores.[/]")
    if not result.durable:
        console.print("[yellow]This server did not wait for its disk: the figures do not apply to production.[/]")
    console.print(zeros(result))


def zeros(result: BookingResult) -> str:
    """The counts from the database that must be zero."""
    counts = result.zeros
    return f"oversold {counts['oversold']} · double-charged {counts['double_charged']} · lost {counts['lost']}"


def workload_table(figures: BookingFigures, workload: str) -> Table:
    """One workload: a row per contender with the medians of the rounds so far."""
    rates = figures.rounds(workload)
    known = {name: values for name in FIGURES if (values := figures.medians(workload, name))}
    unit = WORKLOADS[workload].unit.replace(" per second", "/s")
    table = terminal_table(["", unit, "ours, times", *(FIGURES[name] for name in known)])
    best = max((median(values) for values in rates.values()), default=0.0)
    ours = _best_of_ours(rates)
    for name in WORKLOADS[workload].contenders:
        if name in rates:
            rate = f"{median(rates[name]):,.0f}"
            others = (figure(values.get(name), _form(key, workload)) for key, values in known.items())
            shown = f"[bold green]{rate}[/]" if median(rates[name]) == best else rate
            table.add_row(name, shown, _times(rates, ours, name), *others)
    return table


def ratio_table(figures: BookingFigures, wanted: tuple[Ratio, ...]) -> Table:
    """The ratios that are known by now, beside their floors and aims."""
    table = terminal_table(["ratio", "found", "must be", "aim"])
    for ratio in wanted:
        if (found := figures.ratio(ratio)) is None:
            continue
        colour = "" if ratio.floor is None else "green" if meets(ratio, found) else "red"
        value = f"[{colour}]{times(found)}[/]" if colour else times(found)
        sign = "≤" if ratio.less else "≥"
        bounds = [UNKNOWN if bound is None else f"{sign} {bound:g}" for bound in (ratio.floor, ratio.aim)]
        table.add_row(ratio.name, value, *bounds)
    return table


def _form(name: str, workload: str) -> str:
    if name == "p50_ms" and workload == LONE:
        return "{:,.2f}"
    return "{:,.1f}" if name.endswith("_ms") else "{:,.0f}"


def _best_of_ours(rates: dict[str, list[float]]) -> str | None:
    """The fastest contender of ours, with which the others are compared."""
    present = {name: median(values) for name, values in rates.items() if name in ALL_OURS}
    return max(present, key=present.__getitem__) if present else None


def _times(rates: dict[str, list[float]], ours: str | None, name: str) -> str:
    if ours is None or name == ours or not all(rates[name]):
        return ""
    return f"{median(rates[ours]) / median(rates[name]):.2f}x"
