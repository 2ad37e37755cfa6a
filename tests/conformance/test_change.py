"""A hold gets other seats and units, over every store: what stays is kept, what is new must be free, all or nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from earmark.domain.booking import LINES_MAX, Lines, PoolLine, SeatLine
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import PoolId, SeatId
from earmark.engine.commands_and_results import PoolPatch, SeatPatch
from earmark.errors import (
    InvalidRequest,
    LimitExceeded,
    PoolExhausted,
    PriceChanged,
    SaleClosed,
    SeatsTaken,
)

from .conftest import OF_EACH_DATABASE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking

    from .conftest import Shop

pytestmark = [pytest.mark.usefixtures("the_books_balance"), OF_EACH_DATABASE]


def seats_of(booking: Booking) -> list[str]:
    """By name, in the order of its lines."""
    return [line.id for line in booking.lines.seats]


def units_of(booking: Booking) -> dict[str, int]:
    """By pool."""
    return {line.id: line.units for line in booking.lines.pools}


async def repriced(shop: Shop, *, seats: Mapping[str, int] | None = None, pool: int | None = None) -> None:
    """The operator sets other prices."""
    await shop.change(
        seats=[SeatPatch(id=SeatId(seat), price=price) for seat, price in (seats or {}).items()],
        pools=[] if pool is None else [PoolPatch(id=PoolId("GA"), price=pool)],
    )


# what a change does


async def test_a_change_gives_seats_back_and_takes_others(shop: Shop, clock: MovableClock) -> None:
    """In one step: lines, total, map and pool follow, and the hold's beginning and end stay as they were."""
    await shop.create()
    held = await shop.hold("ada", "A1", "A2", pools={"GA": 2}, ttl=120)
    clock.advance(30)
    changed = await shop.change_lines(held, add=["A4", "A3"], drop=["A1"], pools={"GA": 5})
    assert changed.lines == Lines(
        seats=tuple(SeatLine(id=SeatId(seat), price=4500) for seat in ("A2", "A3", "A4")),
        pools=(PoolLine(id=PoolId("GA"), units=5, price=2500),),
    )
    assert (changed.state, changed.version, changed.total) == (State.HELD, 2, 3 * 4500 + 5 * 2500)
    assert (changed.created_at, changed.expires_at) == (held.created_at, held.expires_at)
    assert await shop.read(held) == changed
    assert await shop.seats() == {"A1": "available", "A2": "held", "A3": "held", "A4": "held"}
    assert await shop.pool() == (5, 5, 0)


async def test_units_go_down_and_away(shop: Shop) -> None:
    """The number is what the hold shall have; zero takes the pool's line away, and another pool's line stays."""
    await shop.create(pools={"GA": 10, "VIP": 4})
    held = await shop.hold("ada", "A1", pools={"GA": 5, "VIP": 2})
    fewer = await shop.change_lines(held, pools={"GA": 3})
    assert (units_of(fewer), fewer.total, fewer.version) == ({"GA": 3, "VIP": 2}, 4500 + 5 * 2500, 2)
    assert await shop.pool() == (7, 3, 0)
    none = await shop.change_lines(held, pools={"GA": 0})
    assert (units_of(none), seats_of(none), none.version) == ({"VIP": 2}, ["A1"], 3)
    assert await shop.pool() == (10, 0, 0)
    assert await shop.pool("VIP") == (2, 2, 0)


async def test_a_hold_may_get_a_pool_it_did_not_have(shop: Shop) -> None:
    """And give all its seats for it."""
    await shop.create()
    held = await shop.hold("ada", "A1")
    changed = await shop.change_lines(held, drop=["A1"], pools={"GA": 10})
    assert (seats_of(changed), units_of(changed), changed.total) == ([], {"GA": 10}, 25_000)
    assert await shop.pool() == (0, 10, 0)


async def test_what_is_there_already_or_gone_already_is_no_error(shop: Shop) -> None:
    """A change says what shall be: a seat that is had is kept, one that is not had is not given back."""
    await shop.create()
    held = await shop.hold("ada", "A1", pools={"GA": 2})
    changed = await shop.change_lines(held, add=["A1", "A2"], drop=["A3", "Z9"], pools={"GA": 2})
    assert (seats_of(changed), units_of(changed), changed.version) == (["A1", "A2"], {"GA": 2}, 2)
    assert await shop.seats() == {"A1": "held", "A2": "held", "A3": "available", "A4": "available"}


