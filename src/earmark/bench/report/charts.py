"""Charts as SVG text: bars with a dot per round, distributions of latencies, and the parts that other charts use.

Colours are CSS classes, which page.html defines for light and dark mode.
"""

from __future__ import annotations

import math
from html import escape
from statistics import median
from typing import TYPE_CHECKING

from earmark.bench.report.quantiles_and_ratios import quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

WIDTH = 860
LEFT = 150
"""Where the plot begins, after the names."""
RIGHT = 120
"""Room for a number after the end of a bar."""
ROW = 38
BINS = 90
TICKS_SPAN_MAX = 1000
"""An axis that spans more than this is marked at the powers of ten only."""


def bars(rounds: Mapping[str, Sequence[float]], *, title: str, unit: str, lower_is_better: bool = False) -> str:
    """A bar per contender as long as its median; each round is a dot on it."""
    top = max(max(values) for values in rounds.values())
    ticks = round_ticks(top)
    end = max(top, ticks[-1])
    left, right = LEFT, WIDTH - RIGHT

    def x(value: float) -> float:
        return left + (right - left) * value / end

    height = len(rounds) * ROW + 46
    parts = list(
        axis(ticks, x, bottom=height - 40, label=f"{unit} ({'less' if lower_is_better else 'more'} is better)")
    )
    for row, (contender, values) in enumerate(rounds.items()):
        y = 4 + row * ROW
        middle = median(values)
        parts.append(text(left - 10, y + 19, contender, anchor="end", css="name"))
        parts.append(
            f'<rect class="bar {contender}" x="{left}" y="{y + 4}" '
            f'width="{x(middle) - left:.1f}" height="{ROW - 14}" rx="2"/>'
        )
        parts += [
            f'<circle class="dot" cx="{x(value):.1f}" cy="{y + ROW / 2 - 3:.1f}" r="2.6">'
            f"<title>round {number}: {short(value)} {escape(unit)}</title></circle>"
            for number, value in enumerate(values, 1)
        ]
        parts.append(text(max(x(value) for value in (*values, middle)) + 8, y + 19, short(middle), css="value"))
    return svg(parts, height=height, title=title)


def ridges(seconds: Mapping[str, Sequence[float]], *, title: str, label: str, unit: str, per_second: float) -> str:
    """A row per contender with the distribution of its latencies. `per_second` is how many units a second has."""
    scaled = {contender: sorted(one * per_second for one in values) for contender, values in seconds.items()}
    low = min(values[0] for values in scaled.values())
    high = max(quantile(values, 0.999) for values in scaled.values())
    high = max(high, low * 2)
    left, right = LEFT, WIDTH - 150

    def x(value: float) -> float:
        return left + (right - left) * log_share(value, low=low, high=high)

    tall = 58
    height = len(scaled) * tall + 56
    parts = list(axis(log_ticks(low, high), x, bottom=height - 40, label=label))
    for row, (contender, values) in enumerate(scaled.items()):
        base = 12 + (row + 1) * tall - 8
        middle, late = quantile(values, 0.5), quantile(values, 0.99)
        parts.append(text(left - 10, base - 4, contender, anchor="end", css="name"))
        parts.append(
            f'<path class="bar {contender}" d="{_outline(values, x, low=low, high=high, base=base, tall=tall - 12)}"/>'
        )
        parts.append(
            f'<line class="mark" x1="{x(middle):.1f}" x2="{x(middle):.1f}" y1="{base}" y2="{base - tall + 12}">'
            f"<title>{contender}: p50 {short(middle)} {unit}</title></line>"
        )
        parts.append(text(right + 12, base - 18, f"p50 {short(middle)} {unit}", css="value"))
        parts.append(text(right + 12, base - 2, f"p99 {short(late)} {unit}", css="tick"))
    return svg(parts, height=height, title=title)


def svg(parts: Sequence[str], *, height: float, title: str) -> str:
    """A chart of these parts, as wide as the page."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title, quote=True)}">'
        f"{''.join(parts)}</svg>"
    )


def text(x: float, y: float, label_text: str, *, css: str, anchor: str = "start") -> str:
    """Text at a position."""
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(label_text)}</text>'


def axis(ticks: Sequence[float], x: Callable[[float], float], *, bottom: float, label: str) -> Iterator[str]:
    """Vertical lines with their numbers, and a label."""
    for tick in ticks:
        yield f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="4" y2="{bottom:.1f}"/>'
        yield text(x(tick), bottom + 15, short(tick), anchor="middle", css="tick")
    yield text((x(ticks[0]) + x(ticks[-1])) / 2, bottom + 34, label, anchor="middle", css="tick")


def round_ticks(top: float, *, wanted: int = 5) -> list[float]:
    """From zero to just past the top, in round steps."""
    rough = (top or 1.0) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough)
    return [step * number for number in range(max(math.ceil(top / step), 1) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every power of ten within, or the powers alone where that would be too many."""
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    nice = (1, 2, 5) if high <= low * TICKS_SPAN_MAX else (1,)
    return [power * one for power in powers for one in nice if low <= power * one <= high] or [low]


def log_share(value: float, *, low: float, high: float) -> float:
    """The position of a value on a logarithmic axis, from 0 to 1."""
    return (math.log(min(max(value, low), high)) - math.log(low)) / (math.log(high) - math.log(low))


def short(number: float) -> str:
    """A number with few digits."""
    if number >= 100 or number == int(number):  # noqa: PLR2004 -- three digits are enough without a fraction
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 1 else f"{number:.2g}"


def _outline(
    ordered: Sequence[float], x: Callable[[float], float], *, low: float, high: float, base: float, tall: float
) -> str:
    """A histogram over equal steps of the logarithmic axis, as high as its fullest bin."""
    counts = [0] * BINS
    for value in ordered:
        counts[min(BINS - 1, int(log_share(value, low=low, high=high) * BINS))] += 1
    step = math.log(high / low) / BINS
    edges = [x(low * math.exp(step * number)) for number in range(BINS + 1)]
    peak = max(counts)
    points = [f"M{edges[0]:.1f} {base}"]
    for number, count in enumerate(counts):
        level = base - tall * count / peak
        points.append(f"L{edges[number]:.1f} {level:.1f}L{edges[number + 1]:.1f} {level:.1f}")
    return "".join([*points, f"L{edges[-1]:.1f} {base}Z"])
