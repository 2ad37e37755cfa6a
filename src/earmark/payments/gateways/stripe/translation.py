"""Translate Stripe's intents, refunds, callbacks and amounts to Earmark's, and back. This module makes no calls.

    requires_capture          authorised
    succeeded                 captured
    processing                processing
    requires_action           requires_action
    requires_payment_method   declined, if it was confirmed; else voided: Earmark will not confirm it any more
    requires_confirmation     voided, for the same reason
    canceled                  declined, if its last confirmation failed; else voided

An intent that is reported as declined or voided and is not cancelled yet is `open`: a client that has its client
secret could still pay it. The gateway cancels it before it reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from earmark.domain.live_or_test_mode import Mode
from earmark.domain.money import EXPONENTS
from earmark.domain.payment import ReportedState
from earmark.engine.ports.gateway import (
    Callback,
    CallbackRefused,
    GatewayDenied,
    Record,
    RefundRecord,
    RefundReport,
    Report,
)
from earmark.engine.ports.gateway import ReportedRefundState as Refunding

PAYMENT_ID = "payment_id"
BOOKING_ID = "booking_id"
EVENT_ID = "event_id"
REFUND_ID = "refund_id"

DIFFERENT_EXPONENTS = {"ISK": 2, "MGA": 0, "UGX": 2}
"""Where Stripe's minor unit differs from ISO 4217: 5 ISK are 500 there, and 5.00 MGA are 5."""
HIDDEN_DECLINE_CODES = frozenset({"fraudulent", "generic_decline", "lost_card", "merchant_blacklist", "stolen_card"})
"""Decline codes that Stripe asks not to show to the buyer."""
OPEN = frozenset({"requires_payment_method", "requires_confirmation"})
CHARGED = frozenset({"payment_intent", "charge"})
"""The objects whose amount is the payment's; a refund and a dispute have an amount of their own."""


class StripeCharge(msgspec.Struct, frozen=True, kw_only=True):
    """A Charge: one attempt to take the money. Only the fields used here."""

    status: str = ""
    amount_refunded: int = 0
    failure_code: str | None = None
    failure_message: str | None = None


