"""Events and their seats: create, read, list, change, show."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from earmark.api import words
from earmark.api.door import Call, Reply, Visit, reply, say
from earmark.api.identity import Scope
from earmark.api.paging import read_page
from earmark.api.pictures import Words, version
from earmark.domain.event import Event
from earmark.domain.ids import EventId, PoolId, SeatId
from earmark.domain.money import is_currency
from earmark.domain.pool import Pool
from earmark.domain.seat import Seat, SeatState
from earmark.engine.asks import Change, Create, Decided, PoolPatch, SeatPatch
from earmark.errors import EventUnknown, InvalidRequest, SeatUnknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from earmark.engine.ports import SeatMap
    from earmark.publish.availability import Picture

EVENT_BYTES_MAX = 16 * 1024 * 1024
YEARS = range(1970, 9999)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
WORDS = Words()


async def create(visit: Visit, body: words.EventBody) -> Reply:
    """Make an event and everything it sells."""
    if not is_currency(body.currency):
        raise InvalidRequest.at("currency", "is not an ISO 4217 currency")
    event_id = EventId(body.id or f"evt_{visit.engine.ids.booking_id().hex}")
    seats, pools = _seats(event_id, body), _pools(event_id, body)
    if not seats and not pools:
        raise InvalidRequest.at("seats", "an event sells seats (or a layout of them), pools, or both")
    if body.sale_opens_at and body.sale_closes_at and body.sale_closes_at <= body.sale_opens_at:
        raise InvalidRequest.at("sale_closes_at", "must be after sale_opens_at")
    event = Event(
        id=event_id,
        name=body.name,
        currency=body.currency,
        live=visit.principal.actor.live,
        created_at=visit.house.clock.now(),
        starts_at=_utc("starts_at", body.starts_at),
        sale_opens_at=_utc("sale_opens_at", body.sale_opens_at),
        sale_closes_at=_utc("sale_closes_at", body.sale_closes_at),
        hold_ttl_seconds=body.hold_ttl_seconds,
        per_buyer_max=body.per_buyer_max,
        on_decline=body.on_decline,
        refund_until_seconds=body.refund_until_seconds,
        refund_fee_percent=body.refund_fee_percent,
        refund_fee_fixed=body.refund_fee_fixed,
    )
    ask = Create(
        actor=visit.principal.actor,
        entry_id=visit.engine.ids.entry_id(),
        memo=visit.memo(_render, status=HTTPStatus.CREATED),
        event=event,
        seats=seats,
        pools=pools,
    )
    created = await visit.engine.create(ask)
    answer = reply(created, _render, status=HTTPStatus.CREATED)
    if isinstance(created, Decided):
        answer.headers["Location"] = f"/v1/events/{quote(event_id)}"
    return answer


async def change(visit: Visit, body: words.EventPatchBody) -> Reply:
    """Change window, limits, prices and capacity; block and unblock seats."""
    _refuse_doubles("seats", [seat.id for seat in body.seats])
    _refuse_doubles("pools", [pool.id for pool in body.pools])
    named = msgspec.structs.asdict(body)
    own = {name: value for name, value in named.items() if name not in {"seats", "pools"}}
    ask = Change(
        actor=visit.principal.actor,
        entry_id=visit.engine.ids.entry_id(),
        memo=visit.memo(_render, status=HTTPStatus.OK),
        event_id=event_id_of(visit),
        fields={name: _utc(name, value) for name, value in own.items() if value is not msgspec.UNSET},
        seats=tuple(SeatPatch(id=SeatId(seat.id), blocked=seat.blocked, price=seat.price) for seat in body.seats),
        pools=tuple(PoolPatch(id=PoolId(pool.id), capacity=pool.capacity, price=pool.price) for pool in body.pools),
    )
    return reply(await visit.engine.change(ask), _render)


async def read(visit: Visit) -> Reply:
    """One event."""
    return say(words.event_answer(await find(visit)))


async def list_(visit: Visit) -> Reply:
    """Events, by id."""
    page = read_page(visit.request.query_params, of=visit.call.name, actor=visit.principal.actor)
    after = EventId(page.after) if page.after else None
    found = await visit.engine.store.list_events(live=visit.principal.actor.live, after=after, limit=page.limit + 1)
    shown = [words.event_answer(event) for event in found[: page.limit]]
    more = len(found) > page.limit
    return say(words.EventsPage(events=shown, next_cursor=page.cursor(shown[-1].id) if more else None))


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
    return say(words.seat_answer(seen.seats[0], now=seen.now, buyer=visit.principal.actor.buyer))


async def explain_seat(visit: Visit) -> Reply:
    """Why this seat is, or is not, available."""
    seen = await _one_seat(visit)
    on_map = seen.seats[0]
    shown = words.seat_answer(on_map, now=seen.now, buyer=visit.principal.actor.buyer)
    ends_at = on_map.owner_expires_at
    left = round((ends_at - seen.now).total_seconds(), 3) if ends_at and shown.state is SeatState.HELD else None
    may_know = shown.mine or visit.principal.actor.buyer is None
    answer = words.ExplainAnswer(
        id=shown.id,
        state=shown.state,
        why=_why(shown, paying=on_map.owner_state == "paying", ended=on_map.owner_state),
        expires_in=left,
        booking_id=str(on_map.owner_id) if on_map.owner_id and may_know else None,
    )
    return say(answer)


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


def _why(seat: words.SeatAnswer, *, paying: bool, ended: str | None) -> str:
    whose = "your" if seat.mine else "another"
    match seat.state:
        case SeatState.BOOKED:
            return f"It is sold: it belongs to {whose} booking."
        case SeatState.HELD if paying:
            return f"It is in {whose} booking, which is being paid for."
        case SeatState.HELD:
            return f"It is held by {whose} booking, which is not paid for yet."
        case SeatState.BLOCKED:
            return "It is blocked by the organiser and not for sale."
        case SeatState.AVAILABLE:
            return f"It is free: its last booking is {ended}." if ended and ended != "held" else "It is free."


def _render(event: Event, _: datetime) -> Any:
    return words.event_answer(event)


def _utc(path: str, value: Any) -> Any:
    """A moment in UTC, in years that every store can keep; other values as they are."""
    if not isinstance(value, datetime):
        return value
    if not YEARS.start <= value.year < YEARS.stop:
        raise InvalidRequest.at(path, f"must be from {YEARS.start} to {YEARS.stop - 1}")
    return value.astimezone(UTC)


def _seats(event_id: EventId, body: words.EventBody) -> tuple[Seat, ...]:
    if body.layout and body.seats:
        raise InvalidRequest.at("layout", "give seats or a layout, not both")
    if body.layout and body.layout.rows * body.layout.seats_per_row > words.EVENT_SEATS_MAX:
        raise InvalidRequest.at("layout", f"an event has at most {words.EVENT_SEATS_MAX} seats")
    if body.layout:
        return tuple(_lay_out(event_id, body.layout))
    _refuse_doubles("seats", [seat.id for seat in body.seats])
    return tuple(Seat(event_id=event_id, **msgspec.structs.asdict(seat)) for seat in body.seats)


def _lay_out(event_id: EventId, layout: words.LayoutBody) -> Iterable[Seat]:
    for row in range(layout.rows):
        name = _row_name(row)
        for number in range(1, layout.seats_per_row + 1):
            seat_id = SeatId(f"{name}{number}")
            yield Seat(event_id=event_id, id=seat_id, price=layout.price, row=name, number=number)


def _row_name(row: int) -> str:
    """A to Z, then AA, AB and so on."""
    return LETTERS[row] if row < len(LETTERS) else LETTERS[row // len(LETTERS) - 1] + LETTERS[row % len(LETTERS)]


def _pools(event_id: EventId, body: words.EventBody) -> tuple[Pool, ...]:
    _refuse_doubles("pools", [pool.id for pool in body.pools])
    return tuple(
        Pool(event_id=event_id, id=PoolId(pool.id), capacity=pool.capacity, price=pool.price) for pool in body.pools
    )


def _refuse_doubles(path: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidRequest.at(path, f"names {name} twice")
        seen.add(name)


_PAGE = (("cursor", "where the last page ended"), ("limit", "how many, at most 200"))

CALLS = (
    Call(
        method="POST",
        path="/v1/events",
        name="create",
        summary="Create an event and everything it sells",
        handler=create,
        body=words.EventBody,
        answer=words.EventAnswer,
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
        answer=words.EventsPage,
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
        answer=words.EventAnswer,
        refusals=("event_unknown",),
        group="events",
    ),
    Call(
        method="PATCH",
        path="/v1/events/{event_id}",
        name="change",
        summary="Change window, limits, prices and capacity; block seats",
        handler=change,
        body=words.EventPatchBody,
        answer=words.EventAnswer,
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
        answer=words.MapAnswer,
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
        answer=words.SeatAnswer,
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
        answer=words.ExplainAnswer,
        refusals=("event_unknown", "seat_unknown"),
        group="events",
    ),
)
