"""The ASGI application: the table of endpoints as routes, the pages, health and metrics."""

from __future__ import annotations

from functools import cache, lru_cache
from hashlib import sha256
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from earmark.api import problem_response
from earmark.api.cross_origin_requests import preflights
from earmark.api.endpoint_declaration import Endpoint
from earmark.api.handle_endpoint_request import EndpointApp
from earmark.api.match_path_to_endpoint import Router
from earmark.api.middleware.log_count_and_trace_requests import RequestLog
from earmark.api.openapi import document
from earmark.api.page_files import media_type_of, page_files, page_tags
from earmark.api.page_security_headers import SECURITY_HEADERS, checkout_page_headers
from earmark.api.response import ApiResponse, json_response
from earmark.api.routes import (
    booking_contact,
    bookings,
    events_and_seat_map,
    issue_buyer_token,
    issue_guest_token,
    list_and_break_locks,
    ops_console_data,
    pay_refund_and_list_payments,
    payment_methods_of_event,
    receive_gateway_callbacks,
    result_by_idempotency_key,
    seat_map_stream,
    ticket_page_and_calendar,
    tickets,
    webhooks_and_deliveries,
)
from earmark.domain.mask_and_reference_payment_method import SANDBOX
from earmark.domain.payment import PaymentState, payment_id_of
from earmark.errors import EarmarkError
from earmark.sandbox import three_d_secure_page
from earmark.sandbox.gateway import SandboxGateway
from earmark.schemas import responses
from earmark.version import __version__

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from earmark.api.cross_origin_requests import AllowedOrigins
    from earmark.api.open_services_for_handlers import Services
    from earmark.api.request_context_for_handlers import RequestContext
    from earmark.sandbox.model import BankIntent

ROOTS_MAX = 8
"""The OpenAPI document is cached as JSON for so many mount prefixes."""
CHECKOUT = "/checkout"
PAGES = {
    "/": "index.html",
    CHECKOUT: "checkout.html",
    "/bookings": "bookings.html",
    "/docs": "docs.html",
    "/ops": "ops.html",
    "/door": "door.html",
}


async def healthz(_: RequestContext) -> ApiResponse:
    """Answer 200 while the process runs; nothing else is checked."""
    return json_response(responses.HealthAnswer(status="ok", version=__version__))


async def readyz(context: RequestContext) -> ApiResponse:
    """Answer 200 if the store accepts writes, its schema fits this server, and this server is not about to stop."""
    services = context.services
    services.in_flight.check_not_stopping()
    await services.readiness.check(lambda: services.deadline.within(services.engine.store.check_ready()))
    services.in_flight.check_not_stopping()
    return json_response(responses.HealthAnswer(status="ready", version=__version__))


async def metrics(context: RequestContext) -> ApiResponse:
    """The metrics in the Prometheus text format."""
    services = context.services
    return ApiResponse(
        body=await services.metrics.page(now=services.clock.now()),
        media_type="text/plain; version=0.0.4; charset=utf-8",
    )


HEALTH = (
    Endpoint(
        method="GET",
        path="/healthz",
        name="healthz",
        summary="Check that the process is alive",
        handler=healthz,
        answer=responses.HealthAnswer,
        scope=None,
        group="operations",
    ),
    Endpoint(
        method="GET",
        path="/readyz",
        name="readyz",
        summary="Check that bookings can be taken",
        handler=readyz,
        answer=responses.HealthAnswer,
        refusals=("stopping",),
        scope=None,
        group="operations",
    ),
)
ENDPOINTS = (
    *events_and_seat_map.ENDPOINTS,
    *seat_map_stream.ENDPOINTS,
    *bookings.ENDPOINTS,
    *booking_contact.ENDPOINTS,
    *result_by_idempotency_key.ENDPOINTS,
    *payment_methods_of_event.ENDPOINTS,
    *pay_refund_and_list_payments.ENDPOINTS,
    *receive_gateway_callbacks.ENDPOINTS,
    *tickets.ENDPOINTS,
    *webhooks_and_deliveries.ENDPOINTS,
    *issue_guest_token.ENDPOINTS,
    *issue_buyer_token.ENDPOINTS,
    *ops_console_data.ENDPOINTS,
    *list_and_break_locks.ENDPOINTS,
    *HEALTH,
)
METRICS = Endpoint(
    method="GET",
    path="/metrics",
    name="metrics",
    summary="Show metrics for Prometheus",
    handler=metrics,
    answer=None,
    scope=None,
    group="operations",
)


