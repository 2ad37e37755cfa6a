"""Threads that are not Python's own, and how to outlive them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SECONDS_MAX = 3.0


@contextlib.asynccontextmanager
async def threads_ended() -> AsyncIterator[None]:
    """Leave only when the threads that began inside have ended, as far as the system tells.

    Granian says that it has stopped a moment before its own threads have. A program that ends in that moment is
    aborted, for they still reach for an interpreter that is being taken down.
    """
    before = _threads()
    try:
        yield
    finally:
        # An error that keeps itself alive keeps the request that it ended, and that keeps Granian's threads.
        gc.collect()
        for _ in range(int(SECONDS_MAX * 100)):
            if _threads() <= before:
                break
            await asyncio.sleep(0.01)


def _threads() -> set[str]:
    """The threads of this process that Python has not made; empty where the system does not tell."""
    known = {str(thread.native_id) for thread in threading.enumerate()}
    try:
        return {path.name for path in Path("/proc/self/task").iterdir()} - known
    except OSError:
        return set()
