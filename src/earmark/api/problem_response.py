"""Refusals and outages as RFC 9457 problems: one shape, a stable code, a sentence for a buyer.

`title` speaks to an engineer and is the error's own docstring; `detail` is what a page may show to a buyer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from earmark import errors
from earmark.domain import decline_limits
from earmark.domain.buyer_cancel_rules import WhyNot
from earmark.domain.payment import BANK_BUSY
from earmark.errors import EarmarkError, Forbidden, NotFound, Refusal, Unauthorized
from earmark.observability.redaction import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Forbidden", "NotFound", "Unauthorized"]

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = "1"


@dataclass(kw_only=True, eq=False)
class LockUnknown(Refusal):
    """No lock of this name is held."""

    code = "lock_unknown"
    key: str


@dataclass(kw_only=True, eq=False)
class MethodNotAllowed(Refusal):
    """This path does not support that method."""

    code = "method_not_allowed"
    allowed: Sequence[str] = ()


@dataclass(kw_only=True, eq=False)
class CallbackForged(Refusal):
    """This callback is not from the gateway, or does not match its payment."""

    code = "callback_refused"


@dataclass(kw_only=True, eq=False)
class TooLarge(Refusal):
    """The body is larger than this endpoint accepts."""

    code = "body_too_large"
    bytes_max: int


@dataclass(kw_only=True, eq=False)
class TooManyRequests(Refusal):
    """More requests than one key, buyer or address may make."""

    code = "too_many_requests"
    per: str
    limit: float
    retry_in: float
    transient: bool = True


@dataclass(kw_only=True, eq=False)
class WrongMediaType(Refusal):
    """Bodies are JSON, with `Content-Type: application/json` and no `Content-Encoding`."""

    code = "unsupported_media_type"


@dataclass(kw_only=True, eq=False)
class OurFault(errors.Outage):
    """Something broke on our side; it was logged."""

    code = "internal"
    transient = False


STATUS: dict[str, HTTPStatus] = {
    "event_unknown": HTTPStatus.NOT_FOUND,
    "seat_unknown": HTTPStatus.NOT_FOUND,
    "pool_unknown": HTTPStatus.NOT_FOUND,
    "booking_unknown": HTTPStatus.NOT_FOUND,
    "contact_unknown": HTTPStatus.NOT_FOUND,
    "lock_unknown": HTTPStatus.NOT_FOUND,
    "webhook_unknown": HTTPStatus.NOT_FOUND,
    "delivery_unknown": HTTPStatus.NOT_FOUND,
    "scan_unknown": HTTPStatus.NOT_FOUND,
    "not_found": HTTPStatus.NOT_FOUND,
    "event_exists": HTTPStatus.CONFLICT,
    "seats_taken": HTTPStatus.CONFLICT,
    "none_available": HTTPStatus.CONFLICT,
    "pool_exhausted": HTTPStatus.CONFLICT,
    "price_changed": HTTPStatus.CONFLICT,
    "total_changed": HTTPStatus.CONFLICT,
    "capacity_in_use": HTTPStatus.CONFLICT,
    "limit_exceeded": HTTPStatus.CONFLICT,
    "sale_closed": HTTPStatus.CONFLICT,
    "extension_refused": HTTPStatus.CONFLICT,
    "booking_resolved": HTTPStatus.CONFLICT,
    "booking_not_confirmed": HTTPStatus.CONFLICT,
    "payment_in_progress": HTTPStatus.CONFLICT,
    "payment_used": HTTPStatus.CONFLICT,
    "payment_declined": HTTPStatus.PAYMENT_REQUIRED,
    "too_many_declines": HTTPStatus.CONFLICT,
    "refund_refused": HTTPStatus.CONFLICT,
    "cancel_refused": HTTPStatus.CONFLICT,
    "idempotency_in_progress": HTTPStatus.CONFLICT,
    "webhook_disabled": HTTPStatus.CONFLICT,
    "undo_refused": HTTPStatus.CONFLICT,
    "booking_expired": HTTPStatus.GONE,
    "idempotency_mismatch": HTTPStatus.UNPROCESSABLE_ENTITY,
    "invalid_request": HTTPStatus.UNPROCESSABLE_ENTITY,
    "callback_refused": HTTPStatus.BAD_REQUEST,
    "unauthorized": HTTPStatus.UNAUTHORIZED,
    "forbidden": HTTPStatus.FORBIDDEN,
    "method_not_allowed": HTTPStatus.METHOD_NOT_ALLOWED,
    "body_too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "unsupported_media_type": HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    "too_many_requests": HTTPStatus.TOO_MANY_REQUESTS,
    "overloaded": HTTPStatus.SERVICE_UNAVAILABLE,
    "outcome_unknown": HTTPStatus.SERVICE_UNAVAILABLE,
    "gateway_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "stopping": HTTPStatus.SERVICE_UNAVAILABLE,
    "setup": HTTPStatus.SERVICE_UNAVAILABLE,
    "internal": HTTPStatus.INTERNAL_SERVER_ERROR,
}


HEADERS: dict[str, dict[str, str]] = {
    **{
        code: {"Retry-After": RETRY_SECONDS}
        for code, status in STATUS.items()
        if status is HTTPStatus.SERVICE_UNAVAILABLE
    },
    "idempotency_in_progress": {"Retry-After": RETRY_SECONDS},
    "too_many_requests": {"Retry-After": RETRY_SECONDS},
    "unauthorized": {"WWW-Authenticate": "Bearer"},
}
"""Response headers of a problem, by code."""
ECHOED_CODES = frozenset(
    {
        "event_unknown",
        "seat_unknown",
        "pool_unknown",
        "booking_unknown",
        "contact_unknown",
        "lock_unknown",
        "webhook_unknown",
        "delivery_unknown",
        "scan_unknown",
        "invalid_request",
    }
)
"""Problems that repeat text of the request: a key that was pasted into the wrong place is not sent back."""
ECHOED_LENGTH_MAX = 500
"""Of each text of the request, so many characters are sent back."""


def respond(error: EarmarkError) -> Response:
    """The problem as a Starlette response."""
    return Response(
        msgspec.json.encode(describe(error)),
        status_code=STATUS[error.code],
        media_type=MEDIA_TYPE,
        headers=headers(error),
    )


def headers(error: EarmarkError) -> dict[str, str]:
    """The headers that a client can act on without parsing the body, such as `Retry-After`."""
    headers = {**HEADERS.get(error.code, {})}
    if isinstance(error, TooManyRequests):
        headers["Retry-After"] = str(math.ceil(error.retry_in))
    if isinstance(error, errors.TooManyDeclines) and error.retry_in is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_in))
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = ", ".join(error.allowed)
    return headers


def describe(error: EarmarkError) -> dict[str, Any]:
    """The problem, as data: RFC 9457's members, ours, and the facts."""
    facts: dict[str, Any] = error.facts()
    if error.code in ECHOED_CODES:
        facts = {name: clean(value, most=ECHOED_LENGTH_MAX) for name, value in facts.items()}
    return {
        "type": f"urn:earmark:problem:{error.code}",
        "title": (type(error).__doc__ or error.code).partition("\n")[0],
        "status": int(STATUS[error.code]),
        "detail": _detail(error, facts),
        "code": error.code,
        "transient": error.transient,
        **{name: value for name, value in facts.items() if name != "because"},
    }


