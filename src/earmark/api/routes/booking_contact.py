"""The endpoints that set and read a booking's contact: the buyer's name, e-mail address and language."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.api.endpoint_declaration import Endpoint
from earmark.api.response import ApiResponse, json_response
from earmark.api.routes.bookings import booking_id, find
from earmark.domain.mail import is_mailed
from earmark.engine import set_booking_contact
from earmark.schemas import requests, responses, to_command, to_response

if TYPE_CHECKING:
    from earmark.api.request_context_for_handlers import RequestContext


async def set_contact(context: RequestContext, body: requests.ContactBody) -> ApiResponse:
    """Keep the contact of a booking. The same again is no error."""
    contact = to_command.contact(body, booking_id=booking_id(context))
    actor, mailed = context.principal.actor, _mailed(context)
    kept = await set_booking_contact.set_contact(context.engine.store, contact, actor=actor, mail=mailed)
    return json_response(to_response.contact_value(kept, mailed=mailed))


async def read_contact(context: RequestContext) -> ApiResponse:
    """The contact of a booking, if the caller may see the booking."""
    _, booking = await find(context)
    contact = await set_booking_contact.read_contact(context.engine.store, booking.id)
    return json_response(to_response.contact_value(contact, mailed=_mailed(context)))


def _mailed(context: RequestContext) -> bool:
    """Whether this server sends mails about bookings of the caller's mode; a caller sees no booking of the other."""
    services = context.services
    return is_mailed(context.principal.actor.mode, mail=services.mail, test_events=services.mail_test_events)


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/bookings/{booking_id}/contact",
        name="set_contact",
        summary="Set the buyer's name, e-mail address and language",
        handler=set_contact,
        body=requests.ContactBody,
        answer=responses.Contact,
        refusals=("booking_unknown", "booking_expired", "booking_resolved"),
        example={"name": "Ann Lee", "email": "ann@example.com", "language": "en"},
    ),
    Endpoint(
        method="GET",
        path="/v1/bookings/{booking_id}/contact",
        name="read_contact",
        summary="Read a booking's contact",
        handler=read_contact,
        answer=responses.Contact,
        refusals=("booking_unknown", "contact_unknown"),
    ),
)
