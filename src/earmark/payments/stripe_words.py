"""Stripe's words in ours, and ours in Stripe's: intents, refunds, callbacks and amounts. Nothing here calls anybody.

    requires_capture          authorised
    succeeded                 captured
    processing                processing
    requires_action           requires_action
    requires_payment_method   declined, if it was tried; else voided: nobody will try it any more
    requires_confirmation     voided, for the same reason
    canceled                  declined, if its last try failed; else voided

The intents that are said to be declined or voided and are not cancelled yet are `open`: somebody who has their client
secret could still pay them. The gateway cancels these before it reports them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from earmark.domain.money import EXPONENTS
from earmark.domain.payment import Standing
from earmark.engine.ports.gateway import (
    Callback,
    CallbackRefused,
    GatewayDenied,
    Record,
    RefundRecord,
    RefundReport,
    Report,
)
from earmark.engine.ports.gateway import RefundStanding as Refunding

PAYMENT_ID = "payment_id"
BOOKING_ID = "booking_id"
EVENT_ID = "event_id"
REFUND_ID = "refund_id"

DIFFERENT_EXPONENTS = {"ISK": 2, "MGA": 0, "UGX": 2}
"""Where Stripe counts another unit than ISO 4217 does: 5 ISK are 500 there, and 5.00 MGA are 5."""
UNTOLD = frozenset({"fraudulent", "generic_decline", "lost_card", "merchant_blacklist", "stolen_card"})
"""Why a card was declined, where Stripe asks that the buyer is not told."""
OPEN = frozenset({"requires_payment_method", "requires_confirmation"})
CHARGED = frozenset({"payment_intent", "charge"})
"""The objects whose amount is that of the payment; a refund's or a dispute's is its own."""


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """One try to take the money."""

    status: str = ""
    amount_refunded: int = 0
    failure_code: str | None = None
    failure_message: str | None = None


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Why a try failed."""

    code: str | None = None
    decline_code: str | None = None
    message: str | None = None

    @property
    def word(self) -> str:
        """The most exact word that may be told."""
        told = self.decline_code if self.decline_code not in UNTOLD else None
        return told or self.code or "declined"


class Redirect(msgspec.Struct, frozen=True, kw_only=True):
    """Where the buyer has to go."""

    url: str | None = None


class NextAction(msgspec.Struct, frozen=True, kw_only=True):
    """What the buyer has to do."""

    redirect_to_url: Redirect | None = None


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A PaymentIntent, as far as it matters here."""

    id: str
    status: str
    amount: int
    currency: str
    amount_received: int = 0
    metadata: Mapping[str, str] = {}
    latest_charge: Charge | str | None = None
    last_payment_error: Trouble | None = None
    next_action: NextAction | None = None
    client_secret: str | None = None
    cancellation_reason: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is given up on our side, and could be paid all the same."""
        return self.status in OPEN

    @property
    def trouble(self) -> Trouble | None:
        """Why its last try failed, if it did. A cancelled intent may have only its charge left to tell."""
        charge = self.latest_charge
        if self.last_payment_error is None and isinstance(charge, Charge) and charge.status == "failed":
            return Trouble(code=charge.failure_code, message=charge.failure_message)
        return self.last_payment_error


class Refund(msgspec.Struct, frozen=True, kw_only=True):
    """A Refund, as far as it matters here."""

    id: str
    amount: int = 0
    currency: str = ""
    status: str | None = None
    metadata: Mapping[str, str] | None = None
    failure_reason: str | None = None


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What an event is about."""

    object: Any


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An Event, as far as it matters here."""

    id: str
    type: str
    livemode: bool
    data: Subject
    account: str | None = None


def to_stripe(amount: int, currency: str) -> int:
    """Our minor units in Stripe's; refused where Stripe has no such fraction."""
    more, less = _scales(currency)
    units, rest = divmod(amount * more, less)
    if rest:
        raise GatewayDenied("amount_not_payable", f"Stripe charges {currency} in whole units only.")
    return units


def from_stripe(amount: int, currency: str) -> int:
    """Stripe's minor units in ours."""
    more, less = _scales(currency)
    return amount * less // more


def report_of(intent: Intent) -> Report:
    """How a payment stands."""
    trouble = intent.trouble
    match intent.status:
        case "requires_capture":
            return Report(standing=Standing.AUTHORISED, gateway_id=intent.id)
        case "succeeded":
            captured, refunded = _taken(intent)
            return Report(standing=Standing.CAPTURED, gateway_id=intent.id, captured=captured, refunded=refunded)
        case "requires_action":
            return Report(standing=Standing.REQUIRES_ACTION, gateway_id=intent.id, action=_action(intent))
        case "requires_payment_method" | "requires_confirmation" | "canceled" if trouble is not None:
            why, sentence = trouble.word, trouble.message
            return Report(standing=Standing.DECLINED, gateway_id=intent.id, code=why, message=sentence)
        case "requires_payment_method" | "requires_confirmation" | "canceled":
            return Report(standing=Standing.VOIDED, gateway_id=intent.id, code=intent.cancellation_reason)
        case _:
            # "processing", and whatever Stripe may invent: wait, and ask again.
            return Report(standing=Standing.PROCESSING, gateway_id=intent.id)


