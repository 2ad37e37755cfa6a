"""Which seats a journal entry is about. Their current state is read from the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from earmark.domain.booking_state_machine import State, Verb
from earmark.domain.id_types import SeatId
from earmark.domain.journal_before_and_after_values import WAS

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
        was = entry.facts.get(WAS) or {}
        return _ids(entry.facts.get("lines"), "seats") | _ids(was.get("lines"), "seats")
    if entry.verb == CHANGE_EVENT:
        return _ids(entry.facts, "seats")
    return set() if entry.verb in UNMOVED else None


def needs_history(entry: Entry) -> bool:
    """Whether the booking's older entries have to be read to find its seats.

    One that was sold after it had expired has its seats again, and names none. An entry that gave some lines back names
    the old lines beside the new ones, but for entries of older releases, which kept no old values.
    """
    if entry.booking_id is None or entry.verb == Verb.HOLD:
        return False
    return entry.before == State.EXPIRED or ("lines" in entry.facts and WAS not in entry.facts)


def _ids(facts: Any, name: str) -> set[SeatId]:
    """An entry that was not stored yet holds domain values, a stored one plain data."""
    named = msgspec.to_builtins(facts) if facts is not None else {}
    return {SeatId(one["id"]) for one in named.get(name) or ()}
