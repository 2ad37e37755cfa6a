"""Every verb on a booking, over every store: what memory, SQLite and PostgreSQL do alike."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from earmark.domain.booking import Lines, PoolLine, SeatLine
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import BookingId, Buyer, PoolId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor
from earmark.errors import (
    BookingExpired,
    BookingResolved,
    BookingUnknown,
    EventUnknown,
    ExtensionRefused,
    InvalidRequest,
    LimitExceeded,
    PaymentUsed,
    PoolExhausted,
    PoolUnknown,
    Refusal,
    SaleClosed,
    SeatsTaken,
    SeatUnknown,
)

from .conftest import OF_EACH_DATABASE

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking

    from .conftest import Shop

pytestmark = [pytest.mark.usefixtures("the_books_balance"), OF_EACH_DATABASE]

SOMEBODY_ELSE = Actor(name="bob", mode=Mode.LIVE, buyer=Buyer("bob"))
TEST_KEY = Actor(name="tester", mode=Mode.TEST)


# hold


async def test_a_hold_sets_seats_and_units_aside(shop: Shop) -> None:
    """A claim becomes a booking with its lines, their prices, a total and an end, and the map shows it."""
    await shop.create()
    held = await shop.hold("ada", "A2", "A1", pools={"GA": 3}, ttl=120)
    assert held.lines == Lines(
        seats=(SeatLine(id=SeatId("A1"), price=4500), SeatLine(id=SeatId("A2"), price=4500)),
        pools=(PoolLine(id=PoolId("GA"), units=3, price=2500),),
    )
    assert (held.state, held.buyer, held.total, held.currency, held.version) == (State.HELD, "ada", 16_500, "EUR", 1)
    assert held.expires_at - held.created_at == timedelta(seconds=120)
    assert await shop.read(held) == held
    assert await shop.seats() == {"A1": "held", "A2": "held", "A3": "available", "A4": "available"}
    assert await shop.pool() == (7, 3, 0)


@pytest.mark.parametrize(
    "of_event, asked, lives", [(None, None, 600), (90, None, 90), (90, 45, 45), (None, 3600, 1800)]
)
async def test_a_hold_lives_as_asked_else_as_the_event_says(
    shop: Shop, of_event: int | None, asked: int | None, lives: int
) -> None:
    """The request's time, else the event's, else the default, and never longer than the longest life."""
    await shop.create(hold_ttl_seconds=of_event)
    held = await shop.hold("ada", "A1", ttl=asked)
    assert (held.expires_at - held.created_at).total_seconds() == lives


async def test_a_claim_is_all_or_nothing_over_its_seats(shop: Shop) -> None:
    """One seat is gone, so none of the others is taken."""
    await shop.create()
    await shop.hold("ada", "A2")
    with pytest.raises(SeatsTaken):
        await shop.hold("bob", "A1", "A2", "A3", pools={"GA": 1})
    assert await shop.seats() == {"A1": "available", "A2": "held", "A3": "available", "A4": "available"}
    assert await shop.pool() == (10, 0, 0)


async def test_a_claim_is_all_or_nothing_over_seats_and_units(shop: Shop) -> None:
    """A pool that is short keeps the seats of the claim free, and the units of its other pools."""
    await shop.create(pools={"GA": 10, "VIP": 1})
    with pytest.raises(PoolExhausted) as refused:
        await shop.hold("bob", "A1", pools={"GA": 2, "VIP": 2})
    assert refused.value.facts() == {"pool": "VIP", "asked": 2, "available": 1}
    assert set((await shop.seats()).values()) == {"available"}
    assert await shop.pool("GA") == (10, 0, 0)


async def test_a_refusal_names_exactly_the_seats_that_are_gone(shop: Shop) -> None:
    """The buyer learns which seats to choose anew, and another buyer learns nothing about their owner."""
    await shop.create()
    await shop.hold("ada", "A4", "A2")
    with pytest.raises(SeatsTaken) as refused:
        await shop.hold("bob", "A4", "A3", "A2")
    assert list(refused.value.seats) == ["A2", "A4"]
    assert refused.value.yours is None
    assert refused.value.why is None


async def test_a_buyer_is_told_which_of_the_taken_seats_are_their_own(shop: Shop) -> None:
    """A buyer who lost the answer to a hold finds the hold in the refusal."""
    await shop.create()
    mine = await shop.hold("ada", "A1")
    await shop.hold("bob", "A2")
    with pytest.raises(SeatsTaken) as refused:
        await shop.hold("ada", "A1", "A2", "A3")
    assert list(refused.value.seats) == ["A1", "A2"]
    assert refused.value.yours == {"A1": str(mine.id)}


async def test_a_double_click_is_told_of_the_hold_that_it_made(shop: Shop) -> None:
    """Two equal claims of one buyer in one batch: the second is refused, and names the first."""
    await shop.create()
    first, second = await asyncio.gather(shop.hold("ada", "A1"), shop.hold("ada", "A1"), return_exceptions=True)
    assert isinstance(second, SeatsTaken)
    assert not isinstance(first, BaseException)
    assert second.yours == {"A1": str(first.id)}


async def test_a_blocked_seat_is_taken_and_says_why(shop: Shop) -> None:
    """Blocked seats are never sold, and no waiting helps."""
    await shop.create()
    await shop.block("A1")
    with pytest.raises(SeatsTaken) as refused:
        await shop.hold("ada", "A1", "A2")
    assert (list(refused.value.seats), refused.value.why, refused.value.transient) == (["A1"], "blocked", False)


async def test_what_the_event_does_not_have_cannot_be_held(shop: Shop) -> None:
    """Unknown events, seats and pools are named, one kind at a time."""
    await shop.create()
    with pytest.raises(EventUnknown):
        await shop.hold("ada", "A1", event_id="nowhere")
    with pytest.raises(SeatUnknown) as seats:
        await shop.hold("ada", "A1", "Z8", "Z9")
    assert list(seats.value.seats) == ["Z8", "Z9"]
    with pytest.raises(PoolUnknown) as pools:
        await shop.hold("ada", "A1", pools={"GA": 1, "VIP": 1})
    assert list(pools.value.pools) == ["VIP"]


async def test_a_seat_is_a_seat_of_its_event(shop: Shop) -> None:
    """The same name in two events is two seats: holding one leaves the other alone."""
    await shop.create("friday")
    await shop.create("saturday")
    friday = await shop.hold("ada", "A1", pools={"GA": 10}, event_id="friday")
    saturday = await shop.hold("bob", "A1", pools={"GA": 1}, event_id="saturday")
    assert (friday.state, saturday.state) == (State.HELD, State.HELD)
    await shop.release(friday)
    assert (await shop.seats("friday"))["A1"] == "available"
    assert (await shop.seats("saturday"))["A1"] == "held"
    assert await shop.pool(event_id="saturday") == (9, 1, 0)


async def test_a_limit_counts_seats_and_units_of_one_buyer_at_one_event(shop: Shop) -> None:
    """Four means four tickets in all, over as many bookings as the buyer likes; others have their own four."""
    await shop.create(per_buyer_max=4)
    await shop.create("tomorrow", per_buyer_max=4)
    await shop.hold("ada", "A1", pools={"GA": 2})
    with pytest.raises(LimitExceeded) as refused:
        await shop.hold("ada", "A2", pools={"GA": 1})
    assert refused.value.facts() == {"limit": 4, "have": 3, "asked": 2}
    await shop.hold("ada", "A2")
    with pytest.raises(LimitExceeded):
        await shop.hold("ada", pools={"GA": 1})
    await shop.hold("bob", "A3", pools={"GA": 3})
    await shop.hold("ada", "A1", event_id="tomorrow")


async def test_a_claim_above_the_limit_is_refused_even_as_the_first(shop: Shop) -> None:
    """A buyer without any booking is bound as well."""
    await shop.create(per_buyer_max=2)
    with pytest.raises(LimitExceeded) as refused:
        await shop.hold("ada", "A1", "A2", "A3")
    assert refused.value.facts() == {"limit": 2, "have": 0, "asked": 3}


async def test_what_is_given_back_counts_no_longer(shop: Shop, clock: MovableClock) -> None:
    """Released, cancelled in whole or part, and lapsed: each makes room under the limit again."""
    await shop.create(per_buyer_max=2)
    await shop.release(await shop.hold("ada", "A1", "A2"))
    await shop.cancel(await shop.confirm(await shop.hold("ada", "A1", "A2")))
    await shop.hold("ada", "A1", "A2", ttl=60)
    clock.advance(61)
    sold = await shop.confirm(await shop.hold("ada", "A1", "A2"))
    await shop.cancel(sold, "A1")
    await shop.hold("ada", "A3")
    with pytest.raises(LimitExceeded):
        await shop.hold("ada", "A4")


async def test_the_sale_opens_and_closes_by_the_clock(shop: Shop, clock: MovableClock) -> None:
    """Before it opens a hold may be tried again; after it closes it may not, though a hold may still be confirmed."""
    opens = clock.now() + timedelta(seconds=100)
    await shop.create(sale_opens_at=opens, sale_closes_at=opens + timedelta(seconds=100))
    with pytest.raises(SaleClosed) as early:
        await shop.hold("ada", "A1")
    assert early.value.transient
    clock.advance(101)
    held = await shop.hold("ada", "A1")
    clock.advance(100)
    with pytest.raises(SaleClosed) as late:
        await shop.hold("bob", "A2")
    assert not late.value.transient
    assert (await shop.confirm(held)).state is State.CONFIRMED


@pytest.mark.parametrize("ttl", [0, -5, 3601])
async def test_a_hold_of_no_sound_length_is_refused(shop: Shop, ttl: int) -> None:
    """From one second to one hour."""
    await shop.create()
    with pytest.raises(InvalidRequest):
        await shop.hold("ada", "A1", ttl=ttl)


# the clock lets go, swept or not


async def test_a_lapsed_seat_is_taken_at_once(shop: Shop, clock: MovableClock) -> None:
    """No sweeper is needed: the next buyer ends the old hold and has the seat, in one transaction."""
    await shop.create()
    old = await shop.hold("ada", "A1", "A2", pools={"GA": 4}, ttl=60)
    clock.advance(60)
    assert (await shop.seats())["A1"] == "available"
    new = await shop.hold("bob", "A1")
    assert (await shop.read(old)).state is State.EXPIRED
    assert await shop.seats() == {"A1": "held", "A2": "available", "A3": "available", "A4": "available"}
    assert await shop.pool() == (10, 0, 0)
    taken_over = (await shop.history(old))[-1]
    assert (taken_over.verb, taken_over.before, taken_over.after) == ("expire", "held", "expired")
    assert (taken_over.actor, taken_over.reason) == ("clock", "taken over")
    for verb in (shop.confirm, shop.extend, shop.release, shop.cancel):
        with pytest.raises(BookingExpired):
            await verb(old)
    assert (await shop.read(new)).state is State.HELD


async def test_one_buyer_may_take_over_several_lapsed_holds(shop: Shop, clock: MovableClock) -> None:
    """A claim over seats of three old holds ends all three, and everything that was theirs is free."""
    await shop.create(pools={"GA": 3})
    olds = [await shop.hold(f"old-{seat}", seat, pools={"GA": 1}, ttl=60) for seat in ("A1", "A2", "A3")]
    clock.advance(60)
    new = await shop.hold("bob", "A1", "A2", "A3", pools={"GA": 3})
    assert {(await shop.read(old)).state for old in olds} == {State.EXPIRED}
    assert await shop.pool() == (0, 3, 0)
    assert new.lines.units == 6


async def test_a_buyer_may_take_over_a_lapsed_hold_of_their_own(shop: Shop, clock: MovableClock) -> None:
    """Coming back too late, the buyer begins anew."""
    await shop.create(per_buyer_max=1)
    old = await shop.hold("ada", "A1", ttl=60)
    clock.advance(60)
    new = await shop.hold("ada", "A1")
    assert new.id != old.id
    assert (await shop.read(old)).state is State.EXPIRED


async def test_lapsed_units_are_free_at_once(shop: Shop, clock: MovableClock) -> None:
    """Before a pool is called exhausted, what has lapsed in it goes back."""
    await shop.create(pools={"GA": 3})
    olds = [await shop.hold(buyer, pools={"GA": 1}, ttl=60) for buyer in "xyz"]
    clock.advance(60)
    assert await shop.pool() == (3, 0, 0)
    await shop.hold("bob", pools={"GA": 3})
    assert {(await shop.read(old)).state for old in olds} == {State.EXPIRED}
    assert {(await shop.history(old))[-1].reason for old in olds} == {"made room"}
    with pytest.raises(PoolExhausted):
        await shop.hold("eve", pools={"GA": 1})


async def test_a_lapsed_hold_counts_towards_no_limit(shop: Shop, clock: MovableClock) -> None:
    """Before a buyer is told that the limit is reached, what has lapsed of theirs goes back."""
    await shop.create(per_buyer_max=2)
    old = await shop.hold("ada", "A1", pools={"GA": 1}, ttl=60)
    clock.advance(60)
    await shop.hold("ada", "A3", "A4")
    assert (await shop.read(old)).state is State.EXPIRED
    with pytest.raises(LimitExceeded):
        await shop.hold("ada", "A1")


async def test_a_verb_that_meets_a_due_hold_ends_it(shop: Shop, clock: MovableClock) -> None:
    """It is too late for every verb and for good, and the journal says which verb ended the hold."""
    await shop.create()
    held = await shop.hold("ada", "A1", pools={"GA": 2}, ttl=60)
    clock.advance(60)
    with pytest.raises(BookingExpired) as refused:
        await shop.confirm(held)
    assert refused.value.expires_at == held.expires_at
    ended = await shop.read(held)
    assert (ended.state, ended.version) == (State.EXPIRED, 2)
    assert (await shop.history(held))[-1].reason == "met by confirm"
    assert await shop.pool() == (10, 0, 0)


# extend


async def test_an_extension_moves_the_end(shop: Shop, clock: MovableClock) -> None:
    """The seat stays with its buyer past the first end, until the second."""
    await shop.create()
    held = await shop.hold("ada", "A1", ttl=100)
    longer = await shop.extend(held, 100)
    assert longer.expires_at == held.expires_at + timedelta(seconds=100)
    assert (longer.version, await shop.read(held)) == (2, longer)
    clock.advance(150)
    with pytest.raises(SeatsTaken):
        await shop.hold("bob", "A1")
    clock.advance(50)
    await shop.hold("bob", "A1")


async def test_an_extension_ends_at_the_longest_life(shop: Shop) -> None:
    """1800 seconds from the hold, and not a second more: then the answer is no, and the end stays."""
    await shop.create()
    held = await shop.hold("ada", "A1", ttl=1700)
    longest = await shop.extend(held, 3600)
    assert longest.expires_at == held.created_at + timedelta(seconds=1800)
    with pytest.raises(ExtensionRefused) as refused:
        await shop.extend(held, 60)
    assert refused.value.expires_at == longest.expires_at
    assert await shop.read(held) == longest


# confirm


async def test_a_confirmed_seat_is_sold_for_good(shop: Shop, clock: MovableClock) -> None:
    """Held units become sold ones, and no clock ends a sale."""
    await shop.create()
    held = await shop.hold("ada", "A1", pools={"GA": 2})
    sold = await shop.confirm(held, "visa-1")
    assert (sold.state, sold.payment_id, sold.payment_method) == (State.CONFIRMED, "visa-1", "card")
    assert sold.confirmed_at is not None
    assert await shop.read(held) == sold
    clock.advance(86_400)
    assert (await shop.seats())["A1"] == "booked"
    assert await shop.pool() == (8, 0, 2)
    with pytest.raises(SeatsTaken):
        await shop.hold("bob", "A1")
    assert await shop.engine.expire(limit=100) == []


async def test_the_same_confirm_again_is_the_same_answer(shop: Shop) -> None:
    """A shop that lost the answer asks again, and nothing is written twice; other money is refused."""
    await shop.create()
    held = await shop.hold("ada", "A1", pools={"GA": 2})
    sold = await shop.confirm(held, "visa-1")
    assert await shop.confirm(held, "visa-1") == sold
    with pytest.raises(BookingResolved) as refused:
        await shop.confirm(held, "visa-2")
    assert refused.value.state == "confirmed"
    assert [entry.verb for entry in await shop.history(held)] == ["hold", "confirm"]
    assert await shop.pool() == (8, 0, 2)


async def test_one_outside_payment_confirms_one_booking(shop: Shop) -> None:
    """The same money does not pay twice; the second booking stays held and may be paid otherwise."""
    await shop.create()
    one, two = await shop.hold("ada", "A1"), await shop.hold("bob", "A2")
    await shop.confirm(one, "visa-1")
    with pytest.raises(PaymentUsed) as refused:
        await shop.confirm(two, "visa-1")
    assert refused.value.payment_id == "visa-1"
    assert await shop.read(two) == two
    assert (await shop.confirm(two, "visa-2")).state is State.CONFIRMED


async def test_a_payment_stays_used_when_its_sale_is_undone(shop: Shop) -> None:
    """Money that paid for a cancelled sale was given back elsewhere: it buys nothing else."""
    await shop.create()
    await shop.cancel(await shop.confirm(await shop.hold("ada", "A1"), "visa-1"))
    with pytest.raises(PaymentUsed):
        await shop.confirm(await shop.hold("ada", "A1"), "visa-1")


async def test_two_confirms_with_one_payment_in_one_batch(shop: Shop) -> None:
    """The first request gets it, within a batch as well."""
    await shop.create()
    bookings = [await shop.hold("ada", seat) for seat in ("A1", "A2", "A3")]
    answers = await asyncio.gather(*(shop.confirm(booking, "visa-1") for booking in bookings), return_exceptions=True)
    assert [type(answer) for answer in answers] == [type(bookings[0]), PaymentUsed, PaymentUsed]
    assert [(await shop.read(booking)).state for booking in bookings] == [State.CONFIRMED, State.HELD, State.HELD]


async def test_a_payment_that_confirmed_nothing_is_not_used(shop: Shop, clock: MovableClock) -> None:
    """Money for an expired, unknown or resolved booking leaves no trace: it may pay for another."""
    await shop.create()
    lapsed = await shop.hold("ada", "A1", ttl=60)
    released = await shop.release(await shop.hold("ada", "A2", ttl=60))
    clock.advance(60)
    for booking, refusal in ((lapsed, BookingExpired), (released, BookingResolved)):
        with pytest.raises(refusal):
            await shop.confirm(booking, "visa-1")
    with pytest.raises(BookingUnknown):
        await shop.confirm(msgspec.structs.replace(lapsed, id=BookingId(UUID(int=1))), "visa-1")
    assert (await shop.confirm(await shop.hold("ada", "A3"), "visa-1")).state is State.CONFIRMED


async def test_a_payment_that_lost_against_another_for_its_booking_is_not_used(shop: Shop) -> None:
    """Two payments for one booking in one batch: one confirms it, and the other stays free to pay for something."""
    await shop.create()
    one, two = await shop.hold("ada", "A1"), await shop.hold("bob", "A2")
    answers = await asyncio.gather(shop.confirm(one, "visa-1"), shop.confirm(one, "visa-2"), return_exceptions=True)
    assert [type(answer) for answer in answers] == [type(one), BookingResolved]
    assert (await shop.confirm(two, "visa-2")).state is State.CONFIRMED


async def test_a_payment_goes_to_the_booking_that_it_can_confirm(shop: Shop) -> None:
    """In one batch: a payment named first for a booking that another one confirms is free for the next to name it."""
    await shop.create()
    one, two = await shop.hold("ada", "A1"), await shop.hold("bob", "A2")
    answers = await asyncio.gather(
        shop.confirm(one, "visa-1"), shop.confirm(one, "visa-2"), shop.confirm(two, "visa-2"), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [type(one), BookingResolved, type(two)]


# release


async def test_a_release_gives_everything_back(shop: Shop) -> None:
    """Seats and units are free at once; letting go again is the same answer."""
    await shop.create()
    held = await shop.hold("ada", "A1", "A2", pools={"GA": 2})
    released = await shop.release(held)
    assert (released.state, released.version) == (State.RELEASED, 2)
    assert released.ended_at is not None
    assert set((await shop.seats()).values()) == {"available"}
    assert await shop.pool() == (10, 0, 0)
    assert await shop.release(held) == released
    await shop.hold("bob", "A1", "A2", pools={"GA": 10})
    assert await shop.release(held) == released
    assert [entry.verb for entry in await shop.history(held)] == ["hold", "release"]


# cancel


async def test_a_cancelled_sale_gives_everything_back(shop: Shop) -> None:
    """Seats and units return to the sale, the reason is told, and cancelling again is the same answer."""
    await shop.create()
    sold = await shop.confirm(await shop.hold("ada", "A1", pools={"GA": 2}))
    cancelled = await shop.cancel(sold, reason="rain")
    assert (cancelled.state, cancelled.total, cancelled.lines) == (State.CANCELLED, sold.total, sold.lines)
    assert (await shop.seats())["A1"] == "available"
    assert await shop.pool() == (10, 0, 0)
    assert await shop.cancel(sold) == cancelled
    last = (await shop.history(sold))[-1]
    assert (last.verb, last.before, last.after, last.actor, last.reason) == (
        "cancel",
        "confirmed",
        "cancelled",
        "shop",
        "rain",
    )
    await shop.hold("bob", "A1", pools={"GA": 10})


async def test_a_sale_is_undone_in_part(shop: Shop) -> None:
    """The named seat and units return, the rest stays sold, and the total follows."""
    await shop.create()
    sold = await shop.confirm(await shop.hold("ada", "A1", "A2", pools={"GA": 3}))
    kept = await shop.cancel(sold, "A1", pools={"GA": 1}, reason="two are ill")
    assert kept.state is State.CONFIRMED
    assert kept.lines == Lines(
        seats=(SeatLine(id=SeatId("A2"), price=4500),), pools=(PoolLine(id=PoolId("GA"), units=2, price=2500),)
    )
    assert (kept.total, await shop.read(sold)) == (9500, kept)
    assert await shop.seats() == {"A1": "available", "A2": "booked", "A3": "available", "A4": "available"}
    assert await shop.pool() == (8, 0, 2)
    last = (await shop.history(sold))[-1]
    assert (last.before, last.after, last.reason) == ("confirmed", "confirmed", "two are ill")
    assert last.facts["total"] == 9500
    await shop.hold("bob", "A1")


async def test_a_sale_undone_line_by_line_ends_with_the_last(shop: Shop) -> None:
    """When nothing stays sold the booking is cancelled, like one that was cancelled whole."""
    await shop.create()
    sold = await shop.confirm(await shop.hold("ada", "A1", "A2", pools={"GA": 2}))
    states = [
        (await shop.cancel(sold, "A1")).state,
        (await shop.cancel(sold, pools={"GA": 1})).state,
        (await shop.cancel(sold, pools={"GA": 1})).state,
        (await shop.cancel(sold, "A2")).state,
    ]
    assert states == [State.CONFIRMED, State.CONFIRMED, State.CONFIRMED, State.CANCELLED]
    assert set((await shop.seats()).values()) == {"available"}
    assert await shop.pool() == (10, 0, 0)
    await shop.hold("bob", "A1", "A2", pools={"GA": 10})


async def test_lines_that_went_back_are_not_undone_twice(shop: Shop) -> None:
    """A seat that was given back and sold to another stays with that other."""
    await shop.create()
    sold = await shop.confirm(await shop.hold("ada", "A1", "A2"))
    await shop.cancel(sold, "A1")
    other = await shop.confirm(await shop.hold("bob", "A1"))
    with pytest.raises(InvalidRequest):
        await shop.cancel(sold, "A1")
    await shop.cancel(sold)
    assert (await shop.seats())["A1"] == "booked"
    assert await shop.read(other) == other


async def test_cancels_of_one_booking_in_one_batch_follow_each_other(shop: Shop) -> None:
    """Each sees what the one before it left."""
    await shop.create()
    sold = await shop.confirm(await shop.hold("ada", "A1", "A2", pools={"GA": 2}))
    answers = await asyncio.gather(
        shop.cancel(sold, "A1"),
        shop.cancel(sold, pools={"GA": 2}),
        shop.cancel(sold, "A1"),
        shop.cancel(sold),
        return_exceptions=True,
    )
    states = [answer if isinstance(answer, BaseException) else answer.state for answer in answers]
    assert (states[0], states[1], states[3]) == (State.CONFIRMED, State.CONFIRMED, State.CANCELLED)
    assert isinstance(states[2], InvalidRequest)
    assert [entry.version for entry in await shop.history(sold)] == [1, 2, 3, 4, 5]
    assert set((await shop.seats()).values()) == {"available"}
    assert await shop.pool() == (10, 0, 0)


# the journal


async def test_the_journal_has_every_change_without_a_gap(shop: Shop) -> None:
    """One entry per change, numbered by the booking's version: before, after, who and why."""
    await shop.create()
    ada = Actor(name="ada", mode=Mode.LIVE, buyer=Buyer("ada"))
    held = await shop.hold("ada", "A1", "A2", actor=ada)
    await shop.extend(held, 60, actor=ada)
    await shop.confirm(held)
    await shop.cancel(held, "A1", reason="ill")
    await shop.cancel(held, reason="rain")
    told = [
        (entry.version, entry.verb, entry.before, entry.after, entry.actor, entry.reason)
        for entry in await shop.history(held)
    ]
    assert told == [
        (1, "hold", None, "held", "ada", None),
        (2, "extend", "held", "held", "ada", None),
        (3, "confirm", "held", "confirmed", "shop", None),
        (4, "cancel", "confirmed", "confirmed", "shop", "ill"),
        (5, "cancel", "confirmed", "cancelled", "shop", "rain"),
    ]
    moments = [entry.at for entry in await shop.history(held)]
    assert moments == sorted(moments)
    assert (await shop.read(held)).version == 5


