"""The HTTP bench on the terminal: progress during the run, all results at its end."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from earmark.bench.http.results import AIMS, FLOORS
from earmark.bench.report.progress import ProgressDisplay, progress_bar
from earmark.bench.report.tables import figure, list_versions, terminal_table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from earmark.bench.http.results import HttpFigures, HttpResult


class HttpProgress(ProgressDisplay):
    """Shows the results so far. It is drawn between measurements and never during one."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._table: RenderableType = ""
        self._share = 0.0

    def say(self, text: str) -> None:
        """Show what begins now, below the results so far."""
        if self.is_live:
            self.draw(self._table, "", progress_bar(self._share, f"{text} …"))
        else:
            self.print_step(f"{text} …", step=text)

    def measured(self, figures: HttpFigures, share: float) -> None:
        """Keep the results so far, for the next drawing."""
        self._table, self._share = table(figures), share


def show(console: Console, result: HttpResult) -> None:
    """All results, at the end of a run."""
    figures, plan = result.figures, result.plan
    console.print(table(figures))
    console.print()
    for name, found in figures.ratios.items():
        aim = f", aim {AIMS[name]:g}" if name in AIMS else ""
        colour = "red" if name in figures.short else "green"
        console.print(f"{name} [{colour}]{figure(found, '{:.2f}')}[/] [dim](at least {FLOORS[name]:g}{aim})[/]")
    if (over := figures.plain_overload()) is not None:
        console.print(
            f"{plan.overload_connections} connections at once: {over['rate']:,.0f} held per second, p50 "
            f"{figure(over['p50_ms'])} ms, p99 {figure(over['p99_ms'])} ms (with {plan.connections}: "
            f"{figure(over['unloaded_p99_ms'])} ms); {over['shed_share']:.0%} refused, p50 "
            f"{figure(over['shed_p50_ms'])} ms, p99 {figure(over['shed_p99_ms'])} ms; {over['held']} are in the "
            f"database; a queue of {result.limits.queue_seconds_max:g} s"
        )
    versions = list_versions(result.versions)
    console.print(
        f"[dim]{plan.rounds} rounds of {plan.seconds:g} s, {plan.workers} workers, {plan.connections} connections, "
        f"medians; {versions}; {result.cores} cores.[/]"
    )
    console.print(" · ".join(f"{name} {number}" for name, number in figures.zeros.items()))


def table(figures: HttpFigures) -> Table:
    """A row per contender with the medians of the rounds so far."""
    rows = (
        (
            name,
            f"{median(figures.rates(name)):,.0f}",
            *(figure(figures.middle(name, key)) for key in ("p50_ms", "p99_ms")),
        )
        for name in figures.measurements
    )
    return terminal_table(["", "holds/s", "p50 ms", "p99 ms"], rows)
