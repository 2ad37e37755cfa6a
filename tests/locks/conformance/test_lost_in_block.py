"""How a block ends whose lock was lost while it ran: with `LockLost`, unless the block has failed by itself."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.locks.conftest import TIMED

from earmark.locks import LockLost, LocksUnavailable
from earmark.locks.backend_protocol import Group

from .support import BOUND, KEY, SHORT, until_nothing_is_left, warnings_in

if TYPE_CHECKING:
    from earmark.locks import Held, Locks, SyncHeld


class Broken(Exception):
    """The failure of the work under a lock."""


def names_the_loss(loss: pytest.ExceptionInfo[LockLost], locks: Locks, fence: int | None) -> bool:
    """Whether the error names the key, and the fence where the backend counts one."""
    named = KEY in str(loss.value) and list(loss.value.keys) == [KEY]
    if Group.FENCE not in locks.groups:
        return named and loss.value.fence is None
    return named and loss.value.fence == fence and str(fence) in str(loss.value)


def fence_of(held: Any) -> int | None:
    fence: int | None = held._grant.fence
    return fence


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


async def test_leaving_a_block_whose_lock_was_broken_raises(locks: Locks) -> None:
    """An operator took the lock away: what the block did may have been done twice, and its caller gets `LockLost`."""
    with pytest.raises(LockLost) as loss:
        async with locks.lock(KEY, ttl=60) as held:
            assert await locks.evict(KEY) is True
    assert names_the_loss(loss, locks, fence_of(held))
    assert held.lost
    assert await locks.holdings() == []


async def test_leaving_a_block_whose_lock_was_kept_does_not_raise(locks: Locks) -> None:
    """The control: it is the loss that raises."""
    async with locks.lock(KEY, ttl=60) as held:
        pass
    assert not held.lost


@pytest.mark.parametrize("place", TIMED, indirect=True)
async def test_leaving_a_block_whose_lock_ran_out_raises(locks: Locks) -> None:
    """The work took longer than the lock lives, whether or not another caller has it by now."""
    with pytest.raises(LockLost) as loss:
        async with locks.lock(KEY, ttl=SHORT) as held:
            await until_nothing_is_left(locks)
    assert names_the_loss(loss, locks, fence_of(held))


async def test_a_loss_can_be_left_to_the_caller(locks: Locks) -> None:
    """With raise_if_lost=False the block ends as it would, and `held.lost` is true."""
    async with locks.lock(KEY, ttl=60, raise_if_lost=False) as held:
        await locks.evict(KEY)
    assert held.lost


async def test_a_failure_of_the_block_is_not_masked_by_the_loss(locks: Locks) -> None:
    """Its own exception comes out, with a note about the loss."""

    async def work() -> None:
        await locks.evict(KEY)
        raise Broken

    with pytest.raises(Broken) as failure:
        async with locks.lock(KEY, ttl=60):
            await work()
    assert "lost" in notes_of(failure.value)
    assert KEY in notes_of(failure.value)


async def test_a_failure_under_a_lock_that_was_kept_has_no_note(locks: Locks) -> None:
    """The control: only a loss adds a note."""
    with pytest.raises(Broken) as failure:
        async with locks.lock(KEY, ttl=60):
            raise Broken
    assert not notes_of(failure.value)


async def test_a_cancellation_is_not_masked_by_the_loss(locks: Locks) -> None:
    """A task that is cancelled from outside ends as cancelled."""
    inside = asyncio.Event()

    async def work() -> None:
        async with locks.lock(KEY, ttl=60):
            await locks.evict(KEY)
            inside.set()
            await asyncio.sleep(BOUND)

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_check_of_a_block_comes_out_as_it_is(locks: Locks) -> None:
    """What `held.check()` raised in the block is not raised twice, nor noted on itself."""

    async def work(held: Held) -> None:
        await locks.evict(KEY)
        await held.extend()

    with pytest.raises(LockLost) as loss:
        async with locks.lock(KEY, ttl=60) as held:
            await work(held)
    assert names_the_loss(loss, locks, fence_of(held))
    assert loss.value.__context__ is None
    assert not notes_of(loss.value)


async def test_run_and_attempt_raise_what_the_block_raises(locks: Locks) -> None:
    """A result that was made without the lock is not handed out as if nothing had happened."""
    with pytest.raises(LockLost):
        await locks.run(KEY, lambda: locks.sync.evict(KEY), ttl=60)
    with pytest.raises(LockLost):
        await locks.attempt(KEY, lambda: locks.sync.evict(KEY), ttl=60)
    assert await locks.run(KEY, lambda: locks.sync.evict(KEY), ttl=60, raise_if_lost=False) is True


async def test_a_lock_that_was_released_in_its_block_is_not_lost(locks: Locks) -> None:
    """Released by hand, also under renewal, whose watchdog then has nothing left to renew."""
    async with locks.lock(KEY, ttl=60) as held:
        assert await held.release() is True
    async with locks.lock(KEY, ttl=SHORT, renew=True) as held:
        await asyncio.sleep(0)  # The watchdog begins its first pause.
        watching = [task for task in asyncio.all_tasks() if "_watch" in repr(task.get_coro())]
        assert await held.release() is True
        await asyncio.gather(*watching)
    assert not held.lost


@pytest.mark.parametrize("place", ["memory"], indirect=True)
async def test_a_release_that_fails_is_logged_and_masks_nothing(
    locks: Locks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The work is done: a server that is silent at the end costs neither its result nor its own failure."""

    async def silent(_: Any) -> bool:
        raise LocksUnavailable(because="no answer")

    monkeypatch.setattr(locks.backend(), "release", silent)
    assert await locks.run("invoice:1", lambda: 42, ttl=60) == 42
    assert "could not release the lock on invoice:1" in warnings_in(caplog)
    with pytest.raises(Broken) as failure:
        async with locks.lock("invoice:2", ttl=60):
            raise Broken
    assert not notes_of(failure.value)