# whose it is


@pytest.mark.parametrize("actor", [SOMEBODY_ELSE, TEST_KEY], ids=["another buyer", "a test key"])
async def test_another_buyers_booking_does_not_exist(shop: Shop, actor: Actor) -> None:
    """Another buyer, or a key of the other mode, gets the answer for an unknown booking; and nothing changes."""
    await shop.create()
    held, sold = await shop.hold("ada", "A1"), await shop.confirm(await shop.hold("ada", "A2"))
    before = await shop.picture()
    for booking in (held, sold):
        for verb in (shop.extend, shop.confirm, shop.release, shop.cancel):
            with pytest.raises(BookingUnknown) as refused:
                await verb(booking, actor=actor)
            assert refused.value.booking_id == str(booking.id)
    assert await shop.picture() == before


async def test_a_buyer_may_do_to_their_own_what_a_shop_may(shop: Shop) -> None:
    """The control of the test above: the owner may do it."""
    await shop.create()
    ada = Actor(name="ada", mode=Mode.LIVE, buyer=Buyer("ada"))
    held = await shop.hold("ada", "A1", actor=ada)
    assert (await shop.extend(held, actor=ada)).version == 2
    assert (await shop.release(held, actor=ada)).state is State.RELEASED


async def test_live_and_test_events_do_not_see_each_other(shop: Shop) -> None:
    """An event of the other kind is unknown, to buyers and to operators."""
    await shop.create()
    await shop.create("trial", mode=Mode.TEST)
    with pytest.raises(EventUnknown):
        await shop.hold("ada", "A1", event_id="trial")
    with pytest.raises(EventUnknown):
        await shop.hold("ada", "A1", actor=TEST_KEY)
    with pytest.raises(EventUnknown):
        await shop.change("trial", name="New")
    trial = await shop.hold("ada", "A1", event_id="trial", actor=TEST_KEY)
    assert trial.mode is Mode.TEST
    assert await shop.bookings(mode=Mode.LIVE) == []
    assert await shop.bookings(mode=Mode.TEST) == [trial]


