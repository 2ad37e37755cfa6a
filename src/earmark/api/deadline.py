"""A deadline for every call at the door, with one timer for all of them.

Whatever a call waits for, its caller is answered in time. The engine has a deadline of its own, which knows more about
what it was doing: the door's is a little later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

LATER_SECONDS = 0.5


class _Watched:
    __slots__ = ("ends_at", "over", "rang", "task")

    def __init__(self, task: asyncio.Task[Any], *, ends_at: float) -> None:
        self.task = task
        self.ends_at = ends_at
        self.over = False
        self.rang = False


class Deadline:
    """So many seconds for each call. A timer for each would cost more than most of what a call does."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds + LATER_SECONDS
        self._watched: deque[_Watched] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def within(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work returns or raises; `TimeoutError` when it took too long, and then it was cancelled."""
        task = asyncio.current_task()
        assert task is not None, "a call is a task"
        loop = asyncio.get_running_loop()
        watched = _Watched(task, ends_at=loop.time() + self._seconds)
        self._watch(watched)
        try:
            return await work
        except asyncio.CancelledError:
            # Somebody else's wish to end the task is passed on.
            if not watched.rang or task.uncancel() > 0:
                raise
            raise TimeoutError from None
        finally:
            watched.over = True

    def _watch(self, watched: _Watched) -> None:
        waiting = self._watched
        while waiting and waiting[0].over:
            waiting.popleft()
        waiting.append(watched)
        if self._timer is None:
            self._set(waiting[0])

    def _set(self, first: _Watched) -> None:
        self._timer = asyncio.get_running_loop().call_at(first.ends_at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now, waiting = asyncio.get_running_loop().time(), self._watched
        while waiting and (waiting[0].over or waiting[0].ends_at <= now):
            watched = waiting.popleft()
            if not watched.over:
                watched.rang = True
                watched.task.cancel()
        if waiting:
            self._set(waiting[0])
