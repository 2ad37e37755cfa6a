"""Events and their seats: create, read, list, change, show."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from earmark.api.auth.keys_and_tokens import Scope
from earmark.api.endpoint_declaration import Endpoint
from earmark.api.pagination import read_page
from earmark.api.response import ApiResponse, JsonWriter, json_response, verb_response
from earmark.domain.id_types import EventId, SeatId
from earmark.engine.commands_and_results import Decided
from earmark.errors import EventUnknown, SeatUnknown
from earmark.schemas import requests, responses, to_command, to_response
from earmark.schemas.render_seat_map import SeatMapRenderer, version

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.api.request_context_for_handlers import RequestContext
    from earmark.domain.bookable_event import Event
    from earmark.engine.ports.store import SeatMap

EVENT_BYTES_MAX = 16 * 1024 * 1024
RENDERER = SeatMapRenderer()


async def create_event(context: RequestContext, body: requests.EventBody) -> ApiResponse:
    """Create an event and everything it sells."""
    fields = context.command_fields(_CREATED)
    command = to_command.create_event(body, now=context.services.clock.now(), ids=context.engine.ids, **fields)
    created = await context.engine.create_event(command)
    answer = verb_response(created, _CREATED)
    if isinstance(created, Decided):
        answer.headers["Location"] = f"{context.root}/v1/events/{quote(command.event.id)}"
    return answer


async def change_event(context: RequestContext, body: requests.EventPatchBody) -> ApiResponse:
    """Change window, limits, prices and capacity; block and unblock seats."""
    command = to_command.change_event(body, event_id=event_id_of(context), **context.command_fields(_CHANGED))
    return verb_response(await context.engine.change_event(command), _CHANGED)


async def read(context: RequestContext) -> ApiResponse:
    """One event, if it is of the caller's mode."""
    return json_response(to_response.event_value(await find(context)))


async def list_(context: RequestContext) -> ApiResponse:
    """Events of the caller's mode, by id."""
    page = read_page(context.request.query_params, of=context.endpoint.name, actor=context.principal.actor)
    after = EventId(page.after) if page.after else None
    found = await context.engine.store.list_events(mode=context.principal.actor.mode, after=after, limit=page.limit + 1)
    shown = tuple(to_response.event_value(event) for event in found[: page.limit])
    more = len(found) > page.limit
    return json_response(responses.EventsPage(events=shown, next_cursor=page.cursor(shown[-1].id) if more else None))


async def show_map(context: RequestContext) -> ApiResponse:
    """The seat map and the pools, with an ETag that changes when anything on it does."""
    event_id = event_id_of(context)
    shown = await context.services.seat_map_cache.show(event_id)
    actor = context.principal.actor
    if shown.event.mode != actor.mode:
        raise EventUnknown(event_id=event_id)
    buyer = actor.buyer
    tag = version(shown.rendered, shown.rendered.own.get(buyer, ()) if buyer else ())
    headers = {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}
    if f'"{tag}"' in context.headers.get(b"if-none-match", b"").decode("latin-1"):
        return ApiResponse(status=HTTPStatus.NOT_MODIFIED, headers=headers)
    return ApiResponse(body=RENDERER.encode(shown.rendered, buyer, whole=True), headers=headers)


async def show_seat(context: RequestContext) -> ApiResponse:
    """One seat as the map shows it."""
    seen = await _one_seat(context)
    return json_response(to_response.seat_value(seen.seats[0], now=seen.now, buyer=context.principal.actor.buyer))


async def explain_seat(context: RequestContext) -> ApiResponse:
    """The reason why a seat is, or is not, available."""
    seen = await _one_seat(context)
    return json_response(
        to_response.explanation_value(seen.seats[0], now=seen.now, buyer=context.principal.actor.buyer)
    )


async def find(context: RequestContext) -> Event:
    """The event in the path, if it is of the caller's mode."""
    event_id = event_id_of(context)
    event = await context.engine.store.read_event(event_id)
    if event is None or event.mode != context.principal.actor.mode:
        raise EventUnknown(event_id=event_id)
    return event


