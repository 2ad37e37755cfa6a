"""How long a Redlock may be relied on: its time less the drift of the clocks, and less what the asking took."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.mutation import mutated

from earmark.locks import Claim, LockBusy
from earmark.locks.redis import redlock as module
from earmark.locks.redis.encode_and_decode_script_calls import RedisKeys
from earmark.locks.redis.redlock import DRIFT_SECONDS, RedlockLeases

if TYPE_CHECKING:
    from earmark.locks.redis.encode_and_decode_script_calls import ScriptCall

SERVERS = 5
TTL = 10.0
VALID = TTL - TTL * 0.01 - DRIFT_SECONDS
"""The life of a lease that was granted in no time."""


class Clock:
    """Moves only when a server is asked."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """The time that the test has set."""
        return self.now


class Server:
    """Grants everything, and takes its time for it."""

    def __init__(self, clock: Clock, *, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds
        self.asked: list[str] = []

    async def send(self, call: ScriptCall, *, undo: ScriptCall | None = None) -> int:
        """Yes, a little later."""
        del undo
        self._clock.now += self.seconds
        self.asked.append(str(call.words[0]))
        return 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def five(clock: Clock, *, seconds: float) -> tuple[RedlockLeases, list[Server]]:
    """A Redlock on five servers, which take so many seconds together."""
    servers = [Server(clock, seconds=seconds / SERVERS) for _ in range(SERVERS)]
    pairs = [cast("Any", (None, server)) for server in servers]
    return RedlockLeases(pairs, names=RedisKeys("test"), rng=random.Random(0)), servers  # noqa: S311 (no secret)


def claim() -> Claim:
    return Claim(("invoice:42",), "token", TTL, 0.0, "tester")


@pytest.mark.parametrize("seconds", [0.0, 0.5, 4.0])
async def test_the_time_that_the_asking_took_is_no_time_of_the_lease(clock: Clock, seconds: float) -> None:
    """The first server counts from when it was asked, and so does the holder."""
    lock, _ = five(clock, seconds=seconds)
    grant = await lock.acquire(claim())
    assert grant.until - clock.now == pytest.approx(VALID - seconds)


@pytest.mark.parametrize("seconds", [0.5, 4.0])
async def test_an_extension_is_counted_from_when_it_was_asked_for(clock: Clock, seconds: float) -> None:
    """As a grant is."""
    lock, servers = five(clock, seconds=0.0)
    grant = await lock.acquire(claim())
    for server in servers:
        server.seconds = seconds / SERVERS
    assert await lock.extend(grant, ttl=TTL) is True
    assert grant.until - clock.now == pytest.approx(VALID - seconds)


async def test_a_lock_that_took_its_whole_life_to_get_is_no_lock(clock: Clock) -> None:
    """All five said yes, the last of them when the first had forgotten it: what they gave is given back."""
    lock, servers = five(clock, seconds=VALID + 0.001)
    with pytest.raises(LockBusy):
        await lock.acquire(claim())
    assert [server.asked for server in servers] == [["a", "r"]] * SERVERS
    lock, servers = five(clock, seconds=VALID - 0.001)
    grant = await lock.acquire(claim())
    assert 0 < grant.until - clock.now < 0.01
    assert [server.asked for server in servers] == [["a"]] * SERVERS


async def test_a_redlock_that_forgets_the_elapsed_time_is_noticed(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: counted from the answers on, a holder relies on seconds that the servers do not give it."""
    late = mutated(RedlockLeases._try, "until = began + ", "until = time.monotonic() + ")
    monkeypatch.setattr(RedlockLeases, "_try", late)
    lock, _ = five(clock, seconds=4.0)
    grant = await lock.acquire(claim())
    assert grant.until - clock.now == pytest.approx(VALID), "four seconds too many"
    lock, _ = five(clock, seconds=VALID + 0.001)
    gone = await lock.acquire(claim())
    assert gone.until > clock.now, "granted, and gone at the servers"
