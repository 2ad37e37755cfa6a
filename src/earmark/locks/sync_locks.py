"""`SyncLocks`: the same locks for plain threads.

Where the backend has a `DirectBackend`, an uncontended lock uses it and costs one round trip. Everything else, above
all waiting, is done by the asynchronous backend in one event loop that a background thread runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from earmark.locks import check_and_call_given_function
from earmark.locks import keys as names
from earmark.locks.acquire_checks_and_stats import lost_on_its_way, note_grant, note_refusal, several, sorted_keys
from earmark.locks.backend_protocol import Claim
from earmark.locks.call_methods_after_fork import call_in_child
from earmark.locks.duration_limits import ttl_seconds, wait_seconds
from earmark.locks.errors import AlreadyMarked, LockBusy, LocksUnavailable, QueueFull
from earmark.locks.held_lock_base_class import HeldLock
from earmark.locks.renew_lock_while_held import ThreadWatchdog
from earmark.locks.with_blocks_by_caller import BlockEntries
from earmark.locks.work_in_progress_marker import Marker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from types import TracebackType

    from earmark.locks.backend_from_url import BackendFactory
    from earmark.locks.backend_protocol import DirectBackend, Grant, Holding
    from earmark.locks.lock import Attempt, Lock
    from earmark.locks.lock_manager import Locks
    from earmark.locks.renew_lock_while_held import Renewal
    from earmark.locks.stats import Stats

logger = logging.getLogger("earmark.locks")


class SyncHeld(HeldLock):
    """A lock that a thread holds."""

    __slots__ = ("_backend", "_watchdog")

    def __init__(
        self,
        grant: Grant,
        stats: Stats,
        began: float,
        backend: DirectBackend,
        *,
        expected: float | None = None,
        renewal: Renewal | None = None,
    ) -> None:
        super().__init__(grant, stats, began, expected)
        self._backend = backend
        self._watchdog = ThreadWatchdog(self, renewal) if renewal else None

    def extend(self, ttl: float | None = None) -> None:
        """Let it live `ttl` seconds from now (by default as long as at first), never shorter than it would."""
        self.check()
        seconds = self._grant.claim.ttl if ttl is None else ttl_seconds(ttl)
        if not self._backend.extend(self._grant, ttl=seconds):
            raise self._gone()
        self.check()
        self._stats.extended()

    def release(self) -> bool:
        """Give it back. False, with a warning, if it was lost: no other holder's is touched. Twice does no harm."""
        if self._over:
            return not self._lost
        self._begin_release()
        if self._watchdog is not None:
            self._watchdog.stop()
        try:
            whole = self._backend.release(self._grant)
        except LocksUnavailable as outage:
            logger.error("could not release the lock on %s: %s", ", ".join(self.keys), outage.because)  # noqa: TRY400
            return False
        return self._gave_back(whole=whole)


