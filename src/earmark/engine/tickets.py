"""Tickets: make them when they are first asked for, show them, check them at a door, and undo an admission.

Every transaction locks the booking before it judges a ticket of it, so a booking that is cancelled at the same moment
is cancelled before or after, never in between. An admission is one guarded write: of two scanners at once, one admits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TypeVar
from uuid import UUID

import msgspec

from earmark.domain import ticket as rules
from earmark.domain.bookable_event import Event
from earmark.domain.booking import Booking, Lines
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import BookingId, EventId, TicketId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.ticket import TICKETS_MAX, Place, Scan, ScanReason, Ticket, TicketPage
from earmark.errors import BookingNotConfirmed, BookingUnknown, IdempotencyMismatch, InvalidRequest, ScanUnknown

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from earmark.engine.commands_and_results import Actor

T = TypeVar("T")


class KeptTicket(msgspec.Struct, frozen=True, kw_only=True):
    """A ticket, and when it admitted."""

    ticket: Ticket
    admitted_at: datetime | None = None


class TicketOfEvent(KeptTicket, frozen=True, kw_only=True):
    """A ticket with what decides whether it is valid: the state and the lines of its booking."""

    state: State
    lines: Lines
    others_inside: int = 0
    """How many other units of its pool and booking let a visitor in."""

    @property
    def why_refused(self) -> ScanReason | None:
        """Why a door refuses it; None if its booking is confirmed, lists it, and has a unit left. Not its own use."""
        place = self.ticket.place
        if invalid := rules.why_invalid(place, state=self.state, lines=self.lines):
            return invalid
        used = rules.is_used_up(place, self.lines, others_inside=self.others_inside)
        return ScanReason.ALREADY_ADMITTED if used else None


class KeptScan(msgspec.Struct, frozen=True, kw_only=True):
    """A scan, and what its ticket is for, if it was of one."""

    scan: Scan
    place: Place | None = None
    booking_id: BookingId | None = None


class BookingTickets(msgspec.Struct, frozen=True, kw_only=True):
    """A booking with its page and all its tickets, also those that are not valid any more."""

    booking: Booking
    page: TicketPage
    tickets: Sequence[KeptTicket]


class NewSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """Where new ids and secrets come from."""

    ticket_id: Callable[[], TicketId]
    secret: Callable[[], str]


class ScanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a scanner sends about one code."""

    id: UUID
    caller: str
    mode: Mode
    code: str
    nonce: str
    event_id: EventId | None = None
    """The event that the door is for; None for any of the shop."""
    offline_at: datetime | None = None
    """When the visitor was let in, by the scanner's clock, if it had no network then."""

    @property
    def code_hash(self) -> bytes:
        """What is stored of the code."""
        return hash_of(self.code)


class ScanResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a scan, with what a door may show."""

    scan: Scan
    reason: ScanReason | None
    ticket: Ticket | None = None
    booking: Booking | None = None
    event: Event | None = None
    admission: Scan | None = None
    """The scan that admitted this ticket, if any."""


class TicketSteps(Protocol):
    """What one transaction can do."""

    now: datetime

    async def lock_booking(self, booking_id: BookingId) -> Booking | None:
        """Lock a booking: no other transaction changes it until this one ends."""
        ...

    async def read_event(self, event_id: EventId) -> Event | None:
        """The event of a ticket, for showing."""
        ...

    async def insert_page(self, page: TicketPage) -> None:
        """The page of a booking; where there is one it stays."""
        ...

    async def insert_tickets(self, tickets: Sequence[Ticket]) -> None:
        """Tickets of one booking; where there is one for a place it stays."""
        ...

    async def find_ticket(self, code: str) -> Ticket | None:
        """The ticket of a code."""
        ...

    async def read_ticket(self, ticket_id: TicketId) -> Ticket | None:
        """A ticket by its id."""
        ...

    async def find_scan(self, caller: str, nonce: str) -> Scan | None:
        """The scan that this key sent under this nonce before."""
        ...

    async def find_admission(self, ticket_id: TicketId) -> Scan | None:
        """The scan that admitted this ticket, unless it was undone."""
        ...

    async def count_others_inside(self, ticket: Ticket) -> int:
        """How many other tickets of the same booking and pool let a visitor in, unless that was undone."""
        ...

    async def insert_scan(self, scan: Scan) -> bool:
        """The guarded write. False when there is a scan of this nonce, or an admission of this ticket, already."""
        ...

    async def undo(self, scan: Scan) -> bool:
        """Mark an admission as undone now; False when it was before."""
        ...


class TicketBook(Protocol):
    """Where tickets are kept."""

    async def transact(self, work: Callable[[TicketSteps], Awaitable[T]]) -> T:
        """All of it or nothing. The work awaits nothing but its steps, and may be run again."""
        ...

    async def read_booking(self, booking_id: BookingId) -> Booking | None:
        """As the last commit left it."""
        ...

    async def read_page(self, booking_id: BookingId) -> TicketPage | None:
        """The page of a booking, if its tickets were ever asked for."""
        ...

    async def find_page(self, secret: str) -> TicketPage | None:
        """The page that a link opens."""
        ...

    async def list_tickets(self, booking_id: BookingId) -> list[KeptTicket]:
        """All tickets of a booking, seats first."""
        ...

    async def list_event(self, event_id: EventId, *, after: str, limit: int) -> list[TicketOfEvent]:
        """The tickets of an event behind an id."""
        ...

    async def list_scans(self, event_id: EventId, *, mode: Mode, after: str, limit: int) -> list[KeptScan]:
        """The scans of an event by keys of its mode, behind an id, by age."""
        ...


class Tickets:
    """What can be done with tickets, over any store."""

    def __init__(self, book: TicketBook) -> None:
        self._book = book
        self.list_event = book.list_event
        self.list_scans = book.list_scans

    async def of_booking(self, booking_id: BookingId, *, actor: Actor, new: NewSecrets) -> BookingTickets:
        """The page and the tickets of a booking that the actor may see; they are made if they are not there.

        A booking that is not confirmed has no tickets yet; one that was, and is cancelled, keeps those that it had.
        """
        booking = _visible(await self._book.read_booking(booking_id), booking_id, actor)
        page = await self._book.read_page(booking_id)
        if page is None:
            await self._make(booking_id, actor=actor, new=new)
            page = await self._book.read_page(booking_id)
            booking = _visible(await self._book.read_booking(booking_id), booking_id, actor)
        assert page is not None, "the page of a booking stays"
        return BookingTickets(booking=booking, page=page, tickets=await self._book.list_tickets(booking_id))

    async def open_page(self, secret: str) -> BookingTickets | None:
        """What a link shows; None when it is no page's."""
        page = await self._book.find_page(secret) if rules.is_secret(secret) else None
        if page is None:
            return None
        booking = await self._book.read_booking(page.booking_id)
        assert booking is not None, "a booking stays"
        return BookingTickets(booking=booking, page=page, tickets=await self._book.list_tickets(page.booking_id))

    async def _make(self, booking_id: BookingId, *, actor: Actor, new: NewSecrets) -> None:
        """Once for each booking: the lines of a sale never grow."""

        async def work(steps: TicketSteps) -> None:
            booking = _visible(await steps.lock_booking(booking_id), booking_id, actor)
            if booking.state is not State.CONFIRMED:
                raise BookingNotConfirmed(state=booking.state)
            if booking.lines.units > TICKETS_MAX:
                raise InvalidRequest.at("booking_id", f"claims more than {TICKETS_MAX} seats and units: no tickets")
            made = [
                Ticket(
                    id=new.ticket_id(),
                    booking_id=booking_id,
                    event_id=booking.event_id,
                    kind=place.kind,
                    name=place.name,
                    unit=place.unit,
                    secret=new.secret(),
                    created_at=steps.now,
                )
                for place in rules.places_of(booking.lines)
            ]
            await steps.insert_tickets(made)
            await steps.insert_page(TicketPage(booking_id=booking_id, secret=new.secret(), created_at=steps.now))

        await self._book.transact(work)

    async def check(self, request: ScanRequest) -> ScanResult:
        """Judge one scan and record it. The same nonce again is the same scan: it gets the same result.

        A scan that was made offline let the visitor in already: it is the admission if the ticket is valid and has not
        admitted, else it is recorded with the reason why the server would have refused.
        """

        async def work(steps: TicketSteps) -> ScanResult:
            return await _check(steps, request)

        return await self._book.transact(work)

    async def undo(self, *, caller: str, nonce: str) -> Scan:
        """Undo the admission that this key made under this nonce; once more changes nothing."""

        async def work(steps: TicketSteps) -> Scan:
            scan = await _own_scan(steps, caller, nonce)
            if scan.ticket_id and (ticket := await steps.read_ticket(scan.ticket_id)):
                await steps.lock_booking(ticket.booking_id)
                scan = await _own_scan(steps, caller, nonce)
            if scan.undone_at is not None:
                return scan
            rules.check_undo(scan, now=steps.now)
            undone = await steps.undo(scan)
            assert undone, "the booking is locked"
            return await _own_scan(steps, caller, nonce)

        return await self._book.transact(work)


class KeepsTickets(Protocol):
    """A store that keeps tickets."""

    @property
    def tickets(self) -> Tickets:
        """The tickets of this store, and their scans."""
        ...


