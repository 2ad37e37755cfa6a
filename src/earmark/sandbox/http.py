"""The sandbox over HTTP: enough of Stripe's API for its official clients, and the script played for real.

A call that hangs holds its socket, and a reply that is lost is a connection that breaks.
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

from earmark.sandbox import control, words
from earmark.sandbox.asked import Asked
from earmark.sandbox.desk import ReplyLost
from earmark.sandbox.forms import Form
from earmark.sandbox.model import Fate, Intent, Refund, Refused, invalid, missing
from earmark.sandbox.reading import BodyRefused, read_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from earmark.sandbox.house import Sandbox
    from earmark.sandbox.words import Words

QUERY = re.compile(r"""metadata\[(["'])(?P<key>[^"']+)\1\]\s*:\s*(["'])(?P<value>[^"']*)\3""")


def create_app(sandbox: Sandbox) -> Starlette:
    """The whole server: Stripe's calls under `/v1`, and the sandbox's own under `/sandbox`."""
    numbers = itertools.count(1)

    def route(path: str, method: str, handle: Callable[[Asked], Awaitable[Words]]) -> Route:
        async def endpoint(request: Request) -> Response:
            return await _answer(sandbox, request, handle, request_id=f"req_{next(numbers):014d}")

        return Route(path, endpoint, methods=[method])

    async def unknown(request: Request, _: Exception) -> Response:
        message = f"Unrecognized request URL ({request.method}: {request.url.path})."
        return _json(404, {"error": {"type": "invalid_request_error", "message": message}}, {})

    routes = [*(route(*entry) for entry in CALLS), *control.routes(sandbox)]
    return Starlette(routes=routes, exception_handlers={404: unknown, 405: unknown})


async def create_intent(asked: Asked) -> Words:
    """`POST /v1/payment_intents`."""
    form = asked.form
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
        message = "Some payment methods send the buyer elsewhere: give a return_url, or set allow_redirects to never."
        raise invalid(message, code="parameter_missing", param="return_url")
    given: dict[str, Any] = {
        "amount": amount,
        "currency": currency.upper(),
        "method": form.text("payment_method"),
        "metadata": form.mapping("metadata"),
        "automatic": capture != "manual",
        "confirm": confirm,
        "return_url": return_url,
        "description": form.text("description"),
    }
    return asked.intent(await asked.change("authorise", lambda fate: asked.bank.authorise(**given, fate=fate)))


async def confirm_intent(asked: Asked) -> Words:
    """`POST /v1/payment_intents/{id}/confirm`."""
    id_, method, return_url = asked.path["id"], asked.form.text("payment_method"), asked.form.url("return_url")

    def work(fate: Fate) -> Intent:
        return asked.bank.confirm(id_, method=method, return_url=return_url, fate=fate)

    return asked.intent(await asked.change("confirm", work))


async def capture_intent(asked: Asked) -> Words:
    """`POST /v1/payment_intents/{id}/capture`."""
    id_, amount = asked.path["id"], asked.form.integer("amount_to_capture")
    return asked.intent(await asked.change("capture", lambda fate: asked.bank.capture(id_, amount=amount, fate=fate)))


async def cancel_intent(asked: Asked) -> Words:
    """`POST /v1/payment_intents/{id}/cancel`."""
    id_, reason = asked.path["id"], asked.form.text("cancellation_reason")
    return asked.intent(await asked.change("void", lambda fate: asked.bank.void(id_, reason=reason, fate=fate)))


async def read_intent(asked: Asked) -> Words:
    """`GET /v1/payment_intents/{id}`."""
    return asked.intent(await asked.read("status", lambda: asked.bank.intent(asked.path["id"])))


async def list_intents(asked: Asked) -> Words:
    """`GET /v1/payment_intents`, the newest first."""
    return _intents(asked, await asked.read("list", asked.bank.intents), url="/v1/payment_intents")


async def search_intents(asked: Asked) -> Words:
    """`GET /v1/payment_intents/search`, by metadata."""
    wanted = QUERY.fullmatch((asked.form.text("query") or "").strip())
    if wanted is None:
        raise invalid("The sandbox searches for metadata['key']:'value' only.", param="query")
    found = [
        intent
        for intent in await asked.read("list", asked.bank.intents)
        if intent.metadata.get(wanted["key"]) == wanted["value"]
    ]
    page = _intents(asked, found, url="/v1/payment_intents/search")
    return page | {"object": "search_result", "next_page": None}


def _intents(asked: Asked, found: Sequence[Intent], *, url: str) -> Words:
    expand = {name.removeprefix("data.") for name in asked.form.several("expand")}
    return asked.page(found, lambda it: words.intent(it, base_url=asked.sandbox.base_url, expand=expand), url=url)


async def read_charge(asked: Asked) -> Words:
    """`GET /v1/charges/{id}`."""
    return words.charge(await asked.read("status", lambda: asked.bank.intent_of_charge(asked.path["id"])))


async def create_refund(asked: Asked) -> Words:
    """`POST /v1/refunds`."""
    form = asked.form
    intent_id, charge_id = form.text("payment_intent"), form.text("charge")
    if intent_id is None:
        if charge_id is None:
            message = "One of these is needed: payment_intent, charge."
            raise invalid(message, code="parameter_missing", param="payment_intent")
        intent_id = asked.bank.intent_of_charge(charge_id).id
    id_, amount, metadata, reason = intent_id, form.integer("amount"), form.mapping("metadata"), form.text("reason")

    def work(fate: Fate) -> Refund:
        return asked.bank.refund(id_, amount=amount, metadata=metadata, reason=reason, fate=fate)

    return words.refund(await asked.change("refund", work))


async def read_refund(asked: Asked) -> Words:
    """`GET /v1/refunds/{id}`."""
    return words.refund(await asked.read("refund_status", lambda: asked.bank.refund_by_id(asked.path["id"])))


async def list_refunds(asked: Asked) -> Words:
    """`GET /v1/refunds`, of one intent or of all, the newest first."""
    intent_id, charge_id = asked.form.text("payment_intent"), asked.form.text("charge")
    found = await asked.read("refund_status", lambda: asked.bank.refunds(intent_id))
    found = [it for it in found if charge_id in {None, it.charge_id}]
    return asked.page(found, words.refund, url="/v1/refunds")


async def list_events(asked: Asked) -> Words:
    """`GET /v1/events`, the newest first."""
    kind = asked.form.text("type")
    found = await asked.read("list", lambda: list(reversed(asked.bank.events)))
    found = [it for it in found if kind in {None, it.kind}]
    return asked.page(found, lambda it: words.event(it, base_url=asked.sandbox.base_url), url="/v1/events")


async def read_event(asked: Asked) -> Words:
    """`GET /v1/events/{id}`."""
    for event in await asked.read("list", lambda: asked.bank.events):
        if event.id == asked.path["id"]:
            return words.event(event, base_url=asked.sandbox.base_url)
    raise missing("event", asked.path["id"])


async def list_disputes(asked: Asked) -> Words:
    """`GET /v1/disputes`, the newest first."""
    intent_id = asked.form.text("payment_intent")
    found = await asked.read("list", lambda: list(reversed(asked.bank.disputes)))
    found = [it for it in found if intent_id in {None, it.intent_id}]
    return asked.page(found, words.dispute, url="/v1/disputes")


CALLS: list[tuple[str, str, Callable[[Asked], Awaitable[Words]]]] = [
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


class Cut(Response):
    """A connection that breaks in the middle of its answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (the shape of ASGI)
        """Promise more than is ever sent."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000")]})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})


async def _answer(
    sandbox: Sandbox, request: Request, handle: Callable[[Asked], Awaitable[Words]], *, request_id: str
) -> Response:
    headers = {"Request-Id": request_id, "Stripe-Version": words.API_VERSION}
    if not _has_key(request, sandbox.key):
        error = {"type": "invalid_request_error", "message": "Invalid API Key provided."}
        return _json(401, {"error": error}, headers)
    try:
        asked = Asked(sandbox, request, await _form(request))
        status, said = 200, await handle(asked)
        replayed = asked.replayed
    except ReplyLost:
        return Cut()
    except Refused as refused:
        status, said = words.problem(refused, base_url=sandbox.base_url)
        replayed = refused.replayed
    return _json(status, said, headers | ({"Idempotent-Replayed": "true"} if replayed else {}))


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


def _json(status: int, said: Words, headers: Mapping[str, str]) -> Response:
    return Response(msgspec.json.encode(said), status, headers, "application/json")
