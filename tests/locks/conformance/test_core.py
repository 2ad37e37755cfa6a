"""The core that every backend keeps: one holder, an end to every lease, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from tests.locks.conftest import SHARED, TIMED

from earmark.locks import LockBusy, LockLost

from .support import (
    BOUND,
    KEY,
    eventually,
    holding,
    reached,
    soon_lost,
    until_nothing_is_left,
    until_waiting,
    waiters,
    warnings_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from tests.locks.conftest import Place

    from earmark.locks import Held, Locks

TASKS = 50


async def count_under(guard: Callable[[], AbstractAsyncContextManager[Any]]) -> int:
    """Fifty tasks add one each: read, let the others run, write."""
    counter = 0

    async def add() -> None:
        nonlocal counter
        async with guard():
            seen = counter
            await asyncio.sleep(0)
            counter = seen + 1

    await asyncio.gather(*(add() for _ in range(TASKS)))
    return counter


async def test_no_update_is_lost_under_the_lock(locks: Locks) -> None:
    """Mutual exclusion: what one holder reads is still so when it writes."""
    assert await count_under(lambda: locks.lock(KEY, wait=BOUND)) == TASKS


async def test_updates_are_lost_without_the_lock() -> None:
    """The control: it is the lock that keeps the count."""
    assert await count_under(contextlib.nullcontext) < TASKS


async def test_a_taken_lock_is_refused_at_once_and_granted_after_its_release(locks: Locks) -> None:
    """Failing fast is the default, and the refusal names what is taken and says that it may pass."""
    held = await locks.acquire(KEY)
    with pytest.raises(LockBusy) as refused:
        await locks.acquire(KEY)
    assert list(refused.value.keys) == [KEY]
    assert refused.value.transient
    assert await held.release() is True
    async with locks.lock(KEY) as again:
        assert again.keys == (KEY,)
        assert again.token != held.token
    await until_nothing_is_left(locks)


@pytest.mark.parametrize("place", SHARED, indirect=True)
async def test_another_process_is_refused_too(place: Place, locks: Locks, open_locks: Callable[..., Locks]) -> None:
    """A lock is known to every client of the same server, not to one connection."""
    rival = open_locks(place)
    async with locks.lock(KEY):
        with pytest.raises(LockBusy):
            await rival.acquire(KEY)
    async with rival.lock(KEY) as held:
        assert not held.lost


async def test_another_prefix_is_another_lock(place: Place, locks: Locks, open_locks: Callable[..., Locks]) -> None:
    """Two programs may share a server and use the same names."""
    other = open_locks(place, prefix=place.prefix + "other")
    async with locks.lock(KEY), other.lock(KEY) as held:
        assert not held.lost
        assert len(await other.holdings()) == 1


@pytest.mark.parametrize("place", TIMED, indirect=True)
async def test_the_lease_of_a_crashed_holder_runs_out(locks: Locks) -> None:
    """No caller released it: its time is over, and its holder knows."""
    crashed = await soon_lost(locks, KEY)
    async with locks.lock(KEY, wait=BOUND) as held:
        assert not held.lost
        assert crashed.lost
        assert crashed.remaining <= 0
        with pytest.raises(LockLost) as lost:
            crashed.check()
    assert list(lost.value.keys) == [KEY]


async def test_a_late_release_does_not_touch_the_next_holder(locks: Locks, caplog: pytest.LogCaptureFixture) -> None:
    """A's lease ran out and B took over: A's release is refused with a warning, B's lock stands, C is refused."""
    late = await soon_lost(locks, KEY)
    next_holder = await locks.acquire(KEY, ttl=60, wait=BOUND)
    with pytest.raises(LockLost):
        await late.extend(ttl=600)
    caplog.clear()
    assert await late.release() is False
    assert KEY in warnings_in(caplog)
    with pytest.raises(LockBusy):
        await locks.acquire(KEY)
    seen = await holding(locks)
    assert seen is not None
    assert seen.token == next_holder.token
    assert seen.ttl_seconds <= 60
    next_holder.check()
    assert await next_holder.release() is True


