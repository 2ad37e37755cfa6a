"""Explains a booking or a seat from what a service returns over HTTP to one key or buyer's token.

As JSON it is what the API returns, field for field. The text is made by the same functions as for a database; what the
API does not return is left out, and the last line says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from earmark.cli.explain import booking as booking_text
from earmark.cli.explain import seat as seat_text
from earmark.domain.booking import Booking, Lines, PoolLine, SeatLine
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import BookingId, Buyer, EventId, PaymentId, PoolId, RefundId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import Payment, Refund
from earmark.domain.seat import Seat, SeatState
from earmark.engine.ports.store import SeatOnMap
from earmark.observability.redaction import redact
from earmark.schemas import responses

if TYPE_CHECKING:
    from earmark.client import AsyncClient

KEYS_BEGIN_WITH = "ek_"
"""A credential that begins with anything else is a buyer's token."""
BOOKINGS_MAX = 10_000
"""How many bookings of an event are read to find those that list a seat."""
GATEWAY_IDS = "the gateway's own ids"
EACH_REFUND = "each refund by itself and what the gateway reported about it"
NOTES = "reasons that the shop noted"
HAD_ALONE = "whether a booking gave this seat alone back"
OTHERS = "bookings of other buyers"
MORE_BOOKINGS = f"bookings after the first {BOOKINGS_MAX} of the event"


class ServiceBookingExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A booking with all that the API returns about it."""

    service: str
    booking: responses.Booking
    history: list[responses.Entry]
    payments: list[responses.ListedPayment]
    left_out: list[str]


class ServiceSeatExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A seat with all that the API returns about it."""

    service: str
    event_id: str
    seat: responses.Seat
    why: str
    owner: ServiceBookingExplanation | None
    """The booking that it points to, which may have ended."""
    had: list[responses.Booking]
    """The bookings that list it, oldest first."""
    left_out: list[str]


async def read(client: AsyncClient, booking_id: BookingId, *, key: str | None) -> ServiceBookingExplanation:
    """Read a booking in three requests. It may move between them, so the history is read last."""
    booking = await client.booking(booking_id)
    payments = await client.payments(booking_id)
    left_out = [NOTES] if _is_buyer(key) else []
    # A service of an older release returns neither.
    if any(payment.captured and payment.gateway_id is None for payment in payments):
        left_out.append(GATEWAY_IDS)
    if any(payment.refunding and not payment.refunds for payment in payments):
        left_out.append(EACH_REFUND)
    history = await client.history(booking_id)
    return ServiceBookingExplanation(
        service=redact(client.url), booking=booking, history=history, payments=payments, left_out=left_out
    )


async def read_seat(
    client: AsyncClient, *, event_id: EventId, seat_id: SeatId, key: str | None, bookings_max: int = BOOKINGS_MAX
) -> ServiceSeatExplanation:
    """Read a seat and its booking, and search the event's bookings for those that list the seat."""
    seat = await client.seat(event_id, seat_id)
    explanation = await client.explain(event_id, seat_id)
    owner = await read(client, BookingId(UUID(explanation.booking_id)), key=key) if explanation.booking_id else None
    had, count = [], 0
    async for booking in client.bookings(event_id=event_id):
        count += 1
        if count > bookings_max:
            break
        if any(line.id == seat_id for line in booking.seats):
            had.append(booking)
    parts = {
        OTHERS: _is_buyer(key),
        MORE_BOOKINGS: count > bookings_max,
        HAD_ALONE: owner is None and not had,
    }
    left_out = [*(owner.left_out if owner else ()), *(part for part, applies in parts.items() if applies)]
    return ServiceSeatExplanation(
        service=redact(client.url),
        event_id=event_id,
        seat=seat,
        why=explanation.why,
        owner=owner,
        had=had,
        left_out=left_out,
    )


