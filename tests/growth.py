"""Whether a cost grows with what it is given, or faster. Costs are compared with each other, not with a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIZES = (10_000, 20_000, 40_000)
DOUBLED_MAX = 3.0
"""Twice as much costs twice as much where the cost is linear, and four times as much where it is quadratic."""
ATTEMPTS = 6
NOISE_NANOSECONDS = 50_000
"""What costs less is not told from the noise of a machine; what is quadratic costs a thousand times as much."""


def is_linear(
    work: Callable[[str], object],
    text_of: Callable[[int], str],
    *,
    sizes: Sequence[int] = SIZES,
    attempts: int = ATTEMPTS,
) -> bool:
    """Whether the longest text costs what it may beside the shortest. Noise passes by; what is quadratic stays so."""
    texts = [text_of(size) for size in sizes]
    best = [float("inf")] * len(texts)
    for _ in range(attempts):
        best = [min(known, _cost(work, text)) for known, text in zip(best, texts, strict=True)]
        if best[-1] <= DOUBLED_MAX ** (len(best) - 1) * best[0]:
            return True
    return False


def _cost(work: Callable[[str], object], text: str) -> float:
    began = time.thread_time_ns()
    work(text)
    return max(NOISE_NANOSECONDS, time.thread_time_ns() - began)
