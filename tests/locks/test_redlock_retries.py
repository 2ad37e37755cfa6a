"""When a Redlock is asked for again: at random moments that grow further apart, within the caller's wait."""

from __future__ import annotations

import heapq
import random
from typing import TYPE_CHECKING, Any

import pytest

from earmark.errors import SetupError
from earmark.locks import Claim, LockBusy, Locks
from earmark.locks.redis.encode_and_decode_script_calls import RedisKeys
from earmark.locks.redis.redlock import RETRY_SECONDS_MAX, RedlockLeases, pause_bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.locks import Grant

KEY = "invoice:42"
URLS = ["redis://a", "redis://b", "redis://c"]


class Enough(Exception):
    """How many tries are enough to see the bounds."""


class Chance(random.Random):
    """Notes the bounds of every pause, and chooses none at all or the longest."""

    def __init__(self, *, longest: bool = False) -> None:
        super().__init__()
        self.bounds: list[tuple[float, float]] = []
        self._longest = longest

    def uniform(self, a: float, b: float) -> float:
        """The end of the range that was asked for."""
        self.bounds.append((a, b))
        return b if self._longest else 0.0


class LocalGrant(RedlockLeases):
    """A Redlock that another caller has, on no server at all."""

    def __init__(self, *, chance: Chance, tries_max: int = 8, **knobs: Any) -> None:
        super().__init__([], names=RedisKeys("test"), rng=chance, **knobs)
        self.tries = 0
        self._tries_max = tries_max

    async def _try(self, claim: Claim) -> tuple[Grant | None, tuple[str, ...]]:
        self.tries += 1
        if self.tries > self._tries_max:
            raise Enough
        return None, claim.keys


def claim(wait: float) -> Claim:
    return Claim((KEY,), "token", 60.0, wait, "tester")


async def test_pauses_double_with_full_jitter_up_to_a_bound() -> None:
    """Each is anywhere between nothing and its bound: rivals who asked together do not ask together again."""
    chance = Chance()
    with pytest.raises(Enough):
        await LocalGrant(chance=chance, retry_seconds=0.2).acquire(claim(wait=3600))
    assert chance.bounds == [(0, bound) for bound in (0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0)]


def refused(bound: Callable[[int, float], float], *, per_second: float) -> float:
    """Which part of the callers runs out of time, where each has the lock for 50 ms and waits for 10 s at most."""
    chance = random.Random(1)  # noqa: S311 -- the same each time
    asking: list[tuple[float, float, int]] = []
    now = 0.0
    while now < 300:
        now += chance.expovariate(per_second)
        heapq.heappush(asking, (now, now, 0))
    callers, ended, free_at = len(asking), 0, 0.0
    while asking:
        now, came, retries = heapq.heappop(asking)
        left = came + 10 - now
        if now >= free_at:
            free_at = now + 0.05
        elif left <= 0:
            ended += 1
        else:
            pause = chance.uniform(0, bound(retries, left))
            heapq.heappush(asking, (min(now + pause, came + 10), came, retries + 1))
    return ended / callers


def test_callers_that_waited_long_try_more_often_again() -> None:
    """Newcomers ask often: without this, callers near the end of their wait would be refused ten times as often."""
    mild = refused(lambda retries, left: pause_bound(0.2, retries=retries, left=left), per_second=18)
    doubling = refused(lambda retries, _: min(0.2 * 2**retries, RETRY_SECONDS_MAX), per_second=18)
    assert doubling > 0.05, "the control"
    assert mild < doubling / 5
    assert [pause_bound(0.2, retries=8, left=left) for left in (60, 10, 5, 1)] == [2.0, 1.0, 0.5, 0.2]


async def test_a_first_pause_beyond_the_bound_stays_as_it_is() -> None:
    """The knob wins over the bound of what it grows to."""
    chance = Chance()
    with pytest.raises(Enough):
        await LocalGrant(chance=chance, retry_seconds=5.0, tries_max=3).acquire(claim(wait=3600))
    assert chance.bounds == [(0, 5.0)] * 3


async def test_a_pause_ends_with_the_callers_wait() -> None:
    """The last try is at the deadline, however long the pause would be."""
    redlock = LocalGrant(chance=Chance(longest=True), retry_seconds=60.0, tries_max=100)
    with pytest.raises(LockBusy) as refused:
        await redlock.acquire(claim(wait=0.01))
    assert redlock.tries >= 2
    assert list(refused.value.keys) == [KEY]


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_tries_are_counted_where_a_count_is_set(count: int) -> None:
    """The first is not a retry. The caller gets `LockBusy` before its wait is over."""
    redlock = LocalGrant(chance=Chance(), retry_count=count)
    with pytest.raises(LockBusy) as refused:
        await redlock.acquire(claim(wait=3600))
    assert redlock.tries == 1 + count
    assert refused.value.waited_seconds is not None
    assert refused.value.waited_seconds < 3600


async def test_without_a_wait_there_is_one_try() -> None:
    """Failing fast is the default, whatever the count says."""
    redlock = LocalGrant(chance=Chance(), retry_count=3)
    with pytest.raises(LockBusy):
        await redlock.acquire(claim(wait=0))
    assert redlock.tries == 1


async def test_the_knobs_arrive_at_the_redlock() -> None:
    """`retry_count` and `retry_seconds`; a count below nothing is refused."""
    locks = Locks.from_url(URLS, retry_count=3, retry_seconds=0.5)
    redlock = locks.backend()
    assert isinstance(redlock, RedlockLeases)
    assert (redlock._retry_count, redlock._retry_seconds) == (3, 0.5)
    await locks.close()
    with pytest.raises(SetupError, match="retry_count"):
        Locks.from_url(URLS, retry_count=-1)
