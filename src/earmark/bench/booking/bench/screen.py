"""The terminal's view of a run: what is measured just now, the ratios so far, and all of it at the end.

It is drawn between the cells and never during one: nothing but the contender runs while a clock does.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table

from earmark.bench.board import Board
from earmark.bench.booking.bench.figures import BESIDE, RATIOS, meets, times
from earmark.bench.booking.bench.plan import ALL_OURS, CONTESTS, LONE, MEMORY

if TYPE_CHECKING:
    from rich.console import Console

    from earmark.bench.booking.bench.figures import Figures, Ratio
    from earmark.bench.booking.bench.plan import Cell, Plan
    from earmark.bench.booking.bench.run import Result

UNKNOWN = "·"
NARROW = {"box": None, "pad_edge": False, "padding": (0, 2, 0, 0), "header_style": "dim"}


class Screen(Board):
    """Shows a run while it goes on."""

    def __init__(self, console: Console, plan: Plan) -> None:
        super().__init__(console)
        self._plan = plan
        self._began = perf_counter()

    def say(self, said: str) -> None:
        """Something is being prepared."""
        if self.is_live:
            self.draw(f"[dim]{said} …[/]")
        else:
            self.tell(f"{said} …", step=said)

    def measured(self, figures: Figures, cell: Cell, share: float) -> None:
        """A cell was measured."""
        said = f"round {cell.round + 1} of {self._plan.rounds}: {CONTESTS[cell.workload].title}"
        if self.is_live:
            spent = perf_counter() - self._began
            left = f"about {spent / share - spent:.0f} s to go"
            progress = Table.grid(padding=(0, 1))
            bar = ProgressBar(total=1.0, completed=share, width=30)
            progress.add_row(bar, f"[dim]{said} · {cell.contender} · {left}[/]")
            self.draw(Group(contest(figures, cell.workload), "", ratios(figures, RATIOS), "", progress))
        else:
            self.tell(said, step=(cell.round, cell.workload))


def show(console: Console, result: Result) -> None:
    """The end of a run."""
    figures = result.figures
    for workload in figures.readings:
        console.print(f"[bold]{CONTESTS[workload].title}[/] [dim]({workload})[/]")
        console.print(contest(figures, workload))
        console.print()
    if figures.readings:
        console.print(ratios(figures, (*RATIOS, *BESIDE)))
        console.print()
    for name, reason in result.absent.items():
        console.print(f"[dim]{name} did not take part: {reason}[/]")
    if result.redis_limit:
        limit = result.redis_limit
        console.print(f"[dim]Redis here: {limit.sets_per_second:,.0f} pipelined SETs per second ({limit.by}).[/]")
    if result.weighed:
        weights = ", ".join(f"{holds:,}: {weight:.0f} MB" for holds, weight in sorted(result.weighed.megabytes.items()))
        console.print(f"{MEMORY}, by holds: {weights}; grown {result.weighed.growth:.2f} times")
    plan = result.plan
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items() if name != "database")
    rounds = f"{plan.rounds} round{'s' if plan.rounds != 1 else ''} of {plan.seconds:g} s"
    database = result.versions.get("database", "SQLite")
    console.print(f"[dim]{rounds}, {plan.clients} clients, medians. {database}, {versions}; {result.cores} cores.[/]")
    if not result.durable:
        console.print("[yellow]A commit did not wait for the disk on this server: these figures are not of a shop.[/]")
    console.print(zeros(result))


def zeros(result: Result) -> str:
    """What must be zero, and is counted in the database."""
    counts = result.zeros
    return f"oversold {counts['oversold']} · double-charged {counts['double_charged']} · lost {counts['lost']}"


def contest(figures: Figures, workload: str) -> Table:
    """One workload: contenders down, figures across, medians of the rounds so far."""
    shown = Table(**NARROW)  # type: ignore[arg-type]
    shown.add_column("", no_wrap=True)
    columns = [
        ("sold_per_second", "seats/s", "{:,.0f}"),
        ("p50_ms", "hold p50 ms", "{:,.2f}" if workload == LONE else "{:,.1f}"),
        ("p99_ms", "p99 ms", "{:,.1f}"),
        ("database_us", "database µs", "{:,.0f}"),
    ]
    rates = figures.rounds(workload)
    known = {name: figures.medians(workload, name) for name, _, _ in columns}
    columns = [column for column in columns if known[column[0]]]
    shown.add_column(CONTESTS[workload].unit.replace(" per second", "/s"), justify="right")
    shown.add_column("ours, times", justify="right")
    for _, heading, _ in columns:
        shown.add_column(heading, justify="right")
    best = max((median(values) for values in rates.values()), default=0.0)
    ours = _ours(rates)
    for name in CONTESTS[workload].contenders:
        if name not in rates:
            continue
        rate = f"{median(rates[name]):,.0f}"
        cells = [f"[bold green]{rate}[/]" if median(rates[name]) == best else rate, _times(rates, ours, name)]
        for figure, _, form in columns:
            value = known[figure].get(name)
            cells.append(UNKNOWN if value is None else form.format(value))
        shown.add_row(name, *cells)
    return shown


def ratios(figures: Figures, wanted: tuple[Ratio, ...]) -> Table:
    """Those that are known by now, beside what they must be."""
    shown = Table(**NARROW)  # type: ignore[arg-type]
    for heading in ("ratio", "found", "must be", "aim"):
        shown.add_column(heading, justify="left" if heading == "ratio" else "right", no_wrap=True)
    for ratio in wanted:
        if (found := figures.ratio(ratio)) is None:
            continue
        colour = "" if ratio.floor is None else "green" if meets(ratio, found) else "red"
        value = f"[{colour}]{times(found)}[/]" if colour else times(found)
        sign = "≤" if ratio.less else "≥"
        bounds = [UNKNOWN if bound is None else f"{sign} {bound:g}" for bound in (ratio.floor, ratio.aim)]
        shown.add_row(ratio.name, value, *bounds)
    return shown


def _ours(rates: dict[str, list[float]]) -> str | None:
    """The best of ours, whom the others are compared with."""
    present = {name: median(values) for name, values in rates.items() if name in ALL_OURS}
    return max(present, key=present.__getitem__) if present else None


def _times(rates: dict[str, list[float]], ours: str | None, name: str) -> str:
    if ours is None or name == ours or not all(rates[name]):
        return ""
    return f"{median(rates[ours]) / median(rates[name]):.2f}x"
