"""Whether a buyer may cancel a sale, until when, and which rule is named."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from earmark.domain.bookable_event import Event
from earmark.domain.booking import Booking, Lines, SeatLine
from earmark.domain.booking_state_machine import State
from earmark.domain.buyer_cancel_rules import WhyNot, buyer_may_cancel, cancellable_until
from earmark.domain.id_types import BookingId, Buyer, EventId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import CancelRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

STARTS = datetime(2030, 3, 1, 20, tzinfo=UTC)
HOUR = 3600
LIMIT = STARTS - timedelta(hours=1)
EVENT = Event(
    id=EventId("play"),
    name="A play",
    currency="EUR",
    mode=Mode.LIVE,
    created_at=STARTS - timedelta(days=90),
    starts_at=STARTS,
    buyer_cancel_until_seconds=HOUR,
)
SALE = Booking(
    id=BookingId(UUID(int=1)),
    event_id=EVENT.id,
    buyer=Buyer("alice"),
    mode=Mode.LIVE,
    state=State.CONFIRMED,
    lines=Lines(seats=(SeatLine(id=SeatId("A1"), price=4500),)),
    total=4500,
    currency="EUR",
    created_at=EVENT.created_at,
    expires_at=EVENT.created_at + timedelta(minutes=10),
    payment_id=str(UUID(int=2)),
)
IN_TIME: Mapping[str, Any] = {"paid_here": True, "checked_in": False, "now": LIMIT - timedelta(microseconds=1)}


def told(*, event: Mapping[str, Any] | None = None, sale: Mapping[str, Any] | None = None, **facts: Any) -> Any:
    """The moment that a buyer is told, or why the cancel is refused; both rules agree."""
    changed = msgspec.structs.replace(EVENT, **(event or {}))
    booking = msgspec.structs.replace(SALE, **(sale or {}))
    known = {**IN_TIME, **facts}
    until = cancellable_until(booking, changed, **known)
    try:
        buyer_may_cancel(booking, changed, **known)
    except CancelRefused as refused:
        assert until is None
        return refused.why, refused.until
    return until


def test_a_buyer_may_cancel_until_just_before_the_limit() -> None:
    """The window is half-open, like every other."""
    assert told() == LIMIT
    assert told(now=LIMIT) == (WhyNot.TOO_LATE, LIMIT)
    assert told(now=STARTS + timedelta(days=1)) == (WhyNot.TOO_LATE, LIMIT)


def test_a_limit_of_zero_is_the_start() -> None:
    """Never after it."""
    zero = {"buyer_cancel_until_seconds": 0}
    assert told(event=zero, now=STARTS - timedelta(seconds=1)) == STARTS
    assert told(event=zero, now=STARTS) == (WhyNot.TOO_LATE, STARTS)


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"event": {"buyer_cancel_until_seconds": None}}, (WhyNot.NOT_OFFERED, None)),
        ({"event": {"buyer_cancel_until_seconds": None, "starts_at": None}}, (WhyNot.NOT_OFFERED, None)),
        ({"event": {"starts_at": None}}, (WhyNot.NO_START, None)),
        ({"paid_here": False}, (WhyNot.PAID_ELSEWHERE, LIMIT)),
        ({"paid_here": False, "sale": {"payment_id": "till-1"}, "now": STARTS}, (WhyNot.PAID_ELSEWHERE, LIMIT)),
        ({"checked_in": True}, (WhyNot.CHECKED_IN, LIMIT)),
        ({"checked_in": True, "now": STARTS}, (WhyNot.CHECKED_IN, LIMIT)),
    ],
)
def test_each_rule_refuses_by_its_name(given: dict[str, Any], expected: tuple[WhyNot, datetime | None]) -> None:
    """What the shop has to change comes before what the buyer could have done in time."""
    assert told(**given) == expected


def test_what_cost_nothing_was_not_paid_elsewhere() -> None:
    """A booking without a payment is the buyer's to give back."""
    assert told(sale={"payment_id": None, "total": 0}, paid_here=False) == LIMIT


@pytest.mark.parametrize("state", sorted(set(State) - {State.CONFIRMED}))
def test_only_a_sale_has_a_moment(state: State) -> None:
    """What is held is released, and what has ended is not cancelled."""
    booking = msgspec.structs.replace(SALE, state=state)
    assert cancellable_until(booking, EVENT, **IN_TIME) is None
