"""The bank's values in the words of Stripe's API, as its callbacks and its HTTP server say them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.sandbox.methods import METHODS
from earmark.sandbox.model import Dispute, Event, FraudWarning, Intent, Kind, Refund, Refused, Status

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

API_VERSION = "2026-10-28.endive"
UNCHARGED = frozenset({Status.REQUIRES_CONFIRMATION, Status.REQUIRES_ACTION})
CHARGE_STATUS = {
    Status.PROCESSING: "pending",
    Status.REQUIRES_CAPTURE: "succeeded",
    Status.SUCCEEDED: "succeeded",
    Status.CANCELED: "succeeded",
}
STATUSES = {Kind.CARD: 402, Kind.IN_PROGRESS: 409, Kind.BUSY: 429, Kind.BROKEN: 500}
TYPES = {Kind.IN_PROGRESS: Kind.INVALID, Kind.BUSY: Kind.INVALID}

Words = dict[str, Any]


def intent(it: Intent, *, base_url: str, expand: Collection[str] = ()) -> Words:
    """A PaymentIntent."""
    charged = it.status not in UNCHARGED and (it.problem is not None or it.method is not None)
    whole = "latest_charge" in expand
    return {
        "id": it.id,
        "object": "payment_intent",
        "amount": it.amount,
        "amount_capturable": it.amount if it.status is Status.REQUIRES_CAPTURE else 0,
        "amount_received": it.captured,
        "application": None,
        "automatic_payment_methods": {"enabled": True, "allow_redirects": "always"},
        "canceled_at": _moment(it.canceled_at),
        "cancellation_reason": it.cancellation_reason,
        "capture_method": "automatic" if it.automatic else "manual",
        "client_secret": it.client_secret,
        "confirmation_method": "automatic",
        "created": _moment(it.created),
        "currency": it.currency.lower(),
        "customer": None,
        "description": it.description,
        "last_payment_error": _payment_error(it),
        "latest_charge": (charge(it) if whole else it.charge_id) if charged else None,
        "livemode": False,
        "metadata": dict(it.metadata),
        "next_action": _next_action(it, base_url),
        "payment_method": it.method if it.status is not Status.REQUIRES_PAYMENT_METHOD else None,
        "payment_method_types": ["card"],
        "receipt_email": None,
        "setup_future_usage": None,
        "shipping": None,
        "status": it.status,
        "transfer_data": None,
    }


def charge(it: Intent) -> Words:
    """The Charge of an intent."""
    problem = it.problem
    return {
        "id": it.charge_id,
        "object": "charge",
        "amount": it.amount,
        "amount_captured": it.captured,
        "amount_refunded": it.refunded,
        "captured": it.captured > 0,
        "created": _moment(it.created),
        "currency": it.currency.lower(),
        "disputed": it.disputed,
        "failure_code": problem.code if problem else None,
        "failure_message": problem.message if problem else None,
        "livemode": False,
        "metadata": dict(it.metadata),
        "outcome": _outcome(it),
        "paid": it.status in {Status.REQUIRES_CAPTURE, Status.SUCCEEDED},
        "payment_intent": it.id,
        "payment_method": it.method,
        "payment_method_details": _details(it),
        "refunded": 0 < it.captured == it.refunded,
        "status": CHARGE_STATUS.get(it.status, "failed"),
    }


def refund(it: Refund) -> Words:
    """A Refund."""
    said: Words = {
        "id": it.id,
        "object": "refund",
        "amount": it.amount,
        "charge": it.charge_id,
        "created": _moment(it.created),
        "currency": it.currency.lower(),
        "metadata": dict(it.metadata),
        "payment_intent": it.intent_id,
        "reason": it.reason,
        "status": it.status,
    }
    return said | ({"failure_reason": it.failure} if it.failure else {})


def dispute(it: Dispute) -> Words:
    """A Dispute."""
    return {
        "id": it.id,
        "object": "dispute",
        "amount": it.amount,
        "charge": it.charge_id,
        "created": _moment(it.created),
        "currency": it.currency.lower(),
        "livemode": False,
        "metadata": {},
        "payment_intent": it.intent_id,
        "reason": it.reason,
        "is_charge_refundable": it.inquiry,
        "status": "warning_needs_response" if it.inquiry else "needs_response",
    }


def warning(it: FraudWarning) -> Words:
    """An early fraud warning."""
    return {
        "id": it.id,
        "object": "radar.early_fraud_warning",
        "actionable": True,
        "charge": it.charge_id,
        "created": _moment(it.created),
        "fraud_type": "misc",
        "livemode": False,
        "payment_intent": it.intent_id,
    }


def event(it: Event, *, base_url: str) -> Words:
    """An Event, with its subject as it was then."""
    about: Words
    match it.about:
        case Intent() if it.kind.startswith("charge."):
            about = charge(it.about)
        case Intent():
            about = intent(it.about, base_url=base_url)
        case Refund():
            about = refund(it.about)
        case Dispute():
            about = dispute(it.about)
        case FraudWarning():
            about = warning(it.about)
    return {
        "id": it.id,
        "object": "event",
        "api_version": API_VERSION,
        "created": _moment(it.created),
        "data": {"object": about},
        "livemode": False,
        "pending_webhooks": 1,
        "request": {"id": None, "idempotency_key": None},
        "type": it.kind,
    }


def page(found: Sequence[Words], *, url: str, has_more: bool) -> Words:
    """A list, or a page of one."""
    return {"object": "list", "data": list(found), "has_more": has_more, "url": url}


def problem(refused: Refused, *, base_url: str) -> tuple[int, Words]:
    """An error, with its status."""
    said: Words = {
        "type": TYPES.get(refused.kind, refused.kind),
        "code": refused.problem.code,
        "message": refused.problem.message,
    }
    if refused.problem.decline_code:
        said["decline_code"] = refused.problem.decline_code
    if refused.param:
        said["param"] = refused.param
    if refused.intent is not None:
        said["payment_intent"] = intent(refused.intent, base_url=base_url)
    if refused.kind is Kind.CARD and refused.intent is not None:
        said["charge"] = refused.intent.charge_id
    return 404 if refused.missing else STATUSES.get(refused.kind, 400), {"error": said}


def _details(it: Intent) -> Words | None:
    """Which card it was."""
    if it.method is None:
        return None
    card = METHODS[it.method]
    return {"type": "card", "card": {"brand": card.brand, "country": card.country, "funding": card.funding}}


def _outcome(it: Intent) -> Words | None:
    """Who said what of the risk."""
    if it.method is None:
        return None
    card = METHODS[it.method]
    blocked = card.risk == "highest" and card.decline is not None
    said = "blocked" if blocked else "issuer_declined" if it.problem else "authorized"
    return {"type": said, "risk_level": card.risk}


def _payment_error(it: Intent) -> Words | None:
    if it.problem is None:
        return None
    said: Words = {
        "type": "card_error",
        "code": it.problem.code,
        "message": it.problem.message,
        "charge": it.charge_id,
        "payment_method": {"id": it.method, "object": "payment_method", "type": "card"},
    }
    return said | ({"decline_code": it.problem.decline_code} if it.problem.decline_code else {})


def _next_action(it: Intent, base_url: str) -> Words | None:
    if it.status is not Status.REQUIRES_ACTION:
        return None
    where = {"url": action_url(it, base_url=base_url), "return_url": it.return_url}
    return {"type": "redirect_to_url", "redirect_to_url": where}


def action_url(it: Intent, *, base_url: str) -> str:
    """The page where the buyer of this intent acts."""
    return f"{base_url}/sandbox/action/{it.id}?client_secret={it.client_secret}"


def _moment(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())
