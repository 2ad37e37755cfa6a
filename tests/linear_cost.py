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
SHORT_RUNS = 2
"""How often the short text is measured again in each attempt."""
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
    texts = [text_of(size) for size in sizes]
    ratio_max = DOUBLED_MAX ** math.log2(sizes[-1] / sizes[0])
    best = [float("inf")] * len(texts)
    for _ in range(attempts):
        best = [min(known, _cost(work, text)) for known, text in zip(best, texts, strict=True)]
        # One slow run of the short text would make a quadratic cost look linear.
        best[0] = min(best[0], *(_cost(work, texts[0]) for _ in range(SHORT_RUNS)))
        if best[-1] <= ratio_max * best[0]:
            return True
    return False


def _cost(work: Callable[[str], object], text: str) -> float:
    began = time.thread_time_ns()
    work(text)
    return max(NOISE_NANOSECONDS, time.thread_time_ns() - began)
