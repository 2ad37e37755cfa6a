"""Converts the engine's values to response values."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.booking_state_machine import State
from earmark.domain.journal_before_and_after_values import changes_of, plain_facts
from earmark.domain.money import Money
from earmark.domain.payment import UNDECIDED, PaymentState
from earmark.domain.seat import SeatState, shown_state
from earmark.errors import BookingExpired, BookingResolved, PaymentDeclined
from earmark.schemas import responses

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking, SeatLine
    from earmark.domain.contact import Contact
    from earmark.domain.id_types import Buyer
    from earmark.domain.journal_entry import Entry
    from earmark.domain.payment import Payment, Refund
    from earmark.domain.pool import Pool
    from earmark.engine.commands_and_results import CancelResult, PayResult
    from earmark.engine.ports.store import SeatMap, SeatOnMap
    from earmark.errors import Refusal

_BY_HAND = "_by_hand"
"""The suffix of the codes of payments that an operator has settled."""
_CLOCK, _GATEWAY = "clock", "gateway:"
"""Actors of the journal that are not callers; of gateways, the prefix."""
_encode = msgspec.json.Encoder().encode


def event_value(event: Event) -> responses.Event:
    """The response value of an event."""
    return responses.Event(**msgspec.structs.asdict(event))


def booking_value(booking: Booking, now: datetime) -> responses.Booking:
    """The response value of a booking. A hold past its `expires_at` is shown as expired, swept or not."""
    state = State.EXPIRED if booking.is_due(now) else booking.state
    left = (booking.expires_at - now).total_seconds()
    return responses.Booking(
        id=str(booking.id),
        event_id=booking.event_id,
        buyer=booking.buyer,
        state=state,
        expires_at=booking.expires_at,
        expires_in=round(left, 3) if state is State.HELD else None,
        seats=tuple([_seat_line(line) for line in booking.lines.seats]),
        pools=tuple(
            [responses.PoolLine(id=line.id, units=line.units, price=line.price) for line in booking.lines.pools]
        ),
        total=Money(amount=booking.total, currency=booking.currency),
        created_at=booking.created_at,
        confirmed_at=booking.confirmed_at,
        ended_at=booking.ended_at,
        payment_id=booking.payment_id,
        payment_method=booking.payment_method,
        version=booking.version,
    )


def buyers_booking_value(booking: Booking, now: datetime, *, until: datetime | None) -> responses.Booking:
    """The same for its buyer, with the moment until which the buyer may cancel it; None where that is not allowed."""
    return msgspec.structs.replace(booking_value(booking, now), cancellable_until=until)


def contact_value(contact: Contact, *, mailed: bool | msgspec.UnsetType = msgspec.UNSET) -> responses.Contact:
    """The response value of a contact, with whether mails go to it where that is known."""
    return responses.Contact(
        booking_id=str(contact.booking_id),
        name=contact.name,
        email=contact.email,
        language=contact.language,
        mailed=mailed,
    )


def _seat_line(line: SeatLine) -> responses.SeatLine:
    return responses.SeatLine(
        id=line.id,
        price=line.price,
        row=line.row,
        number=line.number,
        section=line.section,
        category=line.category,
    )


def payment_value(payment: Payment, *, notes: bool = True) -> responses.Payment:
    """The response value of a payment. Without `notes`, for a buyer: without the note of an operator who settled it."""
    by_hand = payment.code is not None and payment.code.endswith(_BY_HAND)
    return responses.Payment(
        id=str(payment.id),
        booking_id=str(payment.booking_id),
        gateway=payment.gateway,
        method=payment.shown_method,
        state=payment.state,
        amount=Money(amount=payment.amount, currency=payment.currency),
        captured=payment.captured,
        refunding=payment.refunding,
        refunded=payment.refunded,
        refunded_elsewhere=payment.refunded_elsewhere,
        code=payment.code,
        message=payment.message if notes or not by_hand else None,
        action=dict(payment.action) if payment.action else None,
        created_at=payment.created_at,
        gateway_id=payment.gateway_id,
        processed_at=payment.processed_at,
    )


def listed_payment_value(payment: Payment, refunds: Sequence[Refund], *, notes: bool = True) -> responses.ListedPayment:
    """A payment with its refunds. Without `notes`, for a buyer: without reasons that an operator may have typed."""
    back = tuple([_refund_value(refund, notes=notes) for refund in refunds])
    return responses.ListedPayment(**msgspec.structs.asdict(payment_value(payment, notes=notes)), refunds=back)


def _refund_value(refund: Refund, *, notes: bool) -> responses.Refund:
    return responses.Refund(
        id=str(refund.id),
        amount=refund.amount,
        state=refund.state,
        reason=refund.reason if notes else None,
        code=refund.code,
        created_at=refund.created_at,
        gateway_id=refund.gateway_id,
        processed_at=refund.processed_at,
    )


def paid_value(paid: PayResult, now: datetime, *, notes: bool = True) -> responses.Paid:
    """The response value of a booking and its payment; without `notes` as a buyer sees them."""
    booking = msgspec.structs.asdict(booking_value(paid.booking, now))
    return responses.Paid(**booking, payment=payment_value(paid.payment, notes=notes) if paid.payment else None)


def undone_value(undone: CancelResult, now: datetime) -> responses.Undone:
    """The response value of a cancelled booking, and what was refunded."""
    booking, ruling = msgspec.structs.asdict(booking_value(undone.booking, now)), undone.money
    return responses.Undone(**booking, money=responses.Ruling(**msgspec.structs.asdict(ruling)) if ruling else None)


def is_under_way(paid: PayResult) -> bool:
    """Whether the payment is not decided yet."""
    return paid.payment is not None and paid.booking.state is not State.CONFIRMED and paid.payment.state in UNDECIDED


def refused_payment(paid: PayResult, now: datetime) -> Refusal | None:
    """The refusal for a payment that did not confirm its booking; None if it did, or is not decided yet."""
    booking, payment = paid.booking, paid.payment
    if payment is None or booking.state is State.CONFIRMED or is_under_way(paid):
        return None
    if payment.state is PaymentState.FAILED:
        left = (booking.expires_at - now).total_seconds()
        in_time = booking.state is State.HELD and left > 0
        return PaymentDeclined(
            state=booking.state.value, expires_in=round(left, 3) if in_time else None, why=payment.code
        )
    if booking.state is State.EXPIRED:
        return BookingExpired(expires_at=booking.expires_at)
    return BookingResolved(state=booking.state.value)


def seat_value(on_map: SeatOnMap, *, now: datetime, buyer: Buyer | None) -> responses.Seat:
    """The response value of a seat; `mine` is true where `buyer` holds or owns it."""
    seat, ends_at = on_map.seat, on_map.owner_expires_at
    state = shown_state(
        blocked=seat.blocked, owner_state=on_map.owner_state, due=ends_at is not None and now >= ends_at
    )
    owned = state in {SeatState.HELD, SeatState.BOOKED}
    return responses.Seat(
        id=seat.id,
        state=state,
        price=seat.price,
        row=seat.row,
        number=seat.number,
        section=seat.section,
        category=seat.category,
        x=seat.x,
        y=seat.y,
        mine=owned and buyer is not None and on_map.owner_buyer == buyer,
    )


def pool_value(pool: Pool) -> responses.Pool:
    """The response value of a pool."""
    return responses.Pool(
        id=pool.id, capacity=pool.capacity, available=pool.free, held=pool.held, sold=pool.sold, price=pool.price
    )


def map_value(event: Event, seen: SeatMap) -> responses.Map:
    """The response value of a map, with the version that the API gives to the same map."""
    seats = tuple([seat_value(on_map, now=seen.now, buyer=None) for on_map in seen.seats])
    pools = tuple([pool_value(pool) for pool in seen.pools])
    body = _encode({"seats": seats, "pools": pools}).removeprefix(b"{")
    return responses.Map(version=map_version(event, body), seats=seats, pools=pools)


def map_version(event: Event, body: bytes) -> str:
    """A hash of a map: of its event's version, and of its seats and pools as JSON without the first brace."""
    digest = hashlib.sha256(b"%d " % event.version)
    digest.update(body)
    return digest.hexdigest()[:16]


