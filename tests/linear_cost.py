"""Whether a cost grows with what it is given, or faster. Costs are compared with each other, not with a time."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIZES = (10_000, 40_000) if os.environ.get("EARMARK_PROOF") else (2_500, 10_000)
"""Of a short and of a long text."""
DOUBLED_MAX = 3.0
"""Twice as much costs twice as much where the cost is linear, and four times as much where it is quadratic."""
ATTEMPTS = 24
"""What costs in proportion passes at the first or second, unless the machine itself changes its speed in between."""
SHORT_RUNS = 3
"""How often the short text is measured in each attempt."""
NOISE_NANOSECONDS = 50_000
"""Lower costs cannot be distinguished from a machine's noise; what is quadratic costs a thousand times as much."""


def is_linear(
    work: Callable[[str], object],
    text_of: Callable[[int], str],
    *,
    sizes: Sequence[int] = SIZES,
    attempts: int = ATTEMPTS,
) -> bool:
    """Whether the longest text costs at most in proportion to the shortest. Noise disappears by repeating."""
    short, long = text_of(sizes[0]), text_of(sizes[-1])
    ratio_max = DOUBLED_MAX ** math.log2(sizes[-1] / sizes[0])
    # A cost counts as `NOISE_NANOSECONDS` at least: a long text that is this cheap needs no short one beside it.
    of_short, of_long = float("inf"), float("inf")
    for _ in range(attempts):
        of_long = min(of_long, _cost(work, long))
        if of_long <= ratio_max * NOISE_NANOSECONDS:
            return True
        # One slow run of the short text would make a quadratic cost look linear.
        of_short = min(of_short, *(_cost(work, short) for _ in range(SHORT_RUNS)))
        if of_long <= ratio_max * of_short:
            return True
    return False


def _cost(work: Callable[[str], object], text: str) -> float:
    began = time.thread_time_ns()
    work(text)
    return max(NOISE_NANOSECONDS, time.thread_time_ns() - began)
