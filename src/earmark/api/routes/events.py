"""Events and their seats: create, read, list, change, show."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from earmark.api.auth.api_keys import Scope
from earmark.api.endpoint import Call, Reply, Visit, reply, say
from earmark.api.pagination import read_page
from earmark.domain.ids import EventId, SeatId
from earmark.engine.commands import Decided
from earmark.errors import EventUnknown, SeatUnknown
from earmark.schemas import requests, responses, to_command, to_response
from earmark.schemas.seat_map import Words, version

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.domain.event import Event
    from earmark.engine.ports.store import SeatMap
    from earmark.schemas.to_command import Common
    from earmark.seatmap.cache import Picture

EVENT_BYTES_MAX = 16 * 1024 * 1024
WORDS = Words()


async def create(visit: Visit, body: requests.EventBody) -> Reply:
    """Make an event and everything it sells."""
    common = _common(visit, status=HTTPStatus.CREATED)
    ask = to_command.create(body, now=visit.house.clock.now(), ids=visit.engine.ids, **common)
    created = await visit.engine.create(ask)
    answer = reply(created, _render, status=HTTPStatus.CREATED)
    if isinstance(created, Decided):
        answer.headers["Location"] = f"{visit.root}/v1/events/{quote(ask.event.id)}"
    return answer


async def change(visit: Visit, body: requests.EventPatchBody) -> Reply:
    """Change window, limits, prices and capacity; block and unblock seats."""
    ask = to_command.change(body, event_id=event_id_of(visit), **_common(visit, status=HTTPStatus.OK))
    return reply(await visit.engine.change(ask), _render)


async def read(visit: Visit) -> Reply:
    """One event."""
    return say(to_response.event_value(await find(visit)))


async def list_(visit: Visit) -> Reply:
    """Events, by id."""
    page = read_page(visit.request.query_params, of=visit.call.name, actor=visit.principal.actor)
    after = EventId(page.after) if page.after else None
    found = await visit.engine.store.list_events(live=visit.principal.actor.live, after=after, limit=page.limit + 1)
    shown = tuple(to_response.event_value(event) for event in found[: page.limit])
    more = len(found) > page.limit
    return say(responses.EventsPage(events=shown, next_cursor=page.cursor(shown[-1].id) if more else None))


async def show_map(visit: Visit) -> Reply:
    """The seat map and the pools, with an ETag that changes when anything on it does."""
    event_id = event_id_of(visit)
    shown = await visit.house.availability.show(event_id)
    actor = visit.principal.actor
    if shown.event.live != actor.live:
        raise EventUnknown(event_id=event_id)
    buyer = actor.buyer
    tag = version(shown.picture, shown.picture.own.get(buyer, ()) if buyer else ())
    headers = {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}
    if f'"{tag}"' in visit.headers.get(b"if-none-match", b"").decode("latin-1"):
        return Reply(status=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Reply(body=WORDS.tell(shown.picture, buyer, whole=True), headers=headers)


async def show_seat(visit: Visit) -> Reply:
    """One seat."""
    seen = await _one_seat(visit)
    return say(to_response.seat_value(seen.seats[0], now=seen.now, buyer=visit.principal.actor.buyer))


async def explain_seat(visit: Visit) -> Reply:
    """Why this seat is, or is not, available."""
    seen = await _one_seat(visit)
    return say(to_response.explanation_value(seen.seats[0], now=seen.now, buyer=visit.principal.actor.buyer))


def draw(event: Event, seen: SeatMap) -> Picture:
    """The map in the API's words, as it is for a shop; whose the seats are is only marked."""
    parts = [WORDS.part(on_map, now=seen.now) for on_map in seen.seats]
    return WORDS.paint(event, parts, [WORDS.pool(pool) for pool in seen.pools])


async def find(visit: Visit) -> Event:
    """The event in the path, if it is of the caller's kind."""
    event_id = event_id_of(visit)
    event = await visit.engine.store.read_event(event_id)
    if event is None or event.live != visit.principal.actor.live:
        raise EventUnknown(event_id=event_id)
    return event


async def _one_seat(visit: Visit) -> SeatMap:
    event = await find(visit)
    seat_id = SeatId(visit.path["seat_id"])
    if "\0" in seat_id:
        raise SeatUnknown(seats=(seat_id.replace("\0", "\N{REPLACEMENT CHARACTER}"),))
    seen = await visit.engine.store.read_map(event.id, seat_id=seat_id)
    if not seen.seats:
        raise SeatUnknown(seats=(seat_id,))
    return seen


def event_id_of(visit: Visit) -> EventId:
    """The event in the path."""
    event_id = visit.path["event_id"]
    if "\0" in event_id:  # PostgreSQL's text cannot hold it, so no event has it
        raise EventUnknown(event_id=event_id.replace("\0", "\N{REPLACEMENT CHARACTER}"))
    return EventId(event_id)


def _render(event: Event, _: datetime) -> Any:
    return to_response.event_value(event)


def _common(visit: Visit, *, status: HTTPStatus) -> Common:
    return {
        "actor": visit.principal.actor,
        "entry_id": visit.engine.ids.entry_id(),
        "memo": visit.memo(_render, status=status),
    }


_PAGE = (("cursor", "where the last page ended"), ("limit", "how many, at most 200"))

CALLS = (
    Call(
        method="POST",
        path="/v1/events",
        name="create",
        summary="Create an event and everything it sells",
        handler=create,
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
    Call(
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
    Call(
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
    Call(
        method="PATCH",
        path="/v1/events/{event_id}",
        name="change",
        summary="Change window, limits, prices and capacity; block seats",
        handler=change,
        body=requests.EventPatchBody,
        answer=responses.Event,
        scope=Scope.MANAGE,
        bytes_max=EVENT_BYTES_MAX,
        refusals=("event_unknown", "seat_unknown", "pool_unknown", "seats_taken", "capacity_in_use"),
        idempotent=True,
        group="events",
        example={"sale_closes_at": "2030-01-01T20:00:00Z", "seats": [{"id": "A1", "blocked": True}]},
    ),
    Call(
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
    Call(
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
    Call(
        method="GET",
        path="/v1/events/{event_id}/seats/{seat_id}/explain",
        name="explain_seat",
        summary="Say why a seat is, or is not, available",
        handler=explain_seat,
        or_scope=Scope.MANAGE,
        answer=responses.Explanation,
        refusals=("event_unknown", "seat_unknown"),
        group="events",
    ),
)
