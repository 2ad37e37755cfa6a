"""A lock that was held for longer than its holder expected is a warning that names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from earmark.locks import LocksUnavailable, TimeRefused

from .support import KEY, warnings_in

if TYPE_CHECKING:
    from earmark.locks import Locks
    from earmark.locks.held_lock_base_class import HeldLock

pytestmark = pytest.mark.parametrize("place", ["memory"], indirect=True)
OVERTIME = f"the lock on {KEY} was held for "


def held_for(held: HeldLock, seconds: float) -> None:
    """As if it had been granted so long ago."""
    held._began -= seconds


async def test_a_lock_held_past_its_expected_time_is_a_warning(locks: Locks, caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the key and how long it was held; the histogram of hold times counts it as ever."""
    async with locks.lock(KEY, ttl=60, expected_seconds=5) as held:
        held_for(held, 7)
    assert f"{OVERTIME}7.0 s; 5 s were expected" in warnings_in(caplog)
    assert locks.stats.snapshot().held.count == 1
    assert locks.stats.snapshot().held.sum_seconds >= 7


async def test_a_lock_without_an_expected_time_is_none(locks: Locks, caplog: pytest.LogCaptureFixture) -> None:
    """The control: by default no time is expected, and within it there is nothing to say."""
    async with locks.lock(KEY, ttl=60) as held:
        held_for(held, 7)
    async with locks.lock(KEY, ttl=60, expected_seconds=5) as held:
        held_for(held, 1)
    assert warnings_in(caplog) == ""


async def test_a_lock_without_a_block_is_watched_too(locks: Locks, caplog: pytest.LogCaptureFixture) -> None:
    """`acquire` and `run`, for tasks and threads."""
    held = await locks.acquire(KEY, expected_seconds=5)
    held_for(held, 6)
    await held.release()
    in_thread = locks.sync.acquire(KEY, expected_seconds=5)
    held_for(in_thread, 7)
    in_thread.release()
    await locks.run(KEY, lambda held: held_for(held, 8), expected_seconds=5)
    locks.sync.run(KEY, lambda held: held_for(held, 9), expected_seconds=5)
    warned = warnings_in(caplog).splitlines()
    assert [line.removeprefix(OVERTIME)[:3] for line in warned] == ["6.0", "7.0", "8.0", "9.0"]


async def test_it_is_said_once_and_also_when_the_release_fails(
    locks: Locks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A release that the server does not answer may be tried again."""

    async def silent(_: Any) -> bool:
        raise LocksUnavailable(because="no answer")

    held = await locks.acquire(KEY, expected_seconds=5)
    held_for(held, 7)
    with monkeypatch.context() as patch:
        patch.setattr(locks.backend(), "release", silent)
        assert await held.release() is False
    assert await held.release() is True
    assert warnings_in(caplog).count(OVERTIME) == 1


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "5"])
async def test_a_time_that_cannot_be_expected_is_refused(locks: Locks, seconds: Any) -> None:
    """At both doors, before the lock is taken."""
    with pytest.raises(TimeRefused, match="expected_seconds"):
        locks.lock(KEY, expected_seconds=seconds)
    with pytest.raises(TimeRefused, match="expected_seconds"):
        await locks.acquire(KEY, expected_seconds=seconds)
    with pytest.raises(TimeRefused, match="expected_seconds"):
        locks.sync.acquire(KEY, expected_seconds=seconds)
