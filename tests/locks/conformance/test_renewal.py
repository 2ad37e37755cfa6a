"""Whose lock is renewed, and how often: one that the program can still release, as often as it says."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.locks.conftest import PROOF, TIMED

from earmark.locks import LockBusy, TimeRefused
from earmark.locks.renew_lock_while_held import Renewal, RenewalSchedule, renewal_of

from .support import BOUND, KEY, eventually, warnings_in
from .test_sync import SYNC_BACKENDS
from .test_verbs import PAST_RENEWED, RENEWED

if TYPE_CHECKING:
    from earmark.locks import Locks

DROPPED = f"the lock on {KEY} is no longer renewed"
HERE_AND_REDIS = TIMED if PROOF else ("memory", "redis")
"""No backend knows of the handles that a program drops, so outside a proof two of them are enough."""


@pytest.fixture(autouse=True)
def quick_collections() -> None:
    """What there was before a test is not searched in it, nor after it: that could take longer than a lease lives."""
    gc.collect()
    gc.freeze()


async def enter_and_forget(locks: Locks, keep: list[object]) -> None:
    """As a program does that never closes its exit stack."""
    stack = contextlib.AsyncExitStack()
    keep.append(await stack.enter_async_context(locks.lock(KEY, ttl=RENEWED, renew=True)))
    keep.append(stack)


def enter_and_forget_in_a_thread(locks: Locks, keep: list[object]) -> None:
    stack = contextlib.ExitStack()
    keep.append(stack.enter_context(locks.lock(KEY, ttl=RENEWED, renew=True)))
    keep.append(stack)


@pytest.mark.parametrize("place", HERE_AND_REDIS, indirect=True)
async def test_a_dropped_lock_is_let_go(locks: Locks, caplog: pytest.LogCaptureFixture) -> None:
    """No part of the program can release it any more: it runs out, and the log names its key."""
    handles: list[object] = []
    await enter_and_forget(locks, handles)
    handles.clear()
    gc.collect()
    async with locks.lock(KEY, ttl=60, wait=BOUND) as next_holder:
        next_holder.check()

    async def warned() -> bool:
        return DROPPED in warnings_in(caplog)

    await eventually(warned)
    assert locks.stats.snapshot().lost == 0, "a loss was reported though there is no holder"


@pytest.mark.parametrize("place", HERE_AND_REDIS, indirect=True)
async def test_a_lock_that_is_kept_is_renewed(locks: Locks, caplog: pytest.LogCaptureFixture) -> None:
    """The control: while the program has the handle, a rival that waits for longer than the lease does not get it."""
    handles: list[Any] = []
    await enter_and_forget(locks, handles)
    gc.collect()
    with pytest.raises(LockBusy):
        await locks.acquire(KEY, wait=PAST_RENEWED)
    assert DROPPED not in warnings_in(caplog)
    await handles[1].aclose()
    assert await locks.holdings() == []


@pytest.mark.parametrize("place", SYNC_BACKENDS, indirect=True)
def test_a_lock_that_a_thread_dropped_is_let_go(plain_locks: Locks, caplog: pytest.LogCaptureFixture) -> None:
    """The same for the thread that renews: it ends, and does not keep the handle alive by itself."""
    handles: list[object] = []
    enter_and_forget_in_a_thread(plain_locks, handles)
    handles.clear()
    gc.collect()
    with plain_locks.lock(KEY, ttl=60, wait=BOUND) as next_holder:
        next_holder.check()
    deadline = time.monotonic() + BOUND
    while DROPPED not in warnings_in(caplog):
        assert time.monotonic() < deadline, "no warning came"
        time.sleep(0.01)


@pytest.mark.parametrize("place", SYNC_BACKENDS if PROOF else ("memory",), indirect=True)
def test_a_lock_that_a_thread_keeps_is_renewed(plain_locks: Locks, caplog: pytest.LogCaptureFixture) -> None:
    """The control: what the program still holds is renewed."""
    handles: list[Any] = []
    enter_and_forget_in_a_thread(plain_locks, handles)
    gc.collect()
    with pytest.raises(LockBusy):
        plain_locks.sync.acquire(KEY, wait=PAST_RENEWED)
    assert DROPPED not in warnings_in(caplog)
    handles[1].close()
    assert plain_locks.sync.holdings() == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("place", ["memory"], indirect=True)
async def test_a_task_that_can_never_go_on_is_not_kept_by_its_lock(locks: Locks) -> None:
    """It waits for something that the program has dropped, and only the renewal still knew of it."""
    inside = asyncio.Event()

    async def hang() -> None:
        async with locks.lock(KEY, ttl=RENEWED, renew=True):
            inside.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(hang())
    await inside.wait()
    del task

    async def free() -> bool:
        gc.collect()
        return await locks.holdings() == []

    await eventually(free)


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize("kind", ["task", "thread"])
async def test_a_lock_is_renewed_as_often_as_it_says(locks: Locks, kind: str) -> None:
    """Three renewals of a lease of ten minutes: by default the first would come after 200 seconds."""
    lock = locks.lock(KEY, ttl=600, renew=True, renew_every_seconds=0.05)

    async def three_times() -> bool:
        return locks.stats.snapshot().extended >= 3

    if kind == "thread":
        with lock:
            await eventually(three_times)
    else:
        async with lock:
            await eventually(three_times)
    assert locks.stats.snapshot().lost == 0


def test_a_lock_is_renewed_three_times_in_its_ttl_by_default() -> None:
    """Two renewals may fail before the lock is lost."""
    assert renewal_of(60.0, every=None, life=3600).every == 20.0


@pytest.mark.parametrize("every", [0, -1, 10, 10.5, float("nan"), "1", True])
@pytest.mark.parametrize("place", ["memory"], indirect=True)
async def test_an_interval_that_cannot_keep_a_lock_is_refused(locks: Locks, every: Any) -> None:
    """Between nothing and the ttl: with a longer one, the lock is lost before its first renewal."""
    with pytest.raises(TimeRefused) as refused:
        locks.lock(KEY, ttl=10, renew=True, renew_every_seconds=every)
    assert refused.value.name == "renew_every_seconds"
    assert "ttl" in refused.value.problem or "number" in refused.value.problem


@pytest.mark.parametrize("place", ["memory"], indirect=True)
async def test_an_interval_without_renewal_is_refused(locks: Locks) -> None:
    """It would be read as a promise to renew."""
    with pytest.raises(TimeRefused, match="renew=True"):
        locks.lock(KEY, ttl=10, renew_every_seconds=5)


def test_a_long_interval_does_not_shorten_the_life() -> None:
    """The last renewal is for what is left of the life, and the lock ends with it, not with the next interval."""
    now, until = 0.0, 10.0
    plan = RenewalSchedule(Renewal(every=9.0, life=25.0), ttl=10.0, clock=lambda: now)
    ends = []
    while pause := plan.pause(until - now):
        now += pause
        if ttl := plan.next_ttl(until - now):
            until = now + ttl
        ends.append(until)
    assert ends == [19.0, 25.0, 25.0]
    assert now == 25.0
