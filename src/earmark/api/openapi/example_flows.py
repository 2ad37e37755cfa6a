"""Stories that show what Earmark promises, as requests that follow each other: for a collection, and for a test."""

from __future__ import annotations

from typing import Any

import msgspec


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a story, what is expected of its answer, and what is kept of it for the next."""

    title: str
    call: str
    """The name of the call."""
    body: Any = None
    key: str | None = None
    """Its idempotency key."""
    status: int
    fields: dict[str, Any] = {}
    """What the answer says, by the place in it."""
    keep: dict[str, str] = {}
    """Variables, each from a place in the answer."""
    keep_text: str | None = None
    """A variable for the whole answer, byte for byte."""
    same_as: str | None = None
    """The variable that this answer is equal to, and that it is said to be a repeat."""
    waits: bool = False
    """Whether time has to pass before it."""
    rivals: tuple[Any, ...] = ()
    """Bodies of holds that are sent before it, all at once: none waits for the answer to another."""
    verdicts: tuple[str, ...] = ()
    """What the rivals are told, sorted: which of them is told what, chance decides."""
    held: int | None = None
    """How many seats of the map in the answer are held."""


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """Steps in order, each with the variables that those before it have set."""

    title: str
    meaning: str
    steps: tuple[Step, ...]


_HOUSE = Step(
    title="A small house",
    call="create",
    body={
        "id": "{{event_id}}",
        "name": "A concert",
        "currency": "EUR",
        "layout": {"rows": 2, "seats_per_row": 5, "price": 4500},
    },
    status=201,
    fields={"id": "{{event_id}}"},
)


def _wish(buyer: str, *seats: str) -> dict[str, Any]:
    return {"event_id": "{{event_id}}", "buyer": buyer, "seats": list(seats)}


def _hold(title: str, buyer: str, *seats: str, status: int = 201, **more: Any) -> Step:
    body = _wish(buyer, *seats)
    ttl = {"ttl_seconds": more.pop("ttl_seconds")} if "ttl_seconds" in more else {}
    return Step(title=title, call="hold", body=body | ttl, status=status, **more)


STORIES = (
    Story(
        title="A normal booking",
        meaning="Alice holds two seats, pays for them, and has them.",
        steps=(
            _HOUSE,
            _hold("Alice holds two seats", "alice", "A1", "A2", fields={"state": "held"}, keep={"booking_id": "id"}),
            Step(
                title="She pays",
                call="pay",
                body={"method": "pm_card_visa"},
                key="pay-{{booking_id}}",
                status=200,
                fields={"state": "confirmed", "payment.state": "captured", "payment.captured": 9000},
            ),
            Step(title="They are hers", call="read_booking", status=200, fields={"state": "confirmed"}),
        ),
    ),
    Story(
        title="A double click",
        meaning="The same request twice, with one key: one booking, and the same answer byte for byte.",
        steps=(
            _HOUSE,
            _hold(
                "The first click",
                "alice",
                "A1",
                key="click-{{event_id}}",
                keep={"booking_id": "id"},
                keep_text="first_answer",
            ),
            _hold("The second click", "alice", "A1", key="click-{{event_id}}", same_as="first_answer"),
            Step(
                title="What became of the key",
                call="recall",
                status=200,
                fields={"state": "done", "status": 201, "booking_id": "{{booking_id}}"},
            ),
            _hold(
                "The same key for something else",
                "alice",
                "A2",
                key="click-{{event_id}}",
                status=422,
                fields={"code": "idempotency_mismatch"},
            ),
        ),
    ),
    Story(
        title="A race",
        meaning="Two buyers want one seat at once. One gets it with its neighbour; the other is told, and gets none.",
        steps=(
            _HOUSE,
            Step(
                title="Alice wants A1 and A2 and Bob wants A2 and A3, at once: one of them has two seats",
                call="show_map",
                status=200,
                rivals=(_wish("alice", "A1", "A2"), _wish("bob", "A2", "A3")),
                verdicts=("201 held", "409 seats_taken A2"),
                held=2,
            ),
            _hold(
                "Carol is late, and is told the same",
                "carol",
                "A2",
                status=409,
                fields={"code": "seats_taken", "seats": ["A2"]},
            ),
        ),
    ),
    Story(
        title="A hold that ran out",
        meaning="Nobody sweeps it up first: when its time is over its seat is free, and it cannot be confirmed.",
        steps=(
            _HOUSE,
            _hold("Alice holds for a second", "alice", "A1", ttl_seconds=1, keep={"booking_id": "id"}),
            Step(title="Her second is over", call="read_booking", status=200, fields={"state": "expired"}, waits=True),
            Step(
                title="She cannot confirm any more",
                call="confirm",
                body={"payment_id": "till-{{booking_id}}"},
                status=410,
                fields={"code": "booking_expired"},
            ),
            _hold("Bob has the seat", "bob", "A1", fields={"state": "held"}),
        ),
    ),
)