class StripePaymentError(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt failed."""

    code: str | None = None
    decline_code: str | None = None
    message: str | None = None

    @property
    def most_specific_code(self) -> str:
        """The most specific code that a buyer may see."""
        shown = self.decline_code if self.decline_code not in HIDDEN_DECLINE_CODES else None
        return shown or self.code or "declined"


class StripeRedirect(msgspec.Struct, frozen=True, kw_only=True):
    """The URL where the buyer has to act."""

    url: str | None = None


class StripeNextAction(msgspec.Struct, frozen=True, kw_only=True):
    """The action that Stripe requires of the buyer."""

    redirect_to_url: StripeRedirect | None = None


class StripeIntent(msgspec.Struct, frozen=True, kw_only=True):
    """A PaymentIntent. Only the fields used here."""

    id: str
    status: str
    amount: int
    currency: str
    amount_received: int = 0
    metadata: Mapping[str, str] = {}
    latest_charge: StripeCharge | str | None = None
    last_payment_error: StripePaymentError | None = None
    next_action: StripeNextAction | None = None
    client_secret: str | None = None
    cancellation_reason: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether Earmark will not use it any more and a client could still pay it."""
        return self.status in OPEN

    @property
    def payment_error(self) -> StripePaymentError | None:
        """Why its last attempt failed, if it did. Of a cancelled intent, only the charge may say it."""
        charge = self.latest_charge
        if self.last_payment_error is None and isinstance(charge, StripeCharge) and charge.status == "failed":
            return StripePaymentError(code=charge.failure_code, message=charge.failure_message)
        return self.last_payment_error


class StripeRefund(msgspec.Struct, frozen=True, kw_only=True):
    """A Refund. Only the fields used here."""

    id: str
    amount: int = 0
    currency: str = ""
    status: str | None = None
    metadata: Mapping[str, str] | None = None
    failure_reason: str | None = None


class StripeEventData(msgspec.Struct, frozen=True, kw_only=True):
    """The object of an event."""

    object: Any


class StripeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An Event. Only the fields used here."""

    id: str
    type: str
    livemode: bool
    data: StripeEventData
    account: str | None = None


def to_stripe(amount: int, currency: str) -> int:
    """Convert our minor units to Stripe's; refused where Stripe has no such fraction."""
    more, less = _scales(currency)
    units, rest = divmod(amount * more, less)
    if rest:
        raise GatewayDenied("amount_not_payable", f"Stripe charges {currency} in whole units only.")
    return units


def from_stripe(amount: int, currency: str) -> int:
    """Convert Stripe's minor units to ours."""
    more, less = _scales(currency)
    return amount * less // more


def report_of(intent: StripeIntent) -> Report:
    """The report on an intent."""
    error = intent.payment_error
    match intent.status:
        case "requires_capture":
            return Report(state=ReportedState.AUTHORISED, gateway_id=intent.id)
        case "succeeded":
            captured, refunded = _taken(intent)
            return Report(state=ReportedState.CAPTURED, gateway_id=intent.id, captured=captured, refunded=refunded)
        case "requires_action":
            return Report(state=ReportedState.REQUIRES_ACTION, gateway_id=intent.id, action=_action(intent))
        case "requires_payment_method" | "requires_confirmation" | "canceled" if error is not None:
            why, sentence = error.most_specific_code, error.message
            return Report(state=ReportedState.DECLINED, gateway_id=intent.id, code=why, message=sentence)
        case "requires_payment_method" | "requires_confirmation" | "canceled":
            return Report(state=ReportedState.VOIDED, gateway_id=intent.id, code=intent.cancellation_reason)
        case _:
            # "processing", and statuses that Stripe may add later: the caller polls again.
            return Report(state=ReportedState.PROCESSING, gateway_id=intent.id)


def payment_id_of(intent: StripeIntent) -> UUID | None:
    """Our payment id; None for an intent that Earmark did not create."""
    return _uuid(intent.metadata.get(PAYMENT_ID))


def record_of(intent: StripeIntent) -> Record:
    """The record of an intent."""
    captured, refunded = _taken(intent)
    return Record(
        payment_id=payment_id_of(intent),
        gateway_id=intent.id,
        state=report_of(intent).state,
        currency=intent.currency.upper(),
        captured=captured,
        refunded=refunded,
    )


def refund_report_of(refund: StripeRefund) -> RefundReport:
    """The report on a refund."""
    match refund.status:
        case "succeeded":
            return RefundReport(state=Refunding.DONE, gateway_id=refund.id)
        case "failed" | "canceled":
            code = refund.failure_reason or f"refund_{refund.status}"
            return RefundReport(state=Refunding.REFUSED, gateway_id=refund.id, code=code)
        case _:
            return RefundReport(state=Refunding.PROCESSING, gateway_id=refund.id)


def refund_id_of(refund: StripeRefund) -> UUID | None:
    """Our refund id; None for a refund that Earmark did not create."""
    return _uuid((refund.metadata or {}).get(REFUND_ID))


def refund_record_of(refund: StripeRefund) -> RefundRecord:
    """The record of a refund."""
    return RefundRecord(
        refund_id=refund_id_of(refund),
        gateway_id=refund.id,
        amount=from_stripe(refund.amount, refund.currency.upper()),
        state=refund_report_of(refund).state,
    )


def callback_of(body: bytes, *, mode: Mode, account: str | None) -> Callback:
    """Read a callback whose signature was verified before."""
    try:
        event = msgspec.json.decode(body, type=StripeEvent)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise CallbackRefused("The body is not an event of Stripe.") from None
    if event.livemode is not (mode is Mode.LIVE):
        raise CallbackRefused("The event is of test mode and the key of live mode, or the reverse.")
    if event.account != account:
        raise CallbackRefused("The event is of another Stripe account.")
    about = event.data.object if isinstance(event.data.object, dict) else {}
    given = about.get("metadata")
    metadata = given if isinstance(given, dict) else {}
    charged = about.get("object") in CHARGED
    return Callback(
        id=event.id,
        kind=event.type,
        mode=Mode.LIVE if event.livemode else Mode.TEST,
        payment_id=_uuid(metadata.get(PAYMENT_ID)),
        booking_id=_uuid(metadata.get(BOOKING_ID)),
        gateway_id=_text(about.get("id" if about.get("object") == "payment_intent" else "payment_intent")),
        amount=_amount(about) if charged else None,
        currency=(_text(about.get("currency")) or "").upper() or None if charged else None,
        disputed=about.get("object") == "dispute",
        refund=about.get("object") == "refund",
    )


def _scales(currency: str) -> tuple[int, int]:
    """The factor and the divisor from our minor units to Stripe's."""
    ours = EXPONENTS.get(currency, 2)
    shift = DIFFERENT_EXPONENTS.get(currency, ours) - ours
    return int(10 ** max(shift, 0)), int(10 ** max(-shift, 0))


def _taken(intent: StripeIntent) -> tuple[int, int]:
    """The captured and the refunded amount. Stripe also counts an uncaptured amount that was cancelled as refunded."""
    charge = intent.latest_charge
    currency = intent.currency.upper()
    refunded = charge.amount_refunded if isinstance(charge, StripeCharge) and intent.amount_received else 0
    return from_stripe(intent.amount_received, currency), from_stripe(refunded, currency)


def _action(intent: StripeIntent) -> dict[str, str]:
    redirect = intent.next_action.redirect_to_url if intent.next_action else None
    needed = {"url": redirect.url if redirect else None, "client_secret": intent.client_secret}
    return {name: value for name, value in needed.items() if value}


def _amount(about: Mapping[str, Any]) -> int | None:
    amount, currency = about.get("amount"), _text(about.get("currency"))
    return from_stripe(amount, currency.upper()) if isinstance(amount, int) and currency else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _uuid(text: object) -> UUID | None:
    try:
        return UUID(text) if isinstance(text, str) else None
    except ValueError:
        return None