def nonce_after_refusal(nonce: str) -> str:
    """The nonce of an offline scan whose own one is that of a scan which the server had refused. No longer than any."""
    return f"offline-{hashlib.sha256(nonce.encode()).hexdigest()[:40]}"


def hash_of(code: str) -> bytes:
    """What an offline list has of a code, and a scan keeps. A code is random: a fast hash is as good as a slow one."""
    return hashlib.sha256(code.encode()).digest()


def _visible(booking: Booking | None, booking_id: BookingId, actor: Actor) -> Booking:
    if booking is None or not actor.may_see(booking):
        raise BookingUnknown(booking_id=str(booking_id))
    return booking


async def _check(steps: TicketSteps, sent: ScanRequest) -> ScanResult:
    request, known = await _recorded(steps, sent)
    if known:
        return await _again(steps, known, request)
    ticket = await steps.find_ticket(request.code) if rules.is_secret(request.code) else None
    booking = await steps.lock_booking(ticket.booking_id) if ticket else None
    reason = await _judge(steps, request, ticket, booking)
    scan = _scan(request, ticket, reason, now=steps.now)
    if not await steps.insert_scan(scan):
        if await steps.find_scan(request.caller, request.nonce):
            return await _check(steps, sent)
        scan = _scan(request, ticket, ScanReason.ALREADY_ADMITTED, now=steps.now)
        written = await steps.insert_scan(scan)
        assert written, "only an admission can be there already"
    return await _result(steps, scan, ticket, booking)


async def _recorded(steps: TicketSteps, request: ScanRequest) -> tuple[ScanRequest, Scan | None]:
    """The scan that this request repeats, if there is one, and the request under the nonce that it is recorded by.

    A scanner whose answer was lost may let the visitor in by its list, under the same nonce. If the server had refused,
    that is another scan: under the nonce of the first it would stand as not let in for good.
    """
    known = await steps.find_scan(request.caller, request.nonce)
    if known is None or known.admitted or request.offline_at is None or known.code_hash != request.code_hash:
        return request, known
    request = msgspec.structs.replace(request, nonce=nonce_after_refusal(request.nonce))
    return request, await steps.find_scan(request.caller, request.nonce)


async def _judge(
    steps: TicketSteps, request: ScanRequest, ticket: Ticket | None, booking: Booking | None
) -> ScanReason | None:
    """By what is read while the booking is locked: each scan of its other tickets came before or comes after."""
    admission = await steps.find_admission(ticket.id) if ticket else None
    others = await steps.count_others_inside(ticket) if ticket and ticket.kind is rules.Kind.POOL else 0
    return rules.why_refused(
        ticket,
        booking,
        mode=request.mode,
        event_id=request.event_id,
        admitted=admission is not None,
        others_inside=others,
    )


def _scan(request: ScanRequest, ticket: Ticket | None, reason: ScanReason | None, *, now: datetime) -> Scan:
    """The scan as it is recorded. A ticket of the other mode stays unknown in it."""
    offline = request.offline_at is not None
    known = ticket if reason is not ScanReason.UNKNOWN else None
    return Scan(
        id=request.id,
        caller=request.caller,
        nonce=request.nonce,
        mode=request.mode,
        code_hash=request.code_hash,
        ticket_id=known.id if known else None,
        event_id=known.event_id if known else request.event_id,
        admitted=offline or reason is None,
        reason=reason,
        offline=offline,
        scanned_at=request.offline_at or now,
        received_at=now,
    )


async def _again(steps: TicketSteps, known: Scan, request: ScanRequest) -> ScanResult:
    """The result of a scan that is recorded, for a scanner that did not get it."""
    if known.code_hash != request.code_hash:
        raise IdempotencyMismatch
    ticket = await steps.read_ticket(known.ticket_id) if known.ticket_id else None
    booking = await steps.lock_booking(ticket.booking_id) if ticket else None
    return await _result(steps, known, ticket, booking)


async def _result(steps: TicketSteps, scan: Scan, ticket: Ticket | None, booking: Booking | None) -> ScanResult:
    reason = ScanReason.UNDONE if scan.undone_at is not None else scan.reason
    if ticket is None or scan.ticket_id is None:
        return ScanResult(scan=scan, reason=reason)
    return ScanResult(
        scan=scan,
        reason=reason,
        ticket=ticket,
        booking=booking,
        event=await steps.read_event(ticket.event_id),
        admission=await steps.find_admission(ticket.id),
    )


async def _own_scan(steps: TicketSteps, caller: str, nonce: str) -> Scan:
    scan = await steps.find_scan(caller, nonce)
    if scan is None:
        raise ScanUnknown(nonce=nonce)
    return scan