# what was refused left no trace


async def _refusals(shop: Shop) -> dict[str, Any]:
    """A shop with a booking in every state, and the requests that it refuses."""
    await shop.create(per_buyer_max=3, pools={"GA": 4, "VIP": 1})
    held = await shop.hold("ada", "A1", pools={"GA": 1})
    sold = await shop.confirm(await shop.hold("bob", "A2", pools={"GA": 1}), "visa-1")
    released = await shop.release(await shop.hold("eve", "A3"))
    await shop.block("A4")
    unknown = msgspec.structs.replace(held, id=BookingId(UUID(int=5)))
    return {
        "event_unknown": shop.hold("new", "A1", event_id="nowhere"),
        "seat_unknown": shop.hold("new", "A3", "Z9"),
        "pool_unknown": shop.hold("new", "A3", pools={"BAR": 1}),
        "seats_taken": shop.hold("new", "A3", "A1", pools={"GA": 1}),
        "seats_taken, blocked": shop.hold("new", "A3", "A4"),
        "pool_exhausted": shop.hold("new", "A3", pools={"GA": 1, "VIP": 2}),
        "limit_exceeded": shop.hold("ada", "A3", pools={"GA": 1}),
        "limit_exceeded, first": shop.hold("new", "A3", pools={"GA": 2, "VIP": 1}),
        "invalid_request, ttl": shop.hold("new", "A3", ttl=0),
        "invalid_request, extend": shop.extend(held, 0),
        "invalid_request, lines": shop.cancel(sold, "A1"),
        "booking_unknown": shop.confirm(unknown, "visa-2"),
        "booking_not_confirmed": shop.cancel(held),
        "booking_resolved, extend": shop.extend(sold),
        "booking_resolved, release": shop.release(sold),
        "booking_resolved, confirm": shop.confirm(sold, "visa-2"),
        "booking_resolved, ended": shop.cancel(released),
        "payment_used": shop.confirm(held, "visa-1"),
        "seats_taken, block": shop.block("A3", "A1"),
        "event_unknown, change": shop.change("nowhere", name="New"),
        "event_exists": shop.create(seats=("B1",)),
    }


