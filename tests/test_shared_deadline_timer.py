"""One timer for many deadlines: each wait expires at its own, and a wait that is over never does."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from earmark import shared_deadline_timer
from earmark.shared_deadline_timer import DeadlineTimer


class Wait:
    """A wait that notes when it expired."""

    def __init__(self, seconds: float, *, expired: list[Wait] | None = None) -> None:
        self.deadline = asyncio.get_running_loop().time() + seconds
        self.over = False
        self.expired = asyncio.get_running_loop().create_future()
        self._order = expired if expired is not None else []

    @property
    def is_over(self) -> bool:
        """Whether a test has ended it, or its deadline."""
        return self.over

    def expire(self) -> None:
        """Note the moment."""
        self.over = True
        self._order.append(self)
        self.expired.set_result(asyncio.get_running_loop().time())


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.TimerHandle]:
    """The timers of the event loop that are set while the test runs."""
    found: list[asyncio.TimerHandle] = []
    call_at = asyncio.BaseEventLoop.call_at

    def counted(loop: Any, when: float, callback: Any, *arguments: Any, **how: Any) -> asyncio.TimerHandle:
        handle = call_at(loop, when, callback, *arguments, **how)
        found.append(handle)
        return handle

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_at", counted)
    return found


async def test_waits_expire_in_the_order_of_their_deadlines_and_not_before() -> None:
    """Whatever the order in which they began: the short ones do not wait for the long ones."""
    timer: DeadlineTimer[Wait] = DeadlineTimer()
    order: list[Wait] = []
    late, early, middle = (Wait(seconds, expired=order) for seconds in (0.03, 0.01, 0.02))
    for wait in (late, early, middle):
        timer.watch(wait)
    for wait in (early, middle, late):
        assert await wait.expired >= wait.deadline - 0.001
    assert order == [early, middle, late]


async def test_a_wait_that_is_over_does_not_expire() -> None:
    """Neither at the head, nor behind another, nor with a timer of its own."""
    timer: DeadlineTimer[Wait] = DeadlineTimer()
    order: list[Wait] = []
    head, behind, last, short = (Wait(seconds, expired=order) for seconds in (0.01, 0.02, 0.03, 0.005))
    for wait in (head, behind, last, short):
        timer.watch(wait)
    head.over = behind.over = short.over = True
    await last.expired
    assert order == [last]


async def test_a_thousand_waits_in_order_set_one_timer(timers: list[asyncio.TimerHandle]) -> None:
    """That is what it is for: `call_at` for each would be a thousand."""
    timer: DeadlineTimer[Wait] = DeadlineTimer()
    for _ in range(1000):
        wait = Wait(60)
        timer.watch(wait)
        wait.over = True
    assert len(timers) == 1


async def test_a_shorter_wait_behind_a_longer_one_has_a_timer_of_its_own(timers: list[asyncio.TimerHandle]) -> None:
    """The one timer is set for the long wait and would ring too late."""
    timer: DeadlineTimer[Wait] = DeadlineTimer()
    timer.watch(Wait(60))
    short = Wait(0.01)
    timer.watch(short)
    await short.expired
    assert len(timers) >= 2


async def test_a_short_wait_after_a_long_one_that_is_over_expires_at_its_own_deadline() -> None:
    """The timer was set for the long wait; nothing but the short one is left to watch."""
    timer: DeadlineTimer[Wait] = DeadlineTimer()
    long, short = Wait(60), Wait(0.01)
    timer.watch(long)
    long.over = True
    timer.watch(short)
    async with asyncio.timeout(30):
        await short.expired


async def test_a_wait_begun_after_the_others_expired_is_watched_too() -> None:
    """The timer is set again when there is something to watch."""
    timer: DeadlineTimer[Wait] = DeadlineTimer()
    first = Wait(0.01)
    timer.watch(first)
    await first.expired
    second = Wait(0.01)
    timer.watch(second)
    await second.expired


async def test_a_long_wait_does_not_keep_those_behind_it_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that are over are removed once there are many, though the head is not over."""
    monkeypatch.setattr(shared_deadline_timer, "TIDY_MIN", 10)
    timer: DeadlineTimer[Wait] = DeadlineTimer()
    timer.watch(Wait(60))
    found = []
    for _ in range(100):
        wait = Wait(60)
        found.append(weakref.ref(wait))
        timer.watch(wait)
        wait.over = True
    del wait
    gc.collect()
    assert sum(ref() is not None for ref in found) <= 10
