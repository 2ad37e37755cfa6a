"""Tickets over HTTP: what a buyer's page shows, and what a door sends and gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from earmark.domain import buyer_cancel_rules
from earmark.domain import ticket as rules
from earmark.domain.booking_state_machine import State
from earmark.domain.money import Money
from earmark.domain.ticket import Kind, Place, ScanReason
from earmark.engine.tickets import hash_of
from earmark.schemas.requests import EventIdText
from earmark.schemas.responses import Moment

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Lines
    from earmark.engine.tickets import BookingTickets, KeptScan, KeptTicket, ScanResult, TicketOfEvent

OFFLINE_SCANS_MAX = 100
CODE_LENGTH_MAX = 200

Code = Annotated[str, Meta(min_length=1, max_length=CODE_LENGTH_MAX, description="as it was scanned or typed")]
Nonce = Annotated[
    str,
    Meta(pattern=r"^[\x21-\x7e]+$(?!\n)", min_length=1, max_length=64, description="the scanner's name for this scan"),
]


class CheckBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One scan at a door."""

    code: Code
    nonce: Nonce
    event_id: EventIdText | None = None


class UndoBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which admission to undo."""

    nonce: Nonce


class OfflineScan(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One visitor that a door without a network let in."""

    code: Code
    nonce: Nonce
    scanned_at: Moment


class OfflineScansBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a door did while it had no network."""

    scans: Annotated[list[OfflineScan], Meta(min_length=1, max_length=OFFLINE_SCANS_MAX)]


class TicketPlace(Struct, frozen=True, kw_only=True):
    """What a ticket is for: a seat with the names of the event's plan, or one unit of a pool."""

    kind: Kind
    id: str
    unit: int
    section: str | None = None
    row: str | None = None
    number: int | None = None
    category: str | None = None


class TicketAnswer(Struct, frozen=True, kw_only=True):
    """A ticket as its buyer sees it. One that is not valid any more has a reason, and no code."""

    place: TicketPlace
    code: str | None
    reason: ScanReason | None
    admitted_at: Moment | None


class BookingTicketsAnswer(Struct, frozen=True, kw_only=True):
    """The tickets of a booking, and the path of its page."""

    booking_id: str
    page: str
    tickets: tuple[TicketAnswer, ...]


class TicketEvent(Struct, frozen=True, kw_only=True):
    """The event of a ticket."""

    id: str
    name: str
    starts_at: Moment | None


class TicketPageAnswer(Struct, frozen=True, kw_only=True):
    """What the page of a booking shows. It names no buyer."""

    booking_id: str
    state: State
    event: TicketEvent
    confirmed_at: Moment | None
    ended_at: Moment | None
    total: Money
    tickets: tuple[TicketAnswer, ...]


class CheckAnswer(Struct, frozen=True, kw_only=True):
    """What became of a scan."""

    result: Literal["admitted", "refused"]
    reason: ScanReason | None
    nonce: str
    scanned_at: Moment
    admitted_at: Moment | None
    """When this ticket admitted a visitor: now, or before."""
    place: TicketPlace | None
    event: TicketEvent | None


class UndoAnswer(Struct, frozen=True, kw_only=True):
    """An admission that was undone."""

    nonce: str
    undone_at: Moment


class OfflineTicket(Struct, frozen=True, kw_only=True):
    """A ticket in the list of a door: the SHA-256 of its code, never the code."""

    hash: str
    place: TicketPlace
    reason: ScanReason | None
    admitted_at: Moment | None


class OfflineListPage(Struct, frozen=True, kw_only=True):
    """A page of the list that a door takes along."""

    event: TicketEvent
    made_at: Moment
    buyers_may_cancel_until: Moment | None
    """Until then a buyer whom the door let in without a network may still cancel; null when none may any more."""
    tickets: tuple[OfflineTicket, ...]
    next_cursor: str | None


class OfflineScanAnswer(Struct, frozen=True, kw_only=True):
    """What became of one scan that was made offline."""

    nonce: str
    result: Literal["admitted", "conflict"]
    reason: ScanReason | None
    scanned_at: Moment
    received_at: Moment
    admitted_at: Moment | None
    """When the admission of this ticket was, by the clock of its scanner."""
    place: TicketPlace | None


class OfflineScansAnswer(Struct, frozen=True, kw_only=True):
    """What became of scans that were made offline, and how many of them let in a ticket that had been in before."""

    scans: tuple[OfflineScanAnswer, ...]
    double_admissions: int


class ScanAnswer(Struct, frozen=True, kw_only=True):
    """One scan in the audit of an event."""

    id: str
    caller: str
    nonce: str
    admitted: bool
    reason: ScanReason | None
    offline: bool
    scanned_at: Moment
    received_at: Moment
    undone_at: Moment | None
    booking_id: str | None
    place: TicketPlace | None


