"""What a webhook can be called about: one type for everything in the journal, and the body of each message.

A booking's entry is named by its verb and by what became of the booking: every one of `MOVES` is, which a test holds.
A note about money is named by where the payment stands. Nothing here changes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from earmark.domain.booking_state_machine import State, Verb
from earmark.domain.journal_before_and_after_values import changes_of, plain_facts
from earmark.domain.payment import PaymentState

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.domain.journal_entry import Entry

FACTS_BYTES_MAX = 64 * 1024
"""Larger facts are left out, and the client reads them: an operator's change may name a hundred thousand seats."""

PING = "webhook.ping"
NEEDS_ATTENTION = "payment.needs_attention"
REFUND_MADE = "refund.made"

BY_MOVE: dict[tuple[str, str | None], str] = {
    (Verb.HOLD, State.HELD): "booking.held",
    (Verb.CHANGE, State.HELD): "booking.changed",
    (Verb.EXTEND, State.HELD): "booking.extended",
    (Verb.PAY, State.PAYING): "booking.paying",
    (Verb.PAY, State.CONFIRMED): "booking.confirmed",
    (Verb.CONFIRM, State.CONFIRMED): "booking.confirmed",
    (Verb.RELEASE, State.RELEASED): "booking.released",
    (Verb.EXPIRE, State.EXPIRED): "booking.expired",
    (Verb.DECLINE, State.HELD): "payment.declined",
    (Verb.DECLINE, State.EXPIRED): "booking.expired",
    (Verb.DECLINE, State.FAILED): "booking.failed",
    (Verb.CANCEL, State.CANCELLED): "booking.cancelled",
    (Verb.CANCEL, State.CONFIRMED): "booking.reduced",
    (Verb.REFUND, State.CONFIRMED): "refund.requested",
    (Verb.REFUND, State.CANCELLED): "refund.requested",
}
"""By verb and by where the booking then stands."""

BY_VERB: dict[str, str | None] = {"create_event": "event.created", "change_event": "event.changed", "repeat": None}
"""Entries that are about no booking's move; None calls no webhook: the entry only records a repeat."""

NOTE = "payment"
"""The journal's verb for entries about a booking's money when the booking itself does not move."""

TYPES: dict[str, str] = {
    "event.created": "an event was made, with all it sells",
    "event.changed": "an operator changed an event: window, limits, prices, capacity or blocked seats",
    "booking.held": "seats or units are held for a buyer",
    "booking.changed": "a hold was given other seats or units",
    "booking.extended": "a hold was given more time",
    "booking.paying": "a payment was opened, and the hold waits for it",
    "booking.confirmed": "sold: paid here, paid elsewhere, or for nothing",
    "booking.released": "the buyer let go",
    "booking.expired": "the time was over, or a declined payment left none",
    "booking.failed": "the payment was declined, and the event lets no hold outlive that",
    "booking.cancelled": "a sale was undone, whole",
    "booking.reduced": "a sale was undone in part, and the rest stays sold",
    "payment.declined": "the gateway said no, and the hold lives on",
    "payment.pending": "the gateway decides",
    "payment.requires_action": "the buyer has to do something at the bank",
    "payment.unknown": "the gateway did not answer, and is asked again",
    "payment.authorised": "the money is set aside",
    "payment.captured": "the money was taken",
    "payment.partially_refunded": "a part of the money was refunded, as the gateway reports",
    "payment.refunded": "all of the money was refunded, as the gateway reports",
    "payment.voiding": "the money that was set aside is let go",
    "payment.voided": "the money that was set aside was let go",
    "payment.failed": "the payment came to nothing",
    NEEDS_ATTENTION: "an operator has to look at this payment",
    "payment.settled": "an operator has dealt with a payment",
    "refund.requested": "money is owed back",
    REFUND_MADE: "the gateway has given money back",
    PING: "a client tried the webhook out; every webhook gets its own",
}
"""Every type, with what it means."""

BOOKING_FACTS = frozenset(
    {
        "buyer",
        "lines",
        "total",
        "currency",
        "expires_at",
        "paying_until",
        "confirmed_at",
        "ended_at",
        "payment_id",
        "payment",
    }
)
WITHHELD = frozenset({"payment_method"})
"""What to charge may be a token of the gateway, which is nearly a secret."""
PAYMENT_FACTS = frozenset(
    {
        "id",
        "gateway",
        "state",
        "from",
        "to",
        "amount",
        "currency",
        "code",
        "owed",
        "refunded",
        "refused",
        "settled_as",
        "refund",
        "fee",
        "reason",
    }
)


def type_of(entry: Entry) -> str | None:
    """The type of an entry's message; None where no webhook is called about it."""
    if entry.verb == NOTE:
        return _note(entry.facts.get("payment") or {})
    if entry.booking_id is None:
        return BY_VERB.get(entry.verb)
    return BY_MOVE.get((entry.verb, entry.after))


def body_of(entry: Entry, *, kind: str, sequence: int) -> bytes:
    """What is sent about an entry: the same bytes at every try, for they are kept."""
    facts = _facts(entry)
    data: dict[str, Any] = {
        "id": str(entry.id),
        "event_id": entry.event_id,
        "booking_id": str(entry.booking_id) if entry.booking_id else None,
        "sequence": sequence,
        "version": entry.version,
        "verb": entry.verb,
        "before": entry.before,
        "after": entry.after,
        "actor": entry.actor,
        "reason": entry.reason,
        "facts": facts,
        "changes": changes_of(entry),
    }
    if len(msgspec.json.encode(facts)) > FACTS_BYTES_MAX:
        data |= {"facts": {}, "changes": None, "facts_left_out": True}
    return _body(kind, entry.at, data)


def ping_body(*, now: datetime) -> bytes:
    """What is sent to try a webhook out."""
    return _body(PING, now, {})


def _body(kind: str, at: datetime, data: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": kind, "timestamp": at, "data": data})


def _note(money: dict[str, Any]) -> str | None:
    stands = money.get("to")
    if money.get("details"):
        return None
    if stands == PaymentState.NEEDS_ATTENTION:
        return NEEDS_ATTENTION
    if money.get("refunded"):
        return REFUND_MADE
    return f"payment.{stands}" if f"payment.{stands}" in TYPES else None


def _facts(entry: Entry) -> dict[str, Any]:
    """Only what is named above, of a booking; of an event, everything."""
    if entry.booking_id is None:
        return plain_facts(entry.facts)
    told = {name: value for name, value in entry.facts.items() if name in BOOKING_FACTS}
    if money := told.get("payment"):
        told["payment"] = {name: value for name, value in money.items() if name in PAYMENT_FACTS}
    return told
