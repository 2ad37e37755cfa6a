"""The types of webhooks: every move and every verb of the journal has a name, and no secret is sent."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import earmark.engine
from earmark.domain.booking_state_machine import MOVES
from earmark.domain.id_types import EventId
from earmark.domain.journal_before_and_after_values import BOOKING_FIELDS
from earmark.domain.journal_entry import Entry
from earmark.domain.payment import PaymentState
from earmark.domain.webhook_messages import (
    BOOKING_FACTS,
    BY_MOVE,
    BY_VERB,
    FACTS_BYTES_MAX,
    NOTE,
    PING,
    TYPES,
    WITHHELD,
    body_of,
    ping_body,
    type_of,
)
from earmark.engine import pending_writes

if TYPE_CHECKING:
    from earmark.uuids import Uuid7Ids


def entry(ids: Uuid7Ids, **fields: Any) -> Entry:
    made: dict[str, Any] = {"id": ids.entry_id(), "at": datetime.now(UTC), "verb": NOTE, "actor": "shop", "facts": {}}
    return Entry(event_id=EventId("play"), **made | fields)


def test_every_move_has_a_type() -> None:
    """A new move without a name would be a change that no receiver gets."""
    assert set(BY_MOVE) == {(verb, target) for (_, verb), targets in MOVES.items() for target in targets}


def test_every_other_verb_of_the_journal_has_a_type_or_is_not_published() -> None:
    """As the verbs that write entries without a booking's move name them."""
    source = "".join(path.read_text() for path in Path(earmark.engine.__path__[0]).rglob("*.py"))
    told = set(re.findall(r'record_event\(\s*"(\w+)"', source))
    assert told == set(BY_VERB) - {pending_writes.REPEAT}
    assert NOTE == pending_writes.PAYMENT
    assert BY_VERB[pending_writes.REPEAT] is None


def test_every_type_is_in_the_table_and_nothing_else_is() -> None:
    """What a shop can subscribe to is what can happen."""
    moves = {*BY_MOVE.values(), *(kind for kind in BY_VERB.values() if kind)}
    money = {f"payment.{state}" for state in PaymentState}
    assert set(TYPES) == moves | money | {"refund.made", PING}


def test_a_note_about_money_is_named_by_where_the_payment_stands(ids: Uuid7Ids) -> None:
    """What needs attention comes first, then refunded money."""

    def note(**money: Any) -> str | None:
        return type_of(entry(ids, booking_id=ids.booking_id(), facts={"payment": money}))

    assert note(to="needs_attention", refused=100) == "payment.needs_attention"
    assert note(to="partially_refunded", refunded=100) == "refund.made"
    assert note(to="captured") == "payment.captured"
    assert note(to="something new") is note() is None
    assert type_of(entry(ids, verb="a new verb", booking_id=ids.booking_id(), after="held")) is None
    assert type_of(entry(ids, verb=pending_writes.REPEAT)) is None


def test_no_credential_is_sent(ids: Uuid7Ids) -> None:
    """Every fact of a booking in the journal is either sent or withheld, on purpose."""
    assert {*BOOKING_FIELDS, NOTE} == BOOKING_FACTS | WITHHELD
    money = {"id": "p1", "to": "captured", "amount": 100, "client_secret": "s3cret"}
    facts = {"payment_method": "s3cret", "buyer": "alice", "payment": money, "key": "s3cret", "was": {"total": 7}}
    told = body_of(entry(ids, booking_id=ids.booking_id(), facts=facts), kind="payment.captured", sequence=7)
    assert b"s3cret" not in told
    data = json.loads(told)["data"]
    assert data["facts"] == {"buyer": "alice", "payment": {"id": "p1", "to": "captured", "amount": 100}}
    assert data["sequence"] == 7


def test_what_is_too_long_is_left_out_of_the_message(ids: Uuid7Ids) -> None:
    """A change of a hundred thousand seats makes no message of megabytes."""
    long = entry(ids, verb="change_event", facts={"seats": ["A1"] * FACTS_BYTES_MAX})
    told = json.loads(body_of(long, kind="event.changed", sequence=1))
    assert (told["data"]["facts"], told["data"]["facts_left_out"]) == ({}, True)
    assert json.loads(ping_body(now=datetime.now(UTC)))["type"] == PING


def test_a_message_has_before_and_after_of_every_field(ids: Uuid7Ids) -> None:
    """As a history has them; without what a buyer pays with, and null of an entry that kept no old values."""
    facts = {"expires_at": "later", "payment_method": "s3cret", "was": {"expires_at": "sooner"}}
    move = {"verb": "extend", "before": "held", "after": "held", "booking_id": ids.booking_id()}
    told = body_of(entry(ids, **move, facts=facts), kind="booking.extended", sequence=7)
    assert json.loads(told)["data"]["changes"] == {"expires_at": {"before": "sooner", "after": "later"}}
    assert b"s3cret" not in told
    assert b'"was"' not in told
    old = body_of(entry(ids, **move, facts={"expires_at": "later"}), kind="booking.extended", sequence=7)
    assert json.loads(old)["data"]["changes"] is None
