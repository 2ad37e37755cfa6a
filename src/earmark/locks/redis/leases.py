"""The lock backend on one Redis server, a Sentinel's primary or a Cluster."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, ClassVar

from earmark.locks.backend_protocol import Claim, Grant, Group, Holding
from earmark.locks.errors import LockBusy, LocksUnavailable, QueueFull
from earmark.locks.redis.call_batching import CallBatcher
from earmark.locks.redis.encode_and_decode_script_calls import ScriptCall, milliseconds, owner_of, owner_seen

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from earmark.locks.circuit_breaker import Breaker
    from earmark.locks.redis.handover_subscription import Handover
    from earmark.locks.redis.lease_servers_protocol import LeaseServers

# A waiter calls Redis again this often even without a message, in case a message was lost.
ASK_AGAIN_SECONDS_MAX = 5.0
# A lease runs out on the server's clock; a call a moment later finds it gone.
AFTER_EXPIRY_SECONDS = 0.002


class RedisLeases:
    """Leases in Redis. Waiters are queued there and woken by the release."""

    groups: ClassVar[frozenset[Group]] = frozenset(Group)

    def __init__(self, servers: LeaseServers, *, breaker: Breaker, queue_max: int) -> None:
        self.name = servers.name
        self._servers = servers
        self._names = servers.names
        self._queue_max = queue_max
        self._batcher = CallBatcher(servers.connection, breaker=breaker)
        self._handovers = servers.handovers
        # A lease was handed to a waiter that was cancelled: its call to leave the queue is still unsent.
        self._handovers.on_unknown_owner = lambda _: self._batcher.resend_unsent()
        # The answer to such a call may have named a waiter that a lease was handed to.
        self._batcher.on_resent = self._handovers.wake_all
        self._waiting = 0
        self._none_waiting = asyncio.Event()
        self._closed = False

    def acquire(self, claim: Claim) -> Coroutine[Any, Any, Grant]:
        """All of the keys or none; waits in the queue for `claim.wait` seconds at most."""
        if self._closed:
            raise LocksUnavailable(because="the locks were closed")
        names = self._names.of(claim.keys)
        if len(claim.keys) > 1:
            self._servers.check_together(claim.keys, names)
        return self._acquire_queued(claim, names) if claim.wait > 0 else self._acquire_now(claim, names)

    async def release(self, grant: Grant) -> bool:
        """Compare and delete, and hand over to the first waiter in the queue."""
        claim = grant.claim
        owner = owner_of(claim)
        call = ScriptCall(self._names.of(claim.keys), ("r", len(claim.keys), owner))
        try:
            answer = await self._batcher.send(call)
        except (asyncio.CancelledError, LocksUnavailable):
            self._batcher.send_eventually(call)
            raise
        finally:
            if claim.wait > 0:
                self._handovers.forget(owner)
        return bool(answer)

    async def extend(self, grant: Grant, *, ttl: float) -> bool:
        """Extend the lease if its owner still has it; sets `grant.until`."""
        claim = grant.claim
        began = time.monotonic()
        words = ("x", len(claim.keys), owner_of(claim), milliseconds(ttl))
        if not await self._batcher.send(ScriptCall(self._names.of(claim.keys), words)):
            return False
        grant.until = max(grant.until, began + ttl)
        return True

    async def holdings(self, *, match: str = "*", limit: int = 1000) -> list[Holding]:
        """Read key by key: what is shown may have changed meanwhile."""
        return await self._servers.holdings(match=match, limit=limit)

    async def find(self, key: str) -> Holding | None:
        """The lease of this key, if there is one."""
        return await self._servers.find(key)

    async def evict(self, key: str) -> bool:
        """Release it for the holder that is found, so that a repeated call takes it from no later holder."""
        found = await self.find(key)
        return found is not None and bool(
            await self._batcher.send(ScriptCall(self._names.of((key,)), ("r", 1, owner_seen(found))))
        )

    async def ping(self) -> None:
        """Send PING, whatever the breaker says."""
        await self._servers.ping()

    async def close(self) -> None:
        """Fail the waiters, finish the calls in progress, then disconnect."""
        self._closed = True
        self._handovers.close()
        if self._waiting:
            await self._none_waiting.wait()
        await self._batcher.close()
        await self._servers.close()

    async def _acquire_now(self, claim: Claim, names: tuple[str, ...]) -> Grant:
        began = time.monotonic()
        owner = owner_of(claim)
        call = ScriptCall(names, ("a", len(claim.keys), owner, milliseconds(claim.ttl)))
        # If the answer is not known, the lease, if there is one, must not outlive the question.
        answer = await self._batcher.send(call, undo=ScriptCall(names, ("r", len(claim.keys), owner)))
        if isinstance(answer, int):
            return Grant(claim, self, answer, began + claim.ttl)
        raise LockBusy(keys=_taken(claim, answer))

    async def _acquire_queued(self, claim: Claim, names: tuple[str, ...]) -> Grant:
        if not self._servers.is_subscribed(names):
            try:
                return await self._acquire_now(claim, names)
            except LockBusy:
                pass
        owner = owner_of(claim)
        leaving = ScriptCall(names, ("l", len(claim.keys), owner, milliseconds(claim.ttl), self._handovers.channel))
        self._waiting += 1
        try:
            return await self._wait_in_queue(claim, owner, leaving)
        except BaseException:
            self._handovers.forget(owner)
            self._batcher.send_eventually(leaving)
            raise
        finally:
            self._handovers.mark_granted(owner)
            self._waiting -= 1
            if self._closed and not self._waiting:
                self._none_waiting.set()

    async def _wait_in_queue(self, claim: Claim, owner: str, leaving: ScriptCall) -> Grant:
        deadline = time.monotonic() + claim.wait
        names = leaving.names
        words = ("w", len(claim.keys), owner, milliseconds(claim.ttl), self._handovers.channel, self._queue_max)
        again = 0
        while True:
            await self._servers.subscribe(names)
            if not again:
                reader = self._servers.subscription_reader(names)
            handed_over = self._handovers.expect(owner)
            asked = time.monotonic()
            answer = await self._batcher.send(ScriptCall(names, (*words, again)), undo=leaving)
            if isinstance(answer, int):
                return Grant(claim, self, answer, asked + claim.ttl)
            lease_ms, server_now, was_queued, *_ = answer
            taken = _taken(claim, answer)
            if lease_ms == -1:
                raise QueueFull(key=taken[0], queue_max=self._queue_max)
            if again and not was_queued:
                # Redis passed this waiter over because its subscription was dead: make a new one.
                await self._servers.unsubscribe(names, reader)
                await self._servers.subscribe(names)
            reader = self._servers.subscription_reader(names)
            again = 1
            message = await _message_within(handed_over, _pause(lease_ms, deadline))
            if self._closed:
                raise LocksUnavailable(because="the locks were closed")
            if message and len(claim.keys) == 1:
                # The message contains the server's time of the hand-over; by this process's clock it was not earlier.
                since = asked + (message.at - server_now) / 1e6
                until = min(since, time.monotonic()) + claim.ttl
                # A late message may be about a lease that has ended, or about one before this call.
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


async def _message_within(handed_over: asyncio.Future[Handover | None], seconds: float) -> Handover | None:
    """The message, or None after so many seconds."""
    timer = asyncio.get_running_loop().call_later(seconds, _wake, handed_over)
    try:
        return await handed_over
    finally:
        timer.cancel()


def _wake(handed_over: asyncio.Future[Handover | None]) -> None:
    if not handed_over.done():
        handed_over.set_result(None)
