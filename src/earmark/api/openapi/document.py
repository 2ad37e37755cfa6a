"""The OpenAPI 3.1 document, made from the same table of endpoints as the routes."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.api import problem_response
from earmark.api.auth.keys_and_tokens import Scope
from earmark.api.auth.read_and_set_guest_cookie import COOKIE, HOST, SECURE
from earmark.api.openapi import response_and_error_examples
from earmark.api.openapi.parameters import parameters
from earmark.api.response import JSON
from earmark.schemas import responses

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from earmark.api.endpoint_declaration import Endpoint

_REF = "#/components/schemas/{name}"
DESCRIPTION = (
    "Errors are RFC 9457 problems with a stable `code`; `transient` says whether the same request may succeed later. "
    "Times are RFC 3339 in UTC, money is in minor units of its currency. Unknown fields and unknown query parameters "
    "are refused. A method that a path does not support is 405, with `Allow`."
)
_TEXT = {"type": "string"}
_NAMES = f"over TLS it is called `{HOST}`, under a prefix `{SECURE}`"
HEADERS: dict[str, dict[str, Any]] = {
    "Allow": {"description": "The methods that this path supports.", "schema": _TEXT},
    "Cache-Control": {"description": "Which caches may store the response, and for how long.", "schema": _TEXT},
    "ETag": {"description": "Changes when anything on the map does.", "schema": _TEXT},
    "Idempotency-Replayed": {
        "description": "Present when this is the stored response of an earlier request.",
        "schema": {"type": "string", "enum": ["true"]},
    },
    "Location": {"description": "The path of the new event or webhook.", "schema": _TEXT},
    "Referrer-Policy": {"description": "`no-referrer`: the link is not sent to another page.", "schema": _TEXT},
    "Retry-After": {"description": "After how many seconds to retry.", "schema": {"type": "integer", "minimum": 1}},
    "Set-Cookie": {
        "description": f"The token, in `{COOKIE}`, where scripts cannot read it; {_NAMES}.",
        "schema": _TEXT,
    },
    "X-Robots-Tag": {"description": "`noindex`: no search engine shows the link.", "schema": _TEXT},
    "WWW-Authenticate": {"description": "How to authenticate: `Bearer`.", "schema": _TEXT},
}
_RESPONSE_HEADERS = {
    "create_event": ("Location",),
    "make_webhook": ("Location",),
    "show_map": ("ETag", "Cache-Control"),
    "issue_guest": ("Set-Cookie", "Cache-Control"),
    "show_key_result": ("Cache-Control",),
    "read_tickets": ("Cache-Control",),
    "read_ticket_page": ("Cache-Control", "Referrer-Policy", "X-Robots-Tag"),
}
"""The headers of an endpoint's own response."""
_GROUPS = {
    "events": "What is sold into: its rules, its seats and pools, and the live map.",
    "bookings": "Hold, extend, confirm, release and cancel; read bookings and their history.",
    "payments": "Pay for a hold, refund, and the callbacks of gateways.",
    "tickets": "Tickets of confirmed bookings, their pages, and the scans of doors.",
    "webhooks": "URLs that receive messages about bookings, and the log of deliveries.",
    "buyers": "Tokens of the shop's buyers, and guests.",
    "operations": "Health, what needs an operator, and locks.",
}
_OPEN_TO_ALL = {
    "callback": "Needs no key: the gateway signs the body. Clients do not call it.",
    "issue_guest": "Needs no key. The server answers only where guests are allowed (`EARMARK_GUESTS`).",
    "read_ticket_page": "Needs no key: the link is one. An address that sends too many wrong links is slowed down.",
    "healthz": "Needs no key, and queries neither database nor Redis.",
    "readyz": "Needs no key. 503 while the database does not answer or the server is about to stop.",
}
"""Descriptions of operations that need no scope."""


def document(endpoints: Sequence[Endpoint], *, version: str) -> dict[str, Any]:
    """The document, for client generators and for the reference page."""
    types = {endpoint.body for endpoint in endpoints if endpoint.body} | {
        endpoint.answer for endpoint in endpoints if endpoint.answer
    }
    ordered = sorted({*types, responses.ProblemAnswer}, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template=_REF)
    names = {kind: schema["$ref"] for kind, schema in zip(ordered, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, names)
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
            {"name": group, "description": _GROUPS[group]}
            for group in dict.fromkeys(endpoint.group for endpoint in endpoints)
        ],
        "paths": paths,
        # The response of a path to a method that it does not support.
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


