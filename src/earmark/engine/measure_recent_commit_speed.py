"""How quick the database is, learnt from batches that committed, and forgotten with time.

Two figures come of it: how long a queue takes, so that a request that cannot be served in time is refused at once, and
how long a batch may wait for a row that another transaction has locked. A batch that failed or hung says nothing about
either. What was learnt loses half its weight every half second, so quick batches soon outweigh a slow minute.
"""

from __future__ import annotations

from earmark.engine.ports.store import LOCK_SECONDS_MAX

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


class CommitSpeed:
    """What recent batches took, beside one batch at the usual pace that is never forgotten."""

    __slots__ = ("_at", "_batch_seconds", "_request_seconds", "_weight")

    def __init__(self) -> None:
        self._at = 0.0
        # Sums over the batches seen so far, each with what was left of its weight at that moment.
        self._weight = 0.0
        self._request_seconds = 0.0
        self._batch_seconds = 0.0

    def learn(self, *, requests: int, seconds: float, side_by_side: int, now: float) -> None:
        """From a batch that committed, beside so many others, itself included."""
        left = self._left(now)
        self._at = now
        self._weight = self._weight * left + 1
        self._request_seconds = self._request_seconds * left + seconds / max(requests, SMALL_BATCH) / side_by_side
        self._batch_seconds = self._batch_seconds * left + seconds

    def queue_seconds(self, requests: int, *, now: float) -> float:
        """How long so many requests will take."""
        left = self._left(now)
        return requests * (REQUEST_SECONDS + self._request_seconds * left) / (1 + self._weight * left)

    def lock_seconds(self, *, now: float) -> float:
        """How long a batch may wait for one locked row."""
        left = self._left(now)
        batch_seconds = (BATCH_SECONDS + self._batch_seconds * left) / (1 + self._weight * left)
        return min(max(LOCK_SECONDS_MIN, LOCK_BATCHES * batch_seconds), LOCK_SECONDS_MAX)

    def _left(self, now: float) -> float:
        """Which share of what was learnt still counts."""
        share: float = 0.5 ** ((now - self._at) / HALF_LIFE_SECONDS)
        return share