async def test_a_release_in_time_logs_no_warning(locks: Locks, caplog: pytest.LogCaptureFixture) -> None:
    """The control of the warning above."""
    held = await locks.acquire(KEY)
    assert await held.release() is True
    assert warnings_in(caplog) == ""


async def test_a_second_release_touches_no_other_holder(locks: Locks) -> None:
    """What was given back is not one's own to give again."""
    held = await locks.acquire(KEY)
    await held.release()
    async with locks.lock(KEY) as next_holder:
        await held.release()
        with pytest.raises(LockBusy):
            await locks.acquire(KEY)
        next_holder.check()


@pytest.mark.parametrize("place", TIMED, indirect=True)
async def test_a_late_end_of_the_block_does_not_touch_the_next_holder(locks: Locks) -> None:
    """Work that outlived its lease learns it from `lost`, and its end releases no other holder's lock."""
    inside, overtaken = asyncio.Event(), asyncio.Event()

    async def oversleep() -> None:
        async with locks.lock(KEY, ttl=1) as late:
            inside.set()
            await overtaken.wait()
            late.check()

    late = asyncio.create_task(oversleep())
    await reached(inside, late)
    next_holder = await locks.acquire(KEY, ttl=60, wait=BOUND)
    overtaken.set()
    with pytest.raises(LockLost):
        await late
    assert (await locks.attempt(KEY, lambda: None)).busy
    assert await next_holder.release() is True


async def test_the_owner_extends_its_lease(locks: Locks) -> None:
    """Both the holder's own clock and the server's judgement move."""
    async with locks.lock(KEY, ttl=5) as held:
        await held.extend(ttl=60)
        seen = await holding(locks)
        assert held.remaining > 30
        assert seen is not None
        assert seen.ttl_seconds > 30


async def test_an_extension_without_a_time_is_as_long_as_the_lease(locks: Locks) -> None:
    """What was asked for in the beginning is asked for again."""
    async with locks.lock(KEY, ttl=60) as held:
        before = held.remaining
        await asyncio.sleep(0.02)
        passed = before - held.remaining
        await held.extend()
        assert passed > 0
        assert held.remaining > before - passed


async def test_an_extension_never_shortens(locks: Locks) -> None:
    """Asking for less than there is left keeps what there is."""
    async with locks.lock(KEY, ttl=60) as held:
        await held.extend(ttl=1)
        seen = await holding(locks)
        assert held.remaining > 30
        assert seen is not None
        assert seen.ttl_seconds > 30


async def test_a_lock_that_was_taken_away_cannot_be_extended(locks: Locks) -> None:
    """A holder that lost the lock learns of it, and the next holder's lease stays as long as it was."""
    lost = await locks.acquire(KEY, ttl=60)
    await locks.evict(KEY)
    async with locks.lock(KEY, ttl=5) as next_holder:
        with pytest.raises(LockLost):
            await lost.extend(ttl=60)
        assert lost.lost
        next_holder.check()
        seen = await holding(locks)
        assert seen is not None
        assert seen.token == next_holder.token
        assert seen.ttl_seconds <= 5


async def test_a_waiter_has_the_lock_after_the_release(locks: Locks) -> None:
    """Waiting ends with the lock, not with another refusal."""
    held = await locks.acquire(KEY)
    waiter = asyncio.create_task(locks.acquire(KEY, wait=BOUND))
    await until_waiting(locks, 1)
    assert not waiter.done()
    await held.release()
    next_holder = await waiter
    next_holder.check()
    with pytest.raises(LockBusy):
        await locks.acquire(KEY)
    assert await next_holder.release() is True


