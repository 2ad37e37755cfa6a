"""The parameters of each endpoint in path, query and headers, as OpenAPI describes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.api.pagination import LIMIT_DEFAULT, LIMIT_MAX
from earmark.domain.booking_state_machine import State
from earmark.domain.ticket import ALPHABET, SECRET_LENGTH
from earmark.domain.webhook import DeliveryState
from earmark.schemas import requests

if TYPE_CHECKING:
    from earmark.api.endpoint_declaration import Endpoint

TEXT: dict[str, Any] = {"type": "string"}
KEY: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[\\x21-\\x7e]+$"}
UUID: dict[str, Any] = {"type": "string", "format": "uuid"}
CURSOR: dict[str, Any] = {"type": "string", "minLength": 1, "pattern": "^[A-Za-z0-9_-]+$"}
LIMIT: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT}

_NAMES = re.compile(r"\{(\w+)\}")


def _schema(kind: Any) -> dict[str, Any]:
    return msgspec.json.schema(kind)


PATH: dict[str, tuple[dict[str, Any], str]] = {
    "event_id": (_schema(requests.EventIdText), "concert"),
    "seat_id": (_schema(requests.Id), "A1"),
    "booking_id": (UUID, "01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b10"),
    "webhook_id": (UUID, "01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b11"),
    "delivery_id": (UUID, "01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b12"),
    "page_secret": (
        {"type": "string", "pattern": f"^[{ALPHABET}]{{{SECRET_LENGTH}}}$"},
        "k7m2q9xwd4hn8rtb5vjc3pgz6yfeasku",
    ),
    "gateway": ({"type": "string", "pattern": "^[a-z]+$"}, "stripe"),
    "key": ({"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[\\x21-\\x2e\\x30-\\x7e]+$"}, "basket-7"),
}
QUERY_OF: dict[tuple[str, str], tuple[dict[str, Any], Any]] = {
    ("list_deliveries", "state"): ({"type": "string", "enum": [state.value for state in DeliveryState]}, "failed"),
}
"""For endpoints where a name has another meaning than elsewhere."""
QUERY: dict[str, tuple[dict[str, Any], Any]] = {
    "buyer": (_schema(requests.Who), "alice"),
    "event_id": (_schema(requests.EventIdText), "concert"),
    "state": ({"type": "string", "enum": [state.value for state in State]}, "held"),
    "last_event_id": ({"type": "string", "pattern": "^[0-9]{1,18}$"}, "42"),
    "match": ({"type": "string", "minLength": 1, "maxLength": 512}, "event:*"),
    "cursor": (CURSOR, None),
    "limit": (LIMIT, LIMIT_DEFAULT),
}
EXAMPLES: dict[tuple[str, str], str] = {("break_lock", "key"): "order:{7}"}
"""For endpoints where a name has another meaning than elsewhere."""
IDEMPOTENCY_KEYS = {
    "create_event": "event-concert",
    "change_event": "close-the-sale-of-concert",
    "hold": "basket-7",
    "extend": "basket-7-more-time",
    "pay": "basket-7-pay",
    "confirm": "till-1-0001",
    "release": "basket-7-let-go",
    "cancel": "case-1234",
    "refund": "case-1234-refund",
    "make_webhook": "webhook-shop-example",
    "rotate_webhook": "new-secret-2030-01-01",
    "issue_guest": "visit-42",
}
"""A different example for each operation, so that copied requests do not share a key."""
_DESCRIPTIONS = {
    "event_id": "The event.",
    "seat_id": "The seat, as the event's plan names it.",
    "booking_id": "The booking, from its first hold to its last refund.",
    "webhook_id": "The webhook.",
    "delivery_id": "One message to the webhook.",
    "page_secret": "The secret in the link of a booking's page.",
    "gateway": "The gateway that calls.",
    "key": "The idempotency key that the request was sent with.",
}
_DESCRIPTIONS_OF = {("break_lock", "key"): "The lock's key, as the list of locks shows it."}


def parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    """All parameters of an endpoint, each with its schema and an example."""
    return [*_in_path(endpoint), *_in_query(endpoint), *_in_headers(endpoint)]


def _in_path(endpoint: Endpoint) -> list[dict[str, Any]]:
    found = []
    for name in _NAMES.findall(endpoint.path):
        schema, example = PATH.get(name, (TEXT, None))
        shown = EXAMPLES.get((endpoint.name, name), example)
        why = _DESCRIPTIONS_OF.get((endpoint.name, name)) or _DESCRIPTIONS[name]
        place = {"name": name, "in": "path", "required": True, "description": why, "schema": schema}
        found.append(place | _example(shown))
    return found


def _in_query(endpoint: Endpoint) -> list[dict[str, Any]]:
    found = []
    for name, why in endpoint.query:
        schema, example = QUERY_OF.get((endpoint.name, name)) or QUERY.get(name, (TEXT, None))
        found.append({"name": name, "in": "query", "description": why, "schema": schema} | _example(example))
    return found


def _example(shown: Any) -> dict[str, Any]:
    return {} if shown is None else {"example": shown}


def _in_headers(endpoint: Endpoint) -> list[dict[str, Any]]:
    if endpoint.name == "show_map":
        why = "The `ETag` of the map that you have: 304 while nothing has changed."
        return [{"name": "If-None-Match", "in": "header", "description": why, "schema": TEXT}]
    if endpoint.name == "issue_guest":
        why = "Accepted, and without effect: there is no caller yet that a key could belong to."
    elif endpoint.idempotent:
        why = "The same key with the same request gets the same response again, byte for byte."
    else:
        return []
    key = {"name": "Idempotency-Key", "in": "header", "required": endpoint.keyed, "description": why, "schema": KEY}
    return [key | {"example": IDEMPOTENCY_KEYS[endpoint.name]}]
