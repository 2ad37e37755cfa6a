"""Before and after: what a journal entry records of every field that changed.

An entry keeps the new values by name, as the readers of old entries know them, and beside them, under `was`, the values
that stood there before, where there were any. A payment's and a refund's fields stand in pairs. Here both become one
form: each field by name, with `before` and `after`.

    extend           expires_at
    pay, confirm …   state, payment_id, confirmed_at …, payment.state, payment.captured …, refunds.<id>.state …
    change           name, sale_closes_at …, seats.<id>.price …, pools.<id>.capacity …

What no entry tells is listed in `UNTOLD`, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking
    from earmark.domain.journal_entry import Entry
    from earmark.domain.payment import Payment, Refund

WAS, CHANGED, REFUNDS, OPENED = "was", "changed", "refunds", "payment_opened"
"""Where in an entry's facts the old values stand, a payment's pairs, its refunds' pairs, and a new payment."""

BOOKING_FIELDS = (
    "buyer",
    "lines",
    "total",
    "currency",
    "expires_at",
    "paying_until",
    "confirmed_at",
    "ended_at",
    "payment_id",
    "payment_method",
)
PAYMENT_FIELDS = (
    "state",
    "gateway_id",
    "captured",
    "refunding",
    "refunded",
    "refunded_elsewhere",
    "code",
    "message",
    "processed_at",
)
NEW_PAYMENT_FIELDS = ("gateway", "amount", "currency", "automatic", "state")
REFUND_FIELDS = ("amount", "state", "gateway_id", "code", "processed_at")

UNTOLD: dict[str, dict[str, str]] = {
    "booking": {
        "id": "names the entry itself",
        "event_id": "names the entry itself",
        "mode": "is the event's",
        "created_at": "is the moment of the first entry",
        "state": "stands in the entry's own before and after",
        "version": "is the entry's own",
        "payment_method": "is a credential: its new value stands in the facts, for the shop, and is repeated nowhere",
    },
    "payment": {
        "id": "names what is told",
        "booking_id": "names the entry itself",
        "event_id": "names the entry itself",
        "mode": "is the event's",
        "created_at": "is the moment of the entry that opened it",
        "method": "is a credential",
        "action": "has a secret of the buyer's at the gateway",
        "return_url": "may have a secret of the shop's in it",
        "due_at": "is a worker's schedule",
        "tries": "is a worker's schedule",
        "version": "counts writes, a worker's too",
    },
    "refund": {
        "id": "names what is told",
        "payment_id": "is the payment that is told of",
        "booking_id": "names the entry itself",
        "created_at": "is the moment of the entry that recorded it",
        "reason": "is the entry's own",
    },
    "event": {"id": "names the entry itself", "version": "is the entry's own"},
}
"""Fields that are recorded in another way, or not at all, and why."""

NEVER_OLD = frozenset({"buyer"})
"""No verb changes who a buyer is. Where a name is taken out of a booking, it does not stay on as an old value."""


class FieldChange(msgspec.Struct, frozen=True, kw_only=True):
    """One field, before and after; null where there was, or is, nothing."""

    before: Any
    after: Any


def was(before: Booking, after: Booking) -> dict[str, Any]:
    """The old values of what is other by now, where there were any; a credential stays out, and so does a name."""
    untold = {*UNTOLD["booking"], *NEVER_OLD}
    old = ((name, getattr(before, name), getattr(after, name)) for name in BOOKING_FIELDS if name not in untold)
    return {name: value for name, value, now in old if value is not None and value is not now and value != now}


def payment_pairs(before: Payment | None, after: Payment, *, typed: bool = False) -> dict[str, list[Any]]:
    """What is other of a payment. What a person has `typed` into it is the entry's reason, which buyers do not read."""
    names = PAYMENT_FIELDS if before else NEW_PAYMENT_FIELDS
    return _pairs(before, after, [name for name in names if not (typed and name == "message")])


def refund_pairs(before: Refund | None, after: Refund) -> dict[str, list[Any]]:
    """What is other of a refund."""
    return _pairs(before, after, REFUND_FIELDS)


def event_was(before: Event, names: Mapping[str, Any]) -> dict[str, Any]:
    """The old values of these fields of an event, null too."""
    return {name: getattr(before, name) for name in names}


def changes_of(entry: Entry) -> dict[str, FieldChange] | None:
    """Every field that the entry changed. None where it was written by a release that kept no old values."""
    facts: dict[str, Any] = msgspec.to_builtins(entry.facts)
    if entry.booking_id is None:
        found = _of_event(facts) if entry.verb == "change_event" else _of_new_event(entry, facts)
    else:
        found = _of_booking(entry, facts)
    return None if found is None else {name: FieldChange(before=pair[0], after=pair[1]) for name, pair in found}


def plain_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """An entry's facts without what `changes_of` returns in its own form."""
    shown = {name: value for name, value in facts.items() if name not in {WAS, OPENED}}
    if isinstance(money := shown.get("payment"), Mapping):
        shown["payment"] = {name: value for name, value in money.items() if name not in {CHANGED, REFUNDS}}
    return shown


def _pairs(before: Any, after: Any, names: Any) -> dict[str, list[Any]]:
    pairs = ((name, getattr(before, name, None), getattr(after, name)) for name in names)
    return {name: [old, new] for name, old, new in pairs if old != new}


_Found = Iterator[tuple[str, tuple[Any, Any]]]


def _of_booking(entry: Entry, facts: dict[str, Any]) -> _Found | None:
    if entry.before is not None and WAS not in facts:
        return None
    return _booking_pairs(entry, facts)


def _booking_pairs(entry: Entry, facts: dict[str, Any]) -> _Found:
    if entry.before != entry.after:
        yield "state", (entry.before, entry.after)
    old: dict[str, Any] = facts.get(WAS, {})
    for name in BOOKING_FIELDS:
        if name not in UNTOLD["booking"] and (name in facts or name in old):
            yield name, (old.get(name), facts.get(name))
    yield from ((f"payment.{name}", (None, value)) for name, value in facts.get(OPENED, {}).items())
    money: dict[str, Any] = facts.get("payment") or {}
    yield from ((f"payment.{name}", (pair[0], pair[1])) for name, pair in money.get(CHANGED, {}).items())
    for refund_id, pairs in money.get(REFUNDS, {}).items():
        yield from ((f"refunds.{refund_id}.{name}", (pair[0], pair[1])) for name, pair in pairs.items())


def _of_event(facts: dict[str, Any]) -> _Found | None:
    return _event_pairs(facts, facts[WAS]) if WAS in facts else None


def _event_pairs(facts: dict[str, Any], old: dict[str, Any]) -> _Found:
    for name, value in facts.get("fields", {}).items():
        if old["fields"][name] != value:
            yield name, (old["fields"][name], value)
    for kind in ("seats", "pools"):
        stood = {one["id"]: one for one in old[kind]}
        for patch in facts.get(kind, ()):
            before = stood[patch["id"]]
            for name, value in patch.items():
                if name != "id" and value is not None and value != before[name]:
                    yield f"{kind}.{patch['id']}.{name}", (before[name], value)


def _of_new_event(entry: Entry, facts: dict[str, Any]) -> _Found | None:
    """The fields of a new event, and how many seats it has, but not each of them."""
    return ((name, (None, value)) for name, value in facts.items()) if entry.verb == "create_event" else iter(())
