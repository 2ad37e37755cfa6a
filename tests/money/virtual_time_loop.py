"""An event loop with virtual time: where there is nothing to do, its clock jumps to the next timer.

What takes seconds takes none, and what happens is the same each time. Only for code that talks to nothing outside.
"""

from __future__ import annotations

import asyncio
import selectors
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from earmark.clock import MovableClock

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)


class ManualClock(MovableClock):
    """A clock that moves only when it is pushed."""

    def now(self) -> datetime:
        """When it began, and what it was pushed since."""
        return BEGAN + self.offset


class _NoWaitSelector(selectors.DefaultSelector):
    """Instead of waiting, adds the wait to the loop's time."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now."""
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None:
            self.skipped += max(timeout, 0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its time is what it did not wait for."""

    def __init__(self) -> None:
        self._impatient = _NoWaitSelector()
        super().__init__(self._impatient)

    def time(self) -> float:
        """In seconds, from zero."""
        return self._impatient.skipped


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run this to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
