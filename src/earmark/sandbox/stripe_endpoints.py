"""The sandbox over HTTP: the part of Stripe's API that a shop's payments need, for Stripe's official clients.

Faults are real here: a call that hangs keeps its connection open, and a lost reply breaks the connection.
"""

from __future__ import annotations

import hmac
import itertools
import re
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from earmark.sandbox import control_endpoints, stripe_json
from earmark.sandbox.call_pipeline import ReplyLost
from earmark.sandbox.form_encoding import Form
from earmark.sandbox.model import BankIntent, BankRefund, BankRefusal, ScriptedOutcome, invalid, missing
from earmark.sandbox.read_body_within_limits import BodyRefused, read_body
from earmark.sandbox.run_and_answer_stripe_request import StripeRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from earmark.sandbox.assemble_sandbox import Sandbox
    from earmark.sandbox.stripe_json import JsonObject

QUERY = re.compile(r"""metadata\[(["'])(?P<key>[^"']+)\1\]\s*:\s*(["'])(?P<value>[^"']*)\3""")


def create_app(sandbox: Sandbox) -> Starlette:
    """The application: Stripe's endpoints under `/v1`, and the sandbox's own under `/sandbox`."""
    numbers = itertools.count(1)

    def route(path: str, method: str, handle: Callable[[StripeRequest], Awaitable[JsonObject]]) -> Route:
        async def endpoint(request: Request) -> Response:
            return await _answer(sandbox, request, handle, request_id=f"req_{next(numbers):014d}")

        return Route(path, endpoint, methods=[method])

    async def unknown(request: Request, _: Exception) -> Response:
        message = f"Unrecognized request URL ({request.method}: {request.url.path})."
        return _json(404, {"error": {"type": "invalid_request_error", "message": message}}, {})

    routes = [*(route(*entry) for entry in CALLS), *control_endpoints.routes(sandbox)]
    return Starlette(routes=routes, exception_handlers={404: unknown, 405: unknown})


async def create_intent(request: StripeRequest) -> JsonObject:
    """`POST /v1/payment_intents`: create an intent and, with `confirm`, authorise it."""
    form = request.form
    amount, currency = form.integer("amount"), form.text("currency")
    if amount is None or currency is None:
        name = "amount" if amount is None else "currency"
        raise invalid(f"Missing required param: {name}.", code="parameter_missing", param=name)
    capture = form.text("capture_method") or "automatic"
    if capture not in {"automatic", "automatic_async", "manual"}:
        raise invalid(f"Invalid capture_method: {capture}", param="capture_method")
    confirm, return_url = form.flag("confirm"), form.url("return_url")
    redirects = form.mapping("automatic_payment_methods").get("allow_redirects", "always") != "never"
    if confirm and return_url is None and redirects and not form.several("payment_method_types"):
        message = "Some payment methods redirect the buyer: give a return_url, or set allow_redirects to never."
        raise invalid(message, code="parameter_missing", param="return_url")
    token = form.text("confirmation_token")
    given: dict[str, Any] = {
        "amount": amount,
        "currency": currency.upper(),
        "metadata": form.mapping("metadata"),
        "automatic": capture != "manual",
        "confirm": confirm,
        "return_url": return_url,
        "description": form.text("description"),
    }

    def work(scripted: ScriptedOutcome) -> BankIntent:
        # Within the call: the same request again is answered from its key, and does not use the token twice.
        method = request.sandbox.confirmation_tokens.use(token) if token else form.text("payment_method")
        return request.bank.authorise(**given, method=method, in_page=token is not None, scripted=scripted)

    return request.intent(await request.change("authorise", work))


async def create_confirmation_token(request: StripeRequest) -> JsonObject:
    """`POST /v1/test_helpers/confirmation_tokens`: what Stripe.js makes of the card that a buyer types into a page."""
    token = request.sandbox.confirmation_tokens.issue(request.form.text("payment_method"))
    return stripe_json.confirmation_token(token)