def _detail(error: EarmarkError, facts: Mapping[str, Any]) -> str:
    if isinstance(error, errors.SeatsTaken):
        return _seats_taken(error)
    detail = _DETAILS[error.code]
    return detail if isinstance(detail, str) else detail(facts)


def _seats_taken(taken: errors.SeatsTaken) -> str:
    """The sentence for seats that are sold or blocked, or held by another buyer and perhaps free again in minutes."""
    names = list(taken.seats)
    which, are = _seats(names), "is" if len(names) == 1 else "are"
    if taken.why == "blocked":
        return f"Sorry, {which} {are} not for sale."
    if taken.yours:
        return f"You are holding {_seats(sorted(taken.yours))} already."
    if taken.transient or (taken.lapses and max(taken.lapses.values()) < math.inf):
        return f"{which[0].upper()}{which[1:]} {are} currently being booked by another user. Please try another seat."
    return f"Sorry, {which} {are} not available. Please try another seat."


def _declined(facts: Mapping[str, Any]) -> str:
    if facts.get("why") in BANK_BUSY:
        return "The payment system is busy. Please try again."
    return "Your payment was declined. Please try another way to pay."


def _too_many_declines(facts: Mapping[str, Any]) -> str:
    if 0 < (facts.get("retry_in") or 0) <= decline_limits.PAUSE_SECONDS_MAX:
        return "Your payment could not be started now. Please try again in a moment."
    if facts["per"] == "hold":
        return "Your payment was declined too often. This booking cannot be paid any more."
    return "Your payments were declined too often. Please try again later."