async def test_a_seat_of_another_buyer_is_not_given_back(shop: Shop) -> None:
    """It is not in this booking, so to drop it does nothing."""
    await shop.create()
    bobs = await shop.hold("bob", "A2")
    mine = await shop.hold("ada", "A1", "A3")
    assert (await shop.change_lines(mine, drop=["A2"])).version == 1
    assert (await shop.change_lines(mine, drop=["A2", "A3"])).version == 2
    assert await shop.read(bobs) == bobs
    assert (await shop.seats())["A2"] == "held"


@pytest.mark.parametrize(
    "same", [{"add": ["A1"]}, {"drop": ["A4"]}, {"pools": {"GA": 2}}, {"add": ["A2", "A1"], "pools": {"GA": 2}}]
)
async def test_the_same_lines_are_the_same_booking(shop: Shop, same: Mapping[str, list[str]]) -> None:
    """Nothing moves: no version, no entry, and the response is the booking as it is."""
    await shop.create()
    held = await shop.hold("ada", "A1", "A2", pools={"GA": 2})
    before = await shop.picture()
    assert await shop.change_lines(held, **same) == held
    assert await shop.picture() == before


async def test_a_change_and_its_opposite_are_two_changes(shop: Shop) -> None:
    """Each with its version; the lines and the total are the first again."""
    await shop.create()
    held = await shop.hold("ada", "A1", pools={"GA": 1})
    await shop.change_lines(held, add=["A2"], drop=["A1"], pools={"GA": 4})
    back = await shop.change_lines(held, add=["A1"], drop=["A2"], pools={"GA": 1})
    assert (back.lines, back.total, back.version) == (held.lines, held.total, 3)
    assert await shop.seats() == {"A1": "held", "A2": "available", "A3": "available", "A4": "available"}


async def test_a_dropped_seat_can_be_held_by_another_at_once(shop: Shop) -> None:
    """And when the first booking ends, the seat stays with its new owner."""
    await shop.create()
    adas = await shop.hold("ada", "A1", "A2")
    await shop.change_lines(adas, drop=["A1"])
    bobs = await shop.hold("bob", "A1")
    await shop.release(adas)
    assert await shop.seats() == {"A1": "held", "A2": "available", "A3": "available", "A4": "available"}
    assert (await shop.confirm(bobs)).state is State.CONFIRMED


async def test_a_changed_hold_is_sold_and_cancelled_as_it_is(shop: Shop) -> None:
    """What is confirmed are the lines after the change, and a cancel gives back those."""
    await shop.create()
    held = await shop.hold("ada", "A1", pools={"GA": 2})
    await shop.change_lines(held, add=["A2", "A3"], drop=["A1"], pools={"GA": 1})
    sold = await shop.confirm(held)
    assert (seats_of(sold), units_of(sold), sold.total) == (["A2", "A3"], {"GA": 1}, 11_500)
    assert await shop.seats() == {"A1": "available", "A2": "booked", "A3": "booked", "A4": "available"}
    assert await shop.pool() == (9, 0, 1)
    await shop.cancel(sold, "A2")
    await shop.cancel(sold)
    assert set((await shop.seats()).values()) == {"available"}
    assert await shop.pool() == (10, 0, 0)


async def test_a_changed_hold_ends_as_any_other(shop: Shop, clock: MovableClock) -> None:
    """At its first end, for a change gives no time; and all that it then has goes back."""
    await shop.create()
    held = await shop.hold("ada", "A1", pools={"GA": 2}, ttl=60)
    clock.advance(59)
    await shop.change_lines(held, add=["A2"], pools={"GA": 7})
    clock.advance(1)
    assert set((await shop.seats()).values()) == {"available"}
    assert [ended.id for ended in await shop.engine.expire(limit=10)] == [held.id]
    assert await shop.pool() == (10, 0, 0)


async def test_an_extended_hold_keeps_its_later_end(shop: Shop) -> None:
    """The end that stays is the present one."""
    await shop.create()
    held = await shop.hold("ada", "A1", ttl=60)
    longer = await shop.extend(held, 60)
    assert (await shop.change_lines(held, add=["A2"])).expires_at == longer.expires_at
    assert (await shop.extend(held, 60)).lines.units == 2


# the journal