async def test_a_wait_ends_with_its_deadline(locks: Locks) -> None:
    """The deadline is for the whole wait; afterwards no caller is queued."""
    async with locks.lock(KEY):
        began = asyncio.get_running_loop().time()
        with pytest.raises(LockBusy) as refused:
            await locks.acquire(KEY, wait=0.1)
        waited = asyncio.get_running_loop().time() - began
        await eventually(lambda: is_alone(locks))
    assert list(refused.value.keys) == [KEY]
    assert refused.value.waited_seconds is not None
    assert refused.value.waited_seconds <= waited
    assert 0.09 <= waited < BOUND / 3


async def is_alone(locks: Locks) -> bool:
    return await waiters(locks) == 0


async def test_a_cancelled_waiter_leaves_nothing(locks: Locks) -> None:
    """Its place in the queue is removed, and the waiter behind it gets the lock."""
    held = await locks.acquire(KEY)
    cancelled = asyncio.create_task(locks.acquire(KEY, wait=BOUND))
    await until_waiting(locks, 1)
    behind = asyncio.create_task(locks.acquire(KEY, wait=BOUND))
    await until_waiting(locks, 2)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await until_waiting(locks, 1)
    await held.release()
    next_holder = await behind
    assert await next_holder.release() is True
    await until_nothing_is_left(locks)


async def test_a_cancelled_holder_leaves_nothing(locks: Locks) -> None:
    """A task that is cancelled in the middle of its work gives the lock back on its way out."""
    inside = asyncio.Event()

    async def work() -> None:
        async with locks.lock(KEY, ttl=60):
            inside.set()
            await asyncio.Event().wait()

    holder = asyncio.create_task(work())
    await reached(inside, holder)
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holder
    await until_nothing_is_left(locks)


async def turns_to_acquire(locks: Locks) -> int:
    """How many turns of the loop a whole acquisition takes."""
    acquiring = asyncio.ensure_future(locks.acquire(KEY, ttl=60, wait=BOUND / 2))
    turns = 0
    while not acquiring.done():
        await asyncio.sleep(0)
        turns += 1
    await acquiring.result().release()
    return turns


async def cancel_after(locks: Locks, turns: int) -> Held | None:
    """Cancel an acquisition after so many turns of the loop. What it won nevertheless is returned."""
    # It waits, because what was begun for the one before may be on its way back still.
    acquiring = asyncio.ensure_future(locks.acquire(KEY, ttl=60, wait=BOUND / 2))
    for _ in range(turns):
        await asyncio.sleep(0)
    acquiring.cancel()
    try:
        return await acquiring
    except asyncio.CancelledError:
        return None


async def test_an_acquisition_that_is_cancelled_on_its_way_leaves_nothing(locks: Locks) -> None:
    """Whatever the moment: a lease without a holder would keep all callers out until it runs out."""
    await turns_to_acquire(locks)
    turns = await turns_to_acquire(locks)
    moments = sorted({round(turns * part / 12) for part in range(14)})
    cancelled = 0
    for moment in moments:
        held = await cancel_after(locks, moment)
        if held is None:
            cancelled += 1
        else:
            await held.release()
        async with locks.lock(KEY, ttl=60, wait=BOUND / 2) as next_holder:
            assert not next_holder.lost
    assert cancelled
    await until_nothing_is_left(locks)


async def test_a_waiter_that_is_cancelled_as_the_lock_is_handed_to_it_leaves_nothing(locks: Locks) -> None:
    """The release and the cancellation cross: then the lock is free, and no dead waiter has it."""
    for turns in (0, 1, 3, 9, 27):
        # What was begun for the waiter before may be on its way back still.
        held = await locks.acquire(KEY, ttl=60, wait=BOUND / 2)
        waiter = asyncio.ensure_future(locks.acquire(KEY, ttl=60, wait=BOUND))
        await until_waiting(locks, 1)
        releasing = asyncio.ensure_future(held.release())
        for _ in range(turns):
            await asyncio.sleep(0)
        waiter.cancel()
        assert await releasing is True
        with contextlib.suppress(asyncio.CancelledError):
            await (await waiter).release()
        async with locks.lock(KEY, ttl=60, wait=BOUND / 2) as next_holder:
            assert not next_holder.lost
    await until_nothing_is_left(locks)
