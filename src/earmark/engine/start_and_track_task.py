"""Starts a task and keeps it in a set while it runs, also where the event loop begins tasks at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def start_task(tasks: set[asyncio.Task[None]], work: Callable[[], Awaitable[None]]) -> None:
    """Run this work in a task of its own, which is in the set from now until the work ends.

    With `asyncio.eager_task_factory` the work may have ended before the task is returned: then it is not added. It
    leaves the set at once and not by a callback, which would run only after other tasks have seen it there.
    """

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await work()
        finally:
            tasks.discard(task)

    task = asyncio.get_running_loop().create_task(run())
    if not task.done():
        tasks.add(task)
