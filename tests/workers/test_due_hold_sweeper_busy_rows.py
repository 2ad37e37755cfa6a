"""One pool stays locked, and its due holds are the oldest: the sweeper gets past them, and back to them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from tests.workers.undo import undone_on_error

from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import EventId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.ports.store import BookingFilter
from earmark.errors import RowBusy
from earmark.testing import open_in_memory
from earmark.workers import due_hold_sweeper as module
from earmark.workers.due_hold_sweeper import Skip, Sweeper
from earmark.workers.failed_rounds import RoundFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking as Row
    from earmark.library import Earmark

OLDEST = 300
"""So many due holds of the locked pool stand before all others."""


class Time:
    """What the sweeper takes for the time, which a test pushes."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """As the module of that name says it."""
        return self.now


class TwoEvents:
    """Two events; the pool of one may be locked by another transaction."""

    def __init__(self, shop: Earmark, clock: MovableClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shop = shop
        self.clock = clock
        self.is_locked = True
        self.waits = 0
        """How often the sweeper waited for the locked pool, in vain."""
        self.time = Time()
        monkeypatch.setattr(module, "time", self.time)
        self._expire = shop.engine.expire
        monkeypatch.setattr(shop.engine, "expire", self._expire_or_wait)
        self.sweeper = Sweeper(shop.engine)

    async def hold(self, event: str, count: int) -> None:
        """Holds that are due now, after all that were due before."""
        for number in range(count):
            await self.shop.hold(event, buyer=f"b{number}", pools={"GA": 1}, ttl_seconds=60)
            self.clock.advance(0.001)
        self.clock.advance(60)

    async def held(self, event: str) -> int:
        """How many of an event are not ended."""
        asked = BookingFilter(mode=Mode.LIVE, event_id=EventId(event), limit=10_000)
        _, bookings = await self.shop.engine.store.list_bookings(asked)
        return sum(one.state is State.HELD for one in bookings)

    async def sweep(self, *, rounds: int) -> None:
        """Several rounds, however they go."""
        for _ in range(rounds):
            with contextlib.suppress(RoundFailed):
                await self.sweeper.act()

    async def _expire_or_wait(self, **asked: Any) -> list[Row]:
        with undone_on_error(self.shop.engine.store):
            ended = await self._expire(**asked)
            if self.is_locked and any(booking.event_id == EventId("locked") for booking in ended):
                self.waits += 1
                raise RowBusy(because="canceling statement due to lock timeout")
        return ended


@pytest.fixture
async def events(clock: MovableClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TwoEvents]:
    """The locked pool has the oldest of the due holds; a few of the other event are behind them."""
    async with open_in_memory(clock=clock) as shop:
        for event in ("locked", "other"):
            await shop.create_event(event, name=event, currency="EUR", pools={"GA": (1000, 100)})
        events = TwoEvents(shop, clock, monkeypatch)
        await events.hold("locked", OLDEST)
        await events.hold("other", 5)
        yield events


async def test_the_holds_of_other_events_are_ended_after_a_few_waits(events: TwoEvents) -> None:
    """One at a time it took a wait for each hold of the locked pool: minutes, with a thousand of them."""
    await events.sweep(rounds=15)
    assert await events.held("other") == 0
    assert await events.held("locked") == OLDEST
    assert events.waits <= 40


async def test_control_without_a_way_back_the_few_holds_behind_are_skipped(
    events: TwoEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that only double end behind the last hold."""
    monkeypatch.setattr(Skip, "step_back", lambda _: False)
    monkeypatch.setattr("earmark.workers.due_hold_sweeper.random.randint", lambda _, most: most)
    await events.sweep(rounds=15)
    assert await events.held("other") == 5


async def test_newly_due_holds_cost_no_new_search(events: TwoEvents) -> None:
    """Where the others begin is kept: a few waits each second or two show whether the lock is gone."""
    await events.sweep(rounds=15)
    before = events.waits
    for _ in range(5):
        await events.hold("other", 3)
        events.time.now += 2.0
        await events.sweep(rounds=6)
        assert await events.held("other") == 0
    assert events.waits - before <= 40


async def test_the_holds_of_a_pool_are_ended_soon_after_its_lock_is_gone(events: TwoEvents) -> None:
    """Within two seconds, and not after the half minute that a broken row is left alone for."""
    await events.sweep(rounds=15)
    events.is_locked = False
    events.time.now += 2.0
    await events.sweep(rounds=20)
    assert await events.held("locked") == 0


async def test_holds_of_other_events_among_those_of_a_locked_pool_are_ended(events: TwoEvents) -> None:
    """Steps may skip them; all are ended within ten minutes."""
    for _ in range(8):
        await events.hold("other", 2)
        await events.hold("locked", 5)
    for _ in range(300):
        events.time.now += 2.0
        await events.sweep(rounds=5)
        if not await events.held("other"):
            break
    assert await events.held("other") == 0


async def test_a_broken_hold_is_left_alone_for_longer(events: TwoEvents, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not get better by itself, so it is not tried every second."""
    events.is_locked = False
    tries = 0

    async def broken(**_: Any) -> list[Row]:
        nonlocal tries
        if _["skip"] == 0:
            tries += 1
            raise ValueError("the counts of this one are off")
        return []

    monkeypatch.setattr(events.shop.engine, "expire", broken)
    await events.sweep(rounds=5)
    before = tries
    events.time.now += 29.0
    await events.sweep(rounds=5)
    assert tries == before
    events.time.now += 1.0
    await events.sweep(rounds=5)
    assert tries > before
