"""A deadline for every request: whatever a handler waits for, its client is answered in time.

A verb in one of the engine's queues has a deadline there, which knows more about what it was doing. Any other handler
runs in a task of its own: at its deadline it is cancelled, and the client is answered without waiting for it to end,
which may take long where it hangs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class Deadline:
    """The same number of seconds for each piece of work."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._left: set[asyncio.Task[Any]] = set()
        """Tasks that were cancelled and have not ended yet."""

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
        """Wait for cancelled tasks, a second at most."""
        if self._left:
            await asyncio.wait(self._left, timeout=1.0)

    def _leave(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        self._left.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._left.discard(task)
        # The caller has been answered. Read the error, or asyncio would log it as never retrieved.
        if not task.cancelled():
            task.exception()
