"""Renews a lock while the work under it goes on, and stops the work when the lock is lost.

It stops with the work and never outlives it, and it renews for a bounded life only: work that hangs for ever must
not hold a lock for ever. It has a weak reference to the held lock: a lock that the program has dropped without a
release, and so cannot release any more, is not renewed but runs out.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING

import msgspec

from earmark.locks.duration_limits import TTL_SECONDS_MIN, renewal_seconds, ttl_seconds
from earmark.locks.errors import LockLost, LocksUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.locks.lock import Held
    from earmark.locks.sync_locks import SyncHeld

logger = logging.getLogger("earmark.locks")

RENEWALS_PER_TTL = 3
LIFE_SECONDS_DEFAULT = 3600.0
RETRY_SECONDS = 0.05


class Renewal(msgspec.Struct, frozen=True):
    """How a lock is renewed."""

    every: float
    """Seconds from one renewal to the next."""
    life: float
    """Seconds after which it is renewed no more."""


def renewal_of(ttl: float, *, every: float | None, life: float) -> Renewal:
    """How a lock with this `ttl` is renewed; `TimeRefused` for an interval that cannot keep it."""
    interval = ttl / RENEWALS_PER_TTL if every is None else renewal_seconds(every, ttl=ttl)
    return Renewal(every=interval, life=ttl_seconds(life, name="life"))


class RenewalSchedule:
    """When to renew next and for how long: the same for tasks and threads."""

    def __init__(self, renewal: Renewal, *, ttl: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl = ttl
        self._every = renewal.every
        self._clock = clock
        self._ends = clock() + renewal.life

    def next_ttl(self, remaining: float) -> float:
        """For how long a lock that has so much left is extended; 0 when its life ends before that would matter."""
        left = self._ends - self._clock()
        return min(self._ttl, left) if left - remaining > TTL_SECONDS_MIN else 0.0

    def pause(self, remaining: float) -> float:
        """Until the next renewal, or until the lock has run out if that is earlier."""
        return min(self._every, remaining)


class TaskWatchdog:
    """Renews from a task of its own, and cancels the work when the lock is lost."""

    def __init__(self, held: Held, renewal: Renewal) -> None:
        work = asyncio.current_task()
        assert work is not None
        self._held = weakref.ref(held)
        # The work holds the lock, so that it is not kept alive from here either.
        self._work = weakref.ref(work)
        self._keys = held.keys
        self._because = ""
        self._plan = RenewalSchedule(renewal, ttl=held.ttl)
        self._task = asyncio.get_running_loop().create_task(self._watch(renewal.every))

    async def stop(self) -> str:
        """Renew no more. Why the work was cancelled, if this is what cancelled it."""
        self._task.cancel()
        await asyncio.wait([self._task])
        work = self._work()
        if self._because and work is not None and work.uncancel() == 0:
            return self._because
        return ""

    async def _watch(self, pause: float | None) -> None:
        while pause is not None:
            await asyncio.sleep(pause)
            pause = await self._renew()

    async def _renew(self) -> float | None:
        """Renew once. The seconds until the next time, or None; only this call has a strong reference to the lock."""
        held = self._held()
        if held is None:
            _warn_of_drop(self._keys)
            return None
        if held.ending:
            return None
        try:
            if ttl := self._plan.next_ttl(held.remaining):
                await _extend_in_time(held, ttl)
            else:
                held.check()
                return held.remaining
        except LocksUnavailable:
            return min(RETRY_SECONDS, held.remaining)
        except LockLost as loss:
            if held.lost:  # Not so for one that was released meanwhile.
                self._cancel_work(loss)
            return None
        return self._plan.pause(held.remaining)

    def _cancel_work(self, loss: LockLost) -> None:
        work = self._work()
        if work is not None:
            self._because = loss.because
            work.cancel(f"the lock on {', '.join(loss.keys)} is lost")


class ThreadWatchdog:
    """Renews from a daemon thread. A thread cannot be cancelled: its work checks `held.lost` or `held.check()`."""

    def __init__(self, held: SyncHeld, renewal: Renewal) -> None:
        self._held = weakref.ref(held)
        self._keys = held.keys
        self._plan = RenewalSchedule(renewal, ttl=held.ttl)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, args=(renewal.every,), name="earmark-lock-watchdog", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Renew no more; a renewal under way is waited for, so that none comes after the release."""
        self._stopped.set()
        self._thread.join()

    def _watch(self, pause: float | None) -> None:
        while pause is not None and not self._stopped.wait(pause):
            pause = self._renew()

    def _renew(self) -> float | None:
        held = self._held()
        if held is None:
            _warn_of_drop(self._keys)
            return None
        try:
            if ttl := self._plan.next_ttl(held.remaining):
                held.extend(ttl)
            else:
                held.check()
                return held.remaining
        except LocksUnavailable:
            return min(RETRY_SECONDS, held.remaining)
        except LockLost:
            return None
        return self._plan.pause(held.remaining)


async def _extend_in_time(held: Held, ttl: float) -> None:
    """Extend the lock; raise its loss when its time is over, not when the call to a silent server times out."""
    asking = asyncio.get_running_loop().create_task(held.extend(ttl))
    try:
        done, _ = await asyncio.wait([asking], timeout=held.remaining)
        if done:
            return asking.result()
        held.check()
        return await asking
    finally:
        asking.cancel()


def _warn_of_drop(keys: tuple[str, ...]) -> None:
    logger.warning("the lock on %s is no longer renewed: the program dropped it without a release", ", ".join(keys))
