"""The results of a race as a table in Markdown, for docs/explanation/strategies.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.strategies import STRATEGIES
from earmark.bench.report.tables import list_versions, markdown_table

if TYPE_CHECKING:
    from earmark.bench.booking.race.results import RaceFigures, RaceResult

HEADING = ("strategy", "twice", "stranded", "answer, p50 ms", "p99 ms")


def table(result: RaceResult) -> str:
    """A row per strategy, those with guards at the end, and the versions."""
    rows = [_row(f"`{name}`", name, figures) for name, figures in result.strategies.items()]
    rows += [_row(f"`{name}` with guards", name, figures) for name, figures in result.guards.items()]
    pause = f"{result.pause_seconds * 1000:g} ms between look and write"
    return (
        f"{markdown_table(HEADING, rows)}\n\n{result.buyers} buyers, {pause} where there is a moment for it. "
        f"{list_versions(result.versions)}.\n"
    )


def _row(shown: str, name: str, figures: RaceFigures) -> tuple[str, ...]:
    twice = f"{figures.double_sold} (to {figures.buyers_max} buyers)" if figures.double_sold else "0"
    unpaused = "" if STRATEGIES[name].pauses else ", no pause"
    return shown, twice, str(figures.stranded), f"{figures.p50_ms:,.0f}{unpaused}", f"{figures.p99_ms:,.0f}"
