"""The endpoint that tells a page how an event can be paid. It names no secret: every buyer can read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.api.endpoint_declaration import Endpoint
from earmark.api.response import ApiResponse, json_response
from earmark.api.routes.events_and_seat_map import find
from earmark.domain.mask_and_reference_payment_method import SANDBOX, STRIPE
from earmark.sandbox.payment_methods import OFFERED
from earmark.schemas import responses

if TYPE_CHECKING:
    from earmark.api.request_context_for_handlers import RequestContext
    from earmark.payments.choose_gateway_and_pay import PaymentService

CARDS = tuple(responses.TestCard(**msgspec.structs.asdict(card)) for card in OFFERED)


async def list_payment_methods(context: RequestContext) -> ApiResponse:
    """The gateways of an event's mode. A buyer cannot name one, and is told of the first only."""
    event, payments = await find(context), context.services.payments
    fitting = payments.fitting(event.mode)
    shown = fitting if context.principal.actor.buyer is None else fitting[:1]
    gateways = tuple(_describe(payments, name) for name in shown)
    return json_response(responses.PaymentMethods(event_id=event.id, currency=event.currency, gateways=gateways))


def _describe(payments: PaymentService, name: str) -> responses.PayableGateway:
    return responses.PayableGateway(
        gateway=name,
        mode=payments.gateways[name].mode,
        capture=payments.capture,
        publishable_key=payments.stripe_publishable_key if name == STRIPE else None,
        cards=CARDS if name == SANDBOX else (),
    )


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/events/{event_id}/payment-methods",
        name="list_payment_methods",
        summary="List how an event can be paid",
        handler=list_payment_methods,
        answer=responses.PaymentMethods,
        refusals=("event_unknown",),
        group="payments",
    ),
)
