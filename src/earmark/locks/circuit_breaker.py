"""A circuit breaker: when the lock server is down, callers fail at once instead of waiting for a timeout each.

    closed ──failures in a row──▶ open ──cool-down──▶ half-open ──success──▶ closed
                                   ▲                      │
                                   └───────failure────────┘   (the cool-down doubles, up to its maximum)

After the cool-down exactly one caller is let through to try. It need not report back for others to go on: a try that
was cancelled, or whose process was paused, is followed by another one a cool-down later.

Calls that began before the breaker opened report late. While it is open they change nothing. While it is half-open they
count like the one that tries: a success means that the server answers, a failure costs one longer cool-down.
"""

from __future__ import annotations

import threading
import time
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class BreakerState(StrEnum):
    """Whether calls go through."""

    CLOSED = "closed"
    """All of them."""
    OPEN = "open"
    """None, until the cool-down is over and a caller asks."""
    HALF_OPEN = "half_open"
    """One, to see whether the server answers again."""


class BreakerChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a breaker's state, for a log line."""

    before: BreakerState
    after: BreakerState
    retry_after_seconds: float
    """Until the next caller may try; 0 when closed."""


class Breaker:
    """Shared by threads and event loops. While all is well it costs one look at an attribute, and no lock."""

    def __init__(
        self,
        *,
        failures_max: int = 3,
        cooldown_seconds: float = 1.0,
        cooldown_seconds_max: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[BreakerChange], None] = lambda _: None,
    ) -> None:
        if failures_max < 1:
            raise SetupError(problem=f"A breaker opens after 1 failure or more, not {failures_max}.")
        if not 0 < cooldown_seconds <= cooldown_seconds_max:
            raise SetupError(
                problem="A breaker's cool-down is over 0 seconds and no longer than its maximum, "
                f"not {cooldown_seconds} of {cooldown_seconds_max}."
            )
        self._failures_max = failures_max
        self._cooldown_seconds_least = cooldown_seconds
        self._cooldown_seconds_max = cooldown_seconds_max
        self._clock = clock
        self._on_change = on_change
        self._lock: AbstractContextManager[object] = threading.Lock()
        self._state = BreakerState.CLOSED
        self._closed = True
        self._failures = 0
        self._cooldown_seconds = cooldown_seconds
        self._next_at = 0.0
        self._opened_count = 0

    def allow(self) -> bool:
        """Whether to call. A caller that is let through reports `succeeded` or `failed` afterwards."""
        return self._closed or self._allow_one()

    def succeeded(self) -> None:
        """The server answered, whatever it said."""
        if self._failures:
            self._recover()

    def failed(self) -> None:
        """The server did not answer."""
        with self._lock:
            self._failures += 1
            if self._state is BreakerState.OPEN or (self._closed and self._failures < self._failures_max):
                return
            if self._state is BreakerState.HALF_OPEN:
                self._cooldown_seconds = min(2 * self._cooldown_seconds, self._cooldown_seconds_max)
            self._next_at = self._clock() + self._cooldown_seconds
            self._opened_count += 1
            change = self._move(BreakerState.OPEN, retry_after_seconds=self._cooldown_seconds)
        self._on_change(change)

    @property
    def state(self) -> BreakerState:
        """As the last call left it: an open breaker becomes half-open by a call of `allow`, not by time alone."""
        return self._state

    @property
    def opened_count(self) -> int:
        """How often it opened so far, also again after a failed try."""
        return self._opened_count

    @property
    def retry_after_seconds(self) -> float:
        """How long until a caller may be let through; 0 when one may be now."""
        return 0.0 if self._closed else max(0.0, self._next_at - self._clock())

    def _allow_one(self) -> bool:
        with self._lock:
            if self._closed:
                return True
            if self._next_at > (now := self._clock()):
                return False
            # From here on the others wait for this caller's report, but no longer than the cool-down.
            self._next_at = now + self._cooldown_seconds
            if self._state is BreakerState.HALF_OPEN:
                return True
            change = self._move(BreakerState.HALF_OPEN, retry_after_seconds=self._cooldown_seconds)
        self._on_change(change)
        return True

    def _recover(self) -> None:
        with self._lock:
            if self._state is BreakerState.OPEN:
                return
            self._failures = 0
            if self._closed:
                return
            self._cooldown_seconds = self._cooldown_seconds_least
            change = self._move(BreakerState.CLOSED, retry_after_seconds=0.0)
        self._on_change(change)

    def _move(self, after: BreakerState, *, retry_after_seconds: float) -> BreakerChange:
        # Passed to `on_change` after the lock is released, so that it may use the breaker.
        before, self._state = self._state, after
        self._closed = after is BreakerState.CLOSED
        return BreakerChange(before=before, after=after, retry_after_seconds=retry_after_seconds)
