"""Tickets: what a buyer shows at the door, and whether it admits.

A booking has one page, and one ticket for each seat and for each unit of its pools. The page and every ticket have a
secret of their own: the page's shows, and a ticket's admits. Neither says whether the ticket is valid: its booking
does, each time a door asks.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import BookingId, EventId, TicketId
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import UndoRefused

if TYPE_CHECKING:
    from earmark.domain.booking import Booking, Lines, SeatLine

ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
"""Of secrets: without the characters that are easily confused when a code is typed (0 and o, 1, i and l)."""
SECRET_LENGTH = 32
TICKETS_MAX = 1_000
"""A booking of more seats and units has no tickets."""
UNDO_SECONDS_MAX = 15 * 60

_SECRET = re.compile(rf"[{ALPHABET}]{{{SECRET_LENGTH}}}")
_BETWEEN = re.compile(r"[\s-]+")


class Kind(StrEnum):
    """What a ticket is for."""

    SEAT = "seat"
    POOL = "pool"


class ScanReason(StrEnum):
    """Why a ticket does not admit: the whole list."""

    UNKNOWN = "unknown"
    WRONG_EVENT = "wrong_event"
    NOT_CONFIRMED = "not_confirmed"
    CANCELLED = "cancelled"
    SEAT_NOT_IN_BOOKING = "seat_not_in_booking"
    ALREADY_ADMITTED = "already_admitted"
    UNDONE = "undone"
    """Only of a scan that is sent again after its admission was undone."""


class Place(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What one ticket of a booking is for: a seat, or one unit of a pool, numbered from 1."""

    kind: Kind
    name: str
    unit: int = 1


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """One seat or unit of a booking, and the secret that a door scans. It never changes."""

    id: TicketId
    booking_id: BookingId
    event_id: EventId
    kind: Kind
    name: str
    """The seat's id, or the pool's."""
    unit: int
    secret: str
    created_at: datetime

    @property
    def place(self) -> Place:
        """What it is for."""
        return Place(kind=self.kind, name=self.name, unit=self.unit)


class TicketPage(msgspec.Struct, frozen=True, kw_only=True):
    """The page of a booking, and the secret in its link."""

    booking_id: BookingId
    secret: str
    created_at: datetime


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """One scan at a door: who sent it, what was scanned, and what became of it."""

    id: UUID
    caller: str
    nonce: str
    """The scanner's own name for this scan."""
    mode: Mode
    code_hash: bytes
    ticket_id: TicketId | None
    event_id: EventId | None
    admitted: bool
    """Whether the visitor was let in."""
    reason: ScanReason | None
    """Why the server refuses; of an offline scan, why it would have refused."""
    offline: bool
    scanned_at: datetime
    received_at: datetime
    undone_at: datetime | None = None

    @property
    def admits(self) -> bool:
        """Whether this is the admission of its ticket."""
        return self.admitted and self.reason is None and self.undone_at is None


def code_of(typed: str) -> str:
    """A code as tickets have it, from one that was scanned or typed: in small letters, without spaces and hyphens."""
    return _BETWEEN.sub("", typed).lower()


def is_secret(text: str) -> bool:
    """Whether this can be a secret of a page or ticket at all. What cannot is not looked up."""
    return _SECRET.fullmatch(text) is not None


def places_of(lines: Lines) -> tuple[Place, ...]:
    """What a booking with these lines has tickets for, seats first."""
    seats = [Place(kind=Kind.SEAT, name=line.id) for line in lines.seats]
    units = [
        Place(kind=Kind.POOL, name=line.id, unit=unit) for line in lines.pools for unit in range(1, line.units + 1)
    ]
    return (*seats, *units)


def seat_line_of(place: Place, lines: Lines) -> SeatLine | None:
    """The line of a seat, with the names that the event's plan gives it."""
    if place.kind is not Kind.SEAT:
        return None
    return next((line for line in lines.seats if line.id == place.name), None)


def is_listed(place: Place, lines: Lines) -> bool:
    """Whether a booking with these lines still claims this place: part of a sale may have been cancelled."""
    if place.kind is Kind.SEAT:
        return any(line.id == place.name for line in lines.seats)
    return any(line.id == place.name and place.unit <= line.units for line in lines.pools)


def why_invalid(place: Place, *, state: State, lines: Lines) -> ScanReason | None:
    """Why a ticket is not valid, by its booking as it is now; None if it is. Whether it has admitted is not asked."""
    if state is State.CANCELLED:
        return ScanReason.CANCELLED
    if state is not State.CONFIRMED:
        return ScanReason.NOT_CONFIRMED
    return None if is_listed(place, lines) else ScanReason.SEAT_NOT_IN_BOOKING


def is_used_up(place: Place, lines: Lines, *, others_inside: int) -> bool:
    """Whether other units of this pool let in as many visitors as the booking has units.

    A cancelled unit may be inside: the units are numbered, and the last ones are cancelled, whichever were used.
    """
    if place.kind is not Kind.POOL:
        return False
    return any(line.id == place.name and others_inside >= line.units for line in lines.pools)


def why_refused(
    ticket: Ticket | None,
    booking: Booking | None,
    *,
    mode: Mode,
    event_id: EventId | None,
    admitted: bool,
    others_inside: int = 0,
) -> ScanReason | None:
    """Why this scan admits no visitor; None if it does. Validity is judged first: a cancelled ticket is cancelled.

    A ticket of the other mode, test or live, does not exist for the door. `admitted` is whether an earlier scan did,
    `others_inside` how many other units of its pool and booking let a visitor in.
    """
    if ticket is None or booking is None or booking.mode is not mode:
        return ScanReason.UNKNOWN
    if event_id is not None and ticket.event_id != event_id:
        return ScanReason.WRONG_EVENT
    invalid = why_invalid(ticket.place, state=booking.state, lines=booking.lines)
    used = admitted or is_used_up(ticket.place, booking.lines, others_inside=others_inside)
    return invalid or (ScanReason.ALREADY_ADMITTED if used else None)


def check_undo(scan: Scan, *, now: datetime) -> None:
    """Raise unless this scan's admission can be undone now."""
    if not scan.admitted or scan.reason is not None:
        raise UndoRefused(why="not_admitted")
    if now - scan.received_at > timedelta(seconds=UNDO_SECONDS_MAX):
        raise UndoRefused(why="too_late")
