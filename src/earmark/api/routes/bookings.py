"""Bookings: hold, read, list, extend, confirm, release, cancel, history."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from earmark.api.auth.keys_and_tokens import Scope
from earmark.api.endpoint_declaration import Endpoint
from earmark.api.pagination import read_page
from earmark.api.problem_response import Forbidden
from earmark.api.response import ApiResponse, JsonWriter, json_response, verb_response
from earmark.domain import buyer_cancel_rules
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import BookingId, Buyer
from earmark.engine.commands_and_results import Extend, Release
from earmark.engine.ports.store import BookingFilter
from earmark.errors import BookingUnknown, InvalidRequest
from earmark.schemas import requests, responses, to_command, to_response

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from earmark.api.request_context_for_handlers import RequestContext
    from earmark.domain.booking import Booking


async def hold(context: RequestContext, body: requests.HoldBody) -> ApiResponse:
    """Set seats and pool units aside for a few minutes, all or nothing."""
    buyer = _buyer(context, body.buyer)
    fields = context.command_fields(_HELD)
    command = to_command.hold(body, buyer=buyer, booking_id=context.engine.ids.booking_id(), **fields)
    if body.best_available is None:
        result = await context.engine.hold(command)
    else:
        result = await context.engine.hold_best(command, to_command.wish(body.best_available))
    return verb_response(result, _HELD)


async def change(context: RequestContext, body: requests.ChangeBody) -> ApiResponse:
    """Give a hold other seats and units; its end stays."""
    command = to_command.change(body, booking_id=booking_id(context), **context.command_fields(_BOOKING))
    return verb_response(await context.engine.change(command), _BOOKING)


async def extend(context: RequestContext, body: requests.ExtendBody) -> ApiResponse:
    """Give a hold more time, within its longest life."""
    command = Extend(**context.command_fields(_BOOKING), booking_id=booking_id(context), seconds=body.seconds)
    return verb_response(await context.engine.extend(command), _BOOKING)


async def confirm(context: RequestContext, body: requests.ConfirmBody) -> ApiResponse:
    """Turn a hold into a sale whose money the shop took itself."""
    command = to_command.confirm(body, booking_id=booking_id(context), **context.command_fields(_BOOKING))
    return verb_response(await context.engine.confirm(command), _BOOKING)


async def release(context: RequestContext, _: requests.ReleaseBody) -> ApiResponse:
    """Give up a hold; its seats and units are free again."""
    command = Release(**context.command_fields(_BOOKING), booking_id=booking_id(context))
    return verb_response(await context.engine.release(command), _BOOKING)


async def cancel(context: RequestContext, body: requests.CancelBody) -> ApiResponse:
    """Undo a sale, or some lines of it: the shop as it likes, a buyer as the event's rules say."""
    command = to_command.cancel(body, booking_id=booking_id(context), **context.command_fields(_CANCELLED))
    return verb_response(await context.services.payments.cancel(command), _CANCELLED)


async def read(context: RequestContext) -> ApiResponse:
    """One booking, if the caller may see it."""
    now, booking = await find(context)
    (shown,) = await _shown(context, [booking], now)
    return json_response(shown)


async def list_(context: RequestContext) -> ApiResponse:
    """Bookings, oldest first: a buyer gets their own, a shop's key those of all buyers."""
    query = context.request.query_params
    actor = context.principal.actor
    page = read_page(query, of=context.endpoint.name, actor=actor)
    if actor.buyer is not None and query.get("buyer", actor.buyer) != actor.buyer:
        raise Forbidden
    wanted = BookingFilter(
        mode=actor.mode,
        limit=page.limit + 1,
        after=_after(page.after),
        buyer=actor.buyer or _asked(query, "buyer", requests.Who),
        event_id=_asked(query, "event_id", requests.EventIdText),
        state=to_command.state_of(query.get("state")),
    )
    now, found = await context.engine.store.list_bookings(wanted)
    shown = await _shown(context, found[: page.limit], now)
    more = len(found) > page.limit
    return json_response(
        responses.BookingsPage(bookings=shown, next_cursor=page.cursor(shown[-1].id) if more else None)
    )


async def _shown(context: RequestContext, bookings: Sequence[Booking], now: datetime) -> tuple[responses.Booking, ...]:
    """The bookings as the caller reads them: a buyer is told, of each, until when it may be cancelled."""
    if context.principal.actor.buyer is None:
        return tuple(to_response.booking_value(booking, now) for booking in bookings)
    store, sold = context.engine.store, [booking for booking in bookings if booking.state is State.CONFIRMED]
    events = await store.read_events({booking.event_id for booking in sold})
    offered = [booking for booking in sold if buyer_cancel_rules.limit(events[booking.event_id]) is not None]
    paid_here = await store.list_paid_here({booking.id for booking in offered if booking.payment_id is not None})
    checked_in = await store.list_checked_in({booking.id for booking in offered})
    until = {
        booking.id: buyer_cancel_rules.cancellable_until(
            booking,
            events[booking.event_id],
            paid_here=booking.id in paid_here,
            checked_in=booking.id in checked_in,
            now=now,
        )
        for booking in offered
    }
    return tuple(to_response.buyers_booking_value(booking, now, until=until.get(booking.id)) for booking in bookings)


async def show_history(context: RequestContext) -> ApiResponse:
    """The journal entries of a booking. The notes of the shop's operators are only shown to the shop."""
    _, booking = await find(context)
    entries = await context.engine.store.read_history(booking.id)
    notes = context.principal.actor.buyer is None
    return json_response(
        responses.History(entries=tuple(to_response.entry_value(entry, notes=notes) for entry in entries))
    )


