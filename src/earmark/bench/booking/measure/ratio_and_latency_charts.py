"""The charts of the booking bench: ratios against their floors, and when the requests of a flash sale are answered."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from earmark.bench.booking.measure.ratios_and_required_floors import meets, times
from earmark.bench.report.charts import LEFT, WIDTH, axis, log_share, log_ticks, round_ticks, short, svg, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from earmark.bench.booking.measure.ratios_and_required_floors import Ratio

LADDER_LEFT = 230
LADDER_ROW = 42
CURVE_HEIGHT = 260


def ladder(found: Sequence[tuple[Ratio, float]], *, title: str) -> str:
    """A row per ratio, all on one axis of "times better": the area above its floor, its aim, and its value.

    Where less is better, the ratio is turned over, so that further right is better everywhere.
    """
    rungs = [(ratio, _better(ratio, value), value) for ratio, value in found]
    bounds = [_better(ratio, bound) for ratio, _ in found for bound in (ratio.floor, ratio.aim) if bound]
    low = min([*bounds, *(better for _, better, _ in rungs), 1.0]) / 1.3
    high = max([*bounds, *(better for _, better, _ in rungs), 2.0]) * 1.3
    left, right = LADDER_LEFT, WIDTH - 90

    def x(value: float) -> float:
        return left + (right - left) * log_share(value, low=low, high=high)

    height = len(rungs) * LADDER_ROW + 50
    parts = list(axis(log_ticks(low, high), x, bottom=height - 40, label="times better, logarithmic"))
    for row, (ratio, better, value) in enumerate(rungs):
        y = 8 + row * LADDER_ROW
        middle = y + LADDER_ROW / 2 - 6
        parts.append(text(left - 12, middle + 4, ratio.name, anchor="end", css="name"))
        if ratio.floor is not None and ratio.aim is not None:
            floor, aim = x(_better(ratio, ratio.floor)), x(_better(ratio, ratio.aim))
            parts.append(
                f'<rect class="reachable" x="{floor:.1f}" y="{middle - 9:.1f}" width="{right - floor:.1f}" height="18">'
                f"<title>must be here: {'at most' if ratio.less else 'at least'} {ratio.floor:g}</title></rect>"
            )
            parts.append(
                f'<line class="aim" x1="{aim:.1f}" x2="{aim:.1f}" y1="{middle - 11:.1f}" y2="{middle + 11:.1f}">'
                f"<title>aim: {ratio.aim:g}</title></line>"
            )
        css = "reached" if meets(ratio, value) else "missed"
        parts.append(
            f'<circle class="{css}" cx="{x(better):.1f}" cy="{middle:.1f}" r="6">'
            f"<title>{ratio.description}</title></circle>"
        )
        parts.append(text(x(better) + 12, middle + 4, times(value), css="value"))
    return svg(parts, height=height, title=title)


def curves(points: Mapping[str, Sequence[tuple[float, float]]], *, title: str, label: str) -> str:
    """A line per contender: which share was answered by when."""
    end = max(moment for line in points.values() for moment, _ in line)
    ticks = round_ticks(end)
    left, right, bottom = LEFT, WIDTH - 190, CURVE_HEIGHT

    def x(value: float) -> float:
        return left + (right - left) * value / max(end, ticks[-1])

    def y(share: float) -> float:
        return bottom - (bottom - 12) * share

    parts = list(axis(ticks, x, bottom=bottom, label=label))
    for share in (0.0, 0.5, 1.0):
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(share):.1f}" y2="{y(share):.1f}"/>')
        parts.append(text(left - 8, y(share) + 4, f"{share:.0%}", anchor="end", css="tick"))
    ends: list[tuple[float, str]] = []
    for contender, line in points.items():
        path = "".join(
            f"{'L' if number else 'M'}{x(moment):.1f} {y(share):.1f}" for number, (moment, share) in enumerate(line)
        )
        parts.append(f'<path class="line {contender}" d="{path}"><title>{contender}</title></path>')
        ends.append((line[-1][0], contender))
    for row, (moment, contender) in enumerate(sorted(ends)):
        place = 24 + row * 20
        parts.append(f'<rect class="bar {contender}" x="{right + 14}" y="{place - 9}" width="10" height="10"/>')
        parts.append(text(right + 30, place, f"{contender} {short(moment)} s", css="tick"))
    return svg(parts, height=bottom + 46, title=title)


def _better(ratio: Ratio, value: float) -> float:
    return 1 / value if ratio.less else value


def finite(values: Sequence[float]) -> bool:
    """Whether a chart can show these values."""
    return bool(values) and all(math.isfinite(value) and value > 0 for value in values)
