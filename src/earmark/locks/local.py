"""Leases inside one process: for tests, for a program that is alone, and as the plainest reading of the rules.

`LocalTable` is the whole law, without a thread or an event loop of its own: every step happens under one mutex, at a
moment that an injected clock names. `LocalLeases` gives it to tasks and `DirectLocalLeases` to plain threads. Any
number of both, on any number of event loops, may share one table.

    acquire ──free──▶ lease ──release, evict or expiry──▶ the first in line has it, before anybody new
       └────taken───▶ line of the first taken key ──the rest is taken──▶ line of that key

A release hands the key over and rings; nobody polls. A lease that nobody gives back is noticed by those who wait for
it: each of them has a timer for the moment when it runs out, so that no single one must be alive for the line to move.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from earmark.locks.errors import LockBusy, QueueFull
from earmark.locks.globs import compiled
from earmark.locks.ports import Grant, Group, Holding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from earmark.locks.ports import Claim

QUEUE_MAX = 1000
SWEEP_LEASES_MIN = 1024
"""Below so many leases, those that ran out are not worth looking for."""


class Taken(NamedTuple):
    """What the table gave: the number of the grant, and the moment until which it is good."""

    fence: int
    until: float


class _Lease(msgspec.Struct):
    """Who has a key. It lives while `now < expires_at`."""

    token: str
    holder: str
    fence: int
    taken_at: float
    expires_at: float


class Waiter:
    """Somebody in line for a claim. It stands at one key, and holds none while it stands."""

    __slots__ = ("at", "claim", "deadline", "full", "queue_max", "ring", "since", "taken")

    def __init__(self, claim: Claim, *, ring: Callable[[], bool], queue_max: int, since: float) -> None:
        self.claim = claim
        self.ring = ring
        self.queue_max = queue_max
        self.since = since
        self.deadline = since + claim.wait
        self.at: str | None = None
        self.taken: Taken | None = None
        self.full: str | None = None


class LocalTable:
    """Every lease and every line, behind one mutex that is never held while anybody waits."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._clock = clock
        self._wall_ns = wall_ns
        self._mutex = threading.Lock()
        self._leases: dict[str, _Lease] = {}
        self._lines: dict[str, OrderedDict[Waiter, None]] = {}
        self._last_fence = 0
        self._sweep_at = SWEEP_LEASES_MIN

    def acquire(self, claim: Claim) -> Taken:
        """All keys at once, or `LockBusy` at once."""
        with self._mutex:
            now = self._clock()
            self._settle(claim.keys, now)
            busy = self._busy(claim, now)
            if not busy:
                return self._take(claim, now)
        raise LockBusy(keys=busy)

    def join(self, claim: Claim, *, ring: Callable[[], bool], queue_max: int = QUEUE_MAX) -> Waiter:
        """All keys at once, or a place in line. `ring` tells the waiter to look; it answers whether anybody heard."""
        with self._mutex:
            now = self._clock()
            waiter = Waiter(claim, ring=ring, queue_max=queue_max, since=now)
            self._settle(claim.keys, now)
            if busy := self._busy(claim, now):
                self._stand(waiter, at=busy[0])
            else:
                waiter.taken = self._take(claim, now)
            return waiter

    def look(self, waiter: Waiter) -> float:
        """Seconds until the waiter should look again, if nobody rings before; 0 when it need not wait any longer."""
        with self._mutex:
            now = self._clock()
            if waiter.at is not None:
                self._settle((waiter.at,), now)
            if waiter.at is None:
                return 0.0
            return max(0.0, min(waiter.deadline, self._leases[waiter.at].expires_at) - now)

    def leave(self, waiter: Waiter) -> Taken:
        """What the waiter was given; or out of line, with `QueueFull` or `LockBusy`."""
        with self._mutex:
            if waiter.taken is not None:
                return waiter.taken
            if waiter.full is not None:
                raise QueueFull(key=waiter.full, queue_max=waiter.queue_max)
            now = self._clock()
            busy = self._busy(waiter.claim, now) or list(waiter.claim.keys)
            self._step_out(waiter)
        raise LockBusy(keys=busy, waited_seconds=now - waiter.since)

    def abandon(self, waiter: Waiter) -> None:
        """Out of line; and what was given at this very moment goes to the next."""
        with self._mutex:
            self._step_out(waiter)
            if waiter.taken is not None:
                self._free(waiter.claim)
                self._settle(waiter.claim.keys, self._clock())

    def release(self, claim: Claim) -> bool:
        """Give back what still belongs to the token. False when any of it was lost before."""
        with self._mutex:
            now = self._clock()
            whole = len(self._held(claim, now)) == len(claim.keys)
            self._free(claim)
            self._settle(claim.keys, now)
            return whole

    def extend(self, claim: Claim, *, ttl: float) -> float | None:
        """Let all of it live `ttl` seconds from now, never shorter than it would: until when, or None when lost."""
        with self._mutex:
            now = self._clock()
            held = self._held(claim, now)
            return _lengthen(held, now + ttl) if len(held) == len(claim.keys) else None

    def evict(self, key: str) -> bool:
        """Take a key from whoever has it."""
        with self._mutex:
            now = self._clock()
            lease = self._leases.pop(key, None)
            self._settle((key,), now)
            return lease is not None and now < lease.expires_at

    def holdings(self, *, match: str, limit: int) -> list[Holding]:
        """Who has what, and who waits for it."""
        wanted = compiled(match).fullmatch
        with self._mutex:
            now = self._clock()
            found = sorted(key for key, lease in self._leases.items() if now < lease.expires_at and wanted(key))
            return [self._holding(key, now) for key in found[:limit]]

    def find(self, key: str) -> Holding | None:
        """Who has this key."""
        with self._mutex:
            now = self._clock()
            self._settle((key,), now)
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
            waiters=[waiter.claim.holder for waiter in self._lines.get(key, ())],
        )

    def _settle(self, keys: Iterable[str], now: float) -> None:
        """Serve the lines of those keys that are free, so that a free key has no line.

        It ends: a waiter moves only to a key that is taken or has a line, so each free key's line empties once.
        """
        pending = deque(keys)
        while pending:
            key = pending.popleft()
            while key in self._lines and not self._is_taken(key, now):
                waiter = next(iter(self._lines[key]))
                self._step_out(waiter)
                pending.extend(self._serve(waiter, key=key, now=now))

    def _serve(self, waiter: Waiter, *, key: str, now: float) -> Sequence[str]:
        """Give a waiter all that it wants, or a place in the next line. Back come the keys that must be settled too."""
        claim = waiter.claim
        # Where others stand in line this waiter stands behind them, even if the key has just become free.
        busy = [other for other in claim.keys if other != key and (other in self._lines or self._is_taken(other, now))]
        if busy:
            self._stand(waiter, at=busy[0])
        else:
            waiter.taken = self._take(claim, now)
        if waiter.ring():
            return busy
        # Its event loop was closed under it, so nobody would ever give this back.
        self._step_out(waiter)
        self._free(claim)
        return claim.keys

    def _stand(self, waiter: Waiter, *, at: str) -> None:
        line = self._lines.get(at)
        if len(line or ()) >= waiter.queue_max:
            waiter.full = at
            return
        if line is None:
            line = self._lines[at] = OrderedDict()
        line[waiter] = None
        waiter.at = at

    def _step_out(self, waiter: Waiter) -> None:
        if waiter.at is None:
            return
        line = self._lines[waiter.at]
        del line[waiter]
        if not line:
            del self._lines[waiter.at]
        waiter.at = None

    def _take(self, claim: Claim, now: float) -> Taken:
        held = self._held(claim, now)
        if len(held) == len(claim.keys):
            # The same token again: whoever asks did not hear the first answer.
            return Taken(held[0].fence, _lengthen(held, now + claim.ttl))
        # One count for all keys, so that nothing need be remembered of a key that nobody has; and not below the wall
        # clock, so that it goes on growing when the process is started again.
        self._last_fence = fence = max(self._last_fence + 1, self._wall_ns() // 1000)
        until = now + claim.ttl
        for key in claim.keys:
            self._leases[key] = _Lease(claim.token, claim.holder, fence, now, until)
        if len(self._leases) >= self._sweep_at:
            self._sweep(now)
        return Taken(fence, until)

    def _sweep(self, now: float) -> None:
        """Forget leases that ran out unnoticed. Twice as many are let in before the next time, so it stays cheap."""
        over = [key for key, lease in self._leases.items() if now >= lease.expires_at and key not in self._lines]
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
    """A backend for tasks. Unlike others it may be used from several event loops at once."""

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
        """Who holds what."""
        return self.table.holdings(match=match, limit=limit)

    async def find(self, key: str) -> Holding | None:
        """Who holds this key."""
        return self.table.find(key)

    async def evict(self, key: str) -> bool:
        """Take a key from whoever has it."""
        return self.table.evict(key)

    async def ping(self) -> None:
        """A process that asks is there."""

    async def close(self) -> None:
        """There is no connection to let go of."""

    async def _wait(self, claim: Claim) -> Taken:
        loop, bell = asyncio.get_running_loop(), asyncio.Event()

        def ring() -> bool:
            try:
                loop.call_soon_threadsafe(bell.set)
            except RuntimeError:
                return False
            return True

        waiter = self.table.join(claim, ring=ring, queue_max=self._queue_max)
        try:
            while seconds := self.table.look(waiter):
                timer = loop.call_later(seconds, bell.set)
                try:
                    await bell.wait()
                finally:
                    timer.cancel()
                bell.clear()
        except BaseException:
            self.table.abandon(waiter)
            raise
        return self.table.leave(waiter)


class DirectLocalLeases:
    """The same table for plain threads. It never waits in line, and does not pass those who do."""

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
        """There is no connection to let go of."""


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
