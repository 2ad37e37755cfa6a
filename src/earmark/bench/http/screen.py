"""The terminal's view of a run: what is measured just now, and all of it at the end."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table

from earmark.bench.board import Board
from earmark.bench.http.figures import AIMS, FLOORS

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from earmark.bench.http.figures import Figures, Result

UNKNOWN = "·"
NARROW = {"box": None, "pad_edge": False, "padding": (0, 2, 0, 0), "header_style": "dim"}


class Screen(Board):
    """Shows a run while it goes on. It is drawn between the cells and never during one."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._table: RenderableType = ""
        self._share = 0.0

    def say(self, said: str) -> None:
        """Something begins."""
        if self.is_live:
            bar = ProgressBar(total=1.0, completed=self._share, width=40)
            self.draw(Group(self._table, "", bar, f"[dim]{said} …[/]"))
        else:
            self.tell(f"{said} …", step=said)

    def measured(self, figures: Figures, share: float) -> None:
        """A cell is done."""
        self._table, self._share = table(figures), share


def show(console: Console, result: Result) -> None:
    """The end of a run."""
    figures, plan = result.figures, result.plan
    console.print(table(figures))
    console.print()
    for name, found in figures.ratios.items():
        aim = f", aim {AIMS[name]:g}" if name in AIMS else ""
        shown = UNKNOWN if found is None else f"[{'red' if name in figures.short else 'green'}]{found:.2f}[/]"
        console.print(f"{name} {shown} [dim](at least {FLOORS[name]:g}{aim})[/]")
    if (over := figures.plain_overload()) is not None:
        console.print(
            f"{plan.overload_connections} connections at once: {over['rate']:,.0f} held per second, p50 "
            f"{_ms(over['p50_ms'])} ms, p99 {_ms(over['p99_ms'])} ms (with {plan.connections}: "
            f"{_ms(over['unloaded_p99_ms'])} ms); {over['shed_share']:.0%} told to come again, p50 "
            f"{_ms(over['shed_p50_ms'])} ms, p99 {_ms(over['shed_p99_ms'])} ms; {over['held']} are in the "
            f"database; a line of {result.limits.line_seconds_max:g} s"
        )
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    console.print(
        f"[dim]{plan.rounds} rounds of {plan.seconds:g} s, {plan.workers} workers, {plan.connections} connections, "
        f"medians; {versions}; {result.cores} cores.[/]"
    )
    console.print(" · ".join(f"{name} {number}" for name, number in figures.zeros.items()))


def table(figures: Figures) -> Table:
    """Contenders down, figures across, medians of the rounds so far."""
    shown = Table(**NARROW)  # type: ignore[arg-type]
    shown.add_column("", no_wrap=True)
    for heading in ("holds/s", "p50 ms", "p99 ms"):
        shown.add_column(heading, justify="right")
    for name in figures.cells:
        latencies = (_ms(figures.middle(name, figure)) for figure in ("p50_ms", "p99_ms"))
        shown.add_row(name, f"{median(figures.rates(name)):,.0f}", *latencies)
    return shown


def _ms(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.1f}"
