"""What is sold: events and their windows, seats and their states, pools and their counts, and money."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earmark.domain.bookable_event import Event, check_on_sale
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import BookingId, EventId, PoolId, SeatId, SeatRef
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.money import EXPONENTS, Money, is_currency
from earmark.domain.pool import Pool, PoolDelta
from earmark.domain.seat import SeatAvailability, SeatSeen, SeatState, availability, shown_state
from earmark.errors import SaleClosed

NOW = datetime(2030, 6, 1, 20, 0, tzinfo=UTC)
TICK = timedelta(microseconds=1)
counts = st.integers(-1000, 1000)


def event_on_sale(*, opens: datetime | None = None, closes: datetime | None = None) -> Event:
    return Event(
        id=EventId("concert"),
        name="Concert",
        currency="EUR",
        mode=Mode.LIVE,
        created_at=NOW,
        sale_opens_at=opens,
        sale_closes_at=closes,
    )


def is_on_sale(event: Event, *, now: datetime) -> bool:
    try:
        check_on_sale(event, now=now)
    except SaleClosed:
        return False
    return True


@pytest.mark.parametrize("now", [NOW, NOW + TICK, NOW + timedelta(hours=1) - TICK])
def test_a_sale_runs_from_its_opening_until_its_close(now: datetime) -> None:
    """Half-open: the opening itself is in, the last microsecond before the close is in."""
    assert is_on_sale(event_on_sale(opens=NOW, closes=NOW + timedelta(hours=1)), now=now)


def test_a_sale_without_a_window_is_always_on() -> None:
    """An event without a window sells at any time."""
    assert is_on_sale(event_on_sale(), now=NOW)


def test_a_sale_that_has_not_begun_may_begin() -> None:
    """A microsecond early is refused, and the same request may succeed later."""
    event = event_on_sale(opens=NOW, closes=NOW + timedelta(hours=1))
    with pytest.raises(SaleClosed) as refused:
        check_on_sale(event, now=NOW - TICK)
    assert refused.value.transient
    assert (refused.value.opens_at, refused.value.closes_at) == (event.sale_opens_at, event.sale_closes_at)


def test_a_sale_that_is_over_stays_over() -> None:
    """The close itself is out, and no waiting helps."""
    with pytest.raises(SaleClosed) as refused:
        check_on_sale(event_on_sale(closes=NOW), now=NOW)
    assert not refused.value.transient


OWNER = BookingId(UUID(int=7))


@pytest.mark.parametrize(
    "state, verdict_before, verdict_at_the_end",
    [
        (None, SeatAvailability.FREE, SeatAvailability.FREE),
        (State.HELD, SeatAvailability.TAKEN, SeatAvailability.LAPSED),
        (State.PAYING, SeatAvailability.TAKEN, SeatAvailability.TAKEN),
        (State.CONFIRMED, SeatAvailability.TAKEN, SeatAvailability.TAKEN),
        (State.RELEASED, SeatAvailability.FREE, SeatAvailability.FREE),
        (State.EXPIRED, SeatAvailability.FREE, SeatAvailability.FREE),
        (State.FAILED, SeatAvailability.FREE, SeatAvailability.FREE),
        (State.CANCELLED, SeatAvailability.FREE, SeatAvailability.FREE),
    ],
)
def test_a_seat_is_free_by_the_state_of_its_owner(
    state: State | None, verdict_before: SeatAvailability, verdict_at_the_end: SeatAvailability
) -> None:
    """Free without an owner, with an ended one, or with a hold past its time; paying and sold never lapse."""
    seen = SeatSeen(
        ref=SeatRef(EventId("concert"), SeatId("A1")),
        price=4500,
        blocked=False,
        pointer=OWNER if state else None,
        fence=0,
        owner_state=state,
        owner_expires_at=NOW if state else None,
    )
    assert availability(seen, now=NOW - TICK) is verdict_before
    assert availability(seen, now=NOW) is verdict_at_the_end


def test_a_blocked_seat_is_never_free() -> None:
    """Blocked comes before everything else."""
    seen = SeatSeen(ref=SeatRef(EventId("concert"), SeatId("A1")), price=4500, blocked=True, pointer=None, fence=0)
    assert availability(seen, now=NOW) is SeatAvailability.BLOCKED


@pytest.mark.parametrize(
    "owner, due, shown",
    [
        (None, False, SeatState.AVAILABLE),
        (State.HELD, False, SeatState.HELD),
        (State.HELD, True, SeatState.AVAILABLE),
        (State.PAYING, False, SeatState.HELD),
        (State.PAYING, True, SeatState.HELD),
        (State.CONFIRMED, False, SeatState.BOOKED),
        (State.RELEASED, False, SeatState.AVAILABLE),
        (State.EXPIRED, True, SeatState.AVAILABLE),
        (State.FAILED, False, SeatState.AVAILABLE),
        (State.CANCELLED, False, SeatState.AVAILABLE),
    ],
)
def test_the_map_shows_what_a_buyer_could_have(owner: State | None, shown: SeatState, *, due: bool) -> None:
    """A lapsed hold is available at once, a paying one still only holds its seat."""
    assert shown_state(blocked=False, owner_state=owner, due=due) is shown
    if shown is SeatState.AVAILABLE:
        assert shown_state(blocked=True, owner_state=owner, due=due) is SeatState.BLOCKED


@pytest.mark.parametrize(
    "amount, currency, said",
    [
        (4500, "EUR", "45.00 EUR"),
        (5, "EUR", "0.05 EUR"),
        (0, "EUR", "0.00 EUR"),
        (-250, "EUR", "-2.50 EUR"),
        (4500, "JPY", "4500 JPY"),
        (4500, "KWD", "4.500 KWD"),
        (10**12, "EUR", "10000000000.00 EUR"),
        (10**12, "JPY", "1000000000000 JPY"),
    ],
)
def test_money_knows_the_decimals_of_its_currency(amount: int, currency: str, said: str) -> None:
    """Minor units mean what the currency says they mean, at any size."""
    assert str(Money(amount=amount, currency=currency)) == said


def test_currencies_have_the_exponents_of_the_standard() -> None:
    """Two decimals for the euro, none for the yen, three for the dinar; and no made-up codes."""
    assert (EXPONENTS["EUR"], EXPONENTS["JPY"], EXPONENTS["KWD"]) == (2, 0, 3)
    assert set(EXPONENTS.values()) == {0, 2, 3}
    assert is_currency("EUR")
    assert not any(is_currency(code) for code in ("eur", "ABC", "EURO", ""))


@given(amount=st.integers(-(10**12), 10**12), currency=st.sampled_from(sorted(EXPONENTS)))
def test_no_cent_is_lost_in_formatted_amounts(*, amount: int, currency: str) -> None:
    """What is printed holds every digit of the amount, and nothing else."""
    number, code = str(Money(amount=amount, currency=currency)).split(" ")
    assert code == currency
    assert int(number.replace(".", "")) == amount
    assert len(number.partition(".")[2]) == EXPONENTS[currency]


@given(capacity=st.integers(0, 1000), held=st.integers(0, 1000), sold=st.integers(0, 1000))
def test_a_pool_is_what_is_free_held_and_sold(*, capacity: int, held: int, sold: int) -> None:
    """Capacity = free + held + sold, always."""
    pool = Pool(event_id=EventId("e"), id=PoolId("GA"), capacity=capacity, price=1, held=held, sold=sold)
    assert pool.free + pool.held + pool.sold == capacity


@given(changes=st.lists(st.tuples(counts, counts), max_size=20))
def test_changes_of_a_pool_add_up_in_any_order(*, changes: list[tuple[int, int]]) -> None:
    """A batch makes one change of many, and it is their sum."""
    deltas = [PoolDelta(held=held, sold=sold) for held, sold in changes]
    forwards = sum(deltas, start=PoolDelta())
    assert forwards == sum(reversed(deltas), start=PoolDelta())
    assert forwards == PoolDelta(held=sum(held for held, _ in changes), sold=sum(sold for _, sold in changes))
