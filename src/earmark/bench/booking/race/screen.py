"""The terminal's view of a race: a table that fills up while it runs, and the end in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from earmark.bench.board import Board
from earmark.bench.booking.race import figures as lab

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from earmark.bench.booking.race.figures import Figures, Result
    from earmark.bench.booking.race.run import Plan, Tally

UNKNOWN = "·"
WITH_GUARDS = "{} + guards"


class Screen(Board):
    """Shows a race while it goes on."""

    def __init__(self, console: Console, plan: Plan) -> None:
        super().__init__(console)
        self._plan = plan
        self._done: dict[str, Figures] = {}

    def __call__(self, tally: Tally, figures: Figures | None) -> None:
        """A strategy goes on, or has ended."""
        name = WITH_GUARDS.format(tally.name) if tally.guards else tally.name
        if figures:
            self._done[name] = figures
        if self.is_live:
            self.draw(self._table(None if figures else (name, tally)))
        elif figures:
            self.tell(f"{name}: {_seen(figures)}", step=name)

    def _table(self, running: tuple[str, Tally] | None) -> Table:
        shown = table(self._done)
        waiting = [name for name in self._plan.strategies if name not in self._done]
        if running:
            name, tally = running
            answers = (f"{tally.held:,}", f"{tally.refused:,}")
            shown.add_row(name, UNKNOWN, *answers, *[UNKNOWN] * 3, tally.scenario, style="bold")
            waiting = [other for other in waiting if other != name]
        for name in waiting:
            shown.add_row(name, *[UNKNOWN] * 7, style="dim")
        return shown


def show(console: Console, result: Result) -> None:
    """The end of a race."""
    console.print(table({**result.strategies, **{WITH_GUARDS.format(n): f for n, f in result.guards.items()}}))
    pause = f"{result.pause_seconds * 1000:g} ms between look and write"
    expire = ", locks that run out while their holder is paused" if result.expire else ""
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    console.print(f"[dim]{result.buyers} buyers at once, {pause}{expire}. {versions}.[/]")
    for sentence in lab.sentences(result):
        console.print(sentence, soft_wrap=True)


def table(done: Mapping[str, Figures]) -> Table:
    """What is known so far."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    shown.add_column("", no_wrap=True)
    for heading in ("sold twice", "sold", "refused", "stranded", "p50 ms", "p99 ms"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("claim", no_wrap=True)
    for name, figures in done.items():
        twice = f"[bold red]{figures.double_sold}[/]" if figures.double_sold else "0"
        stranded = f"[yellow]{figures.stranded}[/]" if figures.stranded else "0"
        waits = (f"{figures.p50_ms:,.0f}", f"{figures.p99_ms:,.0f}")
        claim = "safe" if figures.claims_safe else "none"
        shown.add_row(name, twice, f"{figures.sold:,}", f"{figures.refused:,}", stranded, *waits, claim)
    return shown


def _seen(figures: Figures) -> str:
    kept = "no seat sold twice" if figures.safe else f"{figures.double_sold} seats sold more than once"
    return f"{kept}, {figures.stranded} stranded, {figures.refused:,} refused, {figures.seconds:.1f} s"
