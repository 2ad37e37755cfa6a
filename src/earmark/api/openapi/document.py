"""The OpenAPI 3.1 document, made from the very table of calls that the routes are made from."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.api import problem_response
from earmark.api.auth.api_keys import Scope
from earmark.api.auth.guest_cookie import COOKIE, HOST, SECURE
from earmark.api.openapi import examples
from earmark.api.openapi.parameters import parameters
from earmark.api.response import JSON
from earmark.schemas import responses

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from earmark.api.endpoint import Endpoint

_REF = "#/components/schemas/{name}"
DESCRIPTION = (
    "Errors are RFC 9457 problems with a stable `code`; `transient` says whether the same request may succeed later. "
    "Times are RFC 3339 in UTC, money is in minor units of its currency. Unknown fields and unknown query parameters "
    "are refused. A method that an address does not answer to is 405, with `Allow`."
)
_TEXT = {"type": "string"}
_NAMES = f"over TLS it is called `{HOST}`, under a prefix `{SECURE}`"
HEADERS: dict[str, dict[str, Any]] = {
    "Allow": {"description": "The methods that this address answers to.", "schema": _TEXT},
    "Cache-Control": {"description": "Who may keep it, and for how long.", "schema": _TEXT},
    "ETag": {"description": "Changes when anything on the map does.", "schema": _TEXT},
    "Idempotency-Replayed": {
        "description": "There when this is the first answer again.",
        "schema": {"type": "string", "enum": ["true"]},
    },
    "Location": {"description": "Where the new event or webhook is.", "schema": _TEXT},
    "Retry-After": {"description": "In how many seconds to come again.", "schema": {"type": "integer", "minimum": 1}},
    "Set-Cookie": {
        "description": f"The token, in `{COOKIE}`, where scripts cannot read it; {_NAMES}.",
        "schema": _TEXT,
    },
    "WWW-Authenticate": {"description": "Which way to show who you are: `Bearer`.", "schema": _TEXT},
}
_OF_CALL = {
    "create": ("Location",),
    "make_webhook": ("Location",),
    "show_map": ("ETag", "Cache-Control"),
    "welcome": ("Set-Cookie", "Cache-Control"),
    "recall": ("Cache-Control",),
}
"""The headers that a call's own answer has."""
_GROUPS = {
    "events": "What is sold into: its rules, its seats and pools, and the live map.",
    "bookings": "Hold, extend, confirm, release and cancel; what there is, and what happened to it.",
    "payments": "Pay for a hold, give money back, and where gateways call.",
    "webhooks": "Addresses that are called about what happens, and every call that was made.",
    "buyers": "Who buys: tokens of the shop's buyers, and guests.",
    "operations": "Health, what needs an operator, and locks.",
}
_OPEN_TO_ALL = {
    "callback": "Needs no key: the gateway shows its signature over the body. Clients do not call it.",
    "welcome": "Needs no key. The server answers only where guests are allowed (`EARMARK_GUESTS`).",
    "healthz": "Needs no key, and asks neither database nor Redis.",
    "readyz": "Needs no key. 503 while the database does not answer or the server is about to stop.",
}
"""What is said of operations that need no scope."""


def document(calls: Sequence[Endpoint], *, version: str) -> dict[str, Any]:
    """Everything a client generator or a reader wants to know."""
    types = {call.body for call in calls if call.body} | {call.answer for call in calls if call.answer}
    ordered = sorted({*types, responses.ProblemAnswer}, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template=_REF)
    names = {kind: schema["$ref"] for kind, schema in zip(ordered, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for call in calls:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call, names)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Earmark",
            "version": version,
            "summary": "Hold seats or stock for a few minutes, pay, confirm; or let go, and everything returns.",
            "description": DESCRIPTION,
            "contact": {"name": "The operator of this server"},
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [
            {"name": group, "description": _GROUPS[group]} for group in dict.fromkeys(call.group for call in calls)
        ],
        "paths": paths,
        # What a path answers to a method that stands under it nowhere.
        "x-method-not-allowed": {"$ref": "#/components/responses/MethodNotAllowed"},
        "components": {
            "schemas": components,
            "responses": {
                "MethodNotAllowed": _refused(["method_not_allowed"], names) | {"headers": _headers(("Allow",))}
            },
            "headers": HEADERS,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "an API key (ek_…) or a buyer token (et_…)"},
                "guest": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": COOKIE,
                    "description": f"from POST /v1/guests; {_NAMES}",
                },
            },
        },
    }