def payment_id_of(intent: Intent) -> UUID | None:
    """Ours, if it is one of ours."""
    return _uuid(intent.metadata.get(PAYMENT_ID))


def record_of(intent: Intent) -> Record:
    """A line of Stripe's books."""
    captured, refunded = _taken(intent)
    return Record(
        payment_id=payment_id_of(intent),
        gateway_id=intent.id,
        standing=report_of(intent).standing,
        currency=intent.currency.upper(),
        captured=captured,
        refunded=refunded,
    )


def refund_report_of(refund: Refund) -> RefundReport:
    """How a refund stands."""
    match refund.status:
        case "succeeded":
            return RefundReport(standing=Refunding.DONE, gateway_id=refund.id)
        case "failed" | "canceled":
            code = refund.failure_reason or f"refund_{refund.status}"
            return RefundReport(standing=Refunding.REFUSED, gateway_id=refund.id, code=code)
        case _:
            return RefundReport(standing=Refunding.PROCESSING, gateway_id=refund.id)


def refund_id_of(refund: Refund) -> UUID | None:
    """Ours, if it is one of ours."""
    return _uuid((refund.metadata or {}).get(REFUND_ID))


def refund_record_of(refund: Refund) -> RefundRecord:
    """A line of Stripe's list of refunds."""
    return RefundRecord(
        refund_id=refund_id_of(refund),
        gateway_id=refund.id,
        amount=from_stripe(refund.amount, refund.currency.upper()),
        standing=refund_report_of(refund).standing,
    )


def callback_of(body: bytes, *, live: bool, account: str | None) -> Callback:
    """What was called about. The signature was found to be right by then."""
    try:
        event = msgspec.json.decode(body, type=Event)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise CallbackRefused("It is no event of Stripe's.") from None
    if event.livemode is not live:
        raise CallbackRefused("It is about test money and the key is for real money, or the other way round.")
    if event.account != account:
        raise CallbackRefused("It is about the money of another account.")
    about = event.data.object if isinstance(event.data.object, dict) else {}
    told = about.get("metadata")
    metadata = told if isinstance(told, dict) else {}
    charged = about.get("object") in CHARGED
    return Callback(
        id=event.id,
        kind=event.type,
        live=event.livemode,
        payment_id=_uuid(metadata.get(PAYMENT_ID)),
        booking_id=_uuid(metadata.get(BOOKING_ID)),
        gateway_id=_text(about.get("id" if about.get("object") == "payment_intent" else "payment_intent")),
        amount=_amount(about) if charged else None,
        currency=(_text(about.get("currency")) or "").upper() or None if charged else None,
        disputed=about.get("object") == "dispute",
        refund=about.get("object") == "refund",
    )


def _scales(currency: str) -> tuple[int, int]:
    """What to multiply and what to divide our units by to have Stripe's."""
    ours = EXPONENTS.get(currency, 2)
    shift = DIFFERENT_EXPONENTS.get(currency, ours) - ours
    return int(10 ** max(shift, 0)), int(10 ** max(-shift, 0))


def _taken(intent: Intent) -> tuple[int, int]:
    """What was captured and what went back of it. Stripe also counts as refunded what was let go uncaptured."""
    charge = intent.latest_charge
    currency = intent.currency.upper()
    refunded = charge.amount_refunded if isinstance(charge, Charge) and intent.amount_received else 0
    return from_stripe(intent.amount_received, currency), from_stripe(refunded, currency)


def _action(intent: Intent) -> dict[str, str]:
    redirect = intent.next_action.redirect_to_url if intent.next_action else None
    needed = {"url": redirect.url if redirect else None, "client_secret": intent.client_secret}
    return {name: value for name, value in needed.items() if value}


def _amount(about: Mapping[str, Any]) -> int | None:
    amount, currency = about.get("amount"), _text(about.get("currency"))
    return from_stripe(amount, currency.upper()) if isinstance(amount, int) and currency else None


def _text(said: object) -> str | None:
    return said if isinstance(said, str) else None


def _uuid(text: object) -> UUID | None:
    try:
        return UUID(text) if isinstance(text, str) else None
    except ValueError:
        return None
