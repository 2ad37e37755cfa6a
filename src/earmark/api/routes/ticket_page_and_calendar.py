"""The page of a booking at its permanent link, and its calendar file. They need no key: the link is one."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from earmark.api.endpoint_declaration import Endpoint
from earmark.api.page_files import SECURITY_HEADERS, page_files
from earmark.api.problem_response import NotFound
from earmark.api.response import ApiResponse
from earmark.api.routes.tickets import PAGE_HEADERS, open_page
from earmark.domain import ticket as rules
from earmark.domain.booking_state_machine import State
from earmark.domain.ticket import Kind
from earmark.tickets.calendar_file import calendar_file

if TYPE_CHECKING:
    from earmark.api.request_context_for_handlers import RequestContext
    from earmark.engine.tickets import BookingTickets

FILE_NAME = "ticket.ics"


async def show_page(context: RequestContext) -> ApiResponse:
    """The page; of a link that is none, the same page with status 404, on which it says so."""
    try:
        await open_page(context)
    except NotFound:
        return _page(HTTPStatus.NOT_FOUND)
    return _page(HTTPStatus.OK)


async def show_calendar(context: RequestContext) -> ApiResponse:
    """The start of the event with the seats, as a calendar imports it. An event without a start has none."""
    found, event = await open_page(context)
    if event.starts_at is None:
        raise NotFound
    file = calendar_file(
        booking_id=found.booking.id,
        summary=event.name,
        places=_places(found),
        starts_at=event.starts_at,
        now=context.services.clock.now(),
        sequence=found.booking.version,
        cancelled=found.booking.state is State.CANCELLED,
    )
    headers = PAGE_HEADERS | {"Content-Disposition": f'attachment; filename="{FILE_NAME}"'}
    return ApiResponse(body=file, media_type="text/calendar; charset=utf-8", headers=headers)


def _page(status: HTTPStatus) -> ApiResponse:
    headers = SECURITY_HEADERS | PAGE_HEADERS
    body = page_files()["ticket.html"]
    return ApiResponse(status=status, body=body, media_type="text/html; charset=utf-8", headers=headers)


def _places(found: BookingTickets) -> list[str]:
    """The seats and units that are still booked, each once."""
    lines = found.booking.lines
    listed = [kept.ticket for kept in found.tickets if rules.is_listed(kept.ticket.place, lines)]
    return [ticket.name if ticket.kind is Kind.SEAT else f"{ticket.name} ({ticket.unit})" for ticket in listed]


PAGES = (
    Endpoint(
        method="GET",
        path="/t/{page_secret}",
        name="ticket_page",
        summary="Show the page of a booking",
        handler=show_page,
        answer=None,
        scope=None,
        group="tickets",
    ),
    Endpoint(
        method="GET",
        path="/t/{page_secret}/calendar.ics",
        name="ticket_calendar",
        summary="Download the calendar file of a booking",
        handler=show_calendar,
        answer=None,
        scope=None,
        group="tickets",
    ),
)
"""Endpoints that are pages: they are not part of the API's description."""
