"""The lock bench on the terminal: a row per contender, a column per workload, medians of the rounds so far.

It is drawn between measurements and never during one, so that only the contender runs while its time is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from earmark.bench.locks import compute_medians_and_fairness
from earmark.bench.locks.compute_medians_and_fairness import HANDOVER, LONE, SINGLE, SYNC, THREE
from earmark.bench.report.progress import ProgressDisplay, progress_bar
from earmark.bench.report.tables import UNKNOWN, figure, list_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console

    from earmark.bench.locks.compute_medians_and_fairness import LockFigures
    from earmark.bench.locks.run import LockMeasurement, LockPlan, LockResult


class LockProgress(ProgressDisplay):
    """Shows the results so far."""

    def __init__(self, console: Console, plan: LockPlan) -> None:
        super().__init__(console)
        self._plan = plan

    def __call__(self, figures: LockFigures, measurement: LockMeasurement, share: float) -> None:
        """Show the results so far, after one measurement."""
        workload = compute_medians_and_fairness.WORKLOADS[measurement.workload]
        text = f"round {measurement.round + 1} of {self._plan.rounds}: {workload}"
        if self.is_live:
            self.draw(table(figures), "", progress_bar(share, f"{text} · {measurement.contender}"))
        else:
            self.print_step(text, step=(measurement.round, measurement.workload))


def show(console: Console, result: LockResult) -> None:
    """All results, at the end of a run."""
    console.print(table(result.figures))
    counted = sum(sum(line.passes) for lines in result.figures.lines.values() for line in lines)
    overlaps = sum(result.figures.overlaps.values())
    versions = list_versions(result.versions, without=("server",))
    rivals = {
        workload: compute_medians_and_fairness.rival(result.figures, workload)
        for workload in compute_medians_and_fairness.WORKLOADS
    }
    console.print(
        f"[dim]The rival is redis-py for many tasks at once, and the fastest other library for a single one "
        f"(task: {rivals[LONE]}, thread: {rivals[SYNC]}). {result.plan.rounds} rounds of {result.plan.seconds:g} s, "
        f"medians. {result.versions['server']}, {versions}; {result.cores} cores.[/]"
    )
    console.print(f"{overlaps} overlaps in {counted:,} turns on one key, {len(result.left)} of our locks left behind")


class Column:
    """One column of the table: its numbers, their format, and which is best."""

    def __init__(
        self, heading: str, numbers: Mapping[str, float], write: Callable[[float], str], *, best: Callable[..., float]
    ) -> None:
        self.heading = heading
        self._numbers = numbers
        self._write = write
        self._best = best(numbers.values()) if numbers else None

    def cell(self, contender: str) -> str:
        """A contender's number; the best one is highlighted."""
        if (number := self._numbers.get(contender)) is None:
            return UNKNOWN
        written = self._write(number)
        return f"[bold green]{written}[/]" if number == self._best else written


def table(figures: LockFigures) -> Table:
    """The figures so far."""
    columns = _columns(figures)
    shown = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim", show_footer=True)
    ratios = [_ratio(figures, workload) for workload in (SINGLE, THREE, HANDOVER)]
    worst = compute_medians_and_fairness.ratios(figures)["worst_wait"]
    footers = [*ratios, figure(worst, "{:.3f}x"), "", _ratio(figures, LONE), _ratio(figures, SYNC)]
    shown.add_column("", no_wrap=True, footer="ours / rival's", footer_style="dim")
    for column, footer in zip(columns, footers, strict=True):
        shown.add_column(column.heading, justify="right", footer=footer, footer_style="bold")
    names = (name for workload in compute_medians_and_fairness.WORKLOADS for name in figures.rounds(workload))
    for contender in compute_medians_and_fairness.contenders(names):
        shown.add_row(contender, *(column.cell(contender) for column in columns))
    return shown


def _columns(figures: LockFigures) -> list[Column]:
    waits = {
        contender: compute_medians_and_fairness.longest_wait(lines) * 1000 for contender, lines in figures.lines.items()
    }
    shares = {contender: compute_medians_and_fairness.fairness(lines) for contender, lines in figures.lines.items()}
    return [
        Column("50 tasks\n1 key\nper s", figures.medians(SINGLE), "{:,.0f}".format, best=max),
        Column("50 tasks\n3 keys\nper s", figures.medians(THREE), "{:,.0f}".format, best=max),
        Column("50 wait\nhand-overs\nper s", figures.medians(HANDOVER), "{:,.0f}".format, best=max),
        Column("longest\nwait\nms", waits, "{:,.0f}".format, best=min),
        Column("fairness\nJain\nof 1", shares, "{:.2f}".format, best=max),
        Column("alone\ntask\np50 µs", figures.medians(LONE), "{:,.0f}".format, best=min),
        Column("alone\nthread\np50 µs", figures.medians(SYNC), "{:,.0f}".format, best=min),
    ]


def _ratio(figures: LockFigures, workload: str) -> str:
    return figure(compute_medians_and_fairness.ratio(figures, workload), "{:.2f}x")
