"""What is due, what is listed and what the map shows: the same answers from every store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import Buyer, EventId, PoolRef, TotalRef
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.ports.store import BookingFilter

from .steps_support import ANN, BOB, CEM, GA, SHOW, Shop, total_ref

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store
    from earmark.uuids import Uuid7Ids


@pytest.fixture
def shop(store: Store, clock: MovableClock, ids: Uuid7Ids) -> Shop:
    return Shop(store, clock=clock, ids=ids)


async def test_due_holds_come_longest_due_first_up_to_the_limit(shop: Shop) -> None:
    """Only held ones, only those whose time is over."""
    await shop.open()
    late = await shop.hold("A1", seconds=50)
    early = await shop.hold("A2", seconds=10)
    await shop.move(await shop.hold("A3", seconds=5), State.CONFIRMED)
    await shop.hold("A4", seconds=500)
    assert await shop.step(lambda tx: tx.lock_due(limit=10)) == []
    shop.clock.advance(60)
    assert await shop.step(lambda tx: tx.lock_due(limit=10)) == [early, late]
    assert await shop.step(lambda tx: tx.lock_due(limit=1)) == [early]


async def test_due_holds_of_one_buyer_or_one_pool(shop: Shop) -> None:
    """A buyer's at one event, or those that keep units of one pool."""
    await shop.open()
    await shop.open(shop.event(EventId("other")))
    seats = await shop.hold("A1", seconds=10)
    units = await shop.hold(units=1, seconds=20)
    bobs = await shop.hold("A2", units=1, buyer=BOB, seconds=30)
    shop.clock.advance(60)
    assert await shop.step(lambda tx: tx.lock_due(limit=10, event_id=SHOW, buyer=ANN)) == [seats, units]
    assert await shop.step(lambda tx: tx.lock_due(limit=1, event_id=SHOW, buyer=ANN)) == [seats]
    assert await shop.step(lambda tx: tx.lock_due(limit=10, event_id=EventId("other"), buyer=ANN)) == []
    assert await shop.step(lambda tx: tx.lock_due(limit=10, pool=GA)) == [units, bobs]
    assert await shop.step(lambda tx: tx.lock_due(limit=1, pool=GA)) == [units]
    assert await shop.step(lambda tx: tx.lock_due(limit=10, pool=PoolRef(EventId("other"), GA.pool_id))) == []


async def test_which_pools_and_buyers_have_due_holds_is_one_question(shop: Shop) -> None:
    """In the order of the question; a pool and a buyer of one name are two, and what is sold is not due."""
    await shop.open()
    namesake = total_ref(Buyer(GA.pool_id))
    nowhere = PoolRef(EventId("other"), GA.pool_id)
    asked: list[PoolRef | TotalRef] = [
        namesake,
        GA,
        total_ref(ANN),
        nowhere,
        total_ref(BOB),
        total_ref(CEM),
        total_ref(ANN),
    ]
    await shop.hold("A1", buyer=ANN, seconds=10)
    await shop.hold(units=1, buyer=BOB, seconds=50)
    await shop.move(await shop.hold("A3", buyer=CEM, seconds=5), State.CONFIRMED)
    assert await shop.step(lambda tx: tx.have_due(asked)) == [False] * 7
    shop.clock.advance(20)
    assert await shop.step(lambda tx: tx.have_due(asked)) == [False, False, True, False, False, False, True]
    shop.clock.advance(40)
    assert await shop.step(lambda tx: tx.have_due(asked)) == [False, True, True, False, True, False, True]
    assert await shop.step(lambda tx: tx.have_due([])) == []


async def test_the_next_due_hold_is_so_many_seconds_away(shop: Shop) -> None:
    """None when nothing is held, less than zero when one is overdue."""
    await shop.open()
    assert await shop.store.seconds_to_next_due() is None
    await shop.move(await shop.hold("A1", seconds=5), State.RELEASED)
    assert await shop.store.seconds_to_next_due() is None
    await shop.hold("A2", seconds=500)
    await shop.hold("A3", seconds=100)
    seconds = await shop.store.seconds_to_next_due()
    assert seconds is not None
    assert 90 < seconds <= 100
    shop.clock.advance(200)
    overdue = await shop.store.seconds_to_next_due()
    assert overdue is not None
    assert -110 < overdue <= -100


