"""A booking: its last moment, what it costs, and a sale undone in part."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earmark.domain import booking as booking_rules
from earmark.domain.booking import Booking, Lines, PoolLine, SeatLine
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import BookingId, Buyer, EventId, PoolId, PoolRef, SeatId, SeatRef
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.pool import PoolDelta
from earmark.errors import BookingExpired, BookingNotConfirmed, InvalidRequest

if TYPE_CHECKING:
    from .conftest import Booked

TICK = timedelta(microseconds=1)
NOW = datetime(2030, 6, 1, 20, 0, tzinfo=UTC)

seat_lines = st.dictionaries(st.sampled_from([f"A{n}" for n in range(1, 8)]), st.integers(0, 10**6), max_size=5)
pool_lines = st.dictionaries(
    st.sampled_from(["GA", "VIP", "BAR"]), st.tuples(st.integers(1, 9), st.integers(0, 10**6)), max_size=3
)


def lines_of(seats: dict[str, int], pools: dict[str, tuple[int, int]]) -> Lines:
    return Lines(
        seats=tuple(SeatLine(id=SeatId(seat), price=price) for seat, price in sorted(seats.items())),
        pools=tuple(
            PoolLine(id=PoolId(pool), units=units, price=price) for pool, (units, price) in sorted(pools.items())
        ),
    )


def sale_of(lines: Lines) -> Booking:
    return Booking(
        id=BookingId(UUID(int=1)),
        event_id=EventId("concert"),
        buyer=Buyer("ada"),
        mode=Mode.LIVE,
        state=State.CONFIRMED,
        lines=lines,
        total=lines.total,
        currency="EUR",
        created_at=NOW,
        expires_at=NOW + timedelta(seconds=600),
        payment_id="pay-1",
        version=2,
    )


def test_a_hold_is_active_until_the_very_microsecond_of_its_end(booked: Booked) -> None:
    """Half-open: it is active while now < expires_at, and at expires_at it is over."""
    held = booked()
    assert not held.is_due(held.expires_at - TICK)
    assert held.is_due(held.expires_at)
    assert held.is_due(held.expires_at + TICK)


def test_the_last_microsecond_still_confirms_and_the_next_does_not(booked: Booked) -> None:
    """A confirm in the last microsecond is in time; one tick later another buyer may take the seat."""
    held = booked()
    in_time = booking_rules.confirm(held, payment_id="p", payment_method=None, now=held.expires_at - TICK)
    assert in_time.state is State.CONFIRMED
    with pytest.raises(BookingExpired):
        booking_rules.confirm(held, payment_id="p", payment_method=None, now=held.expires_at)


def test_a_hold_is_not_expired_a_microsecond_early(booked: Booked) -> None:
    """The clock ends it at its end and never before."""
    held = booked()
    with pytest.raises(AssertionError):
        booking_rules.expire(held, now=held.expires_at - TICK)
    assert booking_rules.expire(held, now=held.expires_at).state is State.EXPIRED


def test_lines_cost_their_seats_and_their_units() -> None:
    """Seats at their price, units at theirs, and a free ticket costs nothing."""
    assert lines_of({"A1": 4500, "A2": 5500}, {"GA": (3, 2500), "VIP": (1, 0)}).total == 17_500
    assert Lines().total == 0


def test_lines_count_seats_and_units_alike() -> None:
    """A limit of four means four tickets, numbered or not."""
    assert lines_of({"A1": 1, "A2": 1}, {"GA": (3, 1), "VIP": (2, 1)}).units == 7
    assert Lines().units == 0


def test_a_booking_names_what_it_claims(booked: Booked) -> None:
    """Its seats and its units, as the store knows them."""
    booking = booked()
    assert booking.seat_refs == (SeatRef(EventId("concert"), SeatId("A1")), SeatRef(EventId("concert"), SeatId("A2")))
    assert booking.pool_deltas(held=-1, sold=1) == {
        PoolRef(EventId("concert"), PoolId("GA")): PoolDelta(held=-3, sold=3)
    }


def test_some_lines_are_cancelled_and_the_others_stay_sold(booked: Booked, now: datetime) -> None:
    """A seat and a unit of five are undone: three tickets stay, and the total follows."""
    kept, gone = booking_rules.cancel_lines(
        booked(State.CONFIRMED), seats={SeatId("A1")}, pools={PoolId("GA"): 1}, now=now + timedelta(hours=1)
    )
    assert kept.state is State.CONFIRMED
    assert kept.lines == lines_of({"A2": 5500}, {"GA": (2, 2500)})
    assert (kept.total, kept.version, kept.ended_at) == (10_500, 3, None)
    assert gone == lines_of({"A1": 4500}, {"GA": (1, 2500)})


def test_cancelling_the_last_line_cancels_the_booking(booked: Booked, now: datetime) -> None:
    """When nothing stays sold, the booking is cancelled, and keeps its lines."""
    sale = booked(State.CONFIRMED)
    kept, gone = booking_rules.cancel_lines(sale, seats={SeatId("A1"), SeatId("A2")}, pools={PoolId("GA"): 3}, now=now)
    assert (kept.state, kept.ended_at, kept.version) == (State.CANCELLED, now, 3)
    assert kept.lines == gone == sale.lines
    assert kept.total == sale.total


@pytest.mark.parametrize(
    "seats, pools, path",
    [
        ({"Z9"}, {}, "seats"),
        ({"A1", "Z9"}, {"GA": 1}, "seats"),
        ({"A1"}, {"GA": 4}, "pools.GA"),
        ({"A1"}, {"GA": 0}, "pools.GA"),
        (set(), {"GA": -1}, "pools.GA"),
        (set(), {"VIP": 1}, "pools.VIP"),
    ],
)
def test_what_was_not_sold_cannot_be_undone(
    booked: Booked, now: datetime, seats: set[str], pools: dict[str, int], path: str
) -> None:
    """Lines that are not in the booking, or more units than it has, are not a sound request."""
    with pytest.raises(InvalidRequest) as refused:
        booking_rules.cancel_lines(
            booked(State.CONFIRMED),
            seats={SeatId(seat) for seat in seats},
            pools={PoolId(pool): units for pool, units in pools.items()},
            now=now,
        )
    assert [error["path"] for error in refused.value.errors] == [path]


def test_lines_of_a_hold_are_not_cancelled(booked: Booked, now: datetime) -> None:
    """Only a sale is undone, in whole or in part."""
    with pytest.raises(BookingNotConfirmed):
        booking_rules.cancel_lines(booked(), seats={SeatId("A1")}, pools={}, now=now)


@given(data=st.data(), seats=seat_lines, pools=pool_lines)
def test_what_goes_and_what_stays_are_the_whole(
    *, data: st.DataObject, seats: dict[str, int], pools: dict[str, tuple[int, int]]
) -> None:
    """Nothing is lost and nothing is undone twice: units and money add up, at the prices of the sale."""
    sale = sale_of(lines_of(seats, pools))
    going = data.draw(st.sets(st.sampled_from(sorted(seats))) if seats else st.just(set[str]()))
    back = {pool: data.draw(st.integers(0, units)) for pool, (units, _) in sorted(pools.items())}
    back = {pool: units for pool, units in back.items() if units}
    kept, gone = booking_rules.cancel_lines(
        sale,
        seats={SeatId(seat) for seat in going},
        pools={PoolId(pool): units for pool, units in back.items()},
        now=NOW,
    )
    assert gone.units == len(going) + sum(back.values())
    if gone.units == sale.lines.units:
        assert (kept.state, kept.lines) == (State.CANCELLED, sale.lines)
        return
    assert kept.state is State.CONFIRMED
    assert kept.lines.units + gone.units == sale.lines.units
    assert kept.total + gone.total == sale.total
    assert kept.total == kept.lines.total
    assert {line.id: line.units for line in kept.lines.pools} == {
        pool: units - back.get(pool, 0) for pool, (units, _) in pools.items() if units > back.get(pool, 0)
    }
    assert {line.id for line in kept.lines.seats} == set(seats) - going
