"""`Lock`, the context manager that tasks and threads enter, and `Held`, the lock that a task holds."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from earmark.locks.duration_limits import ttl_seconds
from earmark.locks.errors import LocksUnavailable
from earmark.locks.held_lock_base_class import HeldLock
from earmark.locks.renew_lock_while_held import TaskWatchdog
from earmark.locks.with_blocks_by_caller import BlockEntries

if TYPE_CHECKING:
    from types import TracebackType

    from earmark.locks.lock_manager import Locks
    from earmark.locks.renew_lock_while_held import Renewal
    from earmark.locks.sync_locks import SyncHeld

logger = logging.getLogger("earmark.locks")


class Held(HeldLock):
    """A lock that a task holds."""

    __slots__ = ()

    async def extend(self, ttl: float | None = None) -> None:
        """Let it live `ttl` seconds from now (by default as long as at first), never shorter than it would."""
        self.check()
        seconds = self._grant.claim.ttl if ttl is None else ttl_seconds(ttl)
        if not await self._grant.backend.extend(self._grant, ttl=seconds):
            raise self._gone()
        self.check()
        self._stats.extended()

    async def release(self) -> bool:
        """Give it back. False, with a warning, if it was lost: no other holder's is touched. Twice does no harm."""
        if self._over:
            return not self._lost
        self._begin_release()
        try:
            whole = await self._grant.backend.release(self._grant)
        except LocksUnavailable as outage:
            # The work is done and must not fail for this: the lock runs out by itself, and may be released again.
            logger.error("could not release the lock on %s: %s", ", ".join(self.keys), outage.because)  # noqa: TRY400
            return False
        return self._gave_back(whole=whole)


class Lock:
    """Keys to lock, and how. Enter it with `async with` in a task, with plain `with` in a thread.

    One of these can be entered by many tasks and threads: each entry is an acquisition of its own. Leaving a block
    whose lock was lost raises `LockLost`; an exception of the block comes out as it is, with a note about the loss.
    """

    __slots__ = ("_entered", "_expected", "_keys", "_locks", "_raise_if_lost", "_renewal", "_ttl", "_wait")

    def __init__(
        self,
        locks: Locks,
        keys: tuple[str, ...],
        *,
        ttl: float,
        wait: float,
        renewal: Renewal | None,
        expected: float | None,
        raise_if_lost: bool,
    ) -> None:
        self._locks = locks
        self._keys = keys
        self._ttl = ttl
        self._wait = wait
        self._renewal = renewal
        self._expected = expected
        self._raise_if_lost = raise_if_lost
        self._entered = BlockEntries()

    @property
    def keys(self) -> tuple[str, ...]:
        """What is to be locked, sorted and without duplicates."""
        return self._keys

    async def __aenter__(self) -> Held:
        held = await self._locks.take(self._keys, self._ttl, self._wait, expected=self._expected)
        watchdog = TaskWatchdog(held, self._renewal) if self._renewal else None
        self._entered.add(asyncio.current_task(), (held, watchdog))
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, watchdog = self._entered.pop(asyncio.current_task())
        at = time.monotonic()
        stopped = ""
        try:
            if watchdog is not None:
                stopped = await watchdog.stop()
        finally:
            await held.release()
        if stopped and kind is asyncio.CancelledError:
            raise held.loss(stopped) from error
        held.end_block(error, at=at, raise_if_lost=self._raise_if_lost)

    def __enter__(self) -> SyncHeld:
        held = self._locks.sync.take(self._keys, self._ttl, self._wait, renewal=self._renewal, expected=self._expected)
        self._entered.add(threading.get_ident(), held)
        return held

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held = self._entered.pop(threading.get_ident())
        at = time.monotonic()
        held.release()
        held.end_block(error, at=at, raise_if_lost=self._raise_if_lost)


class Attempt:
    """The outcome of a function that was to run under a lock: its value, or that another caller holds the lock."""

    __slots__ = ("busy", "keys", "value")

    def __init__(self, *, value: Any = None, busy: bool = False, keys: tuple[str, ...] = ()) -> None:
        self.value = value
        self.busy = busy
        self.keys = keys

    @classmethod
    def refused(cls, keys: tuple[str, ...]) -> Self:
        """Another caller holds the lock, so the function was not run."""
        return cls(busy=True, keys=keys)
