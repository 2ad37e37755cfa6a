"""What is refused before any server is asked: times that no lock can live, and names that protect nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from earmark.locks import KeyRefused, TimeRefused

from .support import KEY

if TYPE_CHECKING:
    from earmark.locks import Locks

BAD_TIMES = [0, -1, math.nan, math.inf, 1e12, True, "5"]
BAD_WAITS = [-1, math.nan, math.inf, 1e12, True, "5"]
BAD_TEXTS = ["", " ", "invoice:4 2", "invoice:4\n2", "invoice:\x00", "inventory", "x:" + "1" * 10_000]
BAD_KEYS = [*BAD_TEXTS, 42, None, b"invoice:42"]


async def test_a_time_that_no_lock_can_live_is_refused(locks: Locks) -> None:
    """Zero would never lock, infinity would never end, and text is a mistake; the refusal says which and why."""
    for ttl in BAD_TIMES:
        with pytest.raises(TimeRefused) as refused:
            await locks.acquire(KEY, ttl=ttl)  # type: ignore[arg-type]
        assert refused.value.name == "ttl"
        assert refused.value.problem
        assert not refused.value.transient
        with pytest.raises(TimeRefused):
            async with locks.lock(KEY, ttl=ttl):  # type: ignore[arg-type]
                pytest.fail("the block must not run")
    assert await locks.holdings() == []


async def test_a_wait_that_is_no_time_is_refused(locks: Locks) -> None:
    """A wait is a time too; only that it may be none."""
    for wait in BAD_WAITS:
        with pytest.raises(TimeRefused) as refused:
            await locks.acquire(KEY, wait=wait)  # type: ignore[arg-type]
        assert refused.value.name == "wait"
    assert await locks.holdings() == []


async def test_a_lease_is_not_extended_by_a_bad_time(locks: Locks) -> None:
    """An extension is held to the same rule, and leaves the lease as it was."""
    async with locks.lock(KEY, ttl=60) as held:
        for ttl in BAD_TIMES:
            with pytest.raises(TimeRefused):
                await held.extend(ttl=ttl)  # type: ignore[arg-type]
        held.check()
        assert held.remaining > 30


async def test_a_name_that_protects_nothing_is_refused(locks: Locks) -> None:
    """A name without an id would lock everything, and one that an operator cannot type locks nothing."""
    for key in BAD_KEYS:
        bad: Any = key
        with pytest.raises(KeyRefused) as refused:
            await locks.acquire(bad)
        assert refused.value.problem
        with pytest.raises(KeyRefused):
            async with locks.lock(KEY, bad):
                pytest.fail("the block must not run")
    assert await locks.holdings() == []


async def test_no_name_at_all_is_refused(locks: Locks) -> None:
    """A lock on nothing would always be granted."""
    with pytest.raises((KeyRefused, TypeError)):
        await locks.acquire()
    assert await locks.holdings() == []


async def test_a_marker_is_held_to_the_same_rules(locks: Locks) -> None:
    """A marker has a name and a time as a lock has."""
    with pytest.raises(KeyRefused):
        await locks.marker("inventory", ttl=5).set()
    with pytest.raises(TimeRefused):
        await locks.marker(KEY, ttl=0).set()
    assert await locks.marker(KEY, ttl=5).is_set() is False
