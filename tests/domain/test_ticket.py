"""The rules of tickets: which a booking has, whether one is valid, and why a scan is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from earmark.domain.booking import Booking, Lines, PoolLine, SeatLine
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import BookingId, Buyer, EventId, PoolId, SeatId, TicketId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.ticket import (
    ALPHABET,
    SECRET_LENGTH,
    UNDO_SECONDS_MAX,
    Kind,
    Place,
    Scan,
    ScanReason,
    Ticket,
    check_undo,
    code_of,
    is_listed,
    is_secret,
    is_used_up,
    places_of,
    why_invalid,
    why_refused,
)
from earmark.errors import UndoRefused
from earmark.tickets.new_ticket_secrets import new_secret

NOW = datetime(2030, 3, 1, 18, 0, tzinfo=UTC)
CODE = "h4tq8wzn2rkxc6mvp9ysb3fdj7ge5uan"
LINES = Lines(seats=(SeatLine(id=SeatId("A1"), price=4500),), pools=(PoolLine(id=PoolId("GA"), units=2, price=1000),))
BOOKING = Booking(
    id=BookingId(UUID(int=1)),
    event_id=EventId("concert"),
    buyer=Buyer("alice"),
    mode=Mode.LIVE,
    state=State.CONFIRMED,
    lines=LINES,
    total=LINES.total,
    currency="EUR",
    created_at=NOW,
    expires_at=NOW,
)
TICKET = Ticket(
    id=TicketId(UUID(int=2)),
    booking_id=BOOKING.id,
    event_id=BOOKING.event_id,
    kind=Kind.SEAT,
    name="A1",
    unit=1,
    secret=CODE,
    created_at=NOW,
)


def booking(**changed: Any) -> Booking:
    return Booking(**{name: getattr(BOOKING, name) for name in BOOKING.__struct_fields__} | changed)


def refused(found: Booking | None = BOOKING, **how: Any) -> ScanReason | None:
    told: dict[str, Any] = {"mode": Mode.LIVE, "event_id": None, "admitted": False} | how
    return why_refused(TICKET if found else None, found, **told)


def test_a_booking_has_a_ticket_for_each_seat_and_each_unit() -> None:
    """Units are numbered from 1; a cancelled unit is the last one."""
    assert places_of(LINES) == (
        Place(kind=Kind.SEAT, name="A1"),
        Place(kind=Kind.POOL, name="GA", unit=1),
        Place(kind=Kind.POOL, name="GA", unit=2),
    )
    fewer = Lines(pools=(PoolLine(id=PoolId("GA"), units=1, price=1000),))
    assert [is_listed(place, fewer) for place in places_of(LINES)] == [False, True, False]
    assert not is_listed(Place(kind=Kind.POOL, name="A1"), LINES), "a pool of a seat's name is another thing"


@pytest.mark.parametrize("state", [state for state in State if state is not State.CONFIRMED])
def test_only_a_confirmed_booking_admits(state: State) -> None:
    """Also one that expired or failed after its tickets were made, if a hand-written statement made that so."""
    expected = ScanReason.CANCELLED if state is State.CANCELLED else ScanReason.NOT_CONFIRMED
    assert refused(booking(state=state)) is expected
    assert why_invalid(TICKET.place, state=state, lines=LINES) is expected


def test_a_scan_is_refused_for_the_first_reason_that_applies() -> None:
    """What is not the door's business comes first, then validity, and only then whether it was used."""
    gone = booking(lines=Lines())
    assert refused() is None
    assert refused(None) is ScanReason.UNKNOWN
    assert refused(gone, mode=Mode.TEST, event_id=EventId("opera"), admitted=True) is ScanReason.UNKNOWN
    assert refused(gone, event_id=EventId("opera"), admitted=True) is ScanReason.WRONG_EVENT
    assert refused(gone, event_id=EventId("concert"), admitted=True) is ScanReason.SEAT_NOT_IN_BOOKING
    assert refused(booking(state=State.CANCELLED), admitted=True) is ScanReason.CANCELLED
    assert refused(admitted=True) is ScanReason.ALREADY_ADMITTED


def test_a_pool_is_used_up_when_as_many_visitors_are_inside_as_it_has_units() -> None:
    """Whichever units those were; a seat admits by itself, and another pool does not count."""
    unit = Place(kind=Kind.POOL, name="GA", unit=1)
    assert [is_used_up(unit, LINES, others_inside=inside) for inside in (0, 1, 2, 3)] == [False, False, True, True]
    assert not is_used_up(TICKET.place, LINES, others_inside=2)
    assert not is_used_up(Place(kind=Kind.POOL, name="A1"), LINES, others_inside=2)


def test_a_code_may_be_typed_in_groups_and_in_capitals() -> None:
    """As it is printed, or as a phone's keyboard writes it."""
    for typed in (CODE, CODE.upper(), " ".join(CODE[n : n + 4] for n in range(0, 32, 4)), f" {CODE[:8]}-{CODE[8:]}\n"):
        assert code_of(typed) == CODE
    assert is_secret(CODE)
    for wrong in ("", CODE[1:], CODE + "a", f"{CODE[1:]}0", f"{CODE[1:]}l", f"{CODE[1:]}é", f"{CODE}\n"):
        assert not is_secret(wrong)


def test_a_secret_is_random_and_easy_to_type() -> None:
    """No two of a thousand are equal, and each character of the alphabet is used."""
    made = {new_secret() for _ in range(1000)}
    assert len(made) == 1000
    assert all(map(is_secret, made))
    assert set("".join(made)) == set(ALPHABET)
    assert not set("o01il") & set(ALPHABET)
    assert len(ALPHABET) ** SECRET_LENGTH > 2**128


def scan(**changed: Any) -> Scan:
    told: dict[str, Any] = {
        "id": UUID(int=3),
        "caller": "key:k",
        "nonce": "1",
        "mode": Mode.LIVE,
        "code_hash": bytes(32),
        "ticket_id": TICKET.id,
        "event_id": TICKET.event_id,
        "admitted": True,
        "reason": None,
        "offline": False,
        "scanned_at": NOW,
        "received_at": NOW,
    }
    return Scan(**told | changed)


def test_only_a_young_admission_is_undone() -> None:
    """Until 15 minutes after it; a double admission that was reported is no admission."""
    check_undo(scan(), now=NOW + timedelta(seconds=UNDO_SECONDS_MAX))
    with pytest.raises(UndoRefused):
        check_undo(scan(), now=NOW + timedelta(seconds=UNDO_SECONDS_MAX + 1))
    for other in (
        scan(admitted=False, reason=ScanReason.CANCELLED),
        scan(offline=True, reason=ScanReason.ALREADY_ADMITTED),
    ):
        with pytest.raises(UndoRefused):
            check_undo(other, now=NOW)
