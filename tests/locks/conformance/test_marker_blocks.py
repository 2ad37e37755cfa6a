"""Markers as context managers: set on entry, refused when set already, cleared on the way out by their setter only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from earmark.locks import AlreadyMarked, LocksUnavailable

from .support import BOUND, KEY, reached, warnings_in

if TYPE_CHECKING:
    from earmark.locks import Locks


class Broken(Exception):
    """The failure of the work under a marker."""


async def test_a_marker_is_set_while_its_block_runs(locks: Locks) -> None:
    """Set on entry, seen by others, cleared at the end."""
    seen = locks.marker(KEY)
    async with locks.marker(KEY, ttl=60) as marker:
        assert marker.key == KEY
        assert await seen.is_set() is True
    assert await seen.is_set() is False


async def test_a_second_block_is_refused(locks: Locks) -> None:
    """The refusal names the key and may pass; the first marker stays, and the second block does not run."""
    async with locks.marker(KEY, ttl=60):
        with pytest.raises(AlreadyMarked) as refused:
            async with locks.marker(KEY, ttl=60):
                pytest.fail("the block must not run")
        assert refused.value.key == KEY
        assert refused.value.transient
        assert await locks.marker(KEY).is_set() is True
    assert await locks.marker(KEY).set() is True


async def test_a_marker_is_cleared_when_its_block_fails_or_is_cancelled(locks: Locks) -> None:
    """Always, and what happened comes out as it was."""
    with pytest.raises(Broken):
        async with locks.marker(KEY, ttl=60):
            raise Broken
    assert await locks.marker(KEY).is_set() is False
    inside = asyncio.Event()

    async def work() -> None:
        async with locks.marker(KEY, ttl=60):
            inside.set()
            await asyncio.sleep(BOUND)

    task = asyncio.create_task(work())
    await reached(inside, task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await locks.marker(KEY).is_set() is False


async def test_a_marker_that_went_early_is_not_cleared_for_its_next_setter(
    locks: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    """Compared before it is deleted, also where both blocks share one object. It is advisory: nothing is raised."""
    shared = locks.marker(KEY, ttl=60)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def late() -> None:
        async with shared:
            entered.set()
            await leave.wait()

    task = asyncio.create_task(late())
    await reached(entered, task)
    assert await locks.evict(f"marker:{KEY}") is True
    caplog.clear()
    async with shared:
        leave.set()
        await task
        assert f"the marker on {KEY} was gone" in warnings_in(caplog)
        assert await locks.marker(KEY).is_set() is True
    assert await locks.marker(KEY).is_set() is False


@pytest.mark.parametrize("place", ["memory"], indirect=True)
async def test_a_marker_that_cannot_be_cleared_masks_nothing(
    locks: Locks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The work is done: a silent server is logged, and the marker runs out."""

    async def silent(_: Any) -> bool:
        raise LocksUnavailable(because="no answer")

    monkeypatch.setattr(locks.backend(), "release", silent)
    async with locks.marker(KEY, ttl=60):
        pass
    assert f"could not clear the marker on {KEY}" in warnings_in(caplog)
    with pytest.raises(Broken):
        async with locks.marker("order:1", ttl=60):
            raise Broken


def test_a_marker_is_a_block_for_threads_too(plain_locks: Locks) -> None:
    """Plain `with`: the same rules."""
    with plain_locks.sync.marker(KEY, ttl=60) as marker:
        assert marker.is_set() is True
        with pytest.raises(AlreadyMarked), plain_locks.sync.marker(KEY, ttl=60):
            pytest.fail("the block must not run")
    assert plain_locks.sync.marker(KEY).is_set() is False
    with pytest.raises(Broken), plain_locks.sync.marker(KEY, ttl=60):
        raise Broken
    assert plain_locks.sync.marker(KEY).is_set() is False
