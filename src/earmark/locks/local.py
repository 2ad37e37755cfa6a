"""Leases inside one process: for tests, for a program with one process, and as the simplest form of the rules.

`LocalTable` has all rules, without a thread or an event loop of its own: every step happens under one mutex, at a
moment that an injected clock names. `LocalLeases` offers it to tasks and `SyncLocalLeases` to plain threads. Any
number of both, on any number of event loops, may share one table.

    acquire ──free──▶ lease ──release, evict or expiry──▶ the first waiter has it, before any new caller
       └────taken───▶ queue of the first taken key ──another key is taken──▶ queue of that key

A release hands the key over and wakes the waiter; no caller polls. A lease that is never released is noticed by its
waiters: each has a timer for the moment when it runs out, so that the queue depends on no single waiter.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from earmark.locks.backend_protocol import Grant, Group, Holding
from earmark.locks.errors import LockBusy, QueueFull
from earmark.locks.glob_to_regex import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from earmark.locks.backend_protocol import Claim

QUEUE_MAX = 1000
SWEEP_LEASES_MIN = 1024
"""Below so many leases, expired ones are not searched for."""


class LocalGrant(NamedTuple):
    """What the table granted: the fence, and the moment at which it ends."""

    fence: int
    until: float


class _Lease(msgspec.Struct):
    """The holder of a key. It lives while `now < expires_at`."""

    token: str
    holder: str
    fence: int
    taken_at: float
    expires_at: float


class Waiter:
    """A queued claim. It waits in the queue of one key, and holds no key while it waits."""

    __slots__ = ("at", "claim", "deadline", "full", "queue_max", "since", "taken", "wake")

    def __init__(self, claim: Claim, *, wake: Callable[[], bool], queue_max: int, since: float) -> None:
        self.claim = claim
        self.wake = wake
        self.queue_max = queue_max
        self.since = since
        self.deadline = since + claim.wait
        self.at: str | None = None
        self.taken: LocalGrant | None = None
        self.full: str | None = None


class LocalTable:
    """Every lease and every queue, behind one mutex that no caller holds while it waits."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._clock = clock
        self._wall_ns = wall_ns
        self._mutex = threading.Lock()
        self._leases: dict[str, _Lease] = {}
        self._queues: dict[str, OrderedDict[Waiter, None]] = {}
        self._last_fence = 0
        self._sweep_at = SWEEP_LEASES_MIN

    def acquire(self, claim: Claim) -> LocalGrant:
        """All keys at once, or `LockBusy` at once."""
        with self._mutex:
            now = self._clock()
            self._serve_queues(claim.keys, now)
            busy = self._busy(claim, now)
            if not busy:
                return self._take(claim, now)
        raise LockBusy(keys=busy)

    def join_queue(self, claim: Claim, *, wake: Callable[[], bool], queue_max: int = QUEUE_MAX) -> Waiter:
        """All keys at once, or a place in a queue. `wake` wakes the waiter, and returns False if that is impossible."""
        with self._mutex:
            now = self._clock()
            waiter = Waiter(claim, wake=wake, queue_max=queue_max, since=now)
            self._serve_queues(claim.keys, now)
            if busy := self._busy(claim, now):
                self._enqueue(waiter, at=busy[0])
            else:
                waiter.taken = self._take(claim, now)
            return waiter

    def seconds_to_wait(self, waiter: Waiter) -> float:
        """Seconds until the waiter should check again, unless it is woken before; 0 when its wait is over."""
        with self._mutex:
            now = self._clock()
            if waiter.at is not None:
                self._serve_queues((waiter.at,), now)
            if waiter.at is None:
                return 0.0
            return max(0.0, min(waiter.deadline, self._leases[waiter.at].expires_at) - now)

    def leave_queue(self, waiter: Waiter) -> LocalGrant:
        """What the waiter was granted; or leave the queue and raise `QueueFull` or `LockBusy`."""
        with self._mutex:
            if waiter.taken is not None:
                return waiter.taken
            if waiter.full is not None:
                raise QueueFull(key=waiter.full, queue_max=waiter.queue_max)
            now = self._clock()
            busy = self._busy(waiter.claim, now) or list(waiter.claim.keys)
            self._dequeue(waiter)
        raise LockBusy(keys=busy, waited_seconds=now - waiter.since)

    def cancel_wait(self, waiter: Waiter) -> None:
        """Leave the queue, and pass what was granted at this moment to the next waiter."""
        with self._mutex:
            self._dequeue(waiter)
            if waiter.taken is not None:
                self._free(waiter.claim)
                self._serve_queues(waiter.claim.keys, self._clock())

    def release(self, claim: Claim) -> bool:
        """Give back what still belongs to the token. False when any of it was lost before."""
        with self._mutex:
            now = self._clock()
            whole = len(self._held(claim, now)) == len(claim.keys)
            self._free(claim)
            self._serve_queues(claim.keys, now)
            return whole

    def extend(self, claim: Claim, *, ttl: float) -> float | None:
        """Let all of it live `ttl` seconds from now, never shorter than it would: until when, or None when lost."""
        with self._mutex:
            now = self._clock()
            held = self._held(claim, now)
            return _lengthen(held, now + ttl) if len(held) == len(claim.keys) else None

    def evict(self, key: str) -> bool:
        """Take a key from its holder."""
        with self._mutex:
            now = self._clock()
            lease = self._leases.pop(key, None)
            self._serve_queues((key,), now)
            return lease is not None and now < lease.expires_at

    def holdings(self, *, match: str, limit: int) -> list[Holding]:
        """The leases that match, each with its waiters."""
        wanted = compiled(match).fullmatch
        with self._mutex:
            now = self._clock()
            found = sorted(key for key, lease in self._leases.items() if now < lease.expires_at and wanted(key))
            return [self._holding(key, now) for key in found[:limit]]

    def find(self, key: str) -> Holding | None:
        """The lease of this key, if there is one."""
        with self._mutex:
            now = self._clock()
            self._serve_queues((key,), now)
            return self._holding(key, now) if self._is_taken(key, now) else None

    def _holding(self, key: str, now: float) -> Holding:
        lease = self._leases[key]
        return Holding(
            key=key,
            holder=lease.holder,
            token=lease.token,
            fence=lease.fence,
            age_seconds=now - lease.taken_at,
            ttl_seconds=lease.expires_at - now,
            waiters=[waiter.claim.holder for waiter in self._queues.get(key, ())],
        )

    def _serve_queues(self, keys: Iterable[str], now: float) -> None:
        """Serve the queues of those keys that are free, so that a free key has no queue.

        It ends: a waiter moves only to a key that is taken or has a queue, so each free key's queue empties once.
        """
        pending = deque(keys)
        while pending:
            key = pending.popleft()
            while key in self._queues and not self._is_taken(key, now):
                waiter = next(iter(self._queues[key]))
                self._dequeue(waiter)
                pending.extend(self._serve(waiter, key=key, now=now))

    def _serve(self, waiter: Waiter, *, key: str, now: float) -> Sequence[str]:
        """Grant a waiter all its keys, or queue it at the next. Returns the keys whose queues must be served too."""
        claim = waiter.claim
        # Where others are queued this waiter is queued behind them, even if the key has just become free.
        busy = [other for other in claim.keys if other != key and (other in self._queues or self._is_taken(other, now))]
        if busy:
            self._enqueue(waiter, at=busy[0])
        else:
            waiter.taken = self._take(claim, now)
        if waiter.wake():
            return busy
        # The waiter's event loop is closed, so it would never release this.
        self._dequeue(waiter)
        self._free(claim)
        return claim.keys

    def _enqueue(self, waiter: Waiter, *, at: str) -> None:
        queue = self._queues.get(at)
        if len(queue or ()) >= waiter.queue_max:
            waiter.full = at
            return
        if queue is None:
            queue = self._queues[at] = OrderedDict()
        queue[waiter] = None
        waiter.at = at

    def _dequeue(self, waiter: Waiter) -> None:
        if waiter.at is None:
            return
        queue = self._queues[waiter.at]
        del queue[waiter]
        if not queue:
            del self._queues[waiter.at]
        waiter.at = None

    def _take(self, claim: Claim, now: float) -> LocalGrant:
        held = self._held(claim, now)
        if len(held) == len(claim.keys):
            # The same token again: the caller did not receive the first answer.
            return LocalGrant(held[0].fence, _lengthen(held, now + claim.ttl))
        # One count for all keys, so that nothing need be stored for a free key; and not below the wall clock, so that
        # it goes on growing when the process is started again.
        self._last_fence = fence = max(self._last_fence + 1, self._wall_ns() // 1000)
        until = now + claim.ttl
        for key in claim.keys:
            self._leases[key] = _Lease(claim.token, claim.holder, fence, now, until)
        if len(self._leases) >= self._sweep_at:
            self._sweep(now)
        return LocalGrant(fence, until)

    def _sweep(self, now: float) -> None:
        """Remove expired leases. The next time is when there are twice as many, so it stays cheap."""
        over = [key for key, lease in self._leases.items() if now >= lease.expires_at and key not in self._queues]
        for key in over:
            del self._leases[key]
        self._sweep_at = max(SWEEP_LEASES_MIN, 2 * len(self._leases))

    def _free(self, claim: Claim) -> None:
        for key in claim.keys:
            if (lease := self._leases.get(key)) is not None and lease.token == claim.token:
                del self._leases[key]

    def _held(self, claim: Claim, now: float) -> list[_Lease]:
        leases = (self._leases.get(key) for key in claim.keys)
        return [lease for lease in leases if lease and lease.token == claim.token and now < lease.expires_at]

    def _busy(self, claim: Claim, now: float) -> list[str]:
        return [key for key in claim.keys if self._is_taken(key, now) and self._leases[key].token != claim.token]

    def _is_taken(self, key: str, now: float) -> bool:
        lease = self._leases.get(key)
        return lease is not None and now < lease.expires_at


class LocalLeases:
    """The backend for tasks. Unlike others it may be used from several event loops at once."""

    name = "memory"
    groups = frozenset({Group.FIFO, Group.FENCE, Group.MANY})

    def __init__(self, table: LocalTable | None = None, *, queue_max: int = QUEUE_MAX) -> None:
        self.table = table or LocalTable()
        self._queue_max = queue_max

    async def acquire(self, claim: Claim) -> Grant:
        """All of the keys or none."""
        taken = await self._wait(claim) if claim.wait > 0 else self.table.acquire(claim)
        return Grant(claim=claim, backend=self, fence=taken.fence, until=taken.until)

    async def release(self, grant: Grant) -> bool:
        """Give every key back that still belongs to this token."""
        return self.table.release(grant.claim)

    async def extend(self, grant: Grant, *, ttl: float) -> bool:
        """Let the lease live longer."""
        return _extend(self.table, grant, ttl=ttl)

    async def holdings(self, *, match: str = "*", limit: int = 1000) -> list[Holding]:
        """The leases that match, each with its waiters."""
        return self.table.holdings(match=match, limit=limit)

    async def find(self, key: str) -> Holding | None:
        """The lease of this key, if there is one."""
        return self.table.find(key)

    async def evict(self, key: str) -> bool:
        """Take a key from its holder."""
        return self.table.evict(key)

    async def ping(self) -> None:
        """Return: the table is in this process."""

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def _wait(self, claim: Claim) -> LocalGrant:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> bool:
            try:
                loop.call_soon_threadsafe(woken.set)
            except RuntimeError:
                return False
            return True

        waiter = self.table.join_queue(claim, wake=wake, queue_max=self._queue_max)
        try:
            while seconds := self.table.seconds_to_wait(waiter):
                timer = loop.call_later(seconds, woken.set)
                try:
                    await woken.wait()
                finally:
                    timer.cancel()
                woken.clear()
        except BaseException:
            self.table.cancel_wait(waiter)
            raise
        return self.table.leave_queue(waiter)


class SyncLocalLeases:
    """The same table for plain threads. It never waits, and takes no key before the waiters of its queue."""

    name = "memory"

    def __init__(self, table: LocalTable) -> None:
        self.table = table

    def acquire(self, claim: Claim) -> Grant:
        """All of the keys or none, at once."""
        taken = self.table.acquire(claim)
        return Grant(claim=claim, backend=self, fence=taken.fence, until=taken.until)

    def release(self, grant: Grant) -> bool:
        """Give every key back that still belongs to this token."""
        return self.table.release(grant.claim)

    def extend(self, grant: Grant, *, ttl: float) -> bool:
        """Let the lease live longer."""
        return _extend(self.table, grant, ttl=ttl)

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _extend(table: LocalTable, grant: Grant, *, ttl: float) -> bool:
    until = table.extend(grant.claim, ttl=ttl)
    if until is None:
        return False
    grant.until = until
    return True


def _lengthen(leases: Sequence[_Lease], until: float) -> float:
    for lease in leases:
        lease.expires_at = max(lease.expires_at, until)
    return min(lease.expires_at for lease in leases)
