"""Waits for threads that Python did not start (Granian's), so that the interpreter does not exit under them."""

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
    """On exit, wait until the native threads that began inside have ended, where the system lists threads.

    Granian reports that it has stopped a moment before its own threads have. A program that exits in that moment is
    aborted, because they still use an interpreter that is being finalized.
    """
    before = _threads()
    try:
        yield
    finally:
        # An error in a reference cycle keeps its request alive, and that keeps Granian's threads alive.
        gc.collect()
        for _ in range(int(SECONDS_MAX * 100)):
            if _threads() <= before:
                break
            await asyncio.sleep(0.01)


def _threads() -> set[str]:
    """The threads of this process that Python did not start; empty where `/proc` does not list them."""
    known = {str(thread.native_id) for thread in threading.enumerate()}
    try:
        return {path.name for path in Path("/proc/self/task").iterdir()} - known
    except OSError:
        return set()