async def test_lapsed_units_are_shown_as_free(shop: Shop) -> None:
    """The map counts what a hold would find: lapsed units are free, also before a sweeper has run."""
    await shop.open()
    await shop.hold(units=2, seconds=10)
    await shop.hold("A1", units=1, buyer=BOB, seconds=500)
    await shop.move(await shop.hold(units=1, buyer=CEM), State.CONFIRMED)
    assert [(pool.held, pool.sold) for pool in (await shop.store.read_map(SHOW)).pools] == [(3, 1)]
    shop.clock.advance(20)
    assert [(pool.held, pool.sold) for pool in (await shop.store.read_map(SHOW)).pools] == [(1, 1)]
    assert (await shop.step(lambda tx: tx.lock_pools([GA])))[GA].held == 3


async def test_events_are_listed_by_id_in_pages(shop: Shop) -> None:
    """Test and live events apart, each page after the last."""
    for name in ("b", "c", "a"):
        await shop.open(shop.event(EventId(name)))
    await shop.open(shop.event(EventId("test"), mode=Mode.TEST))
    first = await shop.store.list_events(mode=Mode.LIVE, after=None, limit=2)
    assert [event.id for event in first] == ["a", "b"]
    rest = await shop.store.list_events(mode=Mode.LIVE, after=first[-1].id, limit=2)
    assert [event.id for event in rest] == ["c"]
    assert [event.id for event in await shop.store.list_events(mode=Mode.TEST, after=None, limit=2)] == ["test"]


async def test_bookings_are_listed_oldest_first_in_pages(shop: Shop) -> None:
    """By id, which is by age; the next page begins after the last one."""
    await shop.open()
    made = [await shop.hold(f"A{n}", buyer=BOB if n % 2 else ANN) for n in range(1, 6)]
    _, first = await shop.store.list_bookings(BookingFilter(mode=Mode.LIVE, limit=3))
    assert first == made[:3]
    _, rest = await shop.store.list_bookings(BookingFilter(mode=Mode.LIVE, limit=3, after=first[-1].id))
    assert rest == made[3:]
    _, bobs = await shop.store.list_bookings(BookingFilter(mode=Mode.LIVE, limit=2, buyer=BOB, after=made[0].id))
    assert bobs == [made[2], made[4]]
    assert (await shop.store.list_bookings(BookingFilter(mode=Mode.TEST, limit=3)))[1] == []


async def test_bookings_are_listed_by_buyer_event_and_state(shop: Shop) -> None:
    """The filters narrow each other."""
    await shop.open()
    await shop.open(shop.event(EventId("other")))
    anns = await shop.hold("A1")
    bobs = await shop.hold("A2", buyer=BOB)
    sold = await shop.move(await shop.hold("A3", buyer=BOB), State.CONFIRMED)

    async def listed(**wanted: object) -> list[object]:
        filter_ = BookingFilter(mode=Mode.LIVE, limit=10, **wanted)  # type: ignore[arg-type]
        return list((await shop.store.list_bookings(filter_))[1])

    assert await listed(buyer=BOB) == [bobs, sold]
    assert await listed(event_id=SHOW) == [anns, bobs, sold]
    assert await listed(event_id=EventId("other")) == []
    assert await listed(buyer=BOB, event_id=EventId("other")) == []
    assert await listed(buyer=BOB, event_id=SHOW, state=State.HELD) == [bobs]
    assert await listed(state=State.CONFIRMED) == [sold]
    assert await listed(event_id=SHOW, state=State.CONFIRMED) == [sold]


async def test_a_lapsed_hold_is_listed_as_expired(shop: Shop) -> None:
    """Swept or not, its time is over; the row itself is shown as it stands."""
    await shop.open()
    swept = await shop.move(await shop.hold("A1", seconds=1), State.EXPIRED)
    lapsed = await shop.hold("A2", seconds=10)
    alive = await shop.hold("A3", seconds=500)
    shop.clock.advance(20)
    for narrowed in ({}, {"buyer": ANN}, {"event_id": SHOW}):
        gone = BookingFilter(mode=Mode.LIVE, limit=10, state=State.EXPIRED, **narrowed)
        assert (await shop.store.list_bookings(gone))[1] == [swept, lapsed]
        held = BookingFilter(mode=Mode.LIVE, limit=10, state=State.HELD, **narrowed)
        now, found = await shop.store.list_bookings(held)
        assert found == [alive]
        assert lapsed.is_due(now)