def test_a_thread_gets_lock_lost_too(plain_locks: Locks) -> None:
    """The same for plain `with`."""
    with pytest.raises(LockLost) as loss, plain_locks.lock(KEY, ttl=60) as held:
        plain_locks.sync.evict(KEY)
    assert names_the_loss(loss, plain_locks, fence_of(held))
    with plain_locks.lock(KEY, ttl=60, raise_if_lost=False) as held:
        plain_locks.sync.evict(KEY)
    assert held.lost
    with plain_locks.lock(KEY, ttl=60) as held:
        pass
    assert not held.lost


def test_a_failure_in_a_thread_is_not_masked(plain_locks: Locks) -> None:
    """Neither in a block, nor in the verbs that are built on it."""

    def work() -> None:
        plain_locks.sync.evict(KEY)
        raise Broken

    with pytest.raises(Broken) as failure, plain_locks.lock(KEY, ttl=60):
        work()
    assert KEY in notes_of(failure.value)
    for verb in (plain_locks.sync.run, plain_locks.sync.attempt):
        with pytest.raises(Broken):
            verb(KEY, work, ttl=60)
        with pytest.raises(LockLost):
            verb(KEY, lambda: plain_locks.sync.evict(KEY), ttl=60)


@pytest.mark.parametrize("place", TIMED, indirect=True)
def test_a_thread_whose_renewed_lock_is_lost_gets_lock_lost(plain_locks: Locks) -> None:
    """A thread cannot be cancelled, so the end of the block raises at the latest."""

    def work(held: SyncHeld) -> None:
        plain_locks.sync.evict(KEY)
        deadline = time.monotonic() + BOUND
        while not held.lost:
            assert time.monotonic() < deadline, "the loss was never reported"
            time.sleep(0.01)

    with pytest.raises(LockLost), plain_locks.lock(KEY, ttl=SHORT, renew=True) as held:
        work(held)
