"""Charts as SVG text: bars with a dot per round, waits per waiter, and the shape of a latency.

Colours are classes, which the page that holds a chart gives a light and a dark meaning.
"""

from __future__ import annotations

import math
from html import escape
from statistics import median
from typing import TYPE_CHECKING

from earmark.lab.locks.figures import jain, quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from earmark.lab.locks.workloads import Line

WIDTH = 860
LEFT = 150
"""Where the plot begins: names stand before it."""
RIGHT = 120
"""Room for a number after the end of a bar."""
ROW = 38
DOTS_PER_WAITER_MAX = 20
BINS = 90
CROWDED = 1000
"""An axis that spans more than this is marked at the powers of ten only."""


def bars(rounds: Mapping[str, Sequence[float]], *, title: str, unit: str, lower_is_better: bool = False) -> str:
    """A bar per contender as long as its median; each round is a dot on it."""
    top = max(max(values) for values in rounds.values())
    ticks = _round_ticks(top)
    end = max(top, ticks[-1])
    left, right = LEFT, WIDTH - RIGHT

    def x(value: float) -> float:
        return left + (right - left) * value / end

    height = len(rounds) * ROW + 46
    parts = list(
        _axis(ticks, x, bottom=height - 40, label=f"{unit} ({'less' if lower_is_better else 'more'} is better)")
    )
    for row, (contender, values) in enumerate(rounds.items()):
        y = 4 + row * ROW
        middle = median(values)
        parts.append(_text(left - 10, y + 19, contender, anchor="end", css="name"))
        parts.append(
            f'<rect class="bar {contender}" x="{left}" y="{y + 4}" '
            f'width="{x(middle) - left:.1f}" height="{ROW - 14}" rx="2"/>'
        )
        parts += [
            f'<circle class="dot" cx="{x(value):.1f}" cy="{y + ROW / 2 - 3:.1f}" r="2.6">'
            f"<title>round {number}: {_short(value)} {escape(unit)}</title></circle>"
            for number, value in enumerate(values, 1)
        ]
        parts.append(_text(max(x(value) for value in (*values, middle)) + 8, y + 19, _short(middle), css="value"))
    return _svg(parts, height=height, title=title)


def strips(lines: Mapping[str, Line], *, title: str) -> str:
    """A panel per contender: each waiter is a column of its waits, who had most turns first."""
    every = [wait * 1000 for line in lines.values() for wait in _all_waits(line)]
    low, high = max(min(every), 0.05), max(every)
    tall, gap = 120, 52
    parts: list[str] = []
    for panel, (contender, line) in enumerate(lines.items()):
        top = 24 + panel * (tall + gap)

        def y(milliseconds: float, *, bottom: float = top + tall) -> float:
            return bottom - tall * _log_share(milliseconds, low=low, high=high)

        parts.append(_text(LEFT - 70, top - 8, _summary(contender, line), css="name"))
        for tick in _log_ticks(low, high):
            parts.append(
                f'<line class="grid" x1="{LEFT - 70}" x2="{WIDTH - 20}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
            )
            parts.append(_text(LEFT - 78, y(tick) + 4, f"{_short(tick)} ms", anchor="end", css="tick"))
        parts += _columns(contender, line, y)
    height = 24 + len(lines) * (tall + gap)
    label = "the 50 waiters, who had most turns first; a ring is a wait that was still running at the end"
    parts.append(_text((LEFT - 70 + WIDTH - 20) / 2, height - 14, label, anchor="middle", css="tick"))
    return _svg(parts, height=height, title=title)


def ridges(seconds: Mapping[str, Sequence[float]], *, title: str) -> str:
    """A row per contender: how its latencies are spread, on one axis."""
    micros = {contender: sorted(one * 1e6 for one in values) for contender, values in seconds.items()}
    low = min(values[0] for values in micros.values())
    high = max(quantile(values, 0.999) for values in micros.values())
    high = max(high, low * 2)
    left, right = LEFT, WIDTH - 150

    def x(value: float) -> float:
        return left + (right - left) * _log_share(value, low=low, high=high)

    tall = 58
    height = len(micros) * tall + 56
    parts = list(_axis(_log_ticks(low, high), x, bottom=height - 40, label="µs for acquire and release, logarithmic"))
    for row, (contender, values) in enumerate(micros.items()):
        base = 12 + (row + 1) * tall - 8
        middle, late = quantile(values, 0.5), quantile(values, 0.99)
        parts.append(_text(left - 10, base - 4, contender, anchor="end", css="name"))
        parts.append(
            f'<path class="bar {contender}" d="{_outline(values, x, low=low, high=high, base=base, tall=tall - 12)}"/>'
        )
        parts.append(
            f'<line class="mark" x1="{x(middle):.1f}" x2="{x(middle):.1f}" y1="{base}" y2="{base - tall + 12}">'
            f"<title>{contender}: p50 {_short(middle)} µs</title></line>"
        )
        parts.append(_text(right + 12, base - 18, f"p50 {_short(middle)} µs", css="value"))
        parts.append(_text(right + 12, base - 2, f"p99 {_short(late)} µs", css="tick"))
    return _svg(parts, height=height, title=title)


