"""The same verbs without an event loop: plain `with`, from any number of threads."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.locks.conftest import TIMED

from earmark.locks import KeyRefused, LockBusy, LockLost, TimeRefused

from .support import BOUND, KEY, SEATS, SHORT, warnings_in
from .test_verbs import LOST, PAST_RENEWED, RENEWED

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tests.locks.conftest import Place

    from earmark.locks import Locks

THREADS = 10
SYNC_BACKENDS = ("memory", "redis", "postgres")
"""The three ways for a thread to a backend: in the process, by a connection of its own, and through a loop."""


def count_under(guard: Callable[[], AbstractContextManager[Any]], *, work_seconds: float) -> int:
    """Ten threads add one each: read, work for a while, write."""
    counter = 0
    together = threading.Barrier(THREADS)

    def add(_: int) -> None:
        nonlocal counter
        together.wait()
        with guard():
            seen = counter
            time.sleep(work_seconds)
            counter = seen + 1

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(add, range(THREADS)))
    return counter


def test_ten_threads_count_to_ten(place: Place, plain_locks: Locks) -> None:
    """Under one lock no update of a thread is lost."""
    # One server stands for all with the full tenth of a second; the others only need to be caught in between.
    work_seconds = 0.1 if place.name == "redis" else 0.01
    counted = count_under(lambda: plain_locks.lock(KEY, wait=BOUND), work_seconds=work_seconds)
    assert counted == THREADS


def test_ten_threads_without_a_lock_lose_updates() -> None:
    """The control: it is the lock that keeps the count."""
    assert count_under(contextlib.nullcontext, work_seconds=0.1) < THREADS


def test_a_taken_lock_is_refused_and_granted_after_its_release(plain_locks: Locks) -> None:
    """As for tasks: fail fast, name the key, and let the next one in."""
    with plain_locks.lock(KEY) as held:
        held.check()
        with pytest.raises(LockBusy) as refused:
            plain_locks.sync.acquire(KEY)
    assert list(refused.value.keys) == [KEY]
    again = plain_locks.sync.acquire(KEY, ttl=10)
    assert again.release() is True
    assert plain_locks.sync.holdings() == []


def test_tasks_and_threads_meet_at_one_lock(place: Place, open_plain: Callable[..., Locks]) -> None:
    """A lock that a thread holds is taken for a task of the same program, and the other way round."""
    locks = open_plain(place)

    async def ask() -> bool:
        async with place.open() if place.name != "memory" else contextlib.nullcontext(locks) as asking:
            return (await asking.attempt(KEY, lambda: None)).busy

    with locks.lock(KEY):
        assert asyncio.run(ask()) is True
    assert asyncio.run(ask()) is False


async def test_tasks_and_threads_use_one_toolbox_at_once(locks: Locks) -> None:
    """One `Locks` serves an event loop and threads side by side, and each is answered on its own connections."""
    counter = 0

    async def in_a_task() -> None:
        nonlocal counter
        for _ in range(5):
            async with locks.lock(KEY, wait=BOUND):
                seen = counter
                await asyncio.sleep(0)
                counter = seen + 1
            assert len(await locks.holdings(match="nothing:*")) == 0

    def in_a_thread() -> None:
        nonlocal counter
        for _ in range(5):
            with locks.lock(KEY, wait=BOUND):
                seen = counter
                time.sleep(0)
                counter = seen + 1
            assert len(locks.sync.holdings(match="nothing:*")) == 0

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # Threads change places as often as they can.
    try:
        await asyncio.gather(*(in_a_task() for _ in range(4)), *(asyncio.to_thread(in_a_thread) for _ in range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert counter == 40


@pytest.mark.parametrize("place", TIMED, indirect=True)
def test_a_late_release_does_not_touch_the_next_holder(plain_locks: Locks, caplog: pytest.LogCaptureFixture) -> None:
    """A's lease ran out and B took over: A's release is refused with a warning, B's lock stands, C is refused."""
    late = plain_locks.sync.acquire(KEY, ttl=SHORT)
    with plain_locks.lock(KEY, ttl=60, wait=BOUND) as next_holder:
        caplog.clear()
        assert late.release() is False
        assert KEY in warnings_in(caplog)
        assert late.lost
        with pytest.raises(LockLost):
            late.extend()
        with pytest.raises(LockBusy):
            plain_locks.sync.acquire(KEY)
        next_holder.check()


