"""Many buyers at once, through one engine and through several: never sold twice, never stuck."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from earmark.domain.booking import Booking
from earmark.domain.booking_state_machine import State
from earmark.errors import (
    BookingExpired,
    BookingResolved,
    LimitExceeded,
    PaymentUsed,
    PoolExhausted,
    SeatsTaken,
)

from .conftest import BEHIND_A_POOLER_TOO

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from earmark.clock import MovableClock

    from .conftest import Shop

pytestmark = [pytest.mark.usefixtures("the_books_balance"), BEHIND_A_POOLER_TOO]


async def outcomes_of(tries: Iterable[Awaitable[object]]) -> list[object]:
    """What became of each, in order; nothing but an answer or a refusal is an answer."""
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    strange = [outcome for outcome in outcomes if isinstance(outcome, Exception) and not hasattr(outcome, "code")]
    assert strange == []
    return list(outcomes)


def kinds_of(outcomes: Iterable[object]) -> Counter[type]:
    return Counter(map(type, outcomes))


async def test_many_buyers_want_one_seat_and_one_gets_it(rivals: list[Shop]) -> None:
    """Thirty at once, over three engines: one booking, twenty-nine refusals that name the seat."""
    await rivals[0].create()
    outcomes = await outcomes_of(rivals[n % 3].hold(f"buyer-{n}", "A1") for n in range(30))
    assert kinds_of(outcomes) == {Booking: 1, SeatsTaken: 29}
    assert {tuple(outcome.seats) for outcome in outcomes if isinstance(outcome, SeatsTaken)} == {("A1",)}
    assert [booking.state for booking in await rivals[0].bookings()] == [State.HELD]


async def test_in_one_batch_the_first_to_come_gets_the_seat(shop: Shop) -> None:
    """Within a batch the order of arrival decides, and a loser keeps nothing."""
    await shop.create()
    outcomes = await outcomes_of(
        [shop.hold("ada", "A1", "A2"), shop.hold("bob", "A2", "A3"), shop.hold("eve", "A3", "A4")]
    )
    assert [type(outcome) for outcome in outcomes] == [Booking, SeatsTaken, Booking]
    assert set((await shop.seats()).values()) == {"held"}


async def test_claims_that_overlap_in_opposite_order_never_wait_for_each_other(rivals: list[Shop]) -> None:
    """A1+A2 against A2+A1, many times and from every engine: each seat has one owner, and no request hangs."""
    await rivals[0].create(pools={"GA": 100, "VIP": 100})
    for turn in range(4):
        tries = [
            rivals[n % 3].hold(
                f"buyer-{turn}-{n}",
                *(("A1", "A2", "A3") if n % 2 else ("A3", "A2", "A1")),
                pools={"GA": 1, "VIP": 1} if n % 2 else {"VIP": 1, "GA": 1},
            )
            for n in range(12)
        ]
        outcomes = await outcomes_of(tries)
        assert kinds_of(outcomes) == {Booking: 1, SeatsTaken: 11}
        (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Booking)]
        await rivals[0].release(winner)
    assert await rivals[0].pool("GA") == (100, 0, 0)


async def test_chains_of_overlapping_claims_leave_no_seat_with_two_owners(rivals: list[Shop]) -> None:
    """Neighbouring pairs, each wanted from both sides: the winner has both seats of the pair."""
    seats = [f"S{n}" for n in range(8)]
    await rivals[0].create(seats=seats)
    pairs = [(seats[n], seats[(n + 1) % 8]) for n in range(8)]
    pairs += [(right, left) for left, right in pairs]
    outcomes = await outcomes_of(rivals[n % 3].hold(f"buyer-{n}", *pair) for n, pair in enumerate(pairs))
    won = [outcome for outcome in outcomes if isinstance(outcome, Booking)]
    taken = [line.id for booking in won for line in booking.lines.seats]
    assert won
    assert len(taken) == len(set(taken))
    shown = await rivals[0].seats()
    assert {seat for seat, state in shown.items() if state == "held"} == set(taken)


async def test_the_last_unit_of_a_pool_is_sold_once(rivals: list[Shop]) -> None:
    """Twenty buyers for three units: three have one each, and the pool is never below zero."""
    await rivals[0].create(pools={"GA": 3})
    outcomes = await outcomes_of(rivals[n % 3].hold(f"buyer-{n}", pools={"GA": 1}) for n in range(20))
    assert kinds_of(outcomes) == {Booking: 3, PoolExhausted: 17}
    assert await rivals[0].pool() == (0, 3, 0)


async def test_a_limit_holds_against_fifty_requests_at_once(rivals: list[Shop]) -> None:
    """One buyer, fifty tabs, a limit of four: exactly four."""
    await rivals[0].create(seats=[f"S{n}" for n in range(50)], per_buyer_max=4)
    outcomes = await outcomes_of(rivals[n % 3].hold("ada", f"S{n}") for n in range(50))
    assert kinds_of(outcomes) == {Booking: 4, LimitExceeded: 46}
    assert list((await rivals[0].seats()).values()).count("held") == 4


async def test_a_lapsed_seat_is_taken_over_once(rivals: list[Shop], clock: MovableClock) -> None:
    """Many want what has lapsed: it ends once, and one of them has the seat."""
    await rivals[0].create(pools={"GA": 5})
    old = await rivals[0].hold("ada", "A1", pools={"GA": 5}, ttl=60)
    clock.advance(60)
    outcomes = await outcomes_of(rivals[n % 3].hold(f"buyer-{n}", "A1", pools={"GA": 5}) for n in range(12))
    assert kinds_of(outcomes)[Booking] == 1
    assert [entry.after for entry in await rivals[0].history(old)] == ["held", "expired"]


async def test_lapsed_units_are_given_out_again_once(rivals: list[Shop], clock: MovableClock) -> None:
    """Lapsed holds take the room of many at once: room is made, and exactly what was there is sold."""
    await rivals[0].create(pools={"GA": 4})
    for n in range(4):
        await rivals[0].hold(f"old-{n}", pools={"GA": 1}, ttl=60)
    clock.advance(60)
    outcomes = await outcomes_of(rivals[n % 3].hold(f"buyer-{n}", pools={"GA": 1}) for n in range(12))
    kinds = kinds_of(outcomes)
    assert (kinds[Booking], kinds[Booking] + kinds[PoolExhausted]) == (4, 12)
    assert await rivals[0].pool() == (0, 4, 0)


async def test_one_payment_confirms_one_booking_from_anywhere(rivals: list[Shop]) -> None:
    """The same money, named for twelve bookings at once over three engines, buys one of them."""
    await rivals[0].create(seats=[f"S{n}" for n in range(12)])
    bookings = [await rivals[0].hold("ada", f"S{n}") for n in range(12)]
    outcomes = await outcomes_of(rivals[n % 3].confirm(booking, "visa-1") for n, booking in enumerate(bookings))
    assert kinds_of(outcomes) == {Booking: 1, PaymentUsed: 11}
    states = Counter([(await rivals[0].read(booking)).state for booking in bookings])
    assert states == {State.CONFIRMED: 1, State.HELD: 11}


async def test_a_booking_resolves_once_under_rival_verbs(rivals: list[Shop]) -> None:
    """Confirm against release, from three engines at once: one of them happened, and all get the same answer."""
    await rivals[0].create(pools={"GA": 2})
    for n in range(5):
        held = await rivals[0].hold("ada", "A1", pools={"GA": 2})
        outcomes = await outcomes_of(
            [
                rivals[0].confirm(held, f"visa-{n}"),
                rivals[1].release(held),
                rivals[2].confirm(held, f"visa-{n}"),
                rivals[2].release(held),
            ]
        )
        end = await rivals[0].read(held)
        assert end.state in {State.CONFIRMED, State.RELEASED}
        for outcome in outcomes:
            assert outcome == end or (isinstance(outcome, BookingResolved) and outcome.state == end.state)
        assert len(await rivals[0].history(held)) == 2
        if end.state is State.CONFIRMED:
            await rivals[0].cancel(held)


async def test_a_sweep_and_a_takeover_end_a_hold_once(rivals: list[Shop], clock: MovableClock) -> None:
    """The sweeper, a new buyer and a late confirm meet at one due hold: it ends once, and gives back once."""
    await rivals[0].create(pools={"GA": 3})
    old = await rivals[0].hold("ada", "A1", pools={"GA": 3}, ttl=60)
    clock.advance(60)
    outcomes = await outcomes_of(
        [
            rivals[0].engine.expire(limit=10),
            rivals[1].hold("bob", "A1", pools={"GA": 1}),
            rivals[2].confirm(old),
            rivals[0].release(old),
        ]
    )
    assert (type(outcomes[2]), type(outcomes[3])) == (BookingExpired, BookingExpired)
    assert [entry.after for entry in await rivals[0].history(old)] == ["held", "expired"]
    assert type(outcomes[1]) is Booking
    assert await rivals[0].pool() == (2, 1, 0)


async def test_blocking_and_holding_a_seat_have_one_winner(rivals: list[Shop]) -> None:
    """Either the operator or the buyer: a blocked seat never has an active owner."""
    await rivals[0].create()
    for _ in range(4):
        outcomes = await outcomes_of(
            [rivals[0].block("A1", "A2"), rivals[1].hold("ada", "A2", "A1"), rivals[2].hold("bob", "A1", "A2")]
        )
        won = [outcome for outcome in outcomes if not isinstance(outcome, SeatsTaken)]
        assert len(won) == 1
        if isinstance(won[0], Booking):
            assert set(list((await rivals[0].seats()).values())[:2]) == {"held"}
            await rivals[0].release(won[0])
        else:
            assert set(list((await rivals[0].seats()).values())[:2]) == {"blocked"}
            await rivals[0].block("A1", "A2", blocked=False)
