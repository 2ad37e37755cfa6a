"""Tickets: those of a booking, the data of its page, and what a door asks: checks, undo, offline list and scans."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from earmark.api.auth.keys_and_tokens import Scope
from earmark.api.endpoint_declaration import Endpoint
from earmark.api.middleware.read_forwarded_headers import address_at
from earmark.api.pagination import read_page
from earmark.api.problem_response import NotFound
from earmark.api.response import ApiResponse, json_response
from earmark.api.routes import events_and_seat_map
from earmark.api.routes.bookings import booking_id
from earmark.domain.id_types import EventId
from earmark.domain.ticket import ScanReason, code_of
from earmark.engine.tickets import ScanRequest
from earmark.errors import InvalidRequest
from earmark.schemas import tickets as schemas
from earmark.tickets.new_ticket_secrets import NEW_SECRETS
from earmark.uuids import uuid7

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.api.request_context_for_handlers import RequestContext
    from earmark.domain.bookable_event import Event
    from earmark.engine.tickets import BookingTickets, ScanResult

PAGE_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Robots-Tag": "noindex"}
"""Of all that a page's link opens: no cache keeps it, no other site is told the link, and no search engine shows it."""


async def read(context: RequestContext) -> ApiResponse:
    """The tickets of a confirmed booking, which are made when they are first asked for, and the path of its page."""
    actor = context.principal.actor
    found = await context.engine.store.tickets.of_booking(booking_id(context), actor=actor, new=NEW_SECRETS)
    return json_response(
        schemas.booking_tickets_answer(found, root=context.root), headers={"Cache-Control": "no-store"}
    )


async def read_page_data(context: RequestContext) -> ApiResponse:
    """What the page of a booking shows, for each bearer of its link."""
    found, event = await open_page(context)
    return json_response(schemas.ticket_page_answer(found, event), headers=PAGE_HEADERS)


async def open_page(context: RequestContext) -> tuple[BookingTickets, Event]:
    """The booking of a page's link, and its event. An address that sends too many wrong links is told to wait."""
    secret, limits = context.path["page_secret"], context.services.limits
    address = address_at(context.scope, hops=context.services.trust_proxy)
    async with limits.look_up_link(address) as look_up:
        found = await context.engine.store.tickets.open_page(secret)
        look_up.found = found is not None
    if found is None:
        raise look_up.refused or NotFound
    event = await context.engine.store.read_event(found.booking.event_id)
    assert event is not None, "an event stays"
    return found, event


async def check(context: RequestContext, body: schemas.CheckBody) -> ApiResponse:
    """Judge a scanned or typed code, and admit its bearer once."""
    result = await _scan(context, code=body.code, nonce=body.nonce, event_id=body.event_id)
    return json_response(schemas.check_answer(result))


async def undo(context: RequestContext, body: schemas.UndoBody) -> ApiResponse:
    """Undo an admission that the same key made in the last 15 minutes."""
    undone = await context.engine.store.tickets.undo(caller=context.principal.caller, nonce=body.nonce)
    assert undone.undone_at is not None
    return json_response(schemas.UndoAnswer(nonce=undone.nonce, undone_at=undone.undone_at))


async def offline_list(context: RequestContext) -> ApiResponse:
    """The tickets of an event as hashes, for a door without a network."""
    page = read_page(context.request.query_params, of=context.endpoint.name, actor=context.principal.actor)
    event = await events_and_seat_map.find(context)
    made_at = context.services.clock.now()
    found = await context.engine.store.tickets.list_event(event.id, after=_after(page.after), limit=page.limit + 1)
    shown = found[: page.limit]
    more = page.cursor(str(shown[-1].ticket.id)) if len(found) > page.limit else None
    answer = schemas.offline_list_page(event, shown, made_at=made_at, next_cursor=more)
    return json_response(answer, headers={"Cache-Control": "no-store"})


async def offline_scans(context: RequestContext, body: schemas.OfflineScansBody) -> ApiResponse:
    """Record whom a door let in without a network, and report double admissions. A repeat records nothing more."""
    # Each in a transaction of its own, so that none waits for another door with many bookings locked.
    sent = sorted(body.scans, key=lambda scan: scan.scanned_at)
    results = [await _scan(context, code=scan.code, nonce=scan.nonce, offline_at=scan.scanned_at) for scan in sent]
    answers = [schemas.offline_answer(result, nonce=scan.nonce) for result, scan in zip(results, sent, strict=True)]
    double = sum(result.reason is ScanReason.ALREADY_ADMITTED for result in results)
    answer = schemas.OfflineScansAnswer(scans=tuple(answers), double_admissions=double)
    return json_response(answer)


