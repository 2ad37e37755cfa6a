"""What is built on a lease: run, attempt, markers, renewal and the inspector's verbs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.locks.conftest import TIMED

from earmark.locks import LockBusy, LockLost
from earmark.locks.backend_protocol import Group

from .support import BOUND, KEY, SHORT, eventually, holding, reached, until_nothing_is_left, until_waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.locks.conftest import Place

    from earmark.locks import Held, Locks

RENEWED = 1.8
"""A lease that is kept by renewal: a pause of the machine for 1.2 s does not lose it."""
PAST_RENEWED = RENEWED * 1.2
LOST = SHORT * 2
"""A lease that is lost before its renewal, which finds that out after a third of this."""


class Broken(Exception):
    """The failure of the work under a lock."""


async def fail() -> None:
    raise Broken


async def test_run_answers_what_the_work_answers(locks: Locks) -> None:
    """Work may be async or plain, and may want to see the lock."""

    async def alone() -> str:
        assert await holding(locks)
        return "alone"

    async def with_held(held: Held) -> str:
        held.check()
        return held.token

    assert await locks.run(KEY, alone) == "alone"
    assert await locks.run(KEY, with_held)
    assert await locks.run(KEY, lambda: 42) == 42
    assert await locks.run(KEY, lambda held: held.keys) == (KEY,)
    await until_nothing_is_left(locks)


async def test_run_releases_when_the_work_fails(locks: Locks) -> None:
    """The failure comes out as it was, and the lock is free."""
    with pytest.raises(Broken):
        await locks.run(KEY, fail)
    assert await locks.holdings() == []


async def test_a_block_releases_when_the_work_fails(locks: Locks) -> None:
    """The same for the context manager."""
    with pytest.raises(Broken):
        async with locks.lock(KEY):
            await fail()
    assert await locks.holdings() == []


async def test_run_does_not_work_without_the_lock(locks: Locks) -> None:
    """Refused means that the work was not begun."""
    begun = []
    async with locks.lock(KEY):
        with pytest.raises(LockBusy):
            await locks.run(KEY, lambda: begun.append(1))
    assert begun == []


async def test_attempt_answers_busy_instead_of_raising(locks: Locks) -> None:
    """For a program that answers "please wait" instead of failing; other failures are failures."""
    async with locks.lock(KEY):
        refused = await locks.attempt(KEY, lambda: 42)
    assert refused.busy
    done = await locks.attempt(KEY, lambda: 42)
    assert not done.busy
    assert done.value == 42
    with pytest.raises(Broken):
        await locks.attempt(KEY, fail)
    assert await locks.holdings() == []


async def test_a_marker_is_set_once_and_cleared_by_its_setter(locks: Locks) -> None:
    """Set if absent, seen by every caller, cleared only by the caller that set it."""
    mine, theirs = locks.marker(KEY, ttl=60), locks.marker(KEY, ttl=60)
    assert await mine.is_set() is False
    assert await mine.set() is True
    assert await theirs.set() is False
    assert await theirs.is_set() is True
    assert await theirs.clear() is False
    assert await mine.is_set() is True
    assert await mine.clear() is True
    assert await mine.clear() is False
    assert await theirs.set() is True
    assert await theirs.clear() is True


@pytest.mark.parametrize("place", TIMED, indirect=True)
async def test_a_marker_runs_out(locks: Locks) -> None:
    """A marker that is never cleared expires, and its late setter does not clear the next one's."""
    late, next_one = locks.marker(KEY, ttl=SHORT), locks.marker(KEY, ttl=60)
    assert await late.set() is True
    await eventually(next_one.set)
    assert await late.clear() is False
    assert await next_one.is_set() is True


async def test_a_marker_is_not_a_lock(locks: Locks) -> None:
    """A marker does not lock: the same name can be marked and locked."""
    marker = locks.marker(KEY, ttl=60)
    assert await marker.set() is True
    async with locks.lock(KEY) as held:
        held.check()
        assert await marker.is_set() is True
    assert await marker.clear() is True


@pytest.mark.parametrize("place", TIMED, indirect=True)
async def test_renewal_keeps_a_lock_past_its_time(locks: Locks) -> None:
    """As long as the work goes on, a rival that waits for longer than the lease does not get the lock.

    The control is the crashed holder of the core, whose lease runs out: it is the renewal that keeps this one.
    """
    async with locks.lock(KEY, ttl=RENEWED, renew=True) as held:
        with pytest.raises(LockBusy):
            await locks.acquire(KEY, wait=PAST_RENEWED)
        assert not held.lost
        held.check()


