"""The live map over HTTP (`text/event-stream`): one snapshot, and then the changes."""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import Response

from earmark.api.auth.authenticate import credential_of
from earmark.api.endpoint_declaration import Endpoint
from earmark.api.middleware.read_forwarded_headers import address_at
from earmark.api.routes.events_and_seat_map import event_id_of
from earmark.errors import EventUnknown, InvalidRequest, StoreUnavailable
from earmark.schemas import responses
from earmark.seatmap.stream_hub import CREDENTIAL_ENDED

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from starlette.types import Receive, Scope, Send

    from earmark.api.request_context_for_handlers import RequestContext
    from earmark.seatmap.stream_hub import Reader

MEDIA_TYPE = "text/event-stream"
HEADERS = {
    "Cache-Control": "no-store",
    # Proxies that buffer a response would delay the events.
    "X-Accel-Buffering": "no",
}
NUMBER_DIGITS_MAX = 18


async def stream(context: RequestContext) -> Response:
    """Follow an event, from the number that the client saw last if it names one and that is still known."""
    context.services.in_flight.check_not_stopping()
    event_id, actor = event_id_of(context), context.principal.actor
    hub = context.services.hub
    if hub is None:
        raise StoreUnavailable(because="this process has no event streams")
    caller = context.principal.caller
    # A key's streams go to the shop's own servers, which may have one address for all their clients.
    address = address_at(context.scope, hops=context.services.trust_proxy) if actor.buyer is not None else None
    beside = hub.followed_from(address) if address is not None else 0
    context.services.limits.check_streams(context.principal, open_=hub.followed_by(caller), open_at_address=beside)
    reader = await hub.join(
        event_id, mode=actor.mode, buyer=actor.buyer, after=_last_seen(context), caller=caller, address=address
    )
    if reader is None:
        raise EventUnknown(event_id=event_id)
    credential = credential_of(context.scope, context.headers, context.services) or ""

    def staying(reader: Reader) -> AbstractContextManager[float | None]:
        authenticator, end = context.services.authenticator, partial(reader.end, CREDENTIAL_ENDED, at_once=True)
        return authenticator.open_stream(credential, now=context.services.clock.now, end=end)

    return EventStream(reader, staying=staying)


class EventStream(Response):
    """A response that lasts until the client disconnects or its credential is no longer valid."""

    media_type = MEDIA_TYPE

    def __init__(self, reader: Reader, *, staying: Callable[[Reader], AbstractContextManager[float | None]]) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._reader = reader
        self._staying = staying

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client disconnects, the server ends the stream, or the client stops reading."""
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
            # A client that stops reading is disconnected, which is not an error of the server.
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
    """The `Last-Event-ID` that browsers send when they reconnect, if it is a number; or the same as a parameter."""
    request = context.request
    sent, parameter = request.headers.get("last-event-id"), request.query_params.get("last_event_id")
    if parameter is not None and not _is_number(parameter):
        raise InvalidRequest.at("last_event_id", "is not the number of an event")
    number = sent or parameter or ""
    return int(number) if _is_number(number) else None


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