async def _one_seat(context: RequestContext) -> SeatMap:
    event = await find(context)
    seat_id = SeatId(context.path["seat_id"])
    if "\0" in seat_id:
        raise SeatUnknown(seats=(seat_id.replace("\0", "\N{REPLACEMENT CHARACTER}"),))
    seen = await context.engine.store.read_map(event.id, seat_id=seat_id)
    if not seen.seats:
        raise SeatUnknown(seats=(seat_id,))
    return seen


def event_id_of(context: RequestContext) -> EventId:
    """The event's id in the path."""
    event_id = context.path["event_id"]
    if "\0" in event_id:  # PostgreSQL's text cannot hold it, so no event has it
        raise EventUnknown(event_id=event_id.replace("\0", "\N{REPLACEMENT CHARACTER}"))
    return EventId(event_id)


def _render(event: Event, _: datetime) -> Any:
    return to_response.event_value(event)


_CREATED = JsonWriter(_render, status=HTTPStatus.CREATED)
_CHANGED = JsonWriter(_render)


_PAGE = (("cursor", "where the last page ended"), ("limit", "how many, at most 200"))

ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/events",
        name="create_event",
        summary="Create an event and everything it sells",
        handler=create_event,
        body=requests.EventBody,
        answer=responses.Event,
        status=HTTPStatus.CREATED,
        scope=Scope.MANAGE,
        bytes_max=EVENT_BYTES_MAX,
        refusals=("event_exists",),
        idempotent=True,
        group="events",
        example={
            "id": "concert",
            "name": "A concert",
            "currency": "EUR",
            "layout": {"rows": 10, "seats_per_row": 20, "price": 4500},
            "pools": [{"id": "GA", "capacity": 100, "price": 2500}],
        },
    ),
    Endpoint(
        method="GET",
        path="/v1/events",
        name="list_events",
        summary="List events",
        handler=list_,
        or_scope=Scope.MANAGE,
        answer=responses.EventsPage,
        query=_PAGE,
        group="events",
    ),
    Endpoint(
        method="GET",
        path="/v1/events/{event_id}",
        name="read_event",
        summary="Read an event",
        handler=read,
        or_scope=Scope.MANAGE,
        answer=responses.Event,
        refusals=("event_unknown",),
        group="events",
    ),
    Endpoint(
        method="PATCH",
        path="/v1/events/{event_id}",
        name="change_event",
        summary="Change window, limits, prices and capacity; block seats",
        handler=change_event,
        body=requests.EventPatchBody,
        answer=responses.Event,
        scope=Scope.MANAGE,
        bytes_max=EVENT_BYTES_MAX,
        refusals=("event_unknown", "seat_unknown", "pool_unknown", "seats_taken", "capacity_in_use"),
        idempotent=True,
        group="events",
        example={"sale_closes_at": "2030-01-01T20:00:00Z", "seats": [{"id": "A1", "blocked": True}]},
    ),
    Endpoint(
        method="GET",
        path="/v1/events/{event_id}/seats",
        name="show_map",
        summary="Show the seat map and the pools",
        handler=show_map,
        or_scope=Scope.MANAGE,
        answer=responses.Map,
        refusals=("event_unknown",),
        group="events",
    ),
    Endpoint(
        method="GET",
        path="/v1/events/{event_id}/seats/{seat_id}",
        name="show_seat",
        summary="Show one seat",
        handler=show_seat,
        or_scope=Scope.MANAGE,
        answer=responses.Seat,
        refusals=("event_unknown", "seat_unknown"),
        group="events",
    ),
    Endpoint(
        method="GET",
        path="/v1/events/{event_id}/seats/{seat_id}/explain",
        name="explain_seat",
        summary="Explain why a seat is, or is not, available",
        handler=explain_seat,
        or_scope=Scope.MANAGE,
        answer=responses.Explanation,
        refusals=("event_unknown", "seat_unknown"),
        group="events",
    ),
)
