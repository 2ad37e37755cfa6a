"""The bank's values as JSON objects of Stripe's API, for the endpoints and the callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.sandbox.model import (
    BankEvent,
    BankIntent,
    BankRefund,
    BankRefusal,
    Dispute,
    FraudWarning,
    IntentStatus,
    RefusalKind,
)
from earmark.sandbox.payment_methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from earmark.sandbox.confirmation_tokens import ConfirmationToken

API_VERSION = "2026-10-28.endive"
UNCHARGED = frozenset({IntentStatus.REQUIRES_CONFIRMATION, IntentStatus.REQUIRES_ACTION})
CHARGE_STATUS = {
    IntentStatus.PROCESSING: "pending",
    IntentStatus.REQUIRES_CAPTURE: "succeeded",
    IntentStatus.SUCCEEDED: "succeeded",
    IntentStatus.CANCELED: "succeeded",
}
STATUSES = {RefusalKind.CARD: 402, RefusalKind.IN_PROGRESS: 409, RefusalKind.BUSY: 429, RefusalKind.BROKEN: 500}
TYPES = {RefusalKind.IN_PROGRESS: RefusalKind.INVALID, RefusalKind.BUSY: RefusalKind.INVALID}

JsonObject = dict[str, Any]


def intent(value: BankIntent, *, base_url: str, expand: Collection[str] = ()) -> JsonObject:
    """An intent as a PaymentIntent object."""
    charged = value.status not in UNCHARGED and (value.problem is not None or value.method is not None)
    expanded = "latest_charge" in expand
    return {
        "id": value.id,
        "object": "payment_intent",
        "amount": value.amount,
        "amount_capturable": value.amount if value.status is IntentStatus.REQUIRES_CAPTURE else 0,
        "amount_received": value.captured,
        "application": None,
        "automatic_payment_methods": {"enabled": True, "allow_redirects": "always"},
        "canceled_at": _moment(value.canceled_at),
        "cancellation_reason": value.cancellation_reason,
        "capture_method": "automatic" if value.automatic else "manual",
        "client_secret": value.client_secret,
        "confirmation_method": "automatic",
        "created": _moment(value.created),
        "currency": value.currency.lower(),
        "customer": None,
        "description": value.description,
        "last_payment_error": _payment_error(value),
        "latest_charge": (charge(value) if expanded else value.charge_id) if charged else None,
        "livemode": False,
        "metadata": dict(value.metadata),
        "next_action": _next_action(value, base_url),
        "payment_method": value.method if value.status is not IntentStatus.REQUIRES_PAYMENT_METHOD else None,
        "payment_method_types": ["card"],
        "receipt_email": None,
        "setup_future_usage": None,
        "shipping": None,
        "status": value.status,
        "transfer_data": None,
    }


def confirmation_token(value: ConfirmationToken) -> JsonObject:
    """A token as a ConfirmationToken object."""
    return {
        "id": value.id,
        "object": "confirmation_token",
        "created": _moment(value.created),
        "expires_at": _moment(value.expires_at),
        "livemode": False,
        "payment_intent": None,
        "payment_method_preview": {"type": "card", "card": _card(value.method)},
        "return_url": None,
        "use_stripe_sdk": True,
    }


def charge(value: BankIntent) -> JsonObject:
    """The Charge object of an intent."""
    problem = value.problem
    return {
        "id": value.charge_id,
        "object": "charge",
        "amount": value.amount,
        "amount_captured": value.captured,
        "amount_refunded": value.refunded,
        "captured": value.captured > 0,
        "created": _moment(value.created),
        "currency": value.currency.lower(),
        "disputed": value.disputed,
        "failure_code": problem.code if problem else None,
        "failure_message": problem.message if problem else None,
        "livemode": False,
        "metadata": dict(value.metadata),
        "outcome": _outcome(value),
        "paid": value.status in {IntentStatus.REQUIRES_CAPTURE, IntentStatus.SUCCEEDED},
        "payment_intent": value.id,
        "payment_method": value.method,
        "payment_method_details": _details(value),
        "refunded": 0 < value.captured == value.refunded,
        "status": CHARGE_STATUS.get(value.status, "failed"),
    }


def refund(value: BankRefund) -> JsonObject:
    """A refund as a Refund object."""
    content: JsonObject = {
        "id": value.id,
        "object": "refund",
        "amount": value.amount,
        "charge": value.charge_id,
        "created": _moment(value.created),
        "currency": value.currency.lower(),
        "metadata": dict(value.metadata),
        "payment_intent": value.intent_id,
        "reason": value.reason,
        "status": value.status,
    }
    return content | ({"failure_reason": value.failure} if value.failure else {})


def dispute(value: Dispute) -> JsonObject:
    """A dispute as a Dispute object."""
    return {
        "id": value.id,
        "object": "dispute",
        "amount": value.amount,
        "charge": value.charge_id,
        "created": _moment(value.created),
        "currency": value.currency.lower(),
        "livemode": False,
        "metadata": {},
        "payment_intent": value.intent_id,
        "reason": value.reason,
        "is_charge_refundable": value.inquiry,
        "status": "warning_needs_response" if value.inquiry else "needs_response",
    }


def warning(value: FraudWarning) -> JsonObject:
    """A fraud warning as an early fraud warning object."""
    return {
        "id": value.id,
        "object": "radar.early_fraud_warning",
        "actionable": True,
        "charge": value.charge_id,
        "created": _moment(value.created),
        "fraud_type": "misc",
        "livemode": False,
        "payment_intent": value.intent_id,
    }


def event(value: BankEvent, *, base_url: str) -> JsonObject:
    """An event as an Event object, with a copy of its object at that time."""
    about: JsonObject
    match value.about:
        case BankIntent() if value.kind.startswith("charge."):
            about = charge(value.about)
        case BankIntent():
            about = intent(value.about, base_url=base_url)
        case BankRefund():
            about = refund(value.about)
        case Dispute():
            about = dispute(value.about)
        case FraudWarning():
            about = warning(value.about)
    return {
        "id": value.id,
        "object": "event",
        "api_version": API_VERSION,
        "created": _moment(value.created),
        "data": {"object": about},
        "livemode": False,
        "pending_webhooks": 1,
        "request": {"id": None, "idempotency_key": None},
        "type": value.kind,
    }


def page(found: Sequence[JsonObject], *, url: str, has_more: bool) -> JsonObject:
    """A list object: one page of these objects."""
    return {"object": "list", "data": list(found), "has_more": has_more, "url": url}


def problem(refused: BankRefusal, *, base_url: str) -> tuple[int, JsonObject]:
    """The HTTP status and the error object of a refusal."""
    content: JsonObject = {
        "type": TYPES.get(refused.kind, refused.kind),
        "code": refused.problem.code,
        "message": refused.problem.message,
    }
    if refused.problem.decline_code:
        content["decline_code"] = refused.problem.decline_code
    if refused.param:
        content["param"] = refused.param
    if refused.intent is not None:
        content["payment_intent"] = intent(refused.intent, base_url=base_url)
    if refused.kind is RefusalKind.CARD and refused.intent is not None:
        content["charge"] = refused.intent.charge_id
    return 404 if refused.missing else STATUSES.get(refused.kind, 400), {"error": content}


def _details(value: BankIntent) -> JsonObject | None:
    """The card that paid."""
    if value.method is None:
        return None
    return {"type": "card", "card": _card(value.method)}


def _card(method: str) -> JsonObject:
    card = METHODS[method]
    return {"brand": card.brand, "country": card.country, "funding": card.funding, "last4": card.last4}


def _outcome(value: BankIntent) -> JsonObject | None:
    """Who decided about the charge, and its risk level."""
    if value.method is None:
        return None
    card = METHODS[value.method]
    blocked = card.risk == "highest" and card.decline is not None
    type_ = "blocked" if blocked else "issuer_declined" if value.problem else "authorized"
    return {"type": type_, "risk_level": card.risk}


def _payment_error(value: BankIntent) -> JsonObject | None:
    if value.problem is None:
        return None
    content: JsonObject = {
        "type": "card_error",
        "code": value.problem.code,
        "message": value.problem.message,
        "charge": value.charge_id,
        "payment_method": {"id": value.method, "object": "payment_method", "type": "card"},
    }
    return content | ({"decline_code": value.problem.decline_code} if value.problem.decline_code else {})


def _next_action(value: BankIntent, base_url: str) -> JsonObject | None:
    if value.status is not IntentStatus.REQUIRES_ACTION:
        return None
    url = action_url(value, base_url=base_url)
    if value.in_page:
        return {"type": "use_stripe_sdk", "use_stripe_sdk": {"type": "three_d_secure_redirect", "stripe_js": url}}
    redirect = {"url": url, "return_url": value.return_url}
    return {"type": "redirect_to_url", "redirect_to_url": redirect}


def action_url(value: BankIntent, *, base_url: str) -> str:
    """The URL of the page where the buyer of this intent authenticates."""
    return f"{base_url}/sandbox/action/{value.id}?client_secret={value.client_secret}"


def _moment(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())