async def confirm_intent(request: StripeRequest) -> JsonObject:
    """`POST /v1/payment_intents/{id}/confirm`: authorise an intent."""
    id_, method, return_url = request.path["id"], request.form.text("payment_method"), request.form.url("return_url")

    def work(scripted: ScriptedOutcome) -> BankIntent:
        return request.bank.confirm(id_, method=method, return_url=return_url, scripted=scripted)

    return request.intent(await request.change("confirm", work))


async def capture_intent(request: StripeRequest) -> JsonObject:
    """`POST /v1/payment_intents/{id}/capture`: capture an authorised intent, whole or in part."""
    id_, amount = request.path["id"], request.form.integer("amount_to_capture")
    return request.intent(
        await request.change("capture", lambda scripted: request.bank.capture(id_, amount=amount, scripted=scripted))
    )


async def cancel_intent(request: StripeRequest) -> JsonObject:
    """`POST /v1/payment_intents/{id}/cancel`: cancel an intent that was not captured."""
    id_, reason = request.path["id"], request.form.text("cancellation_reason")
    return request.intent(
        await request.change("void", lambda scripted: request.bank.void(id_, reason=reason, scripted=scripted))
    )


async def read_intent(request: StripeRequest) -> JsonObject:
    """`GET /v1/payment_intents/{id}`: the current state of an intent."""
    return request.intent(await request.read("status", lambda: request.bank.intent(request.path["id"])))


async def list_intents(request: StripeRequest) -> JsonObject:
    """`GET /v1/payment_intents`: all intents, the newest first."""
    return _intents(request, await request.read("list", request.bank.intents), url="/v1/payment_intents")


async def search_intents(request: StripeRequest) -> JsonObject:
    """`GET /v1/payment_intents/search`: the intents with this pair of metadata."""
    wanted = QUERY.fullmatch((request.form.text("query") or "").strip())
    if wanted is None:
        raise invalid("The sandbox searches for metadata['key']:'value' only.", param="query")
    found = [
        intent
        for intent in await request.read("list", request.bank.intents)
        if intent.metadata.get(wanted["key"]) == wanted["value"]
    ]
    page = _intents(request, found, url="/v1/payment_intents/search")
    return page | {"object": "search_result", "next_page": None}


def _intents(request: StripeRequest, found: Sequence[BankIntent], *, url: str) -> JsonObject:
    expand = {name.removeprefix("data.") for name in request.form.several("expand")}
    return request.page(
        found, lambda value: stripe_json.intent(value, base_url=request.sandbox.base_url, expand=expand), url=url
    )


async def read_charge(request: StripeRequest) -> JsonObject:
    """`GET /v1/charges/{id}`: the charge of an intent."""
    return stripe_json.charge(await request.read("status", lambda: request.bank.intent_of_charge(request.path["id"])))


async def create_refund(request: StripeRequest) -> JsonObject:
    """`POST /v1/refunds`: refund an intent or a charge, whole or in part."""
    form = request.form
    intent_id, charge_id = form.text("payment_intent"), form.text("charge")
    if intent_id is None:
        if charge_id is None:
            message = "One of these is needed: payment_intent, charge."
            raise invalid(message, code="parameter_missing", param="payment_intent")
        intent_id = request.bank.intent_of_charge(charge_id).id
    id_, amount, metadata, reason = intent_id, form.integer("amount"), form.mapping("metadata"), form.text("reason")

    def work(scripted: ScriptedOutcome) -> BankRefund:
        return request.bank.refund(id_, amount=amount, metadata=metadata, reason=reason, scripted=scripted)

    return stripe_json.refund(await request.change("refund", work))


async def read_refund(request: StripeRequest) -> JsonObject:
    """`GET /v1/refunds/{id}`: the current state of a refund."""
    return stripe_json.refund(
        await request.read("refund_status", lambda: request.bank.refund_by_id(request.path["id"]))
    )


async def list_refunds(request: StripeRequest) -> JsonObject:
    """`GET /v1/refunds`: the refunds of one intent or all, the newest first."""
    intent_id, charge_id = request.form.text("payment_intent"), request.form.text("charge")
    found = await request.read("refund_status", lambda: request.bank.refunds(intent_id))
    found = [value for value in found if charge_id in {None, value.charge_id}]
    return request.page(found, stripe_json.refund, url="/v1/refunds")


