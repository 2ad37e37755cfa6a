"""Leases in Redis: one server, Sentinel or Cluster behind a wire."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, ClassVar

from earmark.locks.errors import LockBusy, LocksUnavailable, QueueFull
from earmark.locks.ports import Claim, Grant, Group, Holding
from earmark.locks.redis.flights import Flights
from earmark.locks.redis.script import Call, milliseconds, owner_of

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
        self._post.return_to_sender = self._return
        self._left: dict[str, Call] = {}
        self._background: set[asyncio.Task[Any]] = set()

    def acquire(self, claim: Claim) -> Coroutine[Any, Any, Grant]:
        """All of the keys or none; in line for `claim.wait` seconds at most."""
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
        except asyncio.CancelledError:
            self._send_later(call)
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
        """Take a key away from whoever has it."""
        return bool(await self._flights.ask(Call(self._names.of((key,)), ("e", 1))))

    async def ping(self) -> None:
        """Ask the server, past the breaker."""
        await self._servers.ping()

    async def close(self) -> None:
        """Finish what is under way, then disconnect."""
        while self._background:
            await asyncio.wait(self._background)
        await self._flights.close()
        await self._servers.close()

    async def _acquire_now(self, claim: Claim, names: tuple[str, ...]) -> Grant:
        began = time.monotonic()
        owner = owner_of(claim)
        call = Call(names, ("a", len(claim.keys), owner, milliseconds(claim.ttl)))
        try:
            answer = await self._flights.ask(call)
        except (asyncio.CancelledError, LocksUnavailable):
            # The answer is not known; the lease, if there is one, must not outlive the question.
            self._send_later(Call(names, ("r", len(claim.keys), owner)))
            raise
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
        deadline = time.monotonic() + claim.wait
        try:
            return await self._stand_in_line(claim, names, owner, deadline)
        except BaseException:
            self._post.forget(owner)
            leave = Call(names, ("l", len(claim.keys), owner, milliseconds(claim.ttl), self._post.channel))
            self._left[owner] = leave
            self._send_later(leave, done=owner)
            raise
        finally:
            self._post.settle(owner)

    async def _stand_in_line(self, claim: Claim, names: tuple[str, ...], owner: str, deadline: float) -> Grant:
        words = ("w", len(claim.keys), owner, milliseconds(claim.ttl), self._post.channel, self._queue_max)
        again = 0
        while True:
            await self._servers.listen(names)
            handed_over = self._post.expect(owner)
            asked = time.monotonic()
            answer = await self._flights.ask(Call(names, (*words, again)))
            again = 1
            if isinstance(answer, int):
                return Grant(claim, self, answer, asked + claim.ttl)
            lease_ms, server_now, *_ = answer
            taken = _taken(claim, answer)
            if lease_ms == -1:
                raise QueueFull(key=taken[0], queue_max=self._queue_max)
            message = await _first(handed_over, _pause(lease_ms, deadline))
            if message and len(claim.keys) == 1:
                # The server said when it handed over; by our clock that was no earlier than this.
                since = asked + (message.at - server_now) / 1e6
                return Grant(claim, self, message.fence, min(since, time.monotonic()) + claim.ttl)
            if not message and time.monotonic() >= deadline:
                raise LockBusy(keys=taken, waited_seconds=claim.wait)

    def _return(self, owner: str) -> None:
        """A lease was handed to a waiter who has gone: word of its leaving did not get through, so say it again."""
        if leave := self._left.get(owner):
            self._send_later(leave, done=owner)

    def _send_later(self, call: Call, *, done: str = "") -> None:
        task = asyncio.get_running_loop().create_task(self._send(call, done))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _send(self, call: Call, done: str) -> None:
        try:
            await self._flights.ask(call)
        except LocksUnavailable:
            return  # The lease runs out by itself, and the place in line is passed over.
        self._left.pop(done, None)


def _taken(claim: Claim, answer: list[int]) -> tuple[str, ...]:
    return tuple(claim.keys[i] for i in answer[2:])


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