class SyncLocks:
    """The methods of `Locks`, blocking."""

    def __init__(
        self, locks: Locks, factory: BackendFactory, *, close_backend: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self._locks = locks
        self._factory = factory
        self._close_backend = close_backend
        self._guard = threading.Lock()
        self._background: BackgroundLoop | None = None
        self._direct: DirectBackend | None = None
        self._background_backend = BackgroundBackend(self, locks)
        call_in_child(self._after_fork)

    def lock(self, *keys: str, **how: Any) -> Lock:
        """A lock to enter with `with`: the same as `Locks.lock`."""
        return self._locks.lock(*keys, **how)

    def acquire(
        self, *keys: str, ttl: float | None = None, wait: float = 0.0, expected_seconds: float | None = None
    ) -> SyncHeld:
        """Take a lock and keep it until `release`, or until it runs out."""
        seconds = self._locks.ttl if ttl is None else ttl_seconds(ttl)
        expected = None if expected_seconds is None else ttl_seconds(expected_seconds, name="expected_seconds")
        return self.take(sorted_keys(keys), seconds, wait_seconds(wait), expected=expected)

    def run(self, keys: str | Sequence[str], work: Callable[..., Any], **how: Any) -> Any:
        """Run `work` under a lock and return what it returns. `work` may take the held lock as its one argument.

        A thread cannot await: `work` that is async is a `TypeError`.
        """
        check_and_call_given_function.check_plain(work)
        with self.lock(*several(keys), **how) as held:
            return check_and_call_given_function.perform_plain(work, held)

    def attempt(self, keys: str | Sequence[str], work: Callable[..., Any], **how: Any) -> Attempt:
        """As `run`, but returns `busy` instead of raising when another caller holds the lock."""
        from earmark.locks.lock import Attempt

        check_and_call_given_function.check_plain(work)
        entered = False

        def entering(held: SyncHeld) -> Any:
            nonlocal entered
            entered = True
            return check_and_call_given_function.perform_plain(work, held)

        try:
            return Attempt(value=self.run(keys, entering, **how))
        except (LockBusy, QueueFull):
            if entered:
                raise
            return Attempt.refused(sorted_keys(several(keys)))

    def marker(self, key: str, *, ttl: float = 300.0) -> SyncMarker:
        """A sign that something is being worked on. Advisory: it protects nothing."""
        return SyncMarker(self, Marker(self._locks, names.check(key), ttl_seconds(ttl)))

    def holdings(self, *, match: str = "*", limit: int = 1000) -> list[Holding]:
        """The locks that are held, by glob pattern on the key."""
        found: list[Holding] = self.call(self._locks.holdings(match=match, limit=limit))
        return found

    def find(self, key: str) -> Holding | None:
        """The lock on this key: its holder, its age and its waiters; None if it is free."""
        found: Holding | None = self.call(self._locks.find(key))
        return found

    def stuck(self, *, older_than: float = 60.0) -> list[Holding]:
        """The locks that are held for longer than that, oldest first; each is logged as an error."""
        found: list[Holding] = self.call(self._locks.stuck(older_than=older_than))
        return found

    def evict(self, key: str) -> bool:
        """Take a key away from its holder; the first waiter gets it. False if it was not held."""
        return bool(self.call(self._locks.evict(key)))

    def ping(self) -> None:
        """Return if the servers answer, raise `LocksUnavailable` if not."""
        self.call(self._locks.ping())

    def warn_if_unreachable(self) -> None:
        """Log a warning if the servers cannot be reached; the program starts all the same."""
        try:
            self.ping()
        except LocksUnavailable as outage:
            logger.warning(
                "the lock server cannot be reached: %s; locks are %s", outage.because, self._factory.while_unavailable
            )

    def take(
        self,
        keys: tuple[str, ...],
        ttl: float,
        wait: float,
        *,
        renewal: Renewal | None = None,
        expected: float | None = None,
    ) -> SyncHeld:
        """What `lock` and `acquire` do once their arguments are checked."""
        claim = Claim(keys, secrets.token_hex(16), ttl, wait, self._locks.holder)
        direct = self._direct_backend()
        stats = self._locks.stats
        began = time.monotonic()
        try:
            grant, direct = self._take_or_wait(direct, claim)
            now = time.monotonic()
            if now >= grant.until:
                direct.release(grant)
                raise lost_on_its_way(grant)  # noqa: TRY301
        except BaseException as error:
            note_refusal(stats, claim, error)
            raise
        note_grant(stats, claim, now - began)
        return SyncHeld(grant, stats, now, direct, expected=expected, renewal=renewal)

    def _take_or_wait(self, direct: DirectBackend, claim: Claim) -> tuple[Grant, DirectBackend]:
        """The grant, and the backend that granted it, which also releases it."""
        try:
            return direct.acquire(claim), direct
        except LockBusy:
            if not claim.wait or isinstance(direct, BackgroundBackend):
                raise
        self._locks.stats.waiting(1)
        try:
            return self._background_backend.acquire(claim), self._background_backend
        finally:
            self._locks.stats.waiting(-1)

    def call(
        self, coroutine: Coroutine[Any, Any, Any], undo: Callable[[Any], Coroutine[Any, Any, Any]] | None = None
    ) -> Any:
        """Run something asynchronous in the background thread and wait for it."""
        return self._open_background().call(coroutine, undo or _nothing_to_undo)

    def close(self) -> None:
        """Close the connections and end the background thread."""
        with self._guard:
            background, self._background = self._background, None
            direct, self._direct = self._direct, None
        if direct is not None:
            direct.close()
        if background is not None:
            background.close(self._close_backend())

    def _after_fork(self) -> object:
        """In a child process: forget the parent's thread and connections, which are neither used nor closed there."""
        inherited = (self._background, self._direct)
        self._guard = threading.Lock()
        self._background = self._direct = None
        return inherited

    def _direct_backend(self) -> DirectBackend:
        direct = self._direct
        if direct is None:
            with self._guard:
                if self._direct is None:
                    self._direct = self._factory.connect_direct() or self._background_backend
                direct = self._direct
        return direct

    def _open_background(self) -> BackgroundLoop:
        with self._guard:
            if self._background is None:
                self._background = BackgroundLoop()
            return self._background


class SyncMarker:
    """A `Marker` for threads, to enter with `with`."""

    def __init__(self, sync: SyncLocks, marker: Marker) -> None:
        self._sync = sync
        self._marker = marker
        self._entered = BlockEntries()

    @property
    def key(self) -> str:
        """The key that is marked."""
        return self._marker.key

    def set(self) -> bool:
        """Set it. False if another caller has set it already."""
        return bool(self._sync.call(self._marker.set()))

    def is_set(self) -> bool:
        """Whether any caller has put one up. By the time you act on it, that may have changed."""
        return bool(self._sync.call(self._marker.is_set()))

    def clear(self) -> bool:
        """Clear it. False if it had expired, or was not set by this object."""
        return bool(self._sync.call(self._marker.clear()))

    def __enter__(self) -> Self:
        grant: Grant | None = self._sync.call(self._marker.claim(), _give_back)
        if grant is None:
            raise AlreadyMarked(key=self.key)
        self._entered.add(threading.get_ident(), grant)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sync.call(self._marker.unclaim(self._entered.pop(threading.get_ident())))


class BackgroundBackend:
    """A backend for threads that calls the asynchronous one in the background thread."""

    name = "background"

    def __init__(self, sync: SyncLocks, locks: Locks) -> None:
        self._sync = sync
        self._locks = locks

    def acquire(self, claim: Claim) -> Grant:
        """Wait in the queue too, if the claim says so."""
        grant: Grant = self._sync.call(self._acquire(claim), _give_back)
        return grant

    async def _acquire(self, claim: Claim) -> Grant:
        # The backend is that of the background thread's event loop, which runs this.
        return await self._locks.backend().acquire(claim)

    def release(self, grant: Grant) -> bool:
        """Give every key back that still belongs to this token."""
        return bool(self._sync.call(grant.backend.release(grant)))

    def extend(self, grant: Grant, *, ttl: float) -> bool:
        """Let the lease live longer; False if it was lost."""
        return bool(self._sync.call(grant.backend.extend(grant, ttl=ttl)))

    def close(self) -> None:
        """Do nothing: `SyncLocks` ends the background thread."""


class _CancellableCall:
    """A call that may be cancelled at any moment: before it begins, while it runs, or when its result is there."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], undo: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        self._coroutine = coroutine
        self._undo = undo
        self._task: asyncio.Task[Any] | None = None
        self._undoing: asyncio.Task[Any] | None = None
        self._cancelled = False

    async def run(self) -> Any:
        """Run the coroutine, in the event loop."""
        if self._cancelled:
            self._coroutine.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await self._coroutine

    def cancel(self) -> None:
        """Cancel the call, or undo its result: the caller does not wait for it any more."""
        self._cancelled = True
        if self._task is None or self._task.cancelled():
            return
        if not self._task.done():
            self._task.cancel()
            self._task.add_done_callback(lambda _: self.cancel())
        elif self._task.exception() is None:
            self._undoing = asyncio.get_running_loop().create_task(self._undo(self._task.result()))


async def _nothing_to_undo(_: Any) -> None:
    """For calls whose result needs no undoing."""


async def _give_back(grant: Grant | None) -> None:
    if grant is not None:
        await grant.backend.release(grant)


class BackgroundLoop:
    """An event loop in a background thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="earmark-locks", daemon=True)
        self._thread.start()

    def call(
        self, coroutine: Coroutine[Any, Any, Any], undo: Callable[[Any], Coroutine[Any, Any, Any]] = _nothing_to_undo
    ) -> Any:
        """The result. If the caller is interrupted, the call is cancelled, and a result that it never saw is undone."""
        call = _CancellableCall(coroutine, undo)
        try:
            return asyncio.run_coroutine_threadsafe(call.run(), self._loop).result()
        except BaseException:
            # A loop that has ended has nothing left to cancel.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(call.cancel)
            raise

    def close(self, last: Coroutine[Any, Any, Any]) -> None:
        """Run one last coroutine and end the thread."""
        self.call(last)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