def _none_available(asked: int, available: int) -> str:
    if available >= asked:
        return f"There are no {asked} seats side by side any more. Please choose fewer, or seats apart."
    if available:
        return f"Only {available} {'seat is' if available == 1 else 'seats are'} left. Please choose fewer."
    return "There are no such seats left."


def _seats(seats: Sequence[str]) -> str:
    shown = list(seats[:5])
    more = f" and {len(seats) - len(shown)} more" if len(seats) > len(shown) else ""
    return f"{'seat' if len(seats) == 1 else 'seats'} {', '.join(shown)}{more}"


def _invalid(wrong: Mapping[str, str]) -> str:
    return f"Please check {wrong['path'] or 'the request'}: {wrong['message']}."


_CANCEL_REFUSED: dict[str, str] = {
    WhyNot.PAID_ELSEWHERE: "You paid for this booking elsewhere. Please ask the shop to cancel it.",
    WhyNot.CHECKED_IN: "This booking was used already and cannot be cancelled.",
    WhyNot.TOO_LATE: "It is too late to cancel this booking.",
}
_ASK_THE_SHOP = "This booking cannot be cancelled here. Please ask the shop."
_DETAILS: dict[str, str | Callable[[Mapping[str, Any]], str]] = {
    "seat_unknown": lambda facts: f"This event has no {_seats(facts['seats'])}.",
    "none_available": lambda facts: _none_available(facts["asked"], facts["available"]),
    "pool_exhausted": lambda facts: f"Only {facts['available']} left." if facts["available"] else "Sold out.",
    "total_changed": lambda _: "Your basket has changed, and so has its price. Look at it again, then pay.",
    "price_changed": lambda _: "The price has changed since. Give back what you hold of it, then choose again.",
    "limit_exceeded": lambda facts: (
        f"You may book at most {facts['limit']} for this event, and you have {facts['have']}."
    ),
    "sale_closed": "Tickets are not on sale at this moment.",
    "booking_resolved": lambda facts: f"This booking is {facts['state']} and cannot be changed like this.",
    "invalid_request": lambda facts: _invalid(facts["errors"][0]),
    "event_unknown": "We could not find this event.",
    "pool_unknown": "This event does not sell that.",
    "booking_unknown": "We could not find this booking.",
    "contact_unknown": "This booking has no name and address yet.",
    "lock_unknown": "This lock is not held.",
    "webhook_unknown": "We could not find this webhook.",
    "delivery_unknown": "We could not find this delivery.",
    "scan_unknown": "We could not find this scan.",
    "undo_refused": "This admission cannot be undone.",
    "webhook_disabled": "This webhook is switched off. Please switch it on first.",
    "not_found": "We could not find this page.",
    "event_exists": "This event is there already.",
    "capacity_in_use": "More than that is held or sold already.",
    "extension_refused": "This hold cannot be made any longer.",
    "booking_expired": "The time for this booking has run out. Please choose again.",
    "booking_not_confirmed": "This booking is not confirmed yet.",
    "payment_in_progress": "Your payment is being processed. Please wait a moment.",
    "payment_used": "This payment belongs to another booking.",
    "payment_declined": _declined,
    "too_many_declines": _too_many_declines,
    "refund_refused": "That is more than can be given back.",
    "cancel_refused": lambda facts: _CANCEL_REFUSED.get(facts["why"], _ASK_THE_SHOP),
    "idempotency_in_progress": "Your first request is still being processed. Please wait a moment.",
    "idempotency_mismatch": "This looks like a different request. Please start again.",
    "callback_refused": "This was not sent by the gateway.",
    "unauthorized": "Please sign in first.",
    "forbidden": "You are not allowed to do this.",
    "method_not_allowed": "This cannot be done here.",
    "body_too_large": "That is more than we can take at once.",
    "unsupported_media_type": "We could not read this request.",
    "too_many_requests": "That was a little too fast. Please try again in a moment.",
    "overloaded": "We could not get to this in time, and nothing was booked. Please try again in a moment.",
    "outcome_unknown": "We do not know whether this went through. Send it again with the same key to find out.",
    "gateway_unavailable": "We cannot take payments at this moment, and you were not charged. Please try again soon.",
    "unavailable": "We cannot take bookings at this moment. Please try again soon.",
    "stopping": "This server is about to stop. Please try again in a moment.",
    "setup": "This shop is not set up completely yet.",
    "internal": "Something went wrong on our side. Please try again.",
}