async def test_the_journal_has_a_change_before_and_after(shop: Shop) -> None:
    """One entry from held to held, with lines and total as they are and as they were, and nothing that stayed."""
    await shop.create()
    held = await shop.hold("ada", "A1", pools={"GA": 1})
    await shop.change_lines(held, add=["A2"], drop=["A1"])
    first, entry = await shop.history(held)
    assert (entry.verb, entry.before, entry.after) == ("change", "held", "held")
    assert (entry.version, entry.actor, entry.reason) == (2, "shop", None)
    assert set(entry.facts) == {"lines", "was"}, "the total is the same, and so is the end"
    assert entry.facts["was"]["lines"] == first.facts["lines"]
    assert [line["id"] for line in entry.facts["lines"]["seats"]] == ["A2"]
    await shop.change_lines(held, pools={"GA": 3})
    last = (await shop.history(held))[-1]
    assert (last.version, last.facts["total"], last.facts["was"]["total"]) == (3, 12_000, 7000)
    assert set(last.facts) == {"lines", "total", "was"}


# prices


async def test_what_is_kept_keeps_its_price(shop: Shop) -> None:
    """The operator changed all prices: what is held is not dearer, and what is new has the new price."""
    await shop.create(pools={"GA": 10, "VIP": 10})
    held = await shop.hold("ada", "A1", "A2", pools={"GA": 2})
    await repriced(shop, seats={"A1": 9000, "A3": 7000}, pool=3000)
    await shop.change(pools=[PoolPatch(id=PoolId("VIP"), price=100)])
    changed = await shop.change_lines(held, add=["A1", "A3"], drop=["A2"], pools={"VIP": 3})
    assert [(line.id, line.price) for line in changed.lines.seats] == [("A1", 4500), ("A3", 7000)]
    assert [(line.id, line.units, line.price) for line in changed.lines.pools] == [("GA", 2, 2500), ("VIP", 3, 100)]
    assert changed.total == 4500 + 7000 + 2 * 2500 + 3 * 100


async def test_more_units_of_a_pool_with_another_price_are_refused(shop: Shop) -> None:
    """One line has one price; fewer are no problem, and after none the new price is had."""
    await shop.create()
    held = await shop.hold("ada", pools={"GA": 2}, ttl=300)
    await shop.change_lines(held, add=["A1"])
    await repriced(shop, pool=3000)
    before = await shop.picture()
    with pytest.raises(PriceChanged) as refused:
        await shop.change_lines(held, add=["A2"], pools={"GA": 3})
    assert refused.value.facts() == {"pool": "GA", "held_for": 2500, "price": 3000}
    assert await shop.picture() == before
    fewer = await shop.change_lines(held, pools={"GA": 1})
    assert fewer.total == 4500 + 2500
    await shop.change_lines(held, pools={"GA": 0})
    assert (await shop.change_lines(held, pools={"GA": 4})).total == 4500 + 4 * 3000


async def test_a_seat_that_was_given_back_has_its_present_price(shop: Shop) -> None:
    """It was let go of, and is taken anew."""
    await shop.create()
    held = await shop.hold("ada", "A1", "A2")
    await shop.change_lines(held, drop=["A1"])
    await repriced(shop, seats={"A1": 1})
    assert (await shop.change_lines(held, add=["A1"])).total == 4501


# stock and limits


async def test_a_pool_gives_what_it_has(shop: Shop) -> None:
    """Only what is asked on top of what is held counts, and all of it must be free."""
    await shop.create(pools={"GA": 5})
    await shop.hold("bob", pools={"GA": 2})
    held = await shop.hold("ada", "A1", pools={"GA": 2})
    before = await shop.picture()
    with pytest.raises(PoolExhausted) as refused:
        await shop.change_lines(held, add=["A2"], drop=["A1"], pools={"GA": 4})
    assert refused.value.facts() == {"pool": "GA", "asked": 2, "available": 1}
    assert not refused.value.transient
    assert await shop.picture() == before
    await shop.change_lines(held, pools={"GA": 3})
    assert await shop.pool() == (0, 5, 0)


async def test_a_limit_counts_what_is_gained(shop: Shop) -> None:
    """Seats and units of all of a buyer's bookings: one for another is within the limit, one more is not."""
    await shop.create(per_buyer_max=4)
    await shop.hold("ada", "A4")
    held = await shop.hold("ada", "A1", pools={"GA": 2})
    before = await shop.picture()
    with pytest.raises(LimitExceeded) as refused:
        await shop.change_lines(held, add=["A2", "A3"], pools={"GA": 1})
    assert refused.value.facts() == {"limit": 4, "have": 4, "asked": 1}
    assert not refused.value.transient
    assert await shop.picture() == before
    await shop.change_lines(held, add=["A2"], pools={"GA": 1})
    await shop.change_lines(held, drop=["A2"])
    await shop.hold("ada", "A3")
    with pytest.raises(LimitExceeded):
        await shop.hold("ada", pools={"GA": 1})


