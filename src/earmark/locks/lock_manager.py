"""`Locks`: what a program opens once and takes its locks from."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
import weakref
from typing import TYPE_CHECKING, Any, Literal, Self

from earmark.locks import check_and_call_given_function
from earmark.locks import keys as names
from earmark.locks.acquire_checks_and_stats import lost_on_its_way, note_grant, note_refusal, several, sorted_keys
from earmark.locks.backend_from_url import BackendSettings, backend_factory_of
from earmark.locks.backend_protocol import Claim
from earmark.locks.call_methods_after_fork import call_in_child
from earmark.locks.duration_limits import ttl_seconds, wait_seconds
from earmark.locks.errors import LockBusy, LocksUnavailable, QueueFull, TimeRefused
from earmark.locks.lock import Attempt, Held, Lock
from earmark.locks.renew_lock_while_held import LIFE_SECONDS_DEFAULT, renewal_of
from earmark.locks.stats import Stats
from earmark.locks.sync_locks import SyncLocks
from earmark.locks.work_in_progress_marker import MARKER_START, Marker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from earmark.locks.backend_from_url import BackendFactory
    from earmark.locks.backend_protocol import Backend, Group, Holding
    from earmark.locks.circuit_breaker import Breaker

logger = logging.getLogger("earmark.locks")

TTL_SECONDS_DEFAULT = 30.0


class Locks:
    """Locks on one backend, for tasks and threads alike. Making one contacts no server."""

    def __init__(self, factory: BackendFactory, *, ttl: float = TTL_SECONDS_DEFAULT, holder: str | None = None) -> None:
        self.stats = Stats()
        self.breaker: Breaker | None = factory.breaker
        self.prefix = factory.prefix
        self.ttl = ttl_seconds(ttl)
        self.holder = _label(holder or f"{socket.gethostname()}:{os.getpid()}")
        self.sync = SyncLocks(self, factory, close_backend=self._close_backend)
        self._factory = factory
        self._named = holder
        call_in_child(self._after_fork)
        self._latest: tuple[asyncio.AbstractEventLoop | None, Backend | None] = (None, None)
        # Connections belong to the event loop that made them, so that each loop has a backend of its own.
        self._backends: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Backend] = weakref.WeakKeyDictionary()

    @classmethod
    def from_url(
        cls,
        url: str | Sequence[str],
        *,
        database: str | None = None,
        when_gone: Literal["refuse", "database"] = "refuse",
        fence: Literal["backend", "database"] = "backend",
        ttl: float = TTL_SECONDS_DEFAULT,
        prefix: str = "earmark",
        holder: str | None = None,
        timeout: float = 1.0,
        queue_max: int = 1000,
        drift_factor: float = 0.01,
        retry_seconds: float = 0.2,
        retry_count: int | None = None,
    ) -> Self:
        """Locks where the URL says.

        `redis://`, `rediss://` or `unix://` is one server; `sentinel://host:port,…/service` and
        `cluster://host:port,…` are what they say; several Redis URLs are Redlock; `postgresql://` keeps lease rows;
        `memory://` is this process alone. `database` is a PostgreSQL URL, for `fence="database"` and for
        `when_gone="database"`. `timeout` bounds each call to a server, in seconds. A Redlock is relied on for
        `drift_factor` of its time less. A caller that waits for one tries again after a pause, of `retry_seconds`
        at most the first time and of twice as much each time after, `retry_count` times if that is set.
        """
        settings = BackendSettings(
            prefix=prefix,
            timeout=timeout,
            queue_max=queue_max,
            drift_factor=drift_factor,
            retry_seconds=retry_seconds,
            retry_count=retry_count,
        )
        factory = backend_factory_of(url, database=database, when_gone=when_gone, fence=fence, settings=settings)
        return cls(factory, ttl=ttl, holder=holder)

    @property
    def groups(self) -> frozenset[Group]:
        """What the backend can do beyond the core."""
        return self._factory.groups

    def lock(
        self,
        *keys: str,
        ttl: float | None = None,
        wait: float = 0.0,
        renew: bool = False,
        life: float = LIFE_SECONDS_DEFAULT,
        renew_every_seconds: float | None = None,
        expected_seconds: float | None = None,
        raise_if_lost: bool = True,
    ) -> Lock:
        """A lock to enter with `async with` or `with`.

        It lives `ttl` seconds; a caller that finds it taken waits for `wait` seconds (by default not at all).
        With `renew` it is extended while the block runs, `renew_every_seconds` apart (by default a third of the
        `ttl`), for `life` seconds at most. Held for longer than `expected_seconds`, it is a warning. Leaving the block
        raises `LockLost` if the lock was lost, unless `raise_if_lost` is false.
        """
        lives = self.ttl if ttl is None else ttl_seconds(ttl)
        if renew:
            renewal = renewal_of(lives, every=renew_every_seconds, life=life)
        elif renew_every_seconds is None:
            renewal = None
        else:
            problem = "it has a meaning with renew=True only"
            raise TimeRefused(name="renew_every_seconds", seconds=renew_every_seconds, problem=problem)
        return Lock(
            self,
            sorted_keys(keys),
            ttl=lives,
            wait=wait_seconds(wait) if wait else 0.0,
            renewal=renewal,
            expected=None if expected_seconds is None else ttl_seconds(expected_seconds, name="expected_seconds"),
            raise_if_lost=raise_if_lost,
        )

    async def acquire(
        self, *keys: str, ttl: float | None = None, wait: float = 0.0, expected_seconds: float | None = None
    ) -> Held:
        """Take a lock and keep it until `release`, or until it runs out."""
        seconds = self.ttl if ttl is None else ttl_seconds(ttl)
        expected = None if expected_seconds is None else ttl_seconds(expected_seconds, name="expected_seconds")
        return await self.take(sorted_keys(keys), seconds, wait_seconds(wait), expected=expected)

    async def run(self, keys: str | Sequence[str], work: Callable[..., Any], **how: Any) -> Any:
        """Run `work` under a lock and return what it returns. `how` is as for `lock`.

        `work` may take the held lock as its one argument. A plain function runs in a thread, so that the lock can be
        renewed meanwhile.
        """
        check_and_call_given_function.check(work)
        async with self.lock(*several(keys), **how) as held:
            return await check_and_call_given_function.perform(work, held)

    async def attempt(self, keys: str | Sequence[str], work: Callable[..., Any], **how: Any) -> Attempt:
        """As `run`, but returns `busy` instead of raising when another caller holds the lock."""
        check_and_call_given_function.check(work)
        entered = False

        async def entering(held: Held) -> Any:
            nonlocal entered
            entered = True
            return await check_and_call_given_function.perform(work, held)

        try:
            return Attempt(value=await self.run(keys, entering, **how))
        except (LockBusy, QueueFull):
            if entered:
                raise
            return Attempt.refused(sorted_keys(several(keys)))

    def marker(self, key: str, *, ttl: float = 300.0) -> Marker:
        """A sign that something is being worked on. Advisory: it protects nothing."""
        return Marker(self, names.check(key), ttl_seconds(ttl))

    async def holdings(self, *, match: str = "*", limit: int = 1000) -> list[Holding]:
        """The locks that are held, by glob pattern on the key."""
        return await self.backend().holdings(match=match, limit=limit)

    async def find(self, key: str) -> Holding | None:
        """The lock on this key: its holder, its age and its waiters; None if it is free."""
        return await self.backend().find(key)

    async def stuck(self, *, older_than: float = 60.0) -> list[Holding]:
        """The locks that are held for longer than that, oldest first; each is logged as an error."""
        held = (holding for holding in await self.holdings() if not holding.key.startswith(MARKER_START))
        found = [holding for holding in held if holding.age_seconds > older_than]
        for holding in found:
            logger.error(
                "the lock on %s is held by %s for %.0f s now, %d wait",
                holding.key,
                holding.holder,
                holding.age_seconds,
                len(holding.waiters),
            )
        self.stats.stuck(len(found))
        return sorted(found, key=lambda holding: -holding.age_seconds)

    async def evict(self, key: str) -> bool:
        """Take a key away from its holder; the first waiter gets it. False if it was not held."""
        logger.warning("the lock on %s is taken away from its holder", key)
        return await self.backend().evict(key)

    async def ping(self) -> None:
        """Return if the servers answer, raise `LocksUnavailable` if not."""
        await self.backend().ping()

    async def take(self, keys: tuple[str, ...], ttl: float, wait: float, *, expected: float | None = None) -> Held:
        """What `lock` and `acquire` do once their arguments are checked."""
        claim = Claim(keys, secrets.token_hex(16), ttl, wait, self.holder)
        began = time.monotonic()
        try:
            if wait:
                grant = await self._acquire_waiting(claim)
            else:
                grant = await self.backend().acquire(claim)
            now = time.monotonic()
            if now >= grant.until:
                await grant.backend.release(grant)
                raise lost_on_its_way(grant)  # noqa: TRY301
        except BaseException as error:
            note_refusal(self.stats, claim, error)
            raise
        note_grant(self.stats, claim, now - began)
        return Held(grant, self.stats, now, expected)

    async def _acquire_waiting(self, claim: Claim) -> Any:
        self.stats.waiting(1)
        try:
            return await self.backend().acquire(claim)
        finally:
            self.stats.waiting(-1)

    def backend(self) -> Backend:
        """The backend of the running event loop."""
        loop = asyncio.get_running_loop()
        # One value, so that the loops of two threads never see each other's half.
        latest, found = self._latest
        if loop is latest and found is not None:
            return found
        found = self._backends.get(loop)
        if found is None:
            found = self._backends[loop] = self._factory.connect()
        self._latest = (loop, found)
        return found

    async def __aenter__(self) -> Self:
        """Log a warning if the servers cannot be reached; the program starts all the same."""
        try:
            await self.ping()
        except LocksUnavailable as outage:
            logger.warning(
                "the lock server cannot be reached: %s; locks are %s", outage.because, self._factory.while_unavailable
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        self.sync.warn_if_unreachable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sync.close()

    def _after_fork(self) -> object:
        """In a child process: forget the parent's connections, which the child must neither use nor close."""
        inherited = (self._backends, self._latest)
        self._backends = weakref.WeakKeyDictionary()
        self._latest = (None, None)
        self.holder = _label(self._named or f"{socket.gethostname()}:{os.getpid()}")
        return inherited

    async def close(self) -> None:
        """Close the connections of this event loop and of the threads. Locks that are held run out."""
        await self._close_backend()
        await asyncio.to_thread(self.sync.close)

    async def _close_backend(self) -> None:
        """Close the backend of the running event loop, if it has one."""
        found = self._backends.pop(asyncio.get_running_loop(), None)
        self._latest = (None, None)
        if found is not None:
            await found.close()


def _label(holder: str) -> str:
    """A holder's name is for operators; characters that mean something where it is stored are replaced."""
    return "".join(sign if sign.isprintable() and sign not in "|@ " else "_" for sign in holder)[:100]
