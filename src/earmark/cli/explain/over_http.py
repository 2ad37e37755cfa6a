"""The story of a booking or a seat as a service tells it over HTTP, to the bearer of one key.

As JSON it is what the API answers, field for field. In words it is told by the same functions as a database's story;
what the API does not answer is never made up: the words leave it out and say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from earmark.cli.explain import booking as story
from earmark.cli.explain import seat as seat_story
from earmark.domain.booking import Booking, Lines, PoolLine, SeatLine
from earmark.domain.ids import BookingId, Buyer, EventId, PaymentId, PoolId, RefundId, SeatId
from earmark.domain.mode import Mode
from earmark.domain.payment import Payment, Refund
from earmark.domain.seat import Seat, SeatState
from earmark.domain.state_machine import State
from earmark.engine.ports.store import SeatOnMap
from earmark.observability.redaction import redact
from earmark.schemas import responses

if TYPE_CHECKING:
    from earmark.client import AsyncClient

KEYS_BEGIN_WITH = "ek_"
"""Other bearers are buyers, by a token."""
BOOKINGS_MAX = 10_000
"""How many bookings of an event are read to find those that list a seat."""
GATEWAY_IDS = "the gateway's own ids"
EACH_REFUND = "each refund by itself and what the gateway said of it"
NOTES = "reasons that the shop noted"
HAD_ALONE = "whether a booking gave this seat alone back"
OTHERS = "bookings of other buyers"
MORE_BOOKINGS = f"bookings after the first {BOOKINGS_MAX} of the event"


class ServiceStory(msgspec.Struct, frozen=True, kw_only=True):
    """A booking with all that the API answers about it."""

    service: str
    booking: responses.Booking
    history: list[responses.Entry]
    payments: list[responses.ListedPayment]
    not_told: list[str]


class ServiceSeatStory(msgspec.Struct, frozen=True, kw_only=True):
    """A seat with all that the API answers about it."""

    service: str
    event_id: str
    seat: responses.Seat
    why: str
    owner: ServiceStory | None
    """The booking that it points to, which may have ended."""
    had: list[responses.Booking]
    """The bookings that list it, oldest first."""
    not_told: list[str]


async def read(client: AsyncClient, booking_id: BookingId, *, key: str | None) -> ServiceStory:
    """Three questions; the booking may move between them, and the history is asked for last."""
    booking = await client.booking(booking_id)
    payments = await client.payments(booking_id)
    not_told = [NOTES] if _is_buyer(key) else []
    # A service of an older release tells neither.
    if any(payment.captured and payment.gateway_id is None for payment in payments):
        not_told.append(GATEWAY_IDS)
    if any(payment.refunding and not payment.refunds for payment in payments):
        not_told.append(EACH_REFUND)
    history = await client.history(booking_id)
    return ServiceStory(
        service=redact(client.url), booking=booking, history=history, payments=payments, not_told=not_told
    )


async def read_seat(
    client: AsyncClient, *, event_id: EventId, seat_id: SeatId, key: str | None, bookings_max: int = BOOKINGS_MAX
) -> ServiceSeatStory:
    """Whose it is, and the bookings of its event, page by page, for those that list it."""
    seat = await client.seat(event_id, seat_id)
    said = await client.explain(event_id, seat_id)
    owner = await read(client, BookingId(UUID(said.booking_id)), key=key) if said.booking_id else None
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
    not_told = [*(owner.not_told if owner else ()), *(part for part, applies in parts.items() if applies)]
    return ServiceSeatStory(
        service=redact(client.url), event_id=event_id, seat=seat, why=said.why, owner=owner, had=had, not_told=not_told
    )


def lines(told: ServiceStory | ServiceSeatStory) -> Iterator[str]:
    """As a person would tell it; the last line says whose word it is and what is left out."""
    if isinstance(told, ServiceStory):
        yield from story.lines(_story(told))
    else:
        yield from seat_story.lines(_seat_story(told))
    yield ""
    left_out = f" It does not tell: {'; '.join(told.not_told)}." if told.not_told else ""
    yield f"So says the service at {told.service}.{left_out}"


def _is_buyer(key: str | None) -> bool:
    return key is not None and not key.startswith(KEYS_BEGIN_WITH)


def _story(told: ServiceStory) -> story.Story:
    booking = _booking(told.booking, told.history)
    return story.Story(
        now=_now(told.booking),
        booking=booking,
        history=told.history,
        payments=[(_payment(payment, booking), _refunds(payment, booking)) for payment in told.payments],
    )


def _seat_story(told: ServiceSeatStory) -> seat_story.SeatStory:
    owner = _story(told.owner) if told.owner else None
    seat = Seat(
        event_id=EventId(told.event_id),
        id=SeatId(told.seat.id),
        price=told.seat.price,
        blocked=told.seat.state is SeatState.BLOCKED,
    )
    return seat_story.SeatStory(
        now=owner.now if owner else datetime.now(UTC),
        seat=SeatOnMap(seat=seat),
        owner=owner,
        had=[_booking(booking, ()) for booking in told.had],
        fence_known=False,
    )


def _now(booking: responses.Booking) -> datetime:
    """The service's own time, of a hold; for the others it decides nothing."""
    return booking.expires_at - timedelta(seconds=booking.expires_in or 0.0)


def _booking(booking: responses.Booking, history: Sequence[responses.Entry]) -> Booking:
    """With the time that its journal gave to its payment, and held until its journal says that it is ended."""
    pinned = [entry.facts["paying_until"] for entry in history if entry.facts.get("paying_until")]
    is_due = booking.state is State.EXPIRED and bool(history) and history[-1].after == State.HELD
    return Booking(
        id=BookingId(UUID(booking.id)),
        event_id=EventId(booking.event_id),
        buyer=Buyer(booking.buyer),
        mode=Mode.TEST,  # not told, and in none of the words
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
    """One by one; None where a service of an older release knows only their sums."""
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