def lines(explained: ServiceBookingExplanation | ServiceSeatExplanation) -> Iterator[str]:
    """The explanation as lines of text; the last one names the service and what is left out."""
    if isinstance(explained, ServiceBookingExplanation):
        yield from booking_text.lines(_booking_explanation(explained))
    else:
        yield from seat_text.lines(_seat_explanation(explained))
    yield ""
    left_out = f" It does not show: {'; '.join(explained.left_out)}." if explained.left_out else ""
    yield f"Source: the service at {explained.service}.{left_out}"


def _is_buyer(key: str | None) -> bool:
    return key is not None and not key.startswith(KEYS_BEGIN_WITH)


def _booking_explanation(explained: ServiceBookingExplanation) -> booking_text.BookingExplanation:
    booking = _booking(explained.booking, explained.history)
    return booking_text.BookingExplanation(
        now=_now(explained.booking),
        booking=booking,
        history=explained.history,
        payments=[(_payment(payment, booking), _refunds(payment, booking)) for payment in explained.payments],
    )


def _seat_explanation(explained: ServiceSeatExplanation) -> seat_text.SeatExplanation:
    owner = _booking_explanation(explained.owner) if explained.owner else None
    seat = Seat(
        event_id=EventId(explained.event_id),
        id=SeatId(explained.seat.id),
        price=explained.seat.price,
        blocked=explained.seat.state is SeatState.BLOCKED,
    )
    return seat_text.SeatExplanation(
        now=owner.now if owner else datetime.now(UTC),
        seat=SeatOnMap(seat=seat),
        owner=owner,
        had=[_booking(booking, ()) for booking in explained.had],
        fence_known=False,
    )


def _now(booking: responses.Booking) -> datetime:
    """The service's time, derived from a hold's `expires_in`; in other states the time does not matter."""
    return booking.expires_at - timedelta(seconds=booking.expires_in or 0.0)


def _booking(booking: responses.Booking, history: Sequence[responses.Entry]) -> Booking:
    """The booking as stored: `paying_until` is taken from the journal, and a due hold is `held`, not `expired`."""
    pinned = [entry.facts["paying_until"] for entry in history if entry.facts.get("paying_until")]
    is_due = booking.state is State.EXPIRED and bool(history) and history[-1].after == State.HELD
    return Booking(
        id=BookingId(UUID(booking.id)),
        event_id=EventId(booking.event_id),
        buyer=Buyer(booking.buyer),
        mode=Mode.TEST,  # not in the response, and not in the text
        state=State.HELD if is_due else booking.state,
        lines=Lines(
            seats=tuple(SeatLine(**msgspec.structs.asdict(line)) for line in booking.seats),
            pools=tuple(PoolLine(id=PoolId(line.id), units=line.units, price=line.price) for line in booking.pools),
        ),
        total=booking.total.amount,
        currency=booking.total.currency,
        created_at=booking.created_at,
        expires_at=booking.expires_at,
        paying_until=datetime.fromisoformat(pinned[-1]) if pinned and booking.state is State.PAYING else None,
        confirmed_at=booking.confirmed_at,
        ended_at=booking.ended_at,
    )


def _payment(payment: responses.Payment, booking: Booking) -> Payment:
    return Payment(
        id=PaymentId(UUID(payment.id)),
        booking_id=booking.id,
        event_id=booking.event_id,
        mode=Mode.TEST,  # as above
        gateway=payment.gateway,
        method=payment.method,
        amount=payment.amount.amount,
        currency=payment.amount.currency,
        automatic=False,  # as above
        created_at=payment.created_at,
        state=payment.state,
        captured=payment.captured,
        refunding=payment.refunding,
        refunded=payment.refunded,
        code=payment.code,
        gateway_id=payment.gateway_id,
        processed_at=payment.processed_at,
    )


def _refunds(payment: responses.ListedPayment, booking: Booking) -> list[Refund] | None:
    """The single refunds; None where a service of an older release returns only their sums."""
    if payment.refunding and not payment.refunds:
        return None
    return [
        Refund(
            **msgspec.structs.asdict(refund) | {"id": RefundId(UUID(refund.id))},
            payment_id=PaymentId(UUID(payment.id)),
            booking_id=booking.id,
        )
        for refund in payment.refunds
    ]
