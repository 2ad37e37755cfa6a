"""An event loop that begins tasks at once, as `asyncio.eager_task_factory` of Python 3.12 does."""

from __future__ import annotations

import asyncio
from asyncio import tasks
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def _begin_at_once(loop: Any, coroutine: Any, *, context: Any = None) -> asyncio.Task[Any]:
    """For Python 3.11: what the task gives the loop as its first step is run here."""
    steps: list[Any] = []
    loop.call_soon = lambda step, *arguments, context: steps.append((step, arguments, context))
    try:
        task: asyncio.Task[Any] = tasks._PyTask(coroutine, loop=loop, context=context)  # type: ignore[attr-defined]
    finally:
        del loop.call_soon
    outer = tasks._current_tasks.pop(loop, None)  # type: ignore[attr-defined]
    try:
        ((step, arguments, context),) = steps
        context.run(step, *arguments)
    finally:
        if outer is not None:
            tasks._current_tasks[loop] = outer  # type: ignore[attr-defined]
    return task


@contextmanager
def eager_tasks() -> Iterator[None]:
    """Every task that is made in this block begins at once, and may have ended when it is returned."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory", _begin_at_once))
    try:
        yield
    finally:
        loop.set_task_factory(None)