def _operation(call: Endpoint, names: dict[Any, str]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": call.name,
        "summary": call.summary,
        "tags": [call.group],
        "parameters": parameters(call),
        "responses": _responses(call, names),
    }
    if call.scope is not None:
        scopes = [scope for scope in (call.scope, call.or_scope) if scope is not None]
        operation["security"] = [{"key": []}, *([{"guest": []}] if call.scope is Scope.BUY else [])]
        operation["x-scopes"] = scopes
        operation["description"] = f"Needs the scope {' or '.join(f'`{scope}`' for scope in scopes)}."
    else:
        operation["description"] = _OPEN_TO_ALL[call.name]
    if call.body:
        content: dict[str, Any] = {"schema": {"$ref": names[call.body]}}
        if call.example is not None:
            content["example"] = call.example
        required = any(field.required for field in msgspec.structs.fields(call.body))
        operation["requestBody"] = {"required": required, "content": {"application/json": content}}
    elif call.raw:
        body = {"schema": {"type": "object"}, "example": {"id": "evt_1", "type": "payment_intent.succeeded"}}
        said = "As the gateway sends it: its signature is over these very bytes."
        operation["requestBody"] = {"required": True, "description": said, "content": {"application/json": body}}
    return operation


def _responses(call: Endpoint, names: dict[Any, str]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in _codes(call):
        by_status.setdefault(int(problem_response.STATUS[code]), []).append(code)
    refused = {str(status): _refused(codes, names) for status, codes in sorted(by_status.items())}
    granted = {str(int(status)): _granted(call, names) for status in (call.status, *call.also)}
    if call.name == "show_map":
        unchanged = {"description": "Nothing has changed.", "headers": _headers(_OF_CALL[call.name])}
        granted[str(int(HTTPStatus.NOT_MODIFIED))] = unchanged
    return granted | refused


def _codes(call: Endpoint) -> list[str]:
    """All that it may refuse with, its own first."""
    codes = [*call.refusals]
    if not call.raw:
        codes += ["invalid_request"]
    if call.body:
        codes += ["body_too_large", "unsupported_media_type"]
    if call.idempotent:
        codes += ["idempotency_mismatch", "idempotency_in_progress"]
    if call.scope is not None:
        codes += ["unauthorized", "forbidden", "too_many_requests"]
    return [*codes, "overloaded", "outcome_unknown", "unavailable", "internal"]


def _granted(call: Endpoint, names: dict[Any, str]) -> dict[str, Any]:
    said = (call.answer.__doc__ or call.summary).partition("\n")[0]
    # A stream is many events, each with data of its own: no schema of one answer fits.
    content: dict[str, Any] = {"schema": {"$ref": names[call.answer]} if call.media_type == JSON else {}}
    if call.name in examples.ANSWERS:
        content["example"] = examples.ANSWERS[call.name]
    answered = {"description": said, "content": {call.media_type: content}}
    headers = [*_OF_CALL.get(call.name, ()), *(["Idempotency-Replayed"] if call.idempotent else [])]
    return answered | ({"headers": _headers(headers)} if headers else {})


def _refused(codes: Iterable[str], names: dict[Any, str]) -> dict[str, Any]:
    """One status, and every code that it may have, each with an example."""
    told = list(dict.fromkeys(codes))
    shown = {
        code: {"summary": code, "value": msgspec.to_builtins(problem_response.describe(examples.REFUSALS[code]))}
        for code in told
        if code in examples.REFUSALS
    }
    content: dict[str, Any] = {"schema": {"$ref": names[responses.ProblemAnswer]}}
    if shown:
        content["examples"] = shown
    headers = _headers(dict.fromkeys(name for code in told for name in problem_response.HEADERS.get(code, {})))
    described = {
        "description": ", ".join(f"`{code}`" for code in told),
        "content": {problem_response.MEDIA_TYPE: content},
    }
    return described | ({"headers": headers} if headers else {})


def _headers(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