async def list_scans(context: RequestContext) -> ApiResponse:
    """The scans of an event, oldest first: which key scanned what and when, and what became of it."""
    page = read_page(context.request.query_params, of=context.endpoint.name, actor=context.principal.actor)
    event = await events_and_seat_map.find(context)
    found = await context.engine.store.tickets.list_scans(
        event.id, mode=event.mode, after=_after(page.after), limit=page.limit + 1
    )
    shown = found[: page.limit]
    more = page.cursor(str(shown[-1].scan.id)) if len(found) > page.limit else None
    return json_response(schemas.ScansPage(scans=tuple(map(schemas.scan_answer, shown)), next_cursor=more))


async def _scan(
    context: RequestContext,
    *,
    code: str,
    nonce: str,
    event_id: str | None = None,
    offline_at: datetime | None = None,
) -> ScanResult:
    return await context.engine.store.tickets.check(
        ScanRequest(
            id=uuid7(),
            caller=context.principal.caller,
            mode=context.principal.actor.mode,
            code=code_of(code),
            nonce=nonce,
            event_id=None if event_id is None else EventId(event_id),
            offline_at=offline_at,
        )
    )


def _after(after: str | None) -> str:
    """The id that a cursor names."""
    try:
        return str(UUID(after)) if after else ""
    except ValueError:
        raise InvalidRequest.at("cursor", "is not one that this server gave out") from None


_PAGE = (("cursor", "where the last page ended"), ("limit", "how many, at most 200"))

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/bookings/{booking_id}/tickets",
        name="read_tickets",
        summary="Read the tickets of a booking, and the link of its page",
        handler=read,
        answer=schemas.BookingTicketsAnswer,
        refusals=("booking_unknown", "booking_not_confirmed"),
        group="tickets",
    ),
    Endpoint(
        method="GET",
        path="/v1/tickets/page/{page_secret}",
        name="read_ticket_page",
        summary="Read what the page of a booking shows",
        handler=read_page_data,
        answer=schemas.TicketPageAnswer,
        scope=None,
        refusals=("not_found", "too_many_requests"),
        group="tickets",
    ),
    Endpoint(
        method="POST",
        path="/v1/tickets/check",
        name="check_ticket",
        summary="Check a ticket at a door, and admit once",
        handler=check,
        body=schemas.CheckBody,
        answer=schemas.CheckAnswer,
        scope=Scope.CHECK,
        refusals=("idempotency_mismatch",),
        group="tickets",
        example={"code": "h4tq-8wzn-2rkx-c6mv-p9ys-b3fd-j7ge-5uan", "nonce": "door-1-0001", "event_id": "concert"},
    ),
    Endpoint(
        method="POST",
        path="/v1/tickets/undo",
        name="undo_admission",
        summary="Undo an admission",
        handler=undo,
        body=schemas.UndoBody,
        answer=schemas.UndoAnswer,
        scope=Scope.CHECK,
        refusals=("scan_unknown", "undo_refused"),
        group="tickets",
        example={"nonce": "door-1-0003"},
    ),
    Endpoint(
        method="POST",
        path="/v1/tickets/offline-scans",
        name="record_offline_scans",
        summary="Record whom a door let in without a network",
        handler=offline_scans,
        body=schemas.OfflineScansBody,
        answer=schemas.OfflineScansAnswer,
        scope=Scope.CHECK,
        refusals=("idempotency_mismatch",),
        group="tickets",
        example={
            "scans": [
                {
                    "code": "h4tq8wzn2rkxc6mvp9ysb3fdj7ge5uan",
                    "nonce": "door-1-0002",
                    "scanned_at": "2030-03-01T18:42:00Z",
                }
            ]
        },
    ),
    Endpoint(
        method="GET",
        path="/v1/events/{event_id}/tickets/offline-list",
        name="list_offline_tickets",
        summary="List the tickets of an event as hashes, for a door without a network",
        handler=offline_list,
        answer=schemas.OfflineListPage,
        scope=Scope.CHECK,
        refusals=("event_unknown",),
        query=_PAGE,
        group="tickets",
    ),
    Endpoint(
        method="GET",
        path="/v1/events/{event_id}/tickets/scans",
        name="list_scans",
        summary="List the scans of an event",
        handler=list_scans,
        answer=schemas.ScansPage,
        scope=Scope.CHECK,
        or_scope=Scope.OPS,
        refusals=("event_unknown",),
        query=_PAGE,
        group="tickets",
    ),
)
