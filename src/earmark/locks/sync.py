"""The same locks for plain threads.

Where the backend has a direct door, an uncontended lock goes through it and costs one round trip. Everything else,
waiting in line above all, is done by the asynchronous backend in one event loop that a background thread runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from earmark.locks import keys as names
from earmark.locks import work as working
from earmark.locks.asks import lost_on_its_way, note_grant, note_refusal, several, sorted_keys
from earmark.locks.entries import Entries
from earmark.locks.errors import AlreadyMarked, LockBusy, LocksUnavailable, QueueFull
from earmark.locks.held import Holding
from earmark.locks.markers import Marker
from earmark.locks.ports import Claim
from earmark.locks.times import ttl_seconds, wait_seconds
from earmark.locks.watchdog import ThreadWatchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from types import TracebackType

    from earmark.locks.lock import Attempt, Lock
    from earmark.locks.locks import Locks
    from earmark.locks.ports import DirectBackend, Grant
    from earmark.locks.ports import Holding as Seen
    from earmark.locks.stats import Stats
    from earmark.locks.url import Parts
    from earmark.locks.watchdog import Renewal

logger = logging.getLogger("earmark.locks")


class SyncHeld(Holding):
    """A lock that a thread holds."""

    __slots__ = ("_door", "_watchdog")

    def __init__(
        self, grant: Grant, stats: Stats, began: float, door: DirectBackend, expected: float | None = None
    ) -> None:
        super().__init__(grant, stats, began, expected)
        self._door = door
        self._watchdog: ThreadWatchdog | None = None

    def extend(self, ttl: float | None = None) -> None:
        """Let it live `ttl` seconds from now (by default as long as at first), never shorter than it would."""
        self.check()
        seconds = self._grant.claim.ttl if ttl is None else ttl_seconds(ttl)
        if not self._door.extend(self._grant, ttl=seconds):
            raise self._gone()
        self.check()
        self._stats.extended()

    def release(self) -> bool:
        """Give it back. False, with a warning, if it was lost: nobody else's is touched. A second call does nothing."""
        if self._over:
            return not self._lost
        self._begin_release()
        if self._watchdog is not None:
            self._watchdog.stop()
        try:
            whole = self._door.release(self._grant)
        except LocksUnavailable as outage:
            logger.error("could not release the lock on %s: %s", ", ".join(self.keys), outage.because)  # noqa: TRY400
            return False
        return self._gave_back(whole=whole)

    def _renew(self, renewal: Renewal) -> None:
        self._watchdog = ThreadWatchdog(self, renewal)


class SyncLocks:
    """The verbs of `Locks`, blocking."""

    def __init__(self, locks: Locks, parts: Parts) -> None:
        self._locks = locks
        self._parts = parts
        self._guard = threading.Lock()
        self._portal: Portal | None = None
        self._direct: DirectBackend | None = None
        self._waiting_room = PortalDoor(self)

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
        working.check_plain(work)
        with self.lock(*several(keys), **how) as held:
            return working.perform_plain(work, held)

    def attempt(self, keys: str | Sequence[str], work: Callable[..., Any], **how: Any) -> Attempt:
        """As `run`, but answers `busy` instead of raising when somebody else is at it."""
        from earmark.locks.lock import Attempt

        working.check_plain(work)
        entered = False

        def entering(held: SyncHeld) -> Any:
            nonlocal entered
            entered = True
            return working.perform_plain(work, held)

        try:
            return Attempt(value=self.run(keys, entering, **how))
        except (LockBusy, QueueFull):
            if entered:
                raise
            return Attempt.refused(sorted_keys(several(keys)))

    def marker(self, key: str, *, ttl: float = 300.0) -> SyncMarker:
        """A sign that something is being worked on. Advisory: it protects nothing."""
        return SyncMarker(self, Marker(self._locks, names.check(key), ttl_seconds(ttl)))

    def holdings(self, *, match: str = "*", limit: int = 1000) -> list[Seen]:
        """Who holds what."""
        found: list[Seen] = self.call(self._locks.holdings(match=match, limit=limit))
        return found

    def find(self, key: str) -> Seen | None:
        """Who holds this key, since when, and who waits for it."""
        found: Seen | None = self.call(self._locks.find(key))
        return found

    def stuck(self, *, older_than: float = 60.0) -> list[Seen]:
        """The locks that are held for longer than anything should take, oldest first."""
        found: list[Seen] = self.call(self._locks.stuck(older_than=older_than))
        return found

    def evict(self, key: str) -> bool:
        """Take a key away from whoever has it; the next in line gets it. False if nobody had it."""
        return bool(self.call(self._locks.evict(key)))

    def ping(self) -> None:
        """Return if the servers answer, raise `LocksUnavailable` if not."""
        self.call(self._locks.ping())

    def greet(self) -> None:
        """Say at once if the servers cannot be reached; the program starts all the same."""
        try:
            self.ping()
        except LocksUnavailable as outage:
            logger.warning("the lock server cannot be reached: %s; locks are %s", outage.because, self._parts.meanwhile)

    def take(
        self,
        keys: tuple[str, ...],
        ttl: float,
        wait: float,
        *,
        renewal: Renewal | None = None,
        expected: float | None = None,
    ) -> SyncHeld:
        """What `lock` and `acquire` do: the arguments are known to be good."""
        claim = Claim(keys, secrets.token_hex(16), ttl, wait, self._locks.holder)
        door = self._door()
        stats = self._locks.stats
        began = time.monotonic()
        try:
            grant, door = self._take_or_wait(door, claim)
            now = time.monotonic()
            if now >= grant.until:
                door.release(grant)
                raise lost_on_its_way(grant)  # noqa: TRY301
        except BaseException as error:
            note_refusal(stats, claim, error)
            raise
        note_grant(stats, claim, now - began)
        held = SyncHeld(grant, stats, now, door, expected)
        if renewal:
            held._renew(renewal)  # noqa: SLF001
        return held

    def _take_or_wait(self, door: DirectBackend, claim: Claim) -> tuple[Grant, DirectBackend]:
        """Whoever gave a lease also takes it back, so the door comes with the grant."""
        try:
            return door.acquire(claim), door
        except LockBusy:
            if not claim.wait or isinstance(door, PortalDoor):
                raise
        self._locks.stats.waiting(1)
        try:
            return self._waiting_room.acquire(claim), self._waiting_room
        finally:
            self._locks.stats.waiting(-1)

    async def _acquire(self, claim: Claim) -> Grant:
        return await self._locks.backend().acquire(claim)

    def call(
        self, coroutine: Coroutine[Any, Any, Any], undo: Callable[[Any], Coroutine[Any, Any, Any]] | None = None
    ) -> Any:
        """Run something asynchronous in the background thread and wait for it."""
        return self._open_portal().call(coroutine, undo or _leave)

    def close(self) -> None:
        """Let go of connections and of the background thread."""
        with self._guard:
            portal, self._portal = self._portal, None
            direct, self._direct = self._direct, None
        if direct is not None:
            direct.close()
        if portal is not None:
            portal.close(self._close_backend())

    def _forked(self) -> object:
        """In a child process: what the parent's was, which is neither used nor closed here."""
        inherited = (self._portal, self._direct)
        self._guard = threading.Lock()
        self._portal = self._direct = None
        return inherited

    async def _close_backend(self) -> None:
        found = self._locks._backends.pop(asyncio.get_running_loop(), None)  # noqa: SLF001
        if found is not None:
            await found.close()

    def _door(self) -> DirectBackend:
        door = self._direct
        if door is None:
            with self._guard:
                if self._direct is None:
                    self._direct = self._parts.connect_direct() or self._waiting_room
                door = self._direct
        return door

    def _open_portal(self) -> Portal:
        with self._guard:
            if self._portal is None:
                self._portal = Portal()
            return self._portal