async def test_renewal_stops_with_the_work(locks: Locks) -> None:
    """The renewal never outlives the work, whether that ends or fails: it does not extend the next holder's lease."""
    async with locks.lock(KEY, ttl=RENEWED, renew=True):
        during = asyncio.all_tasks()
    with pytest.raises(Broken):
        await locks.run(KEY, fail, ttl=RENEWED, renew=True)
    assert await locks.holdings() == []
    renewing = [task for task in during if "_watch" in repr(task.get_coro())]
    assert renewing
    assert all(task.done() for task in renewing)
    assert not [task for task in asyncio.all_tasks() if "_watch" in repr(task.get_coro())]


@pytest.mark.parametrize("place", TIMED, indirect=True)
async def test_renewal_ends_with_the_longest_life(locks: Locks) -> None:
    """A worker that hangs would otherwise keep all callers out for ever; in the end its lock is lost."""
    inside = asyncio.Event()

    async def hang() -> None:
        async with locks.lock(KEY, ttl=1, renew=True, life=SHORT):
            inside.set()
            await asyncio.sleep(BOUND)

    hanging = asyncio.create_task(hang())
    await reached(inside, hanging)
    async with locks.lock(KEY, ttl=60, wait=BOUND) as held:
        with pytest.raises(LockLost):
            await hanging
        held.check()
        assert (await locks.attempt(KEY, lambda: None)).busy


@pytest.mark.parametrize("place", TIMED, indirect=True)
async def test_work_whose_lock_is_lost_is_cancelled(locks: Locks) -> None:
    """Renewal that fails cancels the work where it is, and the block ends with LockLost."""
    story: list[object] = []

    async def work() -> None:
        async with locks.lock(KEY, ttl=LOST, renew=True) as held:
            try:
                assert await locks.evict(KEY) is True
                await asyncio.sleep(BOUND)
            except asyncio.CancelledError:
                story.append(held.lost)
                raise

    with pytest.raises(LockLost) as lost:
        await work()
    assert story == [True]
    assert list(lost.value.keys) == [KEY]
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()


@pytest.mark.parametrize("place", TIMED, indirect=True)
async def test_run_with_renewal_raises_when_the_lock_is_lost(locks: Locks) -> None:
    """The same for `run`: its caller gets `LockLost` and not a cancellation."""

    async def lose_it(held: Held) -> None:
        assert not held.lost
        await locks.evict(KEY)
        await asyncio.sleep(BOUND)

    with pytest.raises(LockLost):
        await locks.run(KEY, lose_it, ttl=LOST, renew=True)


async def test_a_cancellation_from_outside_stays_one_under_renewal(locks: Locks) -> None:
    """The control: a lock that is not lost turns no cancellation into something else."""
    inside = asyncio.Event()

    async def work() -> None:
        async with locks.lock(KEY, ttl=60, renew=True):
            inside.set()
            await asyncio.sleep(BOUND)

    task = asyncio.create_task(work())
    await reached(inside, task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_nothing_is_left(locks)


async def test_an_operator_sees_which_locks_are_held(place: Place, open_locks: Callable[..., Locks]) -> None:
    """The holder's name, the token, the age and the time left; by pattern, in order, no more than asked for."""
    locks = open_locks(place, holder="till-7")
    async with locks.lock("order:2", ttl=60) as second, locks.lock("order:1", ttl=60), locks.lock("invoice:1", ttl=60):
        everything = await locks.holdings()
        orders = await locks.holdings(match="order:*")
        first = await locks.holdings(match="order:*", limit=1)
    assert [each.key for each in everything] == ["invoice:1", "order:1", "order:2"]
    assert [each.key for each in orders] == ["order:1", "order:2"]
    assert len(first) == 1
    seen = everything[2]
    assert "till-7" in seen.holder
    assert seen.token == second.token
    assert seen.fence == (second.fence if Group.FENCE in locks.groups else None)
    assert 0 <= seen.age_seconds < BOUND
    assert 30 < seen.ttl_seconds <= 60
    assert list(seen.waiters) == []
    assert await locks.holdings() == []


async def test_an_operator_can_take_a_lock_away(locks: Locks) -> None:
    """The next one has it, the old holder's release is refused, and there is nothing to take where nothing is."""
    held = await locks.acquire(KEY, ttl=60)
    waiter = asyncio.create_task(locks.acquire(KEY, ttl=60, wait=BOUND))
    await until_waiting(locks, 1)
    assert await locks.evict(KEY) is True
    next_holder = await waiter
    assert await held.release() is False
    with pytest.raises(LockBusy):
        await locks.acquire(KEY)
    assert await next_holder.release() is True
    assert await locks.evict(KEY) is False
