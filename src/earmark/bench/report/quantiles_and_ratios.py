"""Numbers that every measurement needs: quantiles, and ratios that a busy machine does not distort."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of an ordered sequence does not exceed."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def quantile_ms(ordered: Sequence[float], share: float) -> float | None:
    """The quantile of ordered seconds, in milliseconds; None of an empty sequence."""
    return quantile(ordered, share) * 1000 if ordered else None


def evenly_spread(ordered: Sequence[float], count: int) -> list[float]:
    """At most so many values of an ordered sequence, from the first to the last."""
    if len(ordered) <= count:
        return list(ordered)
    return [ordered[round(number * (len(ordered) - 1) / (count - 1))] for number in range(count)]


def median_ratio(these: Sequence[float], those: Sequence[float]) -> float:
    """The median of the rounds' own ratios.

    In a round both are measured one right after the other: what disturbed one is likely to have disturbed both.
    """
    return median(one / other for one, other in zip(these, those, strict=False))
