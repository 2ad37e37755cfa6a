"""One timer of the event loop for the deadlines of many waits.

Most waits are over long before their deadline, and a timer for each costs more than what it guards. `DeadlineTimer`
keeps the waits in the order in which they began and sets a single timer, for the first that is not over. A wait expires
at its deadline or soon after, never before, and not at all once it is over. One `DeadlineTimer` serves one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar

TIDY_MIN = 1000
"""From so many waits on, those that are over are removed from the middle of the queue as well."""


class TimedWait(Protocol):
    """A wait with a deadline."""

    deadline: float
    """By the event loop's clock."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended and needs no deadline any more."""
        ...

    def expire(self) -> None:
        """End it: its deadline has passed."""
        ...


W = TypeVar("W", bound=TimedWait)


class DeadlineTimer(Generic[W]):
    """Expires each wait at its deadline. Cheapest where deadlines come in the order in which the waits begin."""

    __slots__ = ("_rings_at", "_tidy_at", "_timer", "_waits")

    def __init__(self) -> None:
        self._waits: deque[W] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0
        self._tidy_at = TIDY_MIN

    def watch(self, wait: W) -> None:
        """Expire this wait at its deadline, unless it is over by then."""
        waits = self._waits
        while waits and waits[0].is_over:
            waits.popleft()
        if waits and wait.deadline < waits[-1].deadline:
            # A wait that is shorter than the one before it: rare enough for a timer of its own.
            asyncio.get_running_loop().call_at(wait.deadline, _expire, wait)
            return
        waits.append(wait)
        if len(waits) >= self._tidy_at:
            # A long wait at the head keeps those behind it in the queue, which may have ended long ago.
            self._waits = waits = deque(one for one in waits if not one.is_over)
            self._tidy_at = max(TIDY_MIN, 2 * len(waits))
        if self._timer is None:
            self._set(waits[0].deadline)
        elif waits[0].deadline < self._rings_at:
            # The timer was set for a longer wait, which is over.
            self._timer.cancel()
            self._set(waits[0].deadline)

    def _set(self, deadline: float) -> None:
        self._rings_at = deadline
        self._timer = asyncio.get_running_loop().call_at(deadline, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now, waits = asyncio.get_running_loop().time(), self._waits
        while waits and (waits[0].is_over or waits[0].deadline <= now):
            _expire(waits.popleft())
        if waits:
            self._set(waits[0].deadline)


def _expire(wait: TimedWait) -> None:
    if not wait.is_over:
        wait.expire()
