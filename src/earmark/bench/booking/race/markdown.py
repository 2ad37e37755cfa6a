"""A race as a table in Markdown, for a page that says what the last one showed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.strategies import STRATEGIES

if TYPE_CHECKING:
    from earmark.bench.booking.race.figures import Figures, Result

HEADING = ("strategy", "twice", "stranded", "answer, p50 ms", "p99 ms")


def table(result: Result) -> str:
    """Every strategy, those that raced with guards at the end, and what it was run on."""
    rows = [_row(f"`{name}`", name, figures) for name, figures in result.strategies.items()]
    rows += [_row(f"`{name}` with guards", name, figures) for name, figures in result.guards.items()]
    lines = [HEADING, ("---",) * len(HEADING), *rows]
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    pause = f"{result.pause_seconds * 1000:g} ms between look and write"
    return (
        "\n".join(f"| {' | '.join(line)} |" for line in lines)
        + f"\n\n{result.buyers} buyers, {pause} where there is a moment for it. {versions}.\n"
    )


def _row(shown: str, name: str, figures: Figures) -> tuple[str, ...]:
    twice = f"{figures.double_sold} (to {figures.buyers_max} buyers)" if figures.double_sold else "0"
    unpaused = "" if STRATEGIES[name].pauses else ", no pause"
    return shown, twice, str(figures.stranded), f"{figures.p50_ms:,.0f}{unpaused}", f"{figures.p99_ms:,.0f}"
