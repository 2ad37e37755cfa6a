"""The endpoints that pay for a hold, refund a sale, and list the payments of a booking."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from earmark.api import problem_response
from earmark.api.auth.keys_and_tokens import Scope
from earmark.api.endpoint_declaration import Endpoint
from earmark.api.middleware.read_forwarded_headers import address_at
from earmark.api.request_context_for_handlers import KEY_HEADER, RequestContext
from earmark.api.response import ApiResponse, JsonWriter, json_response, verb_response
from earmark.api.routes.bookings import booking_id, find
from earmark.errors import InvalidRequest
from earmark.schemas import requests, responses, to_command, to_response

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.engine.commands_and_results import PayResult
    from earmark.engine.ports.encode_result_as_stored_response import ResponseWriter
    from earmark.schemas.to_command import Common


async def pay(context: RequestContext, body: requests.PayBody) -> ApiResponse:
    """Open a payment for a hold, and drive it until it is decided or takes too long for one request."""
    actor, payments = context.principal.actor, context.services.payments
    write = partial(write_payment, notes=actor.buyer is None)
    fields = _keyed_fields(context, write)
    terms = payments.terms(actor, method=body.method, gateway=body.gateway, capture=body.capture)
    command = to_command.pay(body, booking_id=booking_id(context), terms=terms, address=_address(context), **fields)
    return verb_response(await payments.pay(command), write)


async def refund(context: RequestContext, body: requests.RefundBody) -> ApiResponse:
    """Refund a sale, wholly or in part."""
    fields = _keyed_fields(context, _REFUNDED)
    command = to_command.refund(body, booking_id=booking_id(context), ids=context.engine.ids, **fields)
    return verb_response(await context.services.payments.refund(command), _REFUNDED)


async def list_(context: RequestContext) -> ApiResponse:
    """The payments of a booking, each with its refunds."""
    _, booking = await find(context)
    payments = await context.engine.store.list_payments(booking.id)
    notes = context.principal.actor.buyer is None
    shown = tuple(to_response.listed_payment_value(one, refunds, notes=notes) for one, refunds in payments)
    return json_response(responses.Payments(payments=shown))


def write_payment(paid: PayResult, now: datetime, *, notes: bool) -> tuple[int, bytes]:
    """200 confirmed, 202 in progress, 402 declined; else the refusal for the state of the booking."""
    if refused := to_response.refused_payment(paid, now):
        problem = problem_response.describe(refused)
        return problem["status"], msgspec.json.encode(problem)
    status = HTTPStatus.ACCEPTED if to_response.is_under_way(paid) else HTTPStatus.OK
    return int(status), msgspec.json.encode(to_response.paid_value(paid, now, notes=notes))


def _address(context: RequestContext) -> str | None:
    """The hashed address of a buyer; None with a shop's key, for all buyers of a shop share its address."""
    services = context.services
    if context.principal.actor.buyer is None or not services.counts_addresses:
        return None
    return services.authenticator.pseudonym(address_at(context.scope, hops=services.trust_proxy))


def _keyed_fields(context: RequestContext, write: ResponseWriter) -> Common:
    fields = context.command_fields(write)
    if fields["idempotency"] is None:
        raise InvalidRequest.at("Idempotency-Key", f"is required where money moves: send the header {KEY_HEADER}")
    return fields


_REFUNDED = JsonWriter(to_response.paid_value, status=HTTPStatus.CREATED)


_ON_BOOKING = ("booking_unknown", "booking_expired", "booking_resolved")

ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/bookings/{booking_id}/pay",
        name="pay",
        summary="Pay for a hold",
        handler=pay,
        body=requests.PayBody,
        answer=responses.Paid,
        refusals=(*_ON_BOOKING, "total_changed", "payment_declined", "too_many_declines", "gateway_unavailable"),
        idempotent=True,
        keyed=True,
        also=(HTTPStatus.ACCEPTED,),
        group="payments",
        example={"method": "pm_card_visa"},
    ),
    Endpoint(
        method="GET",
        path="/v1/bookings/{booking_id}/payments",
        name="list_payments",
        summary="Show the payments of a booking",
        handler=list_,
        answer=responses.Payments,
        refusals=("booking_unknown",),
        group="payments",
    ),
    Endpoint(
        method="POST",
        path="/v1/bookings/{booking_id}/refunds",
        name="refund",
        summary="Give money back, all of it or a part",
        handler=refund,
        body=requests.RefundBody,
        answer=responses.Paid,
        status=HTTPStatus.CREATED,
        scope=Scope.SELL,
        refusals=(*_ON_BOOKING, "payment_in_progress", "booking_not_confirmed", "refund_refused"),
        idempotent=True,
        keyed=True,
        group="payments",
        example={"amount": 4500},
    ),
)