def _svg(parts: Sequence[str], *, height: float, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title, quote=True)}">'
        f"{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, said: str, *, css: str, anchor: str = "start") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def _axis(ticks: Sequence[float], x: Callable[[float], float], *, bottom: float, label: str) -> Iterator[str]:
    for tick in ticks:
        yield f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="4" y2="{bottom:.1f}"/>'
        yield _text(x(tick), bottom + 15, _short(tick), anchor="middle", css="tick")
    yield _text((x(ticks[0]) + x(ticks[-1])) / 2, bottom + 34, label, anchor="middle", css="tick")


def _round_ticks(top: float, *, wanted: int = 5) -> list[float]:
    """From zero to just past the top, in steps that a person would choose."""
    rough = top / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough)
    return [step * number for number in range(math.ceil(top / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every power of ten within, or the powers alone where that would be too many."""
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    nice = (1, 2, 5) if high <= low * CROWDED else (1,)
    return [power * one for power in powers for one in nice if low <= power * one <= high]


def _log_share(value: float, *, low: float, high: float) -> float:
    """How far along a logarithmic axis a value stands, from 0 to 1."""
    return (math.log(min(max(value, low), high)) - math.log(low)) / (math.log(high) - math.log(low))


def _outline(
    ordered: Sequence[float], x: Callable[[float], float], *, low: float, high: float, base: float, tall: float
) -> str:
    """A histogram over equal steps of the logarithmic axis, as high as its fullest bin."""
    counts = [0] * BINS
    for value in ordered:
        counts[min(BINS - 1, int(_log_share(value, low=low, high=high) * BINS))] += 1
    step = math.log(high / low) / BINS
    edges = [x(low * math.exp(step * number)) for number in range(BINS + 1)]
    peak = max(counts)
    points = [f"M{edges[0]:.1f} {base}"]
    for number, count in enumerate(counts):
        level = base - tall * count / peak
        points.append(f"L{edges[number]:.1f} {level:.1f}L{edges[number + 1]:.1f} {level:.1f}")
    return "".join([*points, f"L{edges[-1]:.1f} {base}Z"])


def _columns(contender: str, line: Line, y: Callable[[float], float]) -> Iterator[str]:
    ranked = sorted(range(len(line.waits)), key=lambda waiter: -len(line.waits[waiter]))
    for place, waiter in enumerate(ranked):
        x = LEFT - 60 + (WIDTH - 40 - (LEFT - 60)) * (place + 0.5) / len(ranked)
        for wait in _sample(line.waits[waiter]):
            yield f'<circle class="grain {contender}" cx="{x:.1f}" cy="{y(wait * 1000):.1f}" r="2.2"/>'
        if (still := line.unserved[waiter]) is not None:
            yield f'<circle class="ring" cx="{x:.1f}" cy="{y(still * 1000):.1f}" r="3"/>'


def _sample(waits: Sequence[float]) -> list[float]:
    """Few enough to draw, spread evenly from the shortest to the longest."""
    ordered = sorted(waits)
    if len(ordered) <= DOTS_PER_WAITER_MAX:
        return ordered
    last = DOTS_PER_WAITER_MAX - 1
    return [ordered[round(number * (len(ordered) - 1) / last)] for number in range(DOTS_PER_WAITER_MAX)]


def _all_waits(line: Line) -> list[float]:
    return [wait for waits in line.waits for wait in waits] + [wait for wait in line.unserved if wait is not None]


def _summary(contender: str, line: Line) -> str:
    passes = line.passes
    return (
        f"{contender}: {sum(passes):,} turns, {min(passes):,} to {max(passes):,} per waiter, "
        f"fairness {jain(passes):.2f}, longest wait {_short(line.longest_wait * 1000)} ms"
    )


def _short(number: float) -> str:
    """As many digits as the eye needs."""
    if number >= 100 or number == int(number):  # noqa: PLR2004 -- three digits are enough without a fraction
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 1 else f"{number:.2g}"
