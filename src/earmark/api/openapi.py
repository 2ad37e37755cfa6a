"""The OpenAPI 3.1 document, made from the very table of calls that the routes are made from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.api import problems, words
from earmark.api.door import COOKIE
from earmark.api.identity import Scope
from earmark.api.paging import LIMIT_DEFAULT, LIMIT_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.api.door import Call

_REF = "#/components/schemas/{name}"
DESCRIPTION = (
    "Errors are RFC 9457 problems with a stable `code`; `transient` says whether the same request may succeed later. "
    "Times are RFC 3339 in UTC, money is in minor units of its currency. Unknown fields are refused."
)
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")


def document(calls: Sequence[Call], *, version: str) -> dict[str, Any]:
    """Everything a client generator or a reader wants to know."""
    types = {call.body for call in calls if call.body} | {call.answer for call in calls if call.answer}
    ordered = sorted({*types, words.ProblemAnswer}, key=lambda kind: kind.__name__)
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
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": group} for group in dict.fromkeys(call.group for call in calls)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "an API key (ek_…) or a buyer token (et_…)"},
                "guest": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "from POST /v1/guests"},
            },
        },
    }


def _operation(call: Call, names: dict[Any, str]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": call.name,
        "summary": call.summary,
        "tags": [call.group],
        "parameters": _parameters(call),
        "responses": _responses(call, names),
    }
    if call.scope is not None:
        operation["security"] = [{"key": []}, *([{"guest": []}] if call.scope is Scope.BUY else [])]
        operation["description"] = f"Needs the scope `{call.scope}`."
    if call.body:
        content: dict[str, Any] = {"schema": {"$ref": names[call.body]}}
        if call.example is not None:
            content["example"] = call.example
        operation["requestBody"] = {"required": bool(call.example), "content": {"application/json": content}}
    return operation


def _parameters(call: Call) -> list[dict[str, Any]]:
    text = {"type": "string"}
    inside = [
        {"name": name, "in": "path", "required": True, "schema": text} for name in _PATH_PARAMETER.findall(call.path)
    ]
    limit = {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT}
    behind = [
        {"name": name, "in": "query", "description": why, "schema": limit if name == "limit" else text}
        for name, why in call.query
    ]
    if not call.idempotent:
        return [*inside, *behind]
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "required": call.keyed,
        "description": "The same key with the same request gets the same answer again, byte for byte, for 24 hours.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    }
    return [*inside, *behind, key]


def _responses(call: Call, names: dict[Any, str]) -> dict[str, Any]:
    said = (call.answer.__doc__ or call.summary).partition("\n")[0]
    answered = {"description": said, "content": {call.media_type: {"schema": {"$ref": names[call.answer]}}}}
    codes = [*call.refusals]
    if call.body:
        codes += ["invalid_request", "body_too_large", "unsupported_media_type"]
    if call.idempotent:
        codes += ["idempotency_mismatch", "idempotency_in_progress"]
    if call.scope is not None:
        codes += ["unauthorized", "forbidden"]
    codes += ["overloaded", "outcome_unknown", "unavailable"]
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(int(problems.STATUS[code]), []).append(code)
    problem = {"schema": {"$ref": names[words.ProblemAnswer]}}
    refused = {
        str(status): {
            "description": ", ".join(f"`{code}`" for code in told),
            "content": {problems.MEDIA_TYPE: problem},
        }
        for status, told in sorted(by_status.items())
    }
    return {str(int(status)): answered for status in (call.status, *call.also)} | refused
