"""A request collection (Postman's format, version 2.1), made from the OpenAPI document and the stories.

Every call with its example, and the stories with what is to be expected of each answer. A test plays the stories.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.api.openapi.example_flows import STORIES

if TYPE_CHECKING:
    from earmark.api.openapi.example_flows import Step, Story

SCHEMA = "https://schema.getpostman.com/json/collection/v2.1.0/collection.json"
WAIT_MS = 2500
KEY_HEADER = "Idempotency-Key"
_PARAMETER = re.compile(r"\{(\w+)\}")


def collection(document: dict[str, Any]) -> dict[str, Any]:
    """The whole collection."""
    operations = {
        operation["operationId"]: (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    return {
        "info": {
            "name": "Earmark",
            "description": "Set baseUrl and key, and run a story from its first request to its last.",
            "schema": SCHEMA,
        },
        "auth": {"type": "bearer", "bearer": [{"key": "token", "value": "{{key}}", "type": "string"}]},
        "variable": [
            {"key": "baseUrl", "value": "http://127.0.0.1:8080"},
            {"key": "key", "value": ""},
            *({"key": name, "value": ""} for name in ("event_id", "booking_id", "first_answer")),
        ],
        "item": [
            {"name": "Stories", "item": [_story(story, operations) for story in STORIES]},
            {"name": "Every call", "item": [_call(*operation) for operation in operations.values()]},
        ],
    }


def _story(story: Story, operations: dict[str, Any]) -> dict[str, Any]:
    items = [_step(step, *operations[step.call], first=number == 0) for number, step in enumerate(story.steps)]
    return {"name": story.title, "description": story.meaning, "item": items}


def _step(step: Step, method: str, path: str, operation: dict[str, Any], *, first: bool) -> dict[str, Any]:
    before = ['pm.collectionVariables.set("event_id", pm.variables.replaceIn("story-{{$guid}}"));'] if first else []
    if step.waits:
        before.append(f"setTimeout(() => {{}}, {WAIT_MS});")
    before += [_rival(number, body) for number, body in enumerate(step.rivals)]
    places = {name: f"{{{{{name}}}}}" for name in _PARAMETER.findall(path)}
    if step.call == "recall":
        places["key"] = "click-{{event_id}}"
    request = _request(method, path, places=places, body=step.body, key=step.key)
    scripts = [("prerequest", before), ("test", _expectations(step))]
    events = [
        {"listen": kind, "script": {"type": "text/javascript", "exec": lines}} for kind, lines in scripts if lines
    ]
    return {"name": step.title, "event": events, "request": request | {"description": operation["summary"]}}


def _rival(number: int, body: Any) -> str:
    """A line that sends a hold and does not wait: the next line sends its rival while this one is under way."""
    command = (
        f"pm.sendRequest({{url: pm.variables.replaceIn({_js('{{baseUrl}}/v1/bookings')}), method: {_js('POST')}, "
        f"header: {{{_js('Content-Type')}: {_js('application/json')}, "
        f"Authorization: pm.variables.replaceIn({_js('Bearer {{key}}')})}}, "
        f"body: {{mode: {_js('raw')}, raw: pm.variables.replaceIn({_js(_js(body))})}}}}, "
    )
    told = "[response.code, response.json().code || response.json().state]"
    told = f'{told}.concat(response.json().code ? response.json().seats : []).join(" ")'
    return f"{command}(error, response) => pm.collectionVariables.set({_js(_name(number))}, {told}));"


def _name(number: int) -> str:
    return f"rival_{number + 1}"


def _expectations(step: Step) -> list[str]:
    """As the collection's scripts say it; each line stands for itself."""
    lines = [f'pm.test("status is {step.status}", () => pm.response.to.have.status({step.status}));']
    for place, value in step.fields.items():
        wanted = f"pm.variables.replaceIn({_js(value)})" if isinstance(value, str) and "{{" in value else _js(value)
        lines.append(f'pm.test("{place}", () => pm.expect(pm.response.json().{place}).to.eql({wanted}));')
    if step.same_as:
        kept = f'pm.collectionVariables.get("{step.same_as}")'
        lines.append(f'pm.test("the same bytes", () => pm.expect(pm.response.text()).to.eql({kept}));')
        header = 'pm.response.headers.get("Idempotency-Replayed")'
        lines.append(f'pm.test("said to be a repeat", () => pm.expect({header}).to.eql("true"));')
    if step.rivals:
        told = ", ".join(f"pm.collectionVariables.get({_js(_name(number))})" for number in range(len(step.rivals)))
        lines.append(f'pm.test("one of them has it", () => pm.expect([{told}].sort()).to.eql({_js(step.verdicts)}));')
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
    """A call on its own, with the examples of the document."""
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
        # There to be switched on: left on, they would ask for what is not there.
        url["query"] = [{"key": name, "value": value, "disabled": True} for name, value in query.items()]
    request: dict[str, Any] = {"method": method, "header": [], "url": url}
    if key is not None:
        request["header"].append({"key": KEY_HEADER, "value": key})
    if body is not None:
        request["header"].append({"key": "Content-Type", "value": "application/json"})
        text = msgspec.json.format(msgspec.json.encode(body), indent=2).decode()
        request["body"] = {"mode": "raw", "raw": text, "options": {"raw": {"language": "json"}}}
    return request
