"""Takes one request to an endpoint through its steps: authenticate, read and decode, call the handler, respond.

A handler gets a `RequestContext` and a decoded body, calls one verb, and returns an `ApiResponse`. Refusals are raised
as exceptions and become problem responses here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from earmark.api import refuse_unknown_parameters
from earmark.api.auth.authenticate import authenticate
from earmark.api.cross_origin_requests import adding, is_for_buyers
from earmark.api.limit_rejections_per_second import RejectionThrottle
from earmark.api.middleware.log_count_and_trace_requests import note
from earmark.api.middleware.read_and_decode_body import BodyDecoder, read_body
from earmark.api.problem_response import OurFault
from earmark.api.request_context_for_handlers import RequestContext
from earmark.api.response import ApiResponse, problem
from earmark.errors import EarmarkError, Outage, OutcomeUnknown, Overloaded, StoreUnavailable
from earmark.observability import logs

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.responses import Response
    from starlette.types import Receive, Send
    from starlette.types import Scope as AsgiScope

    from earmark.api.endpoint_declaration import Endpoint
    from earmark.api.open_services_for_handlers import Services

_rejections = RejectionThrottle()
_OVERLOADED = problem(Overloaded())
log = logs.get()


class EndpointApp:
    """An endpoint as an ASGI application."""

    def __init__(self, endpoint: Endpoint, services: Services) -> None:
        self._endpoint = endpoint
        self._services = services
        self._decoder = BodyDecoder(endpoint.body) if endpoint.body else None
        self._queue = services.engine.queues.get(endpoint.name)
        self._origins = services.origins if services.origins and is_for_buyers(endpoint) else None

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Reject it or handle it, record the outcome, send the response."""
        endpoint = self._endpoint
        if self._queue is not None and self._queue.is_full:
            # Before anything is read or looked up: under overload this is the most frequent path.
            await _rejections.turn()
            response: ApiResponse | Response = _OVERLOADED
            outcome = Overloaded.code
        else:
            response, outcome = await self._handle(scope, receive)
        note(scope, verb=endpoint.name, route=endpoint.path, outcome=outcome)
        also = () if self._origins is None else self._origins.headers(scope)
        if isinstance(response, ApiResponse):
            await response.send(send, also=also)
        else:
            await response(scope, receive, adding(also, send) if also else send)

    async def _handle(self, scope: AsgiScope, receive: Receive) -> tuple[ApiResponse | Response, str]:
        """Authenticate, read, decode, call the handler; the response and the outcome to count."""
        endpoint, services = self._endpoint, self._services
        try:
            # Of a header that is sent twice the first counts.
            headers = dict(reversed(scope["headers"]))
            principal = await authenticate(scope, headers, endpoint=endpoint, services=services)
            if scope["query_string"] and not endpoint.raw:
                given = Request(scope).query_params.multi_items()
                refuse_unknown_parameters.check(given, known={name for name, _ in endpoint.query})
            raw = b""
            if endpoint.body or endpoint.raw:
                raw = await read_body(
                    headers, receive, bytes_max=endpoint.bytes_max, body_timeout=services.body_timeout
                )
            context = RequestContext(
                scope, endpoint=endpoint, services=services, principal=principal, headers=headers, raw=raw
            )
            arguments = (self._decoder.decode(raw),) if self._decoder else ()
            work = endpoint.handler(context, *arguments)
            return await (work if endpoint.queued else self._within_deadline(work)), "ok"
        except EarmarkError as error:
            if isinstance(error, Outage) and not isinstance(error, Overloaded):
                log.warning(endpoint.name, outcome=error.code, **error.facts())
            return problem(error), error.code
        except Exception:
            log.exception(endpoint.name, outcome="internal")
            return problem(OurFault()), "internal"

    async def _within_deadline(self, work: Coroutine[Any, Any, ApiResponse | Response]) -> ApiResponse | Response:
        """The response in time; else an outage. Of a request that changes something the outcome is then unknown."""
        try:
            return await self._services.deadline.within(work)
        except TimeoutError as late:
            if self._endpoint.method == "GET":
                raise StoreUnavailable(because="the call took too long") from late
            raise OutcomeUnknown from late
