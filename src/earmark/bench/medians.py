"""Numbers that every measurement needs: quantiles, and ratios that a noisy machine does not spoil."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of an ordered sequence does not exceed."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median_ratio(these: Sequence[float], those: Sequence[float]) -> float:
    """The median of the rounds' own ratios.

    In a round both are measured one right after the other: what disturbed one is likely to have disturbed both.
    """
    return median(one / other for one, other in zip(these, those, strict=False))