def explanation_value(on_map: SeatOnMap, *, now: datetime, buyer: Buyer | None) -> responses.Explanation:
    """Why a seat is, or is not, available. The booking's id is shown only to its buyer and to the shop."""
    seat, ends_at = seat_value(on_map, now=now, buyer=buyer), on_map.owner_expires_at
    left = round((ends_at - now).total_seconds(), 3) if ends_at and seat.state is SeatState.HELD else None
    may_know = seat.mine or buyer is None
    return responses.Explanation(
        id=seat.id,
        state=seat.state,
        why=_why(seat, owner=on_map.owner_state),
        expires_in=left,
        booking_id=str(on_map.owner_id) if on_map.owner_id and may_know else None,
    )


def _why(seat: responses.Seat, *, owner: State | None) -> str:
    whose = "your" if seat.mine else "another"
    match seat.state:
        case SeatState.BOOKED:
            return f"It is sold: it belongs to {whose} booking."
        case SeatState.HELD if owner is State.PAYING:
            return f"It is in {whose} booking, which is being paid for."
        case SeatState.HELD:
            return f"It is held by {whose} booking, which is not paid for yet."
        case SeatState.BLOCKED:
            return "It is blocked by the organiser and not for sale."
        case SeatState.AVAILABLE:
            return f"It is free: its last booking is {owner}." if owner and owner is not State.HELD else "It is free."


def entry_value(entry: Entry, *, notes: bool = True) -> responses.Entry:
    """The response value of a journal entry. Without `notes`, for a buyer: without reasons that an operator typed."""
    return responses.Entry(
        version=entry.version,
        verb=entry.verb,
        before=entry.before,
        after=entry.after,
        actor=entry.actor,
        reason=entry.reason if notes or _is_own(entry) else None,
        at=entry.at,
        facts=plain_facts(entry.facts),
        changes=changes_of(entry),
    )


def _is_own(entry: Entry) -> bool:
    """Whether Earmark wrote the reason itself: in entries of the clock and of gateways, except refunds."""
    if entry.actor == _CLOCK:
        return True
    return entry.actor.startswith(_GATEWAY) and "refunded" not in entry.facts.get("payment", {})
