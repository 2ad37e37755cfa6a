"""What operators do, over every store: create an event, change it, and let the clock end what is due."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import EventId, PoolId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import PoolPatch, SeatPatch
from earmark.errors import (
    BookingExpired,
    CapacityInUse,
    EventExists,
    InvalidRequest,
    LimitExceeded,
    PoolExhausted,
    PoolUnknown,
    SaleClosed,
    SeatsTaken,
    SeatUnknown,
)

from .conftest import BEHIND_A_POOLER_IN_A_PROOF

if TYPE_CHECKING:
    from earmark.clock import MovableClock

    from .conftest import Shop

pytestmark = [pytest.mark.usefixtures("the_books_balance"), BEHIND_A_POOLER_IN_A_PROOF]


def sized(pool: str, capacity: int) -> PoolPatch:
    return PoolPatch(id=PoolId(pool), capacity=capacity)


# an event is made


async def test_an_event_is_there_with_all_that_it_sells(shop: Shop) -> None:
    """Seats and pools in the order in which they were laid out, all of them free."""
    event = await shop.create(seats=("B2", "A1", "C3"), pools={"VIP": 2, "GA": 5})
    assert await shop.store.read_event(event.id) == event
    seen = await shop.store.read_map(event.id)
    assert [on.seat.id for on in seen.seats] == ["B2", "A1", "C3"]
    assert [(pool.id, pool.capacity, pool.free) for pool in seen.pools] == [("VIP", 2, 2), ("GA", 5, 5)]
    assert set((await shop.seats()).values()) == {"available"}


async def test_an_id_names_one_event(shop: Shop) -> None:
    """A second event of the same name is refused whole: none of its seats is there."""
    await shop.create()
    with pytest.raises(EventExists):
        await shop.create(seats=("Z9",), pools={"BAR": 1})
    with pytest.raises(EventExists):
        await shop.create(mode=Mode.TEST)
    seen = await shop.store.read_map(EventId("concert"))
    assert [on.seat.id for on in seen.seats] == ["A1", "A2", "A3", "A4"]
    assert [pool.id for pool in seen.pools] == ["GA"]


# its seats are changed


async def test_a_blocked_seat_is_off_the_sale_until_it_is_unblocked(shop: Shop) -> None:
    """The map says so, no buyer gets it, and then it is on sale again."""
    await shop.create()
    assert (await shop.block("A1", "A2")).version == 2
    assert await shop.seats() == {"A1": "blocked", "A2": "blocked", "A3": "available", "A4": "available"}
    with pytest.raises(SeatsTaken):
        await shop.hold("ada", "A1")
    await shop.block("A1", blocked=False)
    assert (await shop.hold("ada", "A1")).state is State.HELD
    assert (await shop.seats())["A2"] == "blocked"


@pytest.mark.parametrize("sold", [False, True], ids=["held", "sold"])
async def test_a_seat_with_a_live_owner_is_not_blocked(shop: Shop, *, sold: bool) -> None:
    """Active bookings keep what they have; the change is refused whole, with the seats that stand in its way."""
    await shop.create()
    booking = await shop.hold("ada", "A1")
    if sold:
        await shop.confirm(booking)
    before = await shop.picture()
    with pytest.raises(SeatsTaken) as refused:
        await shop.block("A1", "A2")
    assert list(refused.value.seats) == ["A1"]
    assert await shop.picture() == before


async def test_blocking_a_lapsed_seat_ends_its_hold_first(shop: Shop, clock: MovableClock) -> None:
    """A confirm that comes late finds an expired booking, never a blocked seat of its own."""
    await shop.create()
    held = await shop.hold("ada", "A1", "A2", pools={"GA": 2}, ttl=60)
    clock.advance(60)
    await shop.block("A1")
    assert (await shop.read(held)).state is State.EXPIRED
    assert (await shop.history(held))[-1].reason == "seat blocked"
    assert await shop.seats() == {"A1": "blocked", "A2": "available", "A3": "available", "A4": "available"}
    assert await shop.pool() == (10, 0, 0)
    with pytest.raises(BookingExpired):
        await shop.confirm(held)


async def test_a_seat_of_an_ended_booking_is_blocked_and_sold_again(shop: Shop) -> None:
    """An ended booking does not keep its seat from being sold."""
    await shop.create()
    await shop.release(await shop.hold("ada", "A1"))
    await shop.cancel(await shop.confirm(await shop.hold("ada", "A2")))
    await shop.block("A1", "A2")
    await shop.block("A1", "A2", blocked=False)
    assert (await shop.hold("bob", "A1", "A2")).state is State.HELD


async def test_a_new_price_is_for_new_holds(shop: Shop) -> None:
    """A buyer who holds or has bought keeps the price at that time."""
    await shop.create()
    held = await shop.hold("ada", "A1", pools={"GA": 1})
    seats = [SeatPatch(id=SeatId(seat), price=9900) for seat in ("A1", "A2")]
    await shop.change(seats=seats, pools=[PoolPatch(id=PoolId("GA"), price=100)])
    assert await shop.read(held) == held
    assert (await shop.confirm(held)).total == 7000
    assert (await shop.hold("bob", "A2", pools={"GA": 2})).total == 10_100
    kept = await shop.cancel(held, pools={"GA": 1})
    assert kept.total == 4500


async def test_a_change_names_what_it_does_not_find(shop: Shop) -> None:
    """Unknown seats and pools refuse the whole change."""
    await shop.create()
    before = await shop.picture()
    with pytest.raises(SeatUnknown) as seats:
        await shop.change(seats=[SeatPatch(id=SeatId(seat), blocked=True) for seat in ("A1", "Z9")])
    with pytest.raises(PoolUnknown) as pools:
        await shop.change(seats=[SeatPatch(id=SeatId("A1"), blocked=True)], pools=[sized("BAR", 1)])
    assert (list(seats.value.seats), list(pools.value.pools)) == (["Z9"], ["BAR"])
    assert await shop.picture() == before


# its pools are changed


async def test_a_pool_does_not_shrink_below_what_is_held_and_sold(shop: Shop) -> None:
    """Down to what is in use, and not a unit further."""
    await shop.create()
    await shop.confirm(await shop.hold("ada", pools={"GA": 2}))
    await shop.hold("bob", pools={"GA": 1})
    with pytest.raises(CapacityInUse) as refused:
        await shop.change(pools=[sized("GA", 2)])
    assert refused.value.facts() == {"pool": "GA", "capacity": 2, "in_use": 3}
    assert await shop.pool() == (7, 1, 2)
    await shop.change(pools=[sized("GA", 3)])
    assert await shop.pool() == (0, 1, 2)
    with pytest.raises(PoolExhausted):
        await shop.hold("eve", pools={"GA": 1})
    await shop.change(pools=[sized("GA", 4)])
    assert (await shop.hold("eve", pools={"GA": 1})).state is State.HELD


async def test_a_lapsed_hold_does_not_keep_a_pool_large(shop: Shop, clock: MovableClock) -> None:
    """What the map shows as free may be taken off the sale, swept or not."""
    await shop.create()
    await shop.hold("ada", pools={"GA": 2}, ttl=60)
    clock.advance(60)
    assert await shop.pool() == (10, 0, 0)
    await shop.change(pools=[sized("GA", 0)])
    assert await shop.pool() == (0, 0, 0)


# its rules are changed


async def test_a_window_may_be_moved(shop: Shop, clock: MovableClock) -> None:
    """Closing the sale stops new holds and leaves old ones alone; opening it again lets buyers in."""
    await shop.create()
    held = await shop.hold("ada", "A1")
    closed = await shop.change(sale_closes_at=clock.now() - timedelta(seconds=1))
    assert closed.version == 2
    with pytest.raises(SaleClosed):
        await shop.hold("bob", "A2")
    assert (await shop.confirm(held)).state is State.CONFIRMED
    await shop.change(sale_closes_at=None)
    assert (await shop.hold("bob", "A2")).state is State.HELD


async def test_a_window_that_closes_before_it_opens_is_refused(shop: Shop, clock: MovableClock) -> None:
    """Judged with the field that stays: each change alone may look sound."""
    opens = clock.now() + timedelta(hours=1)
    await shop.create(sale_opens_at=opens)
    for closes in (opens, opens - timedelta(seconds=1)):
        with pytest.raises(InvalidRequest):
            await shop.change(sale_closes_at=closes)
    changed = await shop.change(sale_closes_at=opens + timedelta(microseconds=1))
    assert await shop.store.read_event(changed.id) == changed


async def test_new_limits_and_lives_are_for_new_holds(shop: Shop) -> None:
    """A lower limit takes nothing away, and counts what is there."""
    await shop.create()
    held = await shop.hold("ada", "A1", "A2")
    await shop.change(per_buyer_max=1, hold_ttl_seconds=45, name="Encore")
    assert await shop.read(held) == held
    with pytest.raises(LimitExceeded) as refused:
        await shop.hold("ada", "A3")
    assert refused.value.facts() == {"limit": 1, "have": 2, "asked": 1}
    new = await shop.hold("bob", "A3")
    assert (new.expires_at - new.created_at).total_seconds() == 45
    assert (await shop.confirm(held)).state is State.CONFIRMED
    assert (await shop.cancel(held, "A1")).lines.units == 1
    event = await shop.store.read_event(EventId("concert"))
    assert event is not None
    assert (event.name, event.per_buyer_max, event.version) == ("Encore", 1, 2)


# the clock lets go


async def test_the_sweeper_knows_when_to_wake(shop: Shop, clock: MovableClock) -> None:
    """The time to the next end among holds: none without one, zero or less once one is due, and sales do not count."""
    await shop.create()
    assert await shop.store.seconds_to_next_due() is None
    await shop.confirm(await shop.hold("ada", "A1", ttl=10))
    assert await shop.store.seconds_to_next_due() is None
    await shop.hold("ada", "A2", ttl=300)
    await shop.hold("ada", "A3", ttl=100)
    first = await shop.store.seconds_to_next_due()
    assert first is not None
    assert 60 < first <= 100
    clock.advance(100)
    due = await shop.store.seconds_to_next_due()
    assert due is not None
    assert due <= 0
    await shop.engine.expire(limit=10)
    following = await shop.store.seconds_to_next_due()
    assert following is not None
    assert 160 < following <= 200


async def test_due_holds_end_in_bounded_batches_the_longest_due_first(shop: Shop, clock: MovableClock) -> None:
    """A sweep is short whatever is due, and sweeps add up; holds with time left stay."""
    await shop.create(seats=[f"S{n}" for n in range(6)])
    due = [await shop.hold("ada", f"S{n}", pools={"GA": 1}, ttl=50 - n) for n in range(5)]
    alive = await shop.hold("bob", "S5", ttl=500)
    clock.advance(50)
    longest_first = [booking.id for booking in reversed(due)]
    assert [booking.id for booking in await shop.engine.expire(limit=2)] == longest_first[:2]
    assert await shop.pool() == (10, 0, 0)
    assert [booking.id for booking in await shop.engine.expire(limit=2)] == longest_first[2:4]
    assert [booking.id for booking in await shop.engine.expire(limit=2)] == longest_first[4:]
    assert await shop.engine.expire(limit=2) == []
    assert {(await shop.read(booking)).state for booking in due} == {State.EXPIRED}
    assert {((await shop.history(booking))[-1].actor, (await shop.history(booking))[-1].reason) for booking in due} == {
        ("clock", "swept")
    }
    assert await shop.read(alive) == alive


async def test_a_sweep_with_nothing_due_changes_nothing(shop: Shop) -> None:
    """A sweeper that wakes too early leaves no trace."""
    await shop.create()
    await shop.hold("ada", "A1", ttl=600)
    before = await shop.picture()
    assert await shop.engine.expire(limit=100) == []
    assert await shop.picture() == before