def create_app(services: Services) -> ASGIApp:
    """The whole service over one engine: API, pages, OpenAPI document, health and metrics."""
    described = _described()

    @lru_cache(maxsize=ROOTS_MAX)
    def encoded(root: str) -> tuple[bytes, str]:
        servers = {"servers": [{"url": root}]} if root else {}
        body = msgspec.json.encode(described | servers)
        return body, f'"{sha256(body).hexdigest()[:32]}"'

    async def describe(request: Request) -> Response:
        body, tag = encoded(request.scope.get("root_path", ""))
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if _has(request, tag):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(body, media_type="application/json", headers=headers)

    served = (*ENDPOINTS, *ticket_page_and_calendar.PAGES, METRICS)
    answers = [(endpoint, EndpointApp(endpoint, services)) for endpoint in served]
    calls: list[tuple[str, str, ASGIApp]] = [(endpoint.method, endpoint.path, answer) for endpoint, answer in answers]
    calls += [("OPTIONS", path, answer) for path, answer in preflights(ENDPOINTS, services.origins)]
    routes = [Route(path, answer, methods=[method]) for method, path, answer in calls]
    headers = {CHECKOUT: checkout_page_headers(services.payments)}
    routes += [Route(path, _page(file, headers.get(path, SECURITY_HEADERS))) for path, file in PAGES.items()]
    routes += [Route("/favicon.ico", _page("icon.svg", SECURITY_HEADERS))]  # browsers ask for it by this name
    routes += [Route("/openapi.json", describe), Route("/web/allowed-origins.json", _listed(services.origins))]
    routes += [Route("/web/{file:path}", _asset(services.origins))]
    routes += _sandbox_page(services)
    services.metrics.watch(services.engine, gateways=services.payments.gateways)
    if services.locks:
        services.metrics.watch_locks(services.locks)
    hub = services.hub
    if hub:
        services.metrics.watch_stream(lambda: hub.readers)
    pages = Starlette(routes=routes, exception_handlers={HTTPException: _no_route, EarmarkError: _refused})
    # A redirect would contain the scheme that this server sees, and behind a proxy the client uses another one.
    pages.router.redirect_slashes = False
    router = Router(calls, otherwise=pages)
    return RequestLog(router, metrics=services.metrics, tracing=services.tracing)


@cache
def _described() -> dict[str, Any]:
    """The OpenAPI document, which is the same for every application of a process and is not changed."""
    return document.document(ENDPOINTS, version=__version__)


def _sandbox_page(services: Services) -> list[Route]:
    """Where the buyer of a test payment authenticates; the payment is then driven at once."""
    gateway = services.payments.gateways.get(SANDBOX)
    if not isinstance(gateway, SandboxGateway):
        return []

    async def acted(intent: BankIntent) -> None:
        payment_id = payment_id_of(intent.payment_id or "")
        if payment_id is not None:
            payment = await services.payments.driver.advance(payment_id, ask_gateway=True)
            if payment is not None and payment.state is PaymentState.REQUIRES_ACTION:
                # A drive was under way that had read the payment before the buyer acted.
                await services.payments.driver.advance(payment_id, ask_gateway=True)

    return three_d_secure_page.routes(gateway.sandbox, acted=acted, body_seconds_max=services.body_timeout.seconds)


def _page(file: str, headers: dict[str, str]) -> Any:
    async def page(request: Request) -> Response:
        return _file(request, file, headers)

    return page


def _listed(origins: AllowedOrigins) -> Any:
    """The sites that may lead buyers to the checkout: from any other page, the buyer is asked first."""
    body = msgspec.json.encode({"origins": origins.listed})

    async def listed(_: Request) -> Response:
        return Response(body, media_type="application/json", headers=SECURITY_HEADERS | {"Cache-Control": "no-cache"})

    return listed


def _asset(origins: AllowedOrigins) -> Any:
    """A file of the pages. Pages of listed sites may import its modules, and read no page."""

    async def asset(request: Request) -> Response:
        response = _file(request, request.path_params["file"])
        if not request.path_params["file"].endswith(".html"):
            response.raw_headers += origins.headers(request.scope)
        return response

    return asset


def _file(request: Request, name: str, security_headers: dict[str, str] = SECURITY_HEADERS) -> Response:
    found = page_files().get(name)
    if found is None:
        return problem_response.respond(problem_response.NotFound())
    tag = page_tags()[name]
    headers = {**security_headers, "ETag": tag, "Cache-Control": "no-cache"}
    if _has(request, tag):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(found, media_type=media_type_of(name), headers=headers)


def _has(request: Request, tag: str) -> bool:
    """Whether the browser has what this tag names."""
    known = {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}
    return bool(known & {tag, "*"})


async def _no_route(request: Request, exception: Exception) -> Response:
    """404 for a path, or 405 for a method, that no endpoint has."""
    assert isinstance(exception, HTTPException)
    if exception.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        allowed = sorted({endpoint.method for endpoint in (*ENDPOINTS, METRICS) if _fits(endpoint.path, path)})
        return problem_response.respond(problem_response.MethodNotAllowed(allowed=allowed or ["GET"]))
    return problem_response.respond(problem_response.NotFound())


def _fits(template: str, path: str) -> bool:
    wanted, given = template.split("/"), path.split("/")
    return len(wanted) == len(given) and all(
        part.startswith("{") or part == value for part, value in zip(wanted, given, strict=True)
    )


async def _refused(_: Request, exception: Exception) -> Response:
    assert isinstance(exception, EarmarkError)
    return problem_response.respond(exception)
