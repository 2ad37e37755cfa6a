"""A seat: a named unit of an event. Its state is derived from the booking it points to."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from earmark.domain.booking_state_machine import ACTIVE_STATES, State
from earmark.domain.id_types import BookingId, Buyer, EventId, SeatId, SeatRef


class Seat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is known about a seat, whichever booking has it."""

    event_id: EventId
    id: SeatId
    price: int
    row: str | None = None
    number: int | None = None
    section: str | None = None
    category: str | None = None
    x: float | None = None
    y: float | None = None
    blocked: bool = False

    @property
    def ref(self) -> SeatRef:
        """Where this seat stands in the order of locks."""
        return SeatRef(self.event_id, self.id)


class SeatAvailability(StrEnum):
    """What an unlocked look at a seat says about taking it."""

    FREE = "free"
    LAPSED = "lapsed"
    TAKEN = "taken"
    BLOCKED = "blocked"


class SeatSeen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A seat and its owner as one snapshot showed them: the ground on which a hold compares and locks."""

    ref: SeatRef
    price: int
    blocked: bool
    pointer: BookingId | None
    fence: int
    owner_state: State | None = None
    owner_expires_at: datetime | None = None
    owner_buyer: Buyer | None = None
    row: str | None = None
    number: int | None = None
    section: str | None = None
    category: str | None = None


def availability(seen: SeatSeen, *, now: datetime) -> SeatAvailability:
    """Free when it points to no booking, to an ended one, or to a hold whose time is over (lapsed)."""
    if seen.blocked:
        return SeatAvailability.BLOCKED
    if seen.pointer is None or seen.owner_state not in ACTIVE_STATES:
        return SeatAvailability.FREE
    assert seen.owner_expires_at is not None
    if seen.owner_state is State.HELD and now >= seen.owner_expires_at:
        return SeatAvailability.LAPSED
    return SeatAvailability.TAKEN


class SeatState(StrEnum):
    """What a seat map shows."""

    AVAILABLE = "available"
    HELD = "held"
    BOOKED = "booked"
    BLOCKED = "blocked"


def shown_state(*, blocked: bool, owner_state: State | None, due: bool) -> SeatState:
    """The state of a seat on the map, by its owner. A paying booking still only holds it."""
    if owner_state is State.CONFIRMED:
        return SeatState.BOOKED
    if owner_state is State.PAYING or (owner_state is State.HELD and not due):
        return SeatState.HELD
    return SeatState.BLOCKED if blocked else SeatState.AVAILABLE
