"""A race on the terminal: a table of the strategies so far, and sentences at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.race import results
from earmark.bench.report.progress import ProgressDisplay
from earmark.bench.report.tables import UNKNOWN, list_versions, terminal_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console
    from rich.table import Table

    from earmark.bench.booking.race.results import RaceFigures, RaceResult
    from earmark.bench.booking.race.run import RacePlan, RaceTally

WITH_GUARDS = "{} + guards"


class RaceProgress(ProgressDisplay):
    """Shows the strategies that are done, running and to come."""

    def __init__(self, console: Console, plan: RacePlan) -> None:
        super().__init__(console)
        self._plan = plan
        self._done: dict[str, RaceFigures] = {}

    def __call__(self, tally: RaceTally, figures: RaceFigures | None) -> None:
        """A strategy runs, or has ended with these figures."""
        name = WITH_GUARDS.format(tally.name) if tally.guards else tally.name
        if figures:
            self._done[name] = figures
        if self.is_live:
            self.draw(self._table(None if figures else (name, tally)))
        elif figures:
            self.print_step(f"{name}: {_seen(figures)}", step=name)

    def _table(self, running: tuple[str, RaceTally] | None) -> Table:
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


def show(console: Console, result: RaceResult) -> None:
    """All results, at the end of a race."""
    console.print(table({**result.strategies, **{WITH_GUARDS.format(n): f for n, f in result.guards.items()}}))
    pause = f"{result.pause_seconds * 1000:g} ms between look and write"
    expire = ", locks that run out while their holder is paused" if result.expire else ""
    versions = list_versions(result.versions)
    console.print(f"[dim]{result.buyers} buyers at once, {pause}{expire}. {versions}.[/]")
    for sentence in results.sentences(result):
        console.print(sentence, soft_wrap=True)


def table(done: Mapping[str, RaceFigures]) -> Table:
    """The results so far."""
    headings = ("", "sold twice", "sold", "refused", "stranded", "p50 ms", "p99 ms", "claim")
    shown = terminal_table(headings, left=("claim",))
    for name, figures in done.items():
        twice = f"[bold red]{figures.double_sold}[/]" if figures.double_sold else "0"
        stranded = f"[yellow]{figures.stranded}[/]" if figures.stranded else "0"
        waits = (f"{figures.p50_ms:,.0f}", f"{figures.p99_ms:,.0f}")
        claim = "safe" if figures.claims_safe else "none"
        shown.add_row(name, twice, f"{figures.sold:,}", f"{figures.refused:,}", stranded, *waits, claim)
    return shown


def _seen(figures: RaceFigures) -> str:
    kept = "no seat sold twice" if figures.safe else f"{figures.double_sold} seats sold more than once"
    return f"{kept}, {figures.stranded} stranded, {figures.refused:,} refused, {figures.seconds:.1f} s"
