"""The API's words about money: how to pay, and what became of it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from earmark.api.words import BookingAnswer, Moment, Reference, booking_answer
from earmark.domain.money import AMOUNT_MAX, Money
from earmark.domain.payment import Payment, PaymentState
from earmark.domain.refunds import Reason

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.engine.asks import Paid, Undone


class Capture(StrEnum):
    """When the money is taken."""

    MANUAL = "manual"
    """Set aside first, and taken once the booking is certain."""
    AUTOMATIC = "automatic"
    """At once, for ways to pay that cannot set money aside."""


class PayBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """How to pay: a token of the gateway's own, never a card number."""

    method: Reference
    gateway: Reference | None = None
    capture: Capture = Capture.MANUAL
    return_url: Annotated[str, Meta(max_length=2000, pattern="^https?://")] | None = None


class RefundBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """How much goes back, in minor units."""

    amount: Annotated[int, Meta(ge=1, le=AMOUNT_MAX)]
    reason: Reference | None = None


class PaymentAnswer(Struct, kw_only=True):
    """A payment, as it stood at the moment of the answer."""

    id: str
    booking_id: str
    gateway: str
    method: str
    state: PaymentState
    amount: Money
    captured: int
    refunding: int
    refunded: int
    code: str | None
    message: str | None
    action: dict[str, str] | None
    created_at: Moment


class PaidAnswer(BookingAnswer, kw_only=True):
    """A booking and the payment that was opened for it, if anything was to be paid."""

    payment: PaymentAnswer | None


class RulingAnswer(Struct, kw_only=True):
    """What became of the money of what was undone: given back and kept, in minor units, and by which rule."""

    refund: int
    fee: int
    reason: Reason


class UndoneAnswer(BookingAnswer, kw_only=True):
    """A booking of which a sale was undone; `money` is null where none was taken here, or nothing was left to undo."""

    money: RulingAnswer | None


class PaymentsAnswer(Struct, kw_only=True):
    """All payments of a booking, oldest first."""

    payments: list[PaymentAnswer]


class CallbackAnswer(Struct, kw_only=True):
    """The callback was taken in."""

    received: bool


def payment_answer(payment: Payment) -> PaymentAnswer:
    """A payment in the API's words."""
    return PaymentAnswer(
        id=str(payment.id),
        booking_id=str(payment.booking_id),
        gateway=payment.gateway,
        method=payment.method,
        state=payment.state,
        amount=Money(amount=payment.amount, currency=payment.currency),
        captured=payment.captured,
        refunding=payment.refunding,
        refunded=payment.refunded,
        code=payment.code,
        message=payment.message,
        action=dict(payment.action) if payment.action else None,
        created_at=payment.created_at,
    )


def paid_answer(paid: Paid, now: datetime) -> PaidAnswer:
    """A booking and its payment in the API's words."""
    booking = msgspec.structs.asdict(booking_answer(paid.booking, now))
    return PaidAnswer(**booking, payment=payment_answer(paid.payment) if paid.payment else None)


def undone_answer(undone: Undone, now: datetime) -> UndoneAnswer:
    """A booking and what became of its money in the API's words."""
    booking, ruling = msgspec.structs.asdict(booking_answer(undone.booking, now)), undone.money
    return UndoneAnswer(**booking, money=RulingAnswer(**msgspec.structs.asdict(ruling)) if ruling else None)
