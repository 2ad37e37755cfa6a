"""Example flows that show what Earmark promises, as sequences of requests: for the collection, and for a test."""

from __future__ import annotations

from typing import Any

import msgspec


class FlowStep(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a flow, what is expected of its response, and what is kept of it for the next request."""

    title: str
    call: str
    """The name of the endpoint."""
    body: Any = None
    key: str | None = None
    """Its idempotency key."""
    status: int
    fields: dict[str, Any] = {}
    """Expected values in the response, by path."""
    keep: dict[str, str] = {}
    """Variables to set, each from a path in the response."""
    keep_text: str | None = None
    """A variable for the whole response, byte for byte."""
    same_as: str | None = None
    """The variable that this response equals; it must be marked as replayed."""
    waits: bool = False
    """Whether time has to pass before it."""
    rivals: tuple[Any, ...] = ()
    """Bodies of holds that are sent before it, all at once: none waits for the answer to another."""
    verdicts: tuple[str, ...] = ()
    """The rivals' results, sorted: which of them gets which is not determined."""
    held: int | None = None
    """How many seats of the map in the response are held."""


class ExampleFlow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps in order, each with the variables that those before it have set."""

    title: str
    meaning: str
    steps: tuple[FlowStep, ...]


_EVENT = FlowStep(
    title="A small event",
    call="create_event",
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


def _hold(title: str, buyer: str, *seats: str, status: int = 201, **more: Any) -> FlowStep:
    body = _wish(buyer, *seats)
    ttl = {"ttl_seconds": more.pop("ttl_seconds")} if "ttl_seconds" in more else {}
    return FlowStep(title=title, call="hold", body=body | ttl, status=status, **more)


EXAMPLE_FLOWS = (
    ExampleFlow(
        title="A normal booking",
        meaning="Alice holds two seats, pays for them, and has them.",
        steps=(
            _EVENT,
            _hold("Alice holds two seats", "alice", "A1", "A2", fields={"state": "held"}, keep={"booking_id": "id"}),
            FlowStep(
                title="She pays",
                call="pay",
                body={"method": "pm_card_visa"},
                key="pay-{{booking_id}}",
                status=200,
                fields={"state": "confirmed", "payment.state": "captured", "payment.captured": 9000},
            ),
            FlowStep(title="They are hers", call="read_booking", status=200, fields={"state": "confirmed"}),
        ),
    ),
    ExampleFlow(
        title="A double click",
        meaning="The same request twice, with one key: one booking, and the same answer byte for byte.",
        steps=(
            _EVENT,
            _hold(
                "The first click",
                "alice",
                "A1",
                key="click-{{event_id}}",
                keep={"booking_id": "id"},
                keep_text="first_answer",
            ),
            _hold("The second click", "alice", "A1", key="click-{{event_id}}", same_as="first_answer"),
            FlowStep(
                title="What became of the key",
                call="show_key_result",
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
    ExampleFlow(
        title="A race",
        meaning="Two buyers want one seat at once. One gets it with its neighbour; the other is refused and gets none.",
        steps=(
            _EVENT,
            FlowStep(
                title="Alice wants A1 and A2 and Bob wants A2 and A3, at once: one of them has two seats",
                call="show_map",
                status=200,
                rivals=(_wish("alice", "A1", "A2"), _wish("bob", "A2", "A3")),
                verdicts=("201 held", "409 seats_taken A2"),
                held=2,
            ),
            _hold(
                "Carol is late, and is refused too",
                "carol",
                "A2",
                status=409,
                fields={"code": "seats_taken", "seats": ["A2"]},
            ),
        ),
    ),
    ExampleFlow(
        title="A hold that ran out",
        meaning="Without the sweeper: when its time is over its seat is free, and it cannot be confirmed.",
        steps=(
            _EVENT,
            _hold("Alice holds for a second", "alice", "A1", ttl_seconds=1, keep={"booking_id": "id"}),
            FlowStep(
                title="Her second is over", call="read_booking", status=200, fields={"state": "expired"}, waits=True
            ),
            FlowStep(
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
