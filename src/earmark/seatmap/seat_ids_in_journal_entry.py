"""Which seats a journal entry is about. Their current state is read from the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from earmark.domain.booking_state_machine import State, Verb
from earmark.domain.id_types import SeatId

if TYPE_CHECKING:
    from earmark.domain.journal_entry import Entry

UNMOVED = frozenset({"create_event", "repeat"})
"""Entries about an event after which every seat is as it was before."""
CHANGE_EVENT = "change_event"


def seats_named(entry: Entry) -> set[SeatId] | None:
    """The seats that the entry itself names; None when it names none and may be about any, so that all are read.

    Most entries of a booking name none: their seats are those that are known to be the booking's.
    """
    if entry.booking_id is not None:
        return _ids(entry.facts.get("lines"), "seats")
    if entry.verb == CHANGE_EVENT:
        return _ids(entry.facts, "seats")
    return set() if entry.verb in UNMOVED else None


def needs_history(entry: Entry) -> bool:
    """Whether the booking's older entries have to be read to find its seats.

    One that let go of some lines no longer names them, and one that was sold after it had expired has its seats again.
    """
    if entry.booking_id is None or entry.verb == Verb.HOLD:
        return False
    return "lines" in entry.facts or entry.before == State.EXPIRED


def _ids(facts: Any, name: str) -> set[SeatId]:
    """An entry that was not stored yet holds domain values, a stored one plain data."""
    named = msgspec.to_builtins(facts) if facts is not None else {}
    return {SeatId(one["id"]) for one in named.get(name) or ()}
