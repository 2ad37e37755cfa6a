"""How quick the database is, learnt from batches that committed, and forgotten with time.

Two figures come of it: how long a queue takes, so that a request that cannot be served in time is refused at once, and
how long a batch may wait for a row that another transaction has locked. A batch that failed or hung says nothing about
either. What was learnt loses half its weight every half second, so quick batches soon outweigh a slow minute.
"""

from __future__ import annotations

from typing import NamedTuple

from earmark.engine.ports import LOCK_SECONDS_MAX

HALF_LIFE_SECONDS = 0.5
REQUEST_SECONDS = 0.001
"""What a request is believed to take before anything was seen."""
BATCH_SECONDS = 0.02
"""What a batch is believed to take before anything was seen."""
SMALL_BATCH = 16
"""A batch of fewer requests counts as one of so many: it would hardly have taken longer with them."""
LOCK_SECONDS_MIN = 0.1
LOCK_BATCHES = 5
"""A row is waited for as long as so many batches take: that is how long other batches may keep it in turn."""


class _Weighed(NamedTuple):
    """Sums over the batches seen so far, each with what is left of its weight."""

    weight: float = 0.0
    request_seconds: float = 0.0
    batch_seconds: float = 0.0


class Pace:
    """What recent batches took, beside one batch at the usual pace that is never forgotten."""

    __slots__ = ("_at", "_seen")

    def __init__(self) -> None:
        self._seen = _Weighed()
        self._at = 0.0

    def learn(self, *, requests: int, seconds: float, side_by_side: int, now: float) -> None:
        """From a batch that committed, beside so many others, itself included."""
        weight, per_request, per_batch = self._left(now)
        self._seen = _Weighed(
            weight + 1,
            per_request + seconds / max(requests, SMALL_BATCH) / side_by_side,
            per_batch + seconds,
        )
        self._at = now

    def queue_seconds(self, requests: int, *, now: float) -> float:
        """How long so many requests will take."""
        weight, per_request, _ = self._left(now)
        return requests * (REQUEST_SECONDS + per_request) / (1 + weight)

    def lock_seconds(self, *, now: float) -> float:
        """How long a batch may wait for one locked row."""
        weight, _, per_batch = self._left(now)
        batch_seconds = (BATCH_SECONDS + per_batch) / (1 + weight)
        return min(max(LOCK_SECONDS_MIN, LOCK_BATCHES * batch_seconds), LOCK_SECONDS_MAX)

    def _left(self, now: float) -> _Weighed:
        share = 0.5 ** ((now - self._at) / HALF_LIFE_SECONDS)
        weight, per_request, per_batch = self._seen
        return _Weighed(weight * share, per_request * share, per_batch * share)