def test_a_thread_extends_its_lease(plain_locks: Locks) -> None:
    """Longer when it asks for more, and never shorter."""
    with plain_locks.lock(KEY, ttl=5) as held:
        held.extend(ttl=60)
        assert held.remaining > 30
        held.extend(ttl=1)
        assert held.remaining > 30
        assert plain_locks.sync.holdings()[0].ttl_seconds > 30


@pytest.mark.parametrize("place", TIMED, indirect=True)
def test_a_wait_ends_with_its_deadline(plain_locks: Locks) -> None:
    """A thread whose wait times out leaves the queue by itself."""
    with plain_locks.lock(KEY):
        began = time.monotonic()
        with pytest.raises(LockBusy) as refused:
            plain_locks.sync.acquire(KEY, wait=0.1)
        assert 0.09 <= time.monotonic() - began < BOUND / 3
    assert list(refused.value.keys) == [KEY]


def test_several_keys_are_one_lock(plain_locks: Locks) -> None:
    """All or nothing for threads too."""
    with plain_locks.lock(SEATS[1]):
        with pytest.raises(LockBusy) as refused:
            plain_locks.sync.acquire(*SEATS[:3])
        assert list(refused.value.keys) == [SEATS[1]]
        assert [each.key for each in plain_locks.sync.holdings()] == [SEATS[1]]
    with plain_locks.lock(*SEATS[:3]) as held:
        assert held.keys == SEATS[:3]


def test_run_and_attempt_work_for_threads(plain_locks: Locks) -> None:
    """The value is returned, a failure is raised, and a taken lock is an answer for `attempt`."""
    assert plain_locks.sync.run(KEY, lambda: 42) == 42
    assert plain_locks.sync.run(KEY, lambda held: held.keys) == (KEY,)
    with pytest.raises(ZeroDivisionError):
        plain_locks.sync.run(KEY, lambda: 1 / 0)
    with plain_locks.lock(KEY):
        assert plain_locks.sync.attempt(KEY, lambda: 42).busy
    assert plain_locks.sync.attempt(KEY, lambda: 42).value == 42
    assert plain_locks.sync.holdings() == []


def test_bad_times_and_names_are_refused(plain_locks: Locks) -> None:
    """The same rules stand at both doors."""
    with pytest.raises(TimeRefused):
        plain_locks.sync.acquire(KEY, ttl=0)
    with pytest.raises(KeyRefused), plain_locks.lock("inventory"):
        pytest.fail("the block must not run")
    assert plain_locks.sync.holdings() == []


def test_a_marker_serves_threads(plain_locks: Locks) -> None:
    """Set if absent, and cleared only by its setter."""
    mine, theirs = plain_locks.sync.marker(KEY, ttl=60), plain_locks.sync.marker(KEY, ttl=60)
    assert mine.set() is True
    assert theirs.set() is False
    assert theirs.is_set() is True
    assert theirs.clear() is False
    assert mine.clear() is True
    assert mine.is_set() is False


@pytest.mark.parametrize("place", SYNC_BACKENDS, indirect=True)
def test_renewal_keeps_a_threads_lock_and_stops_with_the_work(plain_locks: Locks) -> None:
    """A rival that waits for longer than the lease ends without it; after the work the lock is free."""
    with plain_locks.lock(KEY, ttl=RENEWED, renew=True) as held:
        with pytest.raises(LockBusy):
            plain_locks.sync.acquire(KEY, wait=PAST_RENEWED)
        held.check()
    assert plain_locks.sync.holdings() == []


@pytest.mark.parametrize("place", SYNC_BACKENDS, indirect=True)
def test_a_thread_whose_lock_is_lost_can_see_it(plain_locks: Locks) -> None:
    """A thread cannot be cancelled: it checks `held.lost`, or `check` raises."""
    with plain_locks.lock(KEY, ttl=LOST, renew=True, raise_if_lost=False) as held:
        assert plain_locks.sync.evict(KEY) is True
        deadline = time.monotonic() + BOUND
        while not held.lost:
            assert time.monotonic() < deadline, "the loss was never reported"
            time.sleep(0.01)
        with pytest.raises(LockLost):
            held.check()
