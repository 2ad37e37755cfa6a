"""Leases in Redis: one server, Sentinel or Cluster behind a wire."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, ClassVar

from earmark.locks.errors import LockBusy, LocksUnavailable, QueueFull
from earmark.locks.ports import Claim, Grant, Group, Holding
from earmark.locks.redis.flights import Flights
from earmark.locks.redis.script import Call, milliseconds, owner_of, owner_seen

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from earmark.locks.breaker import Breaker
    from earmark.locks.redis.inbox import HandedOver
    from earmark.locks.redis.servers import Servers

# A waiter asks again this often even if nothing was heard, lest a lost message costs it its whole wait.
ASK_AGAIN_SECONDS_MAX = 5.0
# A lease runs out on the server's clock; asking a moment later finds it gone.
AFTER_EXPIRY_SECONDS = 0.002


class RedisLeases:
    """Leases in Redis. Waiters stand in line there and are woken by the release."""

    groups: ClassVar[frozenset[Group]] = frozenset(Group)

    def __init__(self, servers: Servers, *, breaker: Breaker, queue_max: int) -> None:
        self.name = servers.name
        self._servers = servers
        self._names = servers.names
        self._queue_max = queue_max
        self._flights = Flights(servers.wire, breaker=breaker)
        self._post = servers.post
        # A lease for a waiter who has gone: word of its leaving did not get through yet.
        self._post.return_to_sender = lambda _: self._flights.pay()
        # An answer that nobody read may have said who has the lock now.
        self._flights.on_paid = self._post.rouse
        self._in_line = 0
        self._line_left = asyncio.Event()
        self._closed = False

    def acquire(self, claim: Claim) -> Coroutine[Any, Any, Grant]:
        """All of the keys or none; in line for `claim.wait` seconds at most."""
        if self._closed:
            raise LocksUnavailable(because="the locks were closed")
        names = self._names.of(claim.keys)
        if len(claim.keys) > 1:
            self._servers.check_together(claim.keys, names)
        return self._acquire_in_line(claim, names) if claim.wait > 0 else self._acquire_now(claim, names)

    async def release(self, grant: Grant) -> bool:
        """Compare and delete, and hand over to the next in line."""
        claim = grant.claim
        owner = owner_of(claim)
        call = Call(self._names.of(claim.keys), ("r", len(claim.keys), owner))
        try:
            answer = await self._flights.ask(call)
        except (asyncio.CancelledError, LocksUnavailable):
            self._flights.owe(call)
            raise
        finally:
            if claim.wait > 0:
                self._post.forget(owner)
        return bool(answer)

    async def extend(self, grant: Grant, *, ttl: float) -> bool:
        """Compare and extend."""
        claim = grant.claim
        began = time.monotonic()
        words = ("x", len(claim.keys), owner_of(claim), milliseconds(ttl))
        if not await self._flights.ask(Call(self._names.of(claim.keys), words)):
            return False
        grant.until = max(grant.until, began + ttl)
        return True

    async def holdings(self, *, match: str = "*", limit: int = 1000) -> list[Holding]:
        """Read key by key: what is shown may have changed meanwhile."""
        return await self._servers.holdings(match=match, limit=limit)

    async def find(self, key: str) -> Holding | None:
        """Who holds this key."""
        return await self._servers.find(key)

    async def evict(self, key: str) -> bool:
        """Give back in the name of whoever has it, so that a call that is repeated takes it from nobody else."""
        found = await self.find(key)
        return found is not None and bool(
            await self._flights.ask(Call(self._names.of((key,)), ("r", 1, owner_seen(found))))
        )

    async def ping(self) -> None:
        """Ask the server, past the breaker."""
        await self._servers.ping()

    async def close(self) -> None:
        """Send home who waits, finish what is under way, then disconnect."""
        self._closed = True
        self._post.close()
        if self._in_line:
            await self._line_left.wait()
        await self._flights.close()
        await self._servers.close()

    async def _acquire_now(self, claim: Claim, names: tuple[str, ...]) -> Grant:
        began = time.monotonic()
        owner = owner_of(claim)
        call = Call(names, ("a", len(claim.keys), owner, milliseconds(claim.ttl)))
        # If the answer is not known, the lease, if there is one, must not outlive the question.
        answer = await self._flights.ask(call, amends=Call(names, ("r", len(claim.keys), owner)))
        if isinstance(answer, int):
            return Grant(claim, self, answer, began + claim.ttl)
        raise LockBusy(keys=_taken(claim, answer))

    async def _acquire_in_line(self, claim: Claim, names: tuple[str, ...]) -> Grant:
        if not self._servers.listening(names):
            try:
                return await self._acquire_now(claim, names)
            except LockBusy:
                pass
        owner = owner_of(claim)
        leaving = Call(names, ("l", len(claim.keys), owner, milliseconds(claim.ttl), self._post.channel))
        self._in_line += 1
        try:
            return await self._stand_in_line(claim, owner, leaving)
        except BaseException:
            self._post.forget(owner)
            self._flights.owe(leaving)
            raise
        finally:
            self._post.settle(owner)
            self._in_line -= 1
            if self._closed and not self._in_line:
                self._line_left.set()

    async def _stand_in_line(self, claim: Claim, owner: str, leaving: Call) -> Grant:
        deadline = time.monotonic() + claim.wait
        names = leaving.names
        words = ("w", len(claim.keys), owner, milliseconds(claim.ttl), self._post.channel, self._queue_max)
        again = 0
        while True:
            await self._servers.listen(names)
            if not again:
                ears = self._servers.ears(names)
            handed_over = self._post.expect(owner)
            asked = time.monotonic()
            answer = await self._flights.ask(Call(names, (*words, again)), amends=leaving)
            if isinstance(answer, int):
                return Grant(claim, self, answer, asked + claim.ttl)
            lease_ms, server_now, in_line, *_ = answer
            taken = _taken(claim, answer)
            if lease_ms == -1:
                raise QueueFull(key=taken[0], queue_max=self._queue_max)
            if again and not in_line:
                # It was passed over as one who does not listen, so it had better do so anew.
                await self._servers.stop_listening(names, ears)
                await self._servers.listen(names)
            ears = self._servers.ears(names)
            again = 1
            message = await _first(handed_over, _pause(lease_ms, deadline))
            if self._closed:
                raise LocksUnavailable(because="the locks were closed")
            if message and len(claim.keys) == 1:
                # The server said when it handed over; by our clock that was no earlier than this.
                since = asked + (message.at - server_now) / 1e6
                until = min(since, time.monotonic()) + claim.ttl
                # A message may be so late that it tells of a lease that has ended, or of one before this question.
                if until > time.monotonic() and message.at >= server_now:
                    return Grant(claim, self, message.fence, until)
            if not message and time.monotonic() >= deadline:
                raise LockBusy(keys=taken, waited_seconds=claim.wait)


def _taken(claim: Claim, answer: list[int]) -> tuple[str, ...]:
    return tuple(claim.keys[i] for i in answer[3:])


def _pause(lease_ms: int, deadline: float) -> float:
    left = deadline - time.monotonic()
    lease = max(lease_ms, 0) / 1000 + AFTER_EXPIRY_SECONDS
    return max(0.0, min(lease, ASK_AGAIN_SECONDS_MAX, left))


async def _first(handed_over: asyncio.Future[HandedOver | None], seconds: float) -> HandedOver | None:
    """The message, or None after so many seconds."""
    timer = asyncio.get_running_loop().call_later(seconds, _ring, handed_over)
    try:
        return await handed_over
    finally:
        timer.cancel()


def _ring(handed_over: asyncio.Future[HandedOver | None]) -> None:
    if not handed_over.done():
        handed_over.set_result(None)