class SyncMarker:
    """A `Marker` for threads, to enter with `with`."""

    def __init__(self, sync: SyncLocks, marker: Marker) -> None:
        self._sync = sync
        self._marker = marker
        self._entered = Entries()

    @property
    def key(self) -> str:
        """What is marked."""
        return self._marker.key

    def set(self) -> bool:
        """Put it up. False if there is one already: another caller is at it."""
        return bool(self._sync.call(self._marker.set()))

    def is_set(self) -> bool:
        """Whether any caller has put one up. By the time you act on it, that may have changed."""
        return bool(self._sync.call(self._marker.is_set()))

    def clear(self) -> bool:
        """Take one's own down. False if it was not there any more, or never one's own."""
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


class PortalDoor:
    """The door of a backend that has no direct one: everything goes through the background thread."""

    name = "portal"

    def __init__(self, sync: SyncLocks) -> None:
        self._sync = sync

    def acquire(self, claim: Claim) -> Grant:
        """Waits in line too, if the claim says so."""
        grant: Grant = self._sync.call(self._sync._acquire(claim), _give_back)  # noqa: SLF001
        return grant

    def release(self, grant: Grant) -> bool:
        """Give back."""
        return bool(self._sync.call(grant.backend.release(grant)))

    def extend(self, grant: Grant, *, ttl: float) -> bool:
        """Compare and extend."""
        return bool(self._sync.call(grant.backend.extend(grant, ttl=ttl)))

    def close(self) -> None:
        """Nothing of its own."""


class _Asked:
    """A question that may be taken back at any moment: before it is asked, meanwhile, or when it is answered."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], undo: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        self._coroutine = coroutine
        self._undo = undo
        self._task: asyncio.Task[Any] | None = None
        self._undoing: asyncio.Task[Any] | None = None
        self._taken_back = False

    async def run(self) -> Any:
        """Ask, in the event loop."""
        if self._taken_back:
            self._coroutine.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await self._coroutine

    def take_back(self) -> None:
        """Nobody waits for the answer."""
        self._taken_back = True
        if self._task is None or self._task.cancelled():
            return
        if not self._task.done():
            self._task.cancel()
            self._task.add_done_callback(lambda _: self.take_back())
        elif self._task.exception() is None:
            self._undoing = asyncio.get_running_loop().create_task(self._undo(self._task.result()))


async def _leave(_: Any) -> None:
    """Most answers need no undoing."""


async def _give_back(grant: Grant | None) -> None:
    if grant is not None:
        await grant.backend.release(grant)


class Portal:
    """An event loop in a background thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="earmark-locks", daemon=True)
        self._thread.start()

    def call(
        self, coroutine: Coroutine[Any, Any, Any], undo: Callable[[Any], Coroutine[Any, Any, Any]] = _leave
    ) -> Any:
        """The result. An interrupted caller takes its question back, and what it was given unknowing is undone."""
        asked = _Asked(coroutine, undo)
        try:
            return asyncio.run_coroutine_threadsafe(asked.run(), self._loop).result()
        except BaseException:
            # A loop that has ended has nothing left to take back.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(asked.take_back)
            raise

    def close(self, last: Coroutine[Any, Any, Any]) -> None:
        """Run one last thing and end the thread."""
        self.call(last)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
