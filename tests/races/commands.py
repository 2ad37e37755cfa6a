"""The commands of the races: the same event each time, and only the fields that matter."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from earmark.domain.bookable_event import Event
from earmark.domain.id_types import Buyer, EventId, PoolId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.pool import Pool
from earmark.domain.seat import Seat
from earmark.engine.commands_and_results import (
    Actor,
    Cancel,
    Change,
    ChangeEvent,
    Confirm,
    CreateEvent,
    Extend,
    Hold,
    KeyedRequest,
    Pay,
    Release,
    SeatPatch,
)
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import Iterable

    from earmark.domain.booking import Booking

EVENT = EventId("play")
IDS = Uuid7Ids()
SHOP = Actor(name="shop", mode=Mode.LIVE)
TTL_SECONDS = 60


def a_hold(
    *seats: str,
    buyer: str = "bob",
    units: int = 0,
    ttl_seconds: int = TTL_SECONDS,
    idempotency: KeyedRequest | None = None,
) -> Hold:
    """Seats, and units of the one pool."""
    return Hold(
        actor=SHOP,
        entry_id=IDS.entry_id(),
        booking_id=IDS.booking_id(),
        event_id=EVENT,
        buyer=Buyer(buyer),
        seats=tuple(map(SeatId, seats)),
        pools={PoolId("GA"): units} if units else {},
        ttl_seconds=ttl_seconds,
        idempotency=idempotency,
    )


def a_change(
    booking: Booking, *, add: Iterable[str] = (), drop: Iterable[str] = (), units: int | None = None
) -> Change:
    """Other seats for a hold, and so many units of the one pool."""
    return Change(
        actor=SHOP,
        entry_id=IDS.entry_id(),
        booking_id=booking.id,
        add_seats=tuple(map(SeatId, add)),
        drop_seats=tuple(map(SeatId, drop)),
        pools={} if units is None else {PoolId("GA"): units},
    )


def a_confirm(booking: Booking, *, payment_id: str | None = None) -> Confirm:
    """Paid elsewhere."""
    paid = payment_id or f"paid-{booking.id}"
    return Confirm(actor=SHOP, entry_id=IDS.entry_id(), booking_id=booking.id, payment_id=paid)


def an_extend(booking: Booking, *, seconds: int = 600) -> Extend:
    """More time."""
    return Extend(actor=SHOP, entry_id=IDS.entry_id(), booking_id=booking.id, seconds=seconds)


def a_release(booking: Booking) -> Release:
    """Release the hold."""
    return Release(actor=SHOP, entry_id=IDS.entry_id(), booking_id=booking.id)


def a_payment(booking: Booking) -> Pay:
    """Begin to pay; the gateway is not called yet."""
    return Pay(
        actor=SHOP,
        entry_id=IDS.entry_id(),
        booking_id=booking.id,
        payment_id=IDS.payment_id(),
        gateway="sandbox",
        method="card",
    )


def a_cancel(booking: Booking, *seats: str) -> Cancel:
    """Undo the sale, or these seats of it."""
    return Cancel(
        actor=SHOP, entry_id=IDS.entry_id(), booking_id=booking.id, seats=frozenset(map(SeatId, seats)), reason="asked"
    )


def a_block(*seats: str) -> ChangeEvent:
    """The operator takes seats off sale."""
    patches = tuple(SeatPatch(id=SeatId(seat), blocked=True) for seat in seats)
    return ChangeEvent(actor=SHOP, entry_id=IDS.entry_id(), event_id=EVENT, seats=patches)


def a_repricing(*seats: str, price: int = 99) -> ChangeEvent:
    """The operator sets another price."""
    patches = tuple(SeatPatch(id=SeatId(seat), price=price) for seat in seats)
    return ChangeEvent(actor=SHOP, entry_id=IDS.entry_id(), event_id=EVENT, seats=patches)


def a_limit(per_buyer_max: int) -> ChangeEvent:
    """The operator limits what one buyer may have."""
    return ChangeEvent(actor=SHOP, entry_id=IDS.entry_id(), event_id=EVENT, fields={"per_buyer_max": per_buyer_max})


def a_play() -> CreateEvent:
    """An event with two rows of nine seats and a pool of ten."""
    # The seats are laid out against their alphabet: the order in which rows lie is not the order of their names.
    names = [f"{row}{number}" for row in "BA" for number in range(9, 0, -1)]
    event = Event(id=EVENT, name="Play", currency="EUR", mode=Mode.LIVE, created_at=datetime.now(UTC))
    return CreateEvent(
        actor=SHOP,
        entry_id=IDS.entry_id(),
        event=event,
        seats=tuple(Seat(event_id=EVENT, id=SeatId(name), price=1000) for name in names),
        pools=(Pool(event_id=EVENT, id=PoolId("GA"), capacity=10, price=500),),
    )
