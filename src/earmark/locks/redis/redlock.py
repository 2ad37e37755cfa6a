"""Redlock: a lock on the majority of N independent Redis servers.

It keeps working while a minority is down, and that is all it adds. It does not stop a holder that was paused past its
time, and a server that restarts empty can make two holders: only a fence that the resource checks does. The servers
count no common fence, so pass fence="database" where it matters.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from earmark.locks.backend_protocol import Claim, Grant, Group, Holding
from earmark.locks.errors import LockBusy, LocksUnavailable
from earmark.locks.redis.call_batching import CallBatcher
from earmark.locks.redis.encode_and_decode_script_calls import RedisKeys, ScriptCall, milliseconds, owner_of, owner_seen
from earmark.locks.redis.single_or_sentinel_server import SingleServer, one_server

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from earmark.locks.circuit_breaker import Breaker

DRIFT_FACTOR = 0.01
# Redis counts expiry in milliseconds; this covers the rounding at both ends.
DRIFT_SECONDS = 0.002
RETRY_SECONDS = 0.2
RETRY_SECONDS_MAX = 2.0
RETRY_SHARE = 10
"""A pause is at most a tenth of the time that a caller has left, or the first bound where that is longer."""


def pause_bound(first: float, *, retries: int, left: float) -> float:
    """Within how many seconds a caller tries again.

    Doubling keeps many callers from calling all servers all the time. A caller with little time left tries more often
    again: else new callers, which try often, would get the lock before those that have waited longest.
    """
    doubled = first * 2.0 ** min(retries, 32)
    return max(first, min(doubled, RETRY_SECONDS_MAX, left / RETRY_SHARE))


class RedlockLeases:
    """Leases on the majority of several servers.

    There is no queue. A caller that waits tries again at random moments that grow further apart and, towards the end of
    its wait, closer again, until its wait is over or it has tried `retry_count` times more.
    """

    name = "redlock"
    groups: ClassVar[frozenset[Group]] = frozenset({Group.MANY})

    def __init__(
        self,
        servers: Sequence[tuple[SingleServer, CallBatcher]],
        *,
        names: RedisKeys,
        rng: random.Random,
        drift_factor: float = DRIFT_FACTOR,
        retry_seconds: float = RETRY_SECONDS,
        retry_count: int | None = None,
    ) -> None:
        self._servers = servers
        self._drift_factor = drift_factor
        self._retry_seconds = retry_seconds
        self._retry_count = retry_count
        self._names = names
        self._majority = len(servers) // 2 + 1
        self._random = rng
        self._background: set[asyncio.Task[Any]] = set()

    @classmethod
    def connect(
        cls, urls: Sequence[str], *, prefix: str, timeout: float, new_breaker: Callable[[], Breaker], **knobs: Any
    ) -> RedlockLeases:
        """With a breaker for each server, so that one that is down does not delay every call."""
        servers = [one_server(url, prefix=prefix, timeout=timeout) for url in urls]
        flying = [(server, CallBatcher(server.connection, breaker=new_breaker())) for server in servers]
        return cls(flying, names=RedisKeys(prefix), rng=random.SystemRandom(), **knobs)

    async def acquire(self, claim: Claim) -> Grant:
        """A majority, or nothing."""
        began = time.monotonic()
        deadline = began + claim.wait
        retries = 0
        try:
            while True:
                grant, taken = await self._try(claim)
                if grant:
                    return grant
                left = deadline - time.monotonic()
                if left <= 0 or retries == self._retry_count:
                    break
                # There is no queue, so full jitter spreads the tries of all callers. The last try is at the deadline
                # itself.
                bound = pause_bound(self._retry_seconds, retries=retries, left=left)
                await asyncio.sleep(min(self._random.uniform(0, bound), left))
                retries += 1
        except BaseException:
            self._kept(self._give_back(claim))
            raise
        raise LockBusy(keys=taken, waited_seconds=time.monotonic() - began if claim.wait else None)

    async def release(self, grant: Grant) -> bool:
        """On every server, also where it was not granted: an answer may have been lost."""
        answers = await asyncio.shield(self._kept(self._give_back(grant.claim)))
        if sum(isinstance(answer, LocksUnavailable) for answer in answers) > len(answers) - self._majority:
            raise _outage(answers)
        return self._whole(answers)

    async def extend(self, grant: Grant, *, ttl: float) -> bool:
        """On a majority, or it is lost."""
        claim = grant.claim
        began = time.monotonic()
        words = ("x", len(claim.keys), owner_of(claim), milliseconds(ttl))
        answers = await self._ask_all(ScriptCall(self._names.of(claim.keys), words))
        if self._whole(answers):
            grant.until = max(grant.until, began + self._valid_for(ttl))
            return True
        if sum(not isinstance(answer, LocksUnavailable) for answer in answers) < self._majority:
            raise _outage(answers)
        return False

    async def holdings(self, *, match: str = "*", limit: int = 1000) -> list[Holding]:
        """What a majority of the servers agree on, as the first of them reports it."""
        asked = (server.holdings(match=match, limit=limit) for server, _ in self._servers)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        lists = [answer for answer in answers if isinstance(answer, list)]
        if len(lists) < self._majority:
            raise _outage(answers)
        first: dict[tuple[str, str], Holding] = {}
        votes: dict[tuple[str, str], int] = {}
        for seen in (holding for answer in lists for holding in answer):
            owner = (seen.key, seen.token)
            first.setdefault(owner, _without_fence(seen))
            votes[owner] = votes.get(owner, 0) + 1
        return [first[owner] for owner in sorted(first) if votes[owner] >= self._majority][:limit]

    async def find(self, key: str) -> Holding | None:
        """The lease that a majority of the servers have for this key."""
        answers = await asyncio.gather(*(server.find(key) for server, _ in self._servers), return_exceptions=True)
        seen = [answer for answer in answers if isinstance(answer, Holding)]
        if sum(not isinstance(answer, BaseException) for answer in answers) < self._majority:
            raise _outage(answers)
        for holding in seen:
            if sum(other.token == holding.token for other in seen) >= self._majority:
                return _without_fence(holding)
        return None

    async def evict(self, key: str) -> bool:
        """Release it on every server for the holder that is found."""
        found = await self.find(key)
        if found is None:
            return False
        answers = await self._ask_all(ScriptCall(self._names.of((key,)), ("r", 1, owner_seen(found))))
        if sum(not isinstance(answer, LocksUnavailable) for answer in answers) < self._majority:
            raise _outage(answers)
        return self._whole(answers)

    async def ping(self) -> None:
        """Return if a majority answers."""
        answers = await asyncio.gather(*(server.ping() for server, _ in self._servers), return_exceptions=True)
        if sum(answer is None for answer in answers) < self._majority:
            raise _outage(answers)

    async def close(self) -> None:
        """Finish the calls in progress, then disconnect."""
        while self._background:
            await asyncio.wait(self._background)
        for server, batcher in self._servers:
            await batcher.close()
            await server.close()

    async def _try(self, claim: Claim) -> tuple[Grant | None, tuple[str, ...]]:
        """One round. What a minority granted is given back at once, so that callers that split the servers go on."""
        began = time.monotonic()
        words = ("a", len(claim.keys), owner_of(claim), milliseconds(claim.ttl))
        answers = await self._ask_all(ScriptCall(self._names.of(claim.keys), words), undo=self._giving_back(claim))
        granted = sum(isinstance(answer, int) for answer in answers)
        until = began + self._valid_for(claim.ttl)
        if granted >= self._majority and time.monotonic() < until:
            return Grant(claim, self, None, until), ()
        if sum(isinstance(answer, LocksUnavailable) for answer in answers) > len(answers) - self._majority:
            raise _outage(answers)
        await self._give_back(claim)
        taken = {claim.keys[i] for answer in answers if isinstance(answer, list) for i in answer[3:]}
        return None, tuple(sorted(taken))

    def _valid_for(self, ttl: float) -> float:
        """How long a lease may be relied on: clocks that count it run at slightly different speeds."""
        return ttl - ttl * self._drift_factor - DRIFT_SECONDS

    def _whole(self, answers: list[Any]) -> bool:
        return sum(1 for answer in answers if answer == 1) >= self._majority

    def _giving_back(self, claim: Claim) -> ScriptCall:
        return ScriptCall(self._names.of(claim.keys), ("r", len(claim.keys), owner_of(claim)))

    async def _give_back(self, claim: Claim) -> list[Any]:
        return await self._ask_all(self._giving_back(claim))

    async def _ask_all(self, call: ScriptCall, *, undo: ScriptCall | None = None) -> list[Any]:
        """What each server answers; a `LocksUnavailable` stands for one that did not."""

        async def ask(batcher: CallBatcher) -> Any:
            try:
                return await batcher.send(call, undo=undo)
            except LocksUnavailable as outage:
                return outage

        return await asyncio.gather(*(ask(batcher) for _, batcher in self._servers))

    def _kept(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _without_fence(holding: Holding) -> Holding:
    """The number that one server counted says nothing about the others."""
    return msgspec.structs.replace(holding, fence=None)


def _outage(answers: Sequence[Any]) -> LocksUnavailable:
    reasons = [answer.because for answer in answers if isinstance(answer, LocksUnavailable)]
    return LocksUnavailable(because=f"{len(reasons)} of {len(answers)} servers do not answer: {reasons[0]}")
