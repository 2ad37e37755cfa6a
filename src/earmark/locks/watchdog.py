"""Renews a lock while the work under it goes on, and tells the work when the lock is lost.

It stops with the work and never outlives it, and it renews for a bounded life only: work that hangs for ever must
not hold a lock for ever.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

from earmark.locks.errors import LockLost, LocksUnavailable

if TYPE_CHECKING:
    from earmark.locks.lock import Held
    from earmark.locks.sync import SyncHeld

RENEWALS_PER_TTL = 3
LIFE_SECONDS_DEFAULT = 3600.0
RETRY_SECONDS = 0.05


class _Plan:
    """When to renew next and for how long: the same for tasks and threads."""

    def __init__(self, *, ttl: float, life: float) -> None:
        self.ttl = ttl
        self.pause = ttl / RENEWALS_PER_TTL
        self._ends = time.monotonic() + life

    def next_ttl(self) -> float:
        """As long as the lock may still be renewed for; 0 when its life is over."""
        left = self._ends - time.monotonic()
        return min(self.ttl, left) if left > self.pause else 0.0


class TaskWatchdog:
    """Renews from a task of its own, and cancels the work when the lock is lost."""

    def __init__(self, held: Held, *, life: float) -> None:
        work = asyncio.current_task()
        assert work is not None
        self._held = held
        self._work = work
        self._because = ""
        self._plan = _Plan(ttl=held.ttl, life=life)
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> str:
        """Renew no more. Why the work was cancelled, if this is what cancelled it."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._because and self._work.uncancel() == 0:
            return self._because
        return ""

    async def _watch(self) -> None:
        try:
            while not self._held._ending:  # noqa: SLF001
                await asyncio.sleep(self._plan.pause)
                await self._renew()
        except LockLost as loss:
            if self._held._ending:  # noqa: SLF001
                return
            self._because = loss.because
            self._work.cancel(f"the lock on {', '.join(loss.keys)} is lost")

    async def _renew(self) -> None:
        """Once, or as often as it takes until the lock has run out."""
        while not self._held._ending and (ttl := self._plan.next_ttl()):  # noqa: SLF001
            try:
                return await self._extend_in_time(ttl)
            except LocksUnavailable:
                await asyncio.sleep(min(RETRY_SECONDS, self._held.remaining))
                self._held.check()
        await asyncio.sleep(self._held.remaining)
        if not self._held._ending:  # noqa: SLF001
            self._held.check()
        return None

    async def _extend_in_time(self, ttl: float) -> None:
        """The work hears of the loss when the time is over, not when a silent server has been given up."""
        asking = asyncio.get_running_loop().create_task(self._held.extend(ttl))
        try:
            done, _ = await asyncio.wait([asking], timeout=self._held.remaining)
            if done:
                return asking.result()
            self._held.check()
            return await asking
        finally:
            asking.cancel()


class ThreadWatchdog:
    """Renews from a daemon thread. A thread cannot be cancelled: its work asks `held.lost` or `held.check()`."""

    def __init__(self, held: SyncHeld, *, life: float) -> None:
        self._held = held
        self._plan = _Plan(ttl=held.ttl, life=life)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="earmark-lock-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Renew no more; a renewal under way is waited for, so that none comes after the release."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        pause = self._plan.pause
        while not self._stopped.wait(pause):
            pause = self._plan.pause
            ttl = self._plan.next_ttl()
            try:
                if ttl:
                    self._held.extend(ttl)
                else:
                    pause = self._held.remaining
                    self._held.check()
            except LocksUnavailable:
                pause = min(RETRY_SECONDS, self._held.remaining)
            except LockLost:
                return