async def test_a_buyer_above_a_lowered_limit_may_give_back_and_exchange(shop: Shop) -> None:
    """A lower limit takes nothing away; but it gives nothing either."""
    await shop.create()
    held = await shop.hold("ada", "A1", pools={"GA": 3})
    await shop.change(per_buyer_max=2)
    await shop.change_lines(held, add=["A2"], drop=["A1"])
    await shop.change_lines(held, pools={"GA": 2})
    with pytest.raises(LimitExceeded) as refused:
        await shop.change_lines(held, add=["A3"])
    assert refused.value.facts() == {"limit": 2, "have": 3, "asked": 1}


async def test_lapsed_holds_of_the_buyer_count_towards_no_limit(shop: Shop, clock: MovableClock) -> None:
    """Before the change is refused, they are ended; then there is room, and no more than that."""
    await shop.create(per_buyer_max=3)
    old = await shop.hold("ada", "A1", pools={"GA": 1}, ttl=60)
    held = await shop.hold("ada", "A3", ttl=600)
    clock.advance(60)
    changed = await shop.change_lines(held, add=["A4"], pools={"GA": 1})
    assert changed.lines.units == 3
    assert (await shop.history(old))[-1].reason == "made room"
    with pytest.raises(LimitExceeded) as refused:
        await shop.change_lines(held, add=["A2"])
    assert refused.value.facts() == {"limit": 3, "have": 3, "asked": 1}


async def test_lapsed_units_are_free_for_a_change(shop: Shop, clock: MovableClock) -> None:
    """A pool full of lapsed holds is not exhausted: they are ended first, as many as it takes."""
    await shop.create(pools={"GA": 4})
    olds = [await shop.hold(buyer, pools={"GA": 1}, ttl=60) for buyer in "xyz"]
    held = await shop.hold("ada", pools={"GA": 1}, ttl=600)
    clock.advance(60)
    assert units_of(await shop.change_lines(held, pools={"GA": 4})) == {"GA": 4}
    assert {(await shop.read(old)).state for old in olds} == {State.EXPIRED}
    assert {(await shop.history(old))[-1].reason for old in olds} == {"made room"}
    with pytest.raises(PoolExhausted) as refused:
        await shop.change_lines(held, pools={"GA": 5})
    assert refused.value.facts() == {"pool": "GA", "asked": 1, "available": 0}
    assert not refused.value.transient


async def test_a_lapsed_seat_is_taken_over(shop: Shop, clock: MovableClock) -> None:
    """Its old booking ends in the same transaction, and all that it had is free: also for this very change."""
    await shop.create(pools={"GA": 5})
    old = await shop.hold("bob", "A1", "A2", pools={"GA": 4}, ttl=60)
    held = await shop.hold("ada", "A3", ttl=600)
    clock.advance(60)
    changed = await shop.change_lines(held, add=["A1"], drop=["A3"], pools={"GA": 5})
    assert (seats_of(changed), units_of(changed)) == (["A1"], {"GA": 5})
    ended = (await shop.history(old))[-1]
    assert (ended.verb, ended.actor, ended.reason) == ("expire", "clock", "taken over")
    assert ended.at == (await shop.history(held))[-1].at
    assert await shop.seats() == {"A1": "held", "A2": "available", "A3": "available", "A4": "available"}
    assert await shop.pool() == (0, 5, 0)


async def test_a_lapsed_hold_of_the_same_buyer_makes_room_as_it_is_taken_over(shop: Shop, clock: MovableClock) -> None:
    """The limit is that of the moment after the old hold has ended."""
    await shop.create(per_buyer_max=2)
    old = await shop.hold("ada", "A1", ttl=60)
    held = await shop.hold("ada", "A2", ttl=600)
    clock.advance(60)
    await shop.change_lines(held, add=["A1"])
    assert (await shop.read(old)).state is State.EXPIRED
    assert (await shop.history(old))[-1].reason == "taken over"


