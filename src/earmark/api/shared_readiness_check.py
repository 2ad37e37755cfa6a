"""Checks whether the store accepts bookings, at most once a second, however many probes arrive.

`/readyz` needs no key and has no rate limit, and a check runs several statements on the connections that reads
share. So probes share a result for a second, and concurrent probes wait for one check.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    Check = Callable[[], Coroutine[Any, Any, None]]

AGE_SECONDS_MAX = 1.0
"""How long a result is shared, counted from when the check began."""
WAIT_SECONDS_MAX = 3.0
"""How old a running check may be for a probe to wait for it. An older one may hang on a dead connection: the next probe
begins a new check, which succeeds as soon as the database is back."""


class Readiness:
    """The last check of the store, shared by all probes of this process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._check_task: asyncio.Task[None] | None = None
        self._began_at = 0.0
        self._under_way: set[asyncio.Task[None]] = set()

    async def check(self, command: Check) -> None:
        """Return or raise what the shared check did; begin a new one with `command` if that is too old."""
        task = self._shared() or self._start(command)
        if not task.done():
            # Not awaited itself: a probe that is cancelled must not cancel the check of the others.
            await asyncio.wait([task])
        task.result()

    async def close(self) -> None:
        """Cancel the checks under way."""
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    def _shared(self) -> asyncio.Task[None] | None:
        if self._check_task is None:
            return None
        age_max = AGE_SECONDS_MAX if self._check_task.done() else WAIT_SECONDS_MAX
        return self._check_task if self._clock() - self._began_at < age_max else None

    def _start(self, command: Check) -> asyncio.Task[None]:
        self._began_at = self._clock()
        self._check_task = asyncio.create_task(command())
        self._under_way.add(self._check_task)
        self._check_task.add_done_callback(self._ended)
        return self._check_task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        # If every probe was cancelled, no probe reads its error; asyncio would log it as one that was never retrieved.
        if not task.cancelled():
            task.exception()
