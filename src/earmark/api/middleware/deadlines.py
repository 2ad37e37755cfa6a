"""A deadline for every call at the door: whatever a call waits for, its caller is answered in time.

A verb that stands in one of the engine's lines has a deadline there, which knows more about what it was doing. All else
is run beside its caller: when its time is over it is told to end, and the caller is answered without waiting until it
has, for what hangs may take long to end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class Deadline:
    """So many seconds for each call."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._left: set[asyncio.Task[Any]] = set()
        """Told to end, and not ended yet."""

    async def within(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work returns or raises; `TimeoutError` when it takes too long."""
        task = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.wait({task}, timeout=self._seconds)
        finally:
            if not task.done():
                self._leave(task)
        if not task.done():
            raise TimeoutError
        return task.result()

    async def close(self) -> None:
        """Wait for those that were told to end, a second at most."""
        if self._left:
            await asyncio.wait(self._left, timeout=1.0)

    def _leave(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        self._left.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._left.discard(task)
        # How it ended is nobody's affair any more.
        if not task.cancelled():
            task.exception()
