"""The chart of the lock bench: the waits of each waiter, a panel for each contender."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.locks.compute_medians_and_fairness import jain
from earmark.bench.report.charts import LEFT, WIDTH, log_share, log_ticks, short, svg, text
from earmark.bench.report.quantiles_and_ratios import evenly_spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from earmark.bench.locks.measure_rates_and_waits import HandoverWaits

DOTS_PER_WAITER_MAX = 20


def strips(lines: Mapping[str, HandoverWaits], *, title: str) -> str:
    """A panel per contender: each waiter is a column of its waits, the one with most turns first."""
    every = [wait * 1000 for line in lines.values() for wait in _all_waits(line)]
    low, high = max(min(every), 0.05), max(every)
    tall, gap = 120, 52
    parts: list[str] = []
    for panel, (contender, line) in enumerate(lines.items()):
        top = 24 + panel * (tall + gap)

        def y(milliseconds: float, *, bottom: float = top + tall) -> float:
            return bottom - tall * log_share(milliseconds, low=low, high=high)

        parts.append(text(LEFT - 70, top - 8, _summary(contender, line), css="name"))
        for tick in log_ticks(low, high):
            parts.append(
                f'<line class="grid" x1="{LEFT - 70}" x2="{WIDTH - 20}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
            )
            parts.append(text(LEFT - 78, y(tick) + 4, f"{short(tick)} ms", anchor="end", css="tick"))
        parts += _columns(contender, line, y)
    height = 24 + len(lines) * (tall + gap)
    label = "the 50 waiters, the one with most turns first; a ring is a wait that was still running at the end"
    parts.append(text((LEFT - 70 + WIDTH - 20) / 2, height - 14, label, anchor="middle", css="tick"))
    return svg(parts, height=height, title=title)


def _columns(contender: str, line: HandoverWaits, y: Callable[[float], float]) -> Iterator[str]:
    ranked = sorted(range(len(line.waits)), key=lambda waiter: -len(line.waits[waiter]))
    for place, waiter in enumerate(ranked):
        x = LEFT - 60 + (WIDTH - 40 - (LEFT - 60)) * (place + 0.5) / len(ranked)
        for wait in evenly_spread(sorted(line.waits[waiter]), DOTS_PER_WAITER_MAX):
            yield f'<circle class="grain {contender}" cx="{x:.1f}" cy="{y(wait * 1000):.1f}" r="2.2"/>'
        if (still := line.unserved[waiter]) is not None:
            yield f'<circle class="ring" cx="{x:.1f}" cy="{y(still * 1000):.1f}" r="3"/>'


def _all_waits(line: HandoverWaits) -> list[float]:
    return [wait for waits in line.waits for wait in waits] + [wait for wait in line.unserved if wait is not None]


def _summary(contender: str, line: HandoverWaits) -> str:
    passes = line.passes
    return (
        f"{contender}: {sum(passes):,} turns, {min(passes):,} to {max(passes):,} per waiter, "
        f"fairness {jain(passes):.2f}, longest wait {short(line.longest_wait * 1000)} ms"
    )