async def find(context: RequestContext) -> tuple[datetime, Booking]:
    """The booking in the path, if the caller may see it."""
    wanted = booking_id(context)
    now, booking = await context.engine.store.read_booking(wanted)
    if booking is None or not context.principal.actor.may_see(booking):
        raise BookingUnknown(booking_id=str(wanted))
    return now, booking


_HELD = JsonWriter(to_response.booking_value, status=HTTPStatus.CREATED)
_BOOKING = JsonWriter(to_response.booking_value)
_CANCELLED = JsonWriter(to_response.undone_value)


def booking_id(context: RequestContext) -> BookingId:
    """The booking's id in the path."""
    return to_command.booking_id_of(context.path["booking_id"])


def _buyer(context: RequestContext, named: str | None) -> Buyer:
    """The buyer of the hold: with a token its own buyer, with a shop's key the buyer that the request names."""
    own = context.principal.actor.buyer
    if own is not None:
        if named not in {None, own}:
            raise Forbidden
        return own
    if named is None:
        raise InvalidRequest.at("buyer", "is required: name the buyer of this hold")
    return Buyer(named)


def _after(text: str | None) -> BookingId | None:
    try:
        return BookingId(UUID(text)) if text else None
    except ValueError:
        raise InvalidRequest.at("cursor", "is not one that this server gave out") from None


def _asked(query: Mapping[str, str], name: str, kind: Any) -> Any:
    """A filter, if the query has it. A value that no buyer or event can have is refused, not answered with nothing."""
    try:
        return msgspec.convert(query[name], type=kind) if name in query else None
    except msgspec.ValidationError:
        raise InvalidRequest.at(name, "is not a valid value") from None


_ON_BOOKING = ("booking_unknown", "booking_expired", "booking_resolved", "payment_in_progress")

ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/bookings",
        name="hold",
        summary="Hold seats and pool units, all or nothing",
        handler=hold,
        body=requests.HoldBody,
        answer=responses.Booking,
        status=HTTPStatus.CREATED,
        refusals=(
            "event_unknown",
            "seat_unknown",
            "pool_unknown",
            "seats_taken",
            "none_available",
            "pool_exhausted",
            "limit_exceeded",
            "sale_closed",
        ),
        idempotent=True,
        queued=True,
        example={"event_id": "concert", "buyer": "alice", "seats": ["A1", "A2"], "pools": {"GA": 1}},
    ),
    Endpoint(
        method="GET",
        path="/v1/bookings",
        name="list_bookings",
        summary="List bookings, the expired ones too",
        handler=list_,
        answer=responses.BookingsPage,
        query=(
            ("buyer", "whose"),
            ("event_id", "of which event"),
            ("state", "in which state"),
            ("cursor", "where the last page ended"),
            ("limit", "how many, at most 200"),
        ),
    ),
    Endpoint(
        method="GET",
        path="/v1/bookings/{booking_id}",
        name="read_booking",
        summary="Read a booking",
        handler=read,
        answer=responses.Booking,
        refusals=("booking_unknown",),
    ),
    Endpoint(
        method="GET",
        path="/v1/bookings/{booking_id}/history",
        name="show_history",
        summary="Show all that happened to a booking",
        handler=show_history,
        answer=responses.History,
        refusals=("booking_unknown",),
    ),
    Endpoint(
        method="POST",
        path="/v1/bookings/{booking_id}/change",
        name="change",
        summary="Give a hold other seats and units",
        handler=change,
        body=requests.ChangeBody,
        answer=responses.Booking,
        refusals=(
            *_ON_BOOKING,
            "seat_unknown",
            "pool_unknown",
            "seats_taken",
            "pool_exhausted",
            "price_changed",
            "limit_exceeded",
            "sale_closed",
        ),
        idempotent=True,
        queued=True,
        example={"add_seats": ["A3"], "drop_seats": ["A1"], "pools": {"GA": 2}},
    ),
    Endpoint(
        method="POST",
        path="/v1/bookings/{booking_id}/extend",
        name="extend",
        summary="Give a hold more time",
        handler=extend,
        body=requests.ExtendBody,
        answer=responses.Booking,
        refusals=(*_ON_BOOKING, "extension_refused"),
        idempotent=True,
        queued=True,
        example={"seconds": 120},
    ),
    Endpoint(
        method="POST",
        path="/v1/bookings/{booking_id}/confirm",
        name="confirm",
        summary="Confirm a hold whose money was taken elsewhere",
        handler=confirm,
        body=requests.ConfirmBody,
        answer=responses.Booking,
        scope=Scope.SELL,
        refusals=(*_ON_BOOKING, "payment_used"),
        idempotent=True,
        queued=True,
        example={"payment_id": "till-1-0001", "payment_method": "cash"},
    ),
    Endpoint(
        method="POST",
        path="/v1/bookings/{booking_id}/release",
        name="release",
        summary="Let go of a hold",
        handler=release,
        body=requests.ReleaseBody,
        answer=responses.Booking,
        refusals=_ON_BOOKING,
        idempotent=True,
        queued=True,
        example={},
    ),
    Endpoint(
        method="POST",
        path="/v1/bookings/{booking_id}/cancel",
        name="cancel",
        summary="Undo a sale, or some lines of it",
        handler=cancel,
        body=requests.CancelBody,
        answer=responses.Undone,
        refusals=(*_ON_BOOKING, "booking_not_confirmed", "cancel_refused", "refund_refused"),
        idempotent=True,
        queued=True,
        example={"refund": "none"},
    ),
)
