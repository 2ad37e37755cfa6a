"""A request collection (Postman's format, version 2.1), made from the OpenAPI document and the example flows.

It has every operation with its example, and the flows with what to expect of each response. A test runs the flows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.api.openapi.postman_example_flows import EXAMPLE_FLOWS

if TYPE_CHECKING:
    from earmark.api.openapi.postman_example_flows import ExampleFlow, FlowStep

SCHEMA = "https://schema.getpostman.com/json/collection/v2.1.0/collection.json"
WAIT_MS = 2500
KEY_HEADER = "Idempotency-Key"
_PARAMETER = re.compile(r"\{(\w+)\}")


def collection(document: dict[str, Any]) -> dict[str, Any]:
    """The collection of an OpenAPI document: the example flows, then every operation on its own."""
    operations = {
        operation["operationId"]: (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    return {
        "info": {
            "name": "Earmark",
            "description": "Set baseUrl and key, and run an example from its first request to its last.",
            "schema": SCHEMA,
        },
        "auth": {"type": "bearer", "bearer": [{"key": "token", "value": "{{key}}", "type": "string"}]},
        "variable": [
            {"key": "baseUrl", "value": "http://127.0.0.1:8080"},
            {"key": "key", "value": ""},
            *({"key": name, "value": ""} for name in ("event_id", "booking_id", "first_answer")),
        ],
        "item": [
            {"name": "Examples", "item": [_flow(flow, operations) for flow in EXAMPLE_FLOWS]},
            {"name": "Every operation", "item": [_call(*operation) for operation in operations.values()]},
        ],
    }


def _flow(flow: ExampleFlow, operations: dict[str, Any]) -> dict[str, Any]:
    items = [_step(step, *operations[step.call], first=number == 0) for number, step in enumerate(flow.steps)]
    return {"name": flow.title, "description": flow.meaning, "item": items}


def _step(step: FlowStep, method: str, path: str, operation: dict[str, Any], *, first: bool) -> dict[str, Any]:
    before = ['pm.collectionVariables.set("event_id", pm.variables.replaceIn("example-{{$guid}}"));'] if first else []
    if step.waits:
        before.append(f"setTimeout(() => {{}}, {WAIT_MS});")
    before += [_rival(number, body) for number, body in enumerate(step.rivals)]
    places = {name: f"{{{{{name}}}}}" for name in _PARAMETER.findall(path)}
    if step.call == "show_key_result":
        places["key"] = "click-{{event_id}}"
    request = _request(method, path, places=places, body=step.body, key=step.key)
    scripts = [("prerequest", before), ("test", _expectations(step))]
    events = [
        {"listen": kind, "script": {"type": "text/javascript", "exec": lines}} for kind, lines in scripts if lines
    ]
    return {"name": step.title, "event": events, "request": request | {"description": operation["summary"]}}


def _rival(number: int, body: Any) -> str:
    """A script line that sends a hold and does not wait: the next line sends its rival while this one is under way."""
    command = (
        f"pm.sendRequest({{url: pm.variables.replaceIn({_js('{{baseUrl}}/v1/bookings')}), method: {_js('POST')}, "
        f"header: {{{_js('Content-Type')}: {_js('application/json')}, "
        f"Authorization: pm.variables.replaceIn({_js('Bearer {{key}}')})}}, "
        f"body: {{mode: {_js('raw')}, raw: pm.variables.replaceIn({_js(_js(body))})}}}}, "
    )
    outcome = "[response.code, response.json().code || response.json().state]"
    outcome = f'{outcome}.concat(response.json().code ? response.json().seats : []).join(" ")'
    return f"{command}(error, response) => pm.collectionVariables.set({_js(_name(number))}, {outcome}));"


def _name(number: int) -> str:
    return f"rival_{number + 1}"


def _expectations(step: FlowStep) -> list[str]:
    """The checks of a step as lines of a Postman script."""
    lines = [f'pm.test("status is {step.status}", () => pm.response.to.have.status({step.status}));']
    for place, value in step.fields.items():
        wanted = f"pm.variables.replaceIn({_js(value)})" if isinstance(value, str) and "{{" in value else _js(value)
        lines.append(f'pm.test("{place}", () => pm.expect(pm.response.json().{place}).to.eql({wanted}));')
    if step.same_as:
        kept = f'pm.collectionVariables.get("{step.same_as}")'
        lines.append(f'pm.test("the same bytes", () => pm.expect(pm.response.text()).to.eql({kept}));')
        header = 'pm.response.headers.get("Idempotency-Replayed")'
        lines.append(f'pm.test("marked as replayed", () => pm.expect({header}).to.eql("true"));')
    if step.rivals:
        outcome = ", ".join(f"pm.collectionVariables.get({_js(_name(number))})" for number in range(len(step.rivals)))
        lines.append(
            f'pm.test("one of them has it", () => pm.expect([{outcome}].sort()).to.eql({_js(step.verdicts)}));'
        )
    if step.held is not None:
        seen = 'pm.response.json().seats.filter((seat) => seat.state === "held").length'
        lines.append(f'pm.test("{step.held} seats are held", () => pm.expect({seen}).to.eql({step.held}));')
    lines += [f'pm.collectionVariables.set("{name}", pm.response.json().{place});' for name, place in step.keep.items()]
    if step.keep_text:
        lines.append(f'pm.collectionVariables.set("{step.keep_text}", pm.response.text());')
    return lines


def _js(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _call(method: str, path: str, operation: dict[str, Any]) -> dict[str, Any]:
    """An operation on its own, with the examples of the document."""
    named = {(one["in"], one["name"]): one for one in operation["parameters"]}
    places = {name: str(one.get("example", "")) for (where, name), one in named.items() if where == "path"}
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    request = _request(
        method,
        path,
        places=places,
        body=content.get("example"),
        key="{{$guid}}" if ("header", KEY_HEADER) in named else None,
        query={name: str(one.get("example", "")) for (where, name), one in named.items() if where == "query"},
    )
    if not operation.get("security"):
        request["auth"] = {"type": "noauth"}
    return {"name": operation["operationId"], "request": request | {"description": operation["summary"]}}


def _request(
    method: str,
    path: str,
    *,
    places: dict[str, str],
    body: Any,
    key: str | None,
    query: dict[str, str] | None = None,
) -> dict[str, Any]:
    parts = [_PARAMETER.sub(r":\1", part) for part in path.strip("/").split("/")]
    url: dict[str, Any] = {"raw": "/".join(("{{baseUrl}}", *parts)), "host": ["{{baseUrl}}"], "path": parts}
    if places:
        url["variable"] = [{"key": name, "value": value} for name, value in places.items()]
    if query:
        # Disabled: enabled, they would filter by example values that do not exist.
        url["query"] = [{"key": name, "value": value, "disabled": True} for name, value in query.items()]
    request: dict[str, Any] = {"method": method, "header": [], "url": url}
    if key is not None:
        request["header"].append({"key": KEY_HEADER, "value": key})
    if body is not None:
        request["header"].append({"key": "Content-Type", "value": "application/json"})
        text = msgspec.json.format(msgspec.json.encode(body), indent=2).decode()
        request["body"] = {"mode": "raw", "raw": text, "options": {"raw": {"language": "json"}}}
    return request