async def list_events(request: StripeRequest) -> JsonObject:
    """`GET /v1/events`: all events, the newest first."""
    kind = request.form.text("type")
    found = await request.read("list", lambda: list(reversed(request.bank.events)))
    found = [value for value in found if kind in {None, value.kind}]
    return request.page(
        found, lambda value: stripe_json.event(value, base_url=request.sandbox.base_url), url="/v1/events"
    )


async def read_event(request: StripeRequest) -> JsonObject:
    """`GET /v1/events/{id}`: an event with its object at that time."""
    for event in await request.read("list", lambda: request.bank.events):
        if event.id == request.path["id"]:
            return stripe_json.event(event, base_url=request.sandbox.base_url)
    raise missing("event", request.path["id"])


async def list_disputes(request: StripeRequest) -> JsonObject:
    """`GET /v1/disputes`: all disputes, the newest first."""
    intent_id = request.form.text("payment_intent")
    found = await request.read("list", lambda: list(reversed(request.bank.disputes)))
    found = [value for value in found if intent_id in {None, value.intent_id}]
    return request.page(found, stripe_json.dispute, url="/v1/disputes")


CALLS: list[tuple[str, str, Callable[[StripeRequest], Awaitable[JsonObject]]]] = [
    ("/v1/test_helpers/confirmation_tokens", "POST", create_confirmation_token),
    ("/v1/payment_intents", "POST", create_intent),
    ("/v1/payment_intents", "GET", list_intents),
    ("/v1/payment_intents/search", "GET", search_intents),
    ("/v1/payment_intents/{id}", "GET", read_intent),
    ("/v1/payment_intents/{id}/confirm", "POST", confirm_intent),
    ("/v1/payment_intents/{id}/capture", "POST", capture_intent),
    ("/v1/payment_intents/{id}/cancel", "POST", cancel_intent),
    ("/v1/charges/{id}", "GET", read_charge),
    ("/v1/refunds", "POST", create_refund),
    ("/v1/refunds", "GET", list_refunds),
    ("/v1/refunds/{id}", "GET", read_refund),
    ("/v1/events", "GET", list_events),
    ("/v1/events/{id}", "GET", read_event),
    ("/v1/disputes", "GET", list_disputes),
]


class BrokenResponse(Response):
    """A response whose connection breaks before its end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (ASGI's signature)
        """Announce a longer body than is sent."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000")]})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})


async def _answer(
    sandbox: Sandbox, request: Request, handle: Callable[[StripeRequest], Awaitable[JsonObject]], *, request_id: str
) -> Response:
    headers = {"Request-Id": request_id, "Stripe-Version": stripe_json.API_VERSION}
    if not _has_key(request, sandbox.key):
        error = {"type": "invalid_request_error", "message": "Invalid API Key provided."}
        return _json(401, {"error": error}, headers)
    try:
        call = StripeRequest(sandbox, request, await _form(request))
        status, content = 200, await handle(call)
        replayed = call.replayed
    except ReplyLost:
        return BrokenResponse()
    except BankRefusal as refused:
        status, content = stripe_json.problem(refused, base_url=sandbox.base_url)
        replayed = refused.replayed
    return _json(status, content, headers | ({"Idempotent-Replayed": "true"} if replayed else {}))


def _has_key(request: Request, key: str) -> bool:
    given = request.headers.get("authorization", "")
    return hmac.compare_digest(given.encode(), f"Bearer {key}".encode())


async def _form(request: Request) -> Form:
    if request.method == "GET":
        return Form.read(request.url.query.encode())
    try:
        return Form.read(await read_body(request))
    except BodyRefused as refused:
        raise invalid(str(refused)) from refused


def _json(status: int, content: JsonObject, headers: Mapping[str, str]) -> Response:
    return Response(msgspec.json.encode(content), status, headers, "application/json")
