"""Events that one browser test has for itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conftest import Demo, Visitor


def make_event(visitor: Visitor, demo: Demo, **settings: Any) -> str:
    """Two rows of four seats at €45 and ten places at €25; the id of the event."""
    answer = call(
        visitor,
        demo,
        "/v1/events",
        **{
            "name": "A small room",
            "currency": "EUR",
            "layout": {"rows": 2, "seats_per_row": 4, "price": 4500},
            "pools": [{"id": "GA", "capacity": 10, "price": 2500}],
            **settings,
        },
    )
    return str(answer["id"])


def call(visitor: Visitor, demo: Demo, path: str, **body: Any) -> dict[str, Any]:
    """A call of the shop's, with its key, that must succeed."""
    headers = {"Authorization": f"Bearer {demo.key}", "Idempotency-Key": os.urandom(8).hex()}
    answer = visitor.context.request.post(f"{demo.url}{path}", headers=headers, data=body)
    assert answer.ok, answer.text()
    found: dict[str, Any] = answer.json()
    return found
