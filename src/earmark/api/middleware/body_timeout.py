"""Patience: whoever sends slowly is waited for, but not for ever.

A timer for each request costs as much as decoding it, and hardly one ever rings. So there is one for all: everybody is
given the same time, so whoever began first is the next to run out of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")


class _Wait:
    """Somebody who is waited for."""

    __slots__ = ("ends_at", "is_late", "is_over", "task")

    def __init__(self, task: asyncio.Task[object], ends_at: float) -> None:
        self.task = task
        self.ends_at = ends_at
        self.is_over = False
        self.is_late = False


class BodyTimeout:
    """So many seconds for each, in one event loop."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waits: deque[_Wait] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, coming: Awaitable[T]) -> T:
        """What comes; TimeoutError if it does not in time."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        wait = _Wait(task, loop.time() + self.seconds)
        waits = self._waits
        while waits and waits[0].is_over:
            waits.popleft()
        waits.append(wait)
        if self._timer is None:
            self._timer = loop.call_at(wait.ends_at, self._ring)
        try:
            return await coming
        except asyncio.CancelledError:
            if wait.is_late and task.uncancel() <= 0:
                raise TimeoutError from None
            raise
        finally:
            wait.is_over = True

    def _ring(self) -> None:
        self._timer = None
        loop, waits = asyncio.get_running_loop(), self._waits
        while waits and (waits[0].is_over or waits[0].ends_at <= loop.time()):
            wait = waits.popleft()
            if not wait.is_over:
                wait.is_late = True
                wait.task.cancel()
        if waits:
            self._timer = loop.call_at(waits[0].ends_at, self._ring)