async def test_a_refused_change_may_end_what_has_lapsed_and_does_nothing_else(shop: Shop, clock: MovableClock) -> None:
    """The lapsed owner of a wanted seat is over in any case; the hold itself is untouched."""
    await shop.create(per_buyer_max=1)
    old = await shop.hold("bob", "A1", ttl=60)
    held = await shop.hold("ada", "A2", ttl=600)
    clock.advance(60)
    with pytest.raises(LimitExceeded):
        await shop.change_lines(held, add=["A1"])
    assert await shop.read(held) == held
    assert len(await shop.history(held)) == 1
    assert not (await shop.read(old)).is_active or (await shop.read(old)).is_due(clock.now())


# when and how much


@pytest.mark.parametrize("window", ["closed", "not open yet"])
async def test_off_sale_only_giving_back_is_allowed(shop: Shop, clock: MovableClock, window: str) -> None:
    """Nothing new is sold then, not even in exchange; what was held may be made less."""
    await shop.create()
    held = await shop.hold("ada", "A1", "A2", pools={"GA": 3}, ttl=600)
    now = clock.now()
    hour = timedelta(hours=1)
    window_fields: dict[str, Any] = {"sale_closes_at": now} if window == "closed" else {"sale_opens_at": now + hour}
    await shop.change(**window_fields)
    clock.advance(1)
    before = await shop.picture()
    for asked in ({"add": ["A3"], "drop": ["A1"]}, {"pools": {"GA": 4}}, {"drop": ["A1"], "pools": {"GA": 4}}):
        with pytest.raises(SaleClosed) as refused:
            await shop.change_lines(held, **asked)
        assert refused.value.transient == (window == "not open yet")
    assert await shop.picture() == before
    changed = await shop.change_lines(held, add=["A2"], drop=["A1"], pools={"GA": 1})
    assert (seats_of(changed), units_of(changed)) == (["A2"], {"GA": 1})


async def test_a_change_that_leaves_nothing_is_a_release(shop: Shop) -> None:
    """And is refused as a change."""
    await shop.create()
    held = await shop.hold("ada", "A1", pools={"GA": 2})
    before = await shop.picture()
    with pytest.raises(InvalidRequest):
        await shop.change_lines(held, drop=["A1"], pools={"GA": 0})
    assert await shop.picture() == before


async def test_a_booking_has_no_more_lines_after_a_change_than_a_hold_may_ask_for(shop: Shop) -> None:
    """A hundred, seats and pools together; one for another is always possible."""
    seats = [f"S{n}" for n in range(LINES_MAX + 2)]
    await shop.create(seats=seats)
    held = await shop.hold("ada", *seats[: LINES_MAX - 1])
    full = await shop.change_lines(held, pools={"GA": 5})
    before = await shop.picture()
    with pytest.raises(InvalidRequest):
        await shop.change_lines(held, add=[seats[-1]])
    assert await shop.picture() == before
    other = await shop.change_lines(full, add=[seats[-1]], drop=[seats[0]])
    assert len(other.lines.seats) + len(other.lines.pools) == LINES_MAX
    assert seats_of(other) == sorted(seats[1 : LINES_MAX - 1] + seats[-1:])


async def test_a_hundred_seats_are_exchanged_for_a_hundred_others(shop: Shop) -> None:
    """All at once, and then back."""
    ours, others = [f"S{n:03}" for n in range(50)], [f"T{n:03}" for n in range(50)]
    await shop.create(seats=[*ours, *others])
    held = await shop.hold("ada", *ours)
    assert seats_of(await shop.change_lines(held, add=others, drop=ours)) == others
    assert {seat for seat, state in (await shop.seats()).items() if state == "held"} == set(others)
    assert seats_of(await shop.change_lines(held, add=ours, drop=others)) == ours


async def test_a_seat_is_a_seat_of_the_booking_s_event(shop: Shop) -> None:
    """The same name at another event is another seat."""
    await shop.create("friday")
    await shop.create("saturday")
    friday = await shop.hold("ada", "A1", event_id="friday")
    saturday = await shop.hold("bob", "A1", event_id="saturday")
    await shop.change_lines(saturday, add=["A2"], drop=["A1"])
    await shop.change_lines(friday, add=["A2"])
    with pytest.raises(SeatsTaken):
        await shop.hold("eve", "A1", event_id="friday")
    assert (await shop.seats("friday"))["A1"] == "held"
    assert (await shop.seats("saturday"))["A1"] == "available"
