"""The terminal's view of a run: contenders down, workloads across, medians of the rounds so far.

It is drawn between the cells and never during one: nothing but the contender runs while a clock does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table

from earmark.bench.board import Board
from earmark.bench.locks import figures as lab
from earmark.bench.locks.figures import HANDOVER, LONE, SINGLE, SYNC, THREE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console

    from earmark.bench.locks.figures import Figures
    from earmark.bench.locks.run import Cell, Plan, Result

UNKNOWN = "·"


class Screen(Board):
    """Shows a run while it goes on."""

    def __init__(self, console: Console, plan: Plan) -> None:
        super().__init__(console)
        self._plan = plan

    def __call__(self, figures: Figures, cell: Cell, share: float) -> None:
        """A cell was measured."""
        said = f"round {cell.round + 1} of {self._plan.rounds}: {lab.WORKLOADS[cell.workload]}"
        if self.is_live:
            bar = ProgressBar(total=1.0, completed=share, width=40)
            self.draw(Group(table(figures), "", bar, f"[dim]{said} · {cell.contender}[/]"))
        else:
            self.tell(said, step=(cell.round, cell.workload))


def show(console: Console, result: Result) -> None:
    """The end of a run."""
    console.print(table(result.figures))
    counted = sum(sum(line.passes) for lines in result.figures.lines.values() for line in lines)
    overlaps = sum(result.figures.overlaps.values())
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items() if name != "server")
    rivals = {workload: lab.rival(result.figures, workload) for workload in lab.WORKLOADS}
    console.print(
        f"[dim]The rival is redis-py where many act at once, and the quickest peer where one is alone "
        f"(task: {rivals[LONE]}, thread: {rivals[SYNC]}). {result.plan.rounds} rounds of {result.plan.seconds:g} s, "
        f"medians. {result.versions['server']}, {versions}; {result.cores} cores.[/]"
    )
    console.print(f"{overlaps} overlaps in {counted:,} turns on one key, {len(result.left)} of our locks left behind")


class Column:
    """One thing to compare: its heading, its numbers, how to write them and which is best."""

    def __init__(
        self, heading: str, numbers: Mapping[str, float], write: Callable[[float], str], *, best: Callable[..., float]
    ) -> None:
        self.heading = heading
        self._numbers = numbers
        self._write = write
        self._best = best(numbers.values()) if numbers else None

    def cell(self, contender: str) -> str:
        """A contender's number; the best of all stands out."""
        if (number := self._numbers.get(contender)) is None:
            return UNKNOWN
        written = self._write(number)
        return f"[bold green]{written}[/]" if number == self._best else written


def table(figures: Figures) -> Table:
    """What is known so far."""
    columns = _columns(figures)
    shown = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim", show_footer=True)
    ratios = [_ratio(figures, workload) for workload in (SINGLE, THREE, HANDOVER)]
    worst = lab.ratios(figures)["worst_wait"]
    waited = UNKNOWN if worst is None else f"{worst:.3f}x"
    footers = [*ratios, waited, "", _ratio(figures, LONE), _ratio(figures, SYNC)]
    shown.add_column("", no_wrap=True, footer="ours / rival's", footer_style="dim")
    for column, footer in zip(columns, footers, strict=True):
        shown.add_column(column.heading, justify="right", footer=footer, footer_style="bold")
    names = (name for workload in lab.WORKLOADS for name in figures.rounds(workload))
    for contender in lab.contenders(names):
        shown.add_row(contender, *(column.cell(contender) for column in columns))
    return shown


def _columns(figures: Figures) -> list[Column]:
    waits = {contender: lab.longest_wait(lines) * 1000 for contender, lines in figures.lines.items()}
    shares = {contender: lab.fairness(lines) for contender, lines in figures.lines.items()}
    return [
        Column("50 tasks\n1 key\nper s", figures.medians(SINGLE), "{:,.0f}".format, best=max),
        Column("50 tasks\n3 keys\nper s", figures.medians(THREE), "{:,.0f}".format, best=max),
        Column("50 wait\nhand-overs\nper s", figures.medians(HANDOVER), "{:,.0f}".format, best=max),
        Column("longest\nwait\nms", waits, "{:,.0f}".format, best=min),
        Column("fairness\nJain\nof 1", shares, "{:.2f}".format, best=max),
        Column("alone\ntask\np50 µs", figures.medians(LONE), "{:,.0f}".format, best=min),
        Column("alone\nthread\np50 µs", figures.medians(SYNC), "{:,.0f}".format, best=min),
    ]


def _ratio(figures: Figures, workload: str) -> str:
    found = lab.ratio(figures, workload)
    return UNKNOWN if found is None else f"{found:.2f}x"