async def test_what_was_refused_left_no_trace(shop: Shop) -> None:
    """Map, bookings, journal and events are, after every kind of refusal, what they were before it."""
    refusals = await _refusals(shop)
    before = await shop.picture()
    met = {}
    for name, refused in refusals.items():
        try:
            await refused
        except Refusal as refusal:
            met[name] = refusal.code
        assert await shop.picture() == before, name
    assert met == {name: name.partition(",")[0] for name in refusals}


async def test_a_refused_first_hold_is_no_strain_on_the_limit(shop: Shop) -> None:
    """A buyer who was refused has exactly as much left as before."""
    await shop.create(per_buyer_max=2)
    await shop.hold("ada", "A1")
    for _ in range(3):
        with pytest.raises(SeatsTaken):
            await shop.hold("bob", "A1", "A2")
    assert (await shop.hold("bob", "A2", "A3")).lines.units == 2


# reading


async def test_a_due_hold_is_listed_as_expired(shop: Shop, clock: MovableClock) -> None:
    """Swept or not, a list by state tells the truth of the moment; a page goes on where the last one ended."""
    await shop.create()
    lapsed, held = await shop.hold("ada", "A1", ttl=60), await shop.hold("ada", "A2", ttl=600)
    sold = await shop.confirm(await shop.hold("bob", "A3"))
    clock.advance(60)
    listed: dict[State, list[Booking]] = {state: await shop.bookings(state=state) for state in State}
    assert {state: [b.id for b in found] for state, found in listed.items() if found} == {
        State.EXPIRED: [lapsed.id],
        State.HELD: [held.id],
        State.CONFIRMED: [sold.id],
    }
    assert [b.id for b in await shop.bookings(buyer=Buyer("ada"))] == [lapsed.id, held.id]
    assert [b.id for b in await shop.bookings(after=lapsed.id)] == [held.id, sold.id]