class ScansPage(Struct, frozen=True, kw_only=True):
    """A page of the scans of an event, oldest first."""

    scans: tuple[ScanAnswer, ...]
    next_cursor: str | None


def booking_tickets_answer(found: BookingTickets, *, root: str) -> BookingTicketsAnswer:
    """The tickets of a booking for its owner. `root` is the prefix under which the service is mounted."""
    return BookingTicketsAnswer(
        booking_id=str(found.booking.id), page=f"{root}/t/{found.page.secret}", tickets=_tickets(found)
    )


def ticket_page_answer(found: BookingTickets, event: Event) -> TicketPageAnswer:
    """The page of a booking, for each bearer of its link."""
    booking = found.booking
    return TicketPageAnswer(
        booking_id=str(booking.id),
        state=booking.state,
        event=_event(event),
        confirmed_at=booking.confirmed_at,
        ended_at=booking.ended_at,
        total=Money(amount=booking.total, currency=booking.currency),
        tickets=_tickets(found),
    )


def check_answer(result: ScanResult) -> CheckAnswer:
    """What a door shows of a scan."""
    return CheckAnswer(
        result="admitted" if result.reason is None else "refused",
        reason=result.reason,
        nonce=result.scan.nonce,
        scanned_at=result.scan.scanned_at,
        admitted_at=result.admission.scanned_at if result.admission else None,
        place=_scanned_place(result),
        event=_event(result.event) if result.event else None,
    )


def offline_answer(result: ScanResult, *, nonce: str) -> OfflineScanAnswer:
    """What became of one scan that was made offline, by the nonce that the scanner sent."""
    return OfflineScanAnswer(
        nonce=nonce,
        result="admitted" if result.reason is None else "conflict",
        reason=result.reason,
        scanned_at=result.scan.scanned_at,
        received_at=result.scan.received_at,
        admitted_at=result.admission.scanned_at if result.admission else None,
        place=_scanned_place(result),
    )


def offline_list_page(
    event: Event, found: list[TicketOfEvent], *, made_at: datetime, next_cursor: str | None
) -> OfflineListPage:
    """A page of the list that a door takes along."""
    tickets = tuple(
        OfflineTicket(
            hash=hash_of(one.ticket.secret).hex(),
            place=place_answer(one.ticket.place, one.lines),
            reason=one.why_refused,
            admitted_at=one.admitted_at,
        )
        for one in found
    )
    until = buyer_cancel_rules.limit(event)
    return OfflineListPage(
        event=_event(event),
        made_at=made_at,
        buyers_may_cancel_until=until if until is not None and made_at < until else None,
        tickets=tickets,
        next_cursor=next_cursor,
    )


def scan_answer(kept: KeptScan) -> ScanAnswer:
    """One scan in the audit of an event."""
    scan = kept.scan
    return ScanAnswer(
        id=str(scan.id),
        caller=scan.caller,
        nonce=scan.nonce,
        admitted=scan.admitted,
        reason=scan.reason,
        offline=scan.offline,
        scanned_at=scan.scanned_at,
        received_at=scan.received_at,
        undone_at=scan.undone_at,
        booking_id=str(kept.booking_id) if kept.booking_id else None,
        place=place_answer(kept.place) if kept.place else None,
    )


def place_answer(place: Place, lines: Lines | None = None) -> TicketPlace:
    """What a ticket is for; the names of the plan only while the booking lists the seat."""
    line = rules.seat_line_of(place, lines) if lines else None
    if line is None:
        return TicketPlace(kind=place.kind, id=place.name, unit=place.unit)
    return TicketPlace(
        kind=place.kind,
        id=place.name,
        unit=place.unit,
        section=line.section,
        row=line.row,
        number=line.number,
        category=line.category,
    )


def _tickets(found: BookingTickets) -> tuple[TicketAnswer, ...]:
    return tuple(_ticket(kept, state=found.booking.state, lines=found.booking.lines) for kept in found.tickets)


def _ticket(kept: KeptTicket, *, state: State, lines: Lines) -> TicketAnswer:
    reason = rules.why_invalid(kept.ticket.place, state=state, lines=lines)
    return TicketAnswer(
        place=place_answer(kept.ticket.place, lines),
        code=kept.ticket.secret if reason is None else None,
        reason=reason,
        admitted_at=kept.admitted_at,
    )


def _scanned_place(result: ScanResult) -> TicketPlace | None:
    if result.ticket is None:
        return None
    return place_answer(result.ticket.place, result.booking.lines if result.booking else None)


def _event(event: Event) -> TicketEvent:
    return TicketEvent(id=event.id, name=event.name, starts_at=event.starts_at)
