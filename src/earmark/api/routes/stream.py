"""The live map at the door: `text/event-stream`, one snapshot and then what changes."""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import Response

from earmark.api.auth.authenticate import shown
from earmark.api.endpoint import Endpoint
from earmark.api.middleware.client_address import address_at
from earmark.api.routes.events import event_id_of
from earmark.errors import EventUnknown, InvalidRequest, StoreUnavailable
from earmark.schemas import responses
from earmark.seatmap.followers import CREDENTIAL_ENDED

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from starlette.types import Receive, Scope, Send

    from earmark.api.context import RequestContext
    from earmark.seatmap.followers import Reader

MEDIA_TYPE = "text/event-stream"
HEADERS = {
    "Cache-Control": "no-store",
    # Proxies that collect an answer before they pass it on would make the news old.
    "X-Accel-Buffering": "no",
}
NUMBER_DIGITS_MAX = 18


async def stream(context: RequestContext) -> Response:
    """Follow an event, from the last number that was seen, if the caller names one that is known."""
    context.services.in_flight.check_not_stopping()
    event_id, actor = event_id_of(context), context.principal.actor
    hub = context.services.hub
    if hub is None:
        raise StoreUnavailable(because="nobody follows events in this process")
    caller = context.principal.caller
    # A key's streams go to the shop's own servers, which may have one address for all their clients.
    address = address_at(context.scope, hops=context.services.trust_proxy) if actor.buyer is not None else None
    beside = hub.followed_from(address) if address is not None else 0
    context.services.limits.check_streams(context.principal, open_=hub.followed_by(caller), open_at_address=beside)
    reader = await hub.join(
        event_id, live=actor.live, buyer=actor.buyer, after=_last_seen(context), caller=caller, address=address
    )
    if reader is None:
        raise EventUnknown(event_id=event_id)
    credential = shown(context.scope, context.headers, context.services) or ""

    def staying(reader: Reader) -> AbstractContextManager[float | None]:
        authenticator, end = context.services.authenticator, partial(reader.end, CREDENTIAL_ENDED, at_once=True)
        return authenticator.open_stream(credential, now=context.services.clock.now, end=end)

    return EventStream(reader, staying=staying)


class EventStream(Response):
    """An answer that does not end by itself, but with what let its reader in."""

    media_type = MEDIA_TYPE

    def __init__(self, reader: Reader, *, staying: Callable[[Reader], AbstractContextManager[float | None]]) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._reader = reader
        self._staying = staying

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until they hang up, are sent away, or take nothing any more."""
        async with self._reader as reader:
            with self._staying(reader) as seconds:
                reader.stay(seconds)
                await self._tell(reader, scope, receive, send)

    async def _tell(self, reader: Reader, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        listening = asyncio.create_task(_hang_up(receive, reader))
        try:
            if scope["method"] != "HEAD":
                async for data in reader:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:
            # Who takes nothing is dropped, which is no failure of ours.
            task = asyncio.current_task()
            if not reader.stalled or task is None or task.uncancel():
                raise
        finally:
            listening.cancel()
            await asyncio.wait([listening])


async def _hang_up(receive: Receive, reader: Reader) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    reader.close()


def _last_seen(context: RequestContext) -> int | None:
    """The header that browsers send when they come back, whatever it says; or the same as a parameter."""
    request = context.request
    sent, asked = request.headers.get("last-event-id"), request.query_params.get("last_event_id")
    if asked is not None and not _is_number(asked):
        raise InvalidRequest.at("last_event_id", "is not the number of an event")
    said = sent or asked or ""
    return int(said) if _is_number(said) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/events/{event_id}/stream",
        name="stream",
        summary="Follow the seat map and the pools live",
        handler=stream,
        answer=responses.Map,
        media_type=MEDIA_TYPE,
        status=HTTPStatus.OK,
        refusals=("event_unknown", "overloaded", "stopping"),
        query=(("last_event_id", "the number of the last event that was seen, as `Last-Event-ID`"),),
        group="events",
    ),
)