def _operation(endpoint: Endpoint, names: dict[Any, str]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "tags": [endpoint.group],
        "parameters": parameters(endpoint),
        "responses": _responses(endpoint, names),
    }
    if endpoint.scope is not None:
        scopes = [scope for scope in (endpoint.scope, endpoint.or_scope) if scope is not None]
        operation["security"] = [{"key": []}, *([{"guest": []}] if endpoint.scope is Scope.BUY else [])]
        operation["x-scopes"] = scopes
        operation["description"] = f"Needs the scope {' or '.join(f'`{scope}`' for scope in scopes)}."
    else:
        operation["description"] = _OPEN_TO_ALL[endpoint.name]
    if endpoint.body:
        content: dict[str, Any] = {"schema": {"$ref": names[endpoint.body]}}
        if endpoint.example is not None:
            content["example"] = endpoint.example
        required = any(field.required for field in msgspec.structs.fields(endpoint.body))
        operation["requestBody"] = {"required": required, "content": {"application/json": content}}
    elif endpoint.raw:
        body = {"schema": {"type": "object"}, "example": {"id": "evt_1", "type": "payment_intent.succeeded"}}
        about = "As the gateway sends it: its signature is over these bytes."
        operation["requestBody"] = {"required": True, "description": about, "content": {"application/json": body}}
    return operation


def _responses(endpoint: Endpoint, names: dict[Any, str]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in _codes(endpoint):
        by_status.setdefault(int(problem_response.STATUS[code]), []).append(code)
    refused = {str(status): _refused(codes, names) for status, codes in sorted(by_status.items())}
    granted = {str(int(status)): _granted(endpoint, names) for status in (endpoint.status, *endpoint.also)}
    if endpoint.name == "show_map":
        unchanged = {"description": "Nothing has changed.", "headers": _headers(_RESPONSE_HEADERS[endpoint.name])}
        granted[str(int(HTTPStatus.NOT_MODIFIED))] = unchanged
    return granted | refused


def _codes(endpoint: Endpoint) -> list[str]:
    """All codes that an endpoint may refuse with, its own first."""
    codes = [*endpoint.refusals]
    if not endpoint.raw:
        codes += ["invalid_request"]
    if endpoint.body:
        codes += ["body_too_large", "unsupported_media_type"]
    if endpoint.idempotent:
        codes += ["idempotency_mismatch", "idempotency_in_progress"]
    if endpoint.scope is not None:
        codes += ["unauthorized", "forbidden", "too_many_requests"]
    return [*codes, "overloaded", "outcome_unknown", "unavailable", "internal"]


def _granted(endpoint: Endpoint, names: dict[Any, str]) -> dict[str, Any]:
    about = (endpoint.answer.__doc__ or endpoint.summary).partition("\n")[0]
    # A stream is many events, each with data of its own: no schema of one response fits.
    content: dict[str, Any] = {"schema": {"$ref": names[endpoint.answer]} if endpoint.media_type == JSON else {}}
    if endpoint.name in response_and_error_examples.ANSWERS:
        content["example"] = response_and_error_examples.ANSWERS[endpoint.name]
    answered = {"description": about, "content": {endpoint.media_type: content}}
    headers = [*_RESPONSE_HEADERS.get(endpoint.name, ()), *(["Idempotency-Replayed"] if endpoint.idempotent else [])]
    return answered | ({"headers": _headers(headers)} if headers else {})


def _refused(codes: Iterable[str], names: dict[Any, str]) -> dict[str, Any]:
    """One status with every code that it may have, each with an example."""
    listed = list(dict.fromkeys(codes))
    shown = {
        code: {
            "summary": code,
            "value": msgspec.to_builtins(problem_response.describe(response_and_error_examples.REFUSALS[code])),
        }
        for code in listed
        if code in response_and_error_examples.REFUSALS
    }
    content: dict[str, Any] = {"schema": {"$ref": names[responses.ProblemAnswer]}}
    if shown:
        content["examples"] = shown
    headers = _headers(dict.fromkeys(name for code in listed for name in problem_response.HEADERS.get(code, {})))
    described = {
        "description": ", ".join(f"`{code}`" for code in listed),
        "content": {problem_response.MEDIA_TYPE: content},
    }
    return described | ({"headers": headers} if headers else {})


def _headers(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
