"""Tickets, their pages and their scans: the booking is locked before a ticket of it is judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

import msgspec

from earmark.domain.booking import Lines
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import BookingId
from earmark.domain.ticket import Place, Scan, Ticket, TicketPage
from earmark.engine.tickets import KeptScan, KeptTicket, TicketOfEvent
from earmark.store.both_databases.named_statement_runner_protocols import (
    SECONDS_MAX,
    StatementStore,
    StatementTransaction,
    from_row,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from datetime import datetime

    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking
    from earmark.domain.id_types import EventId, TicketId
    from earmark.domain.live_or_test_mode import Mode
    from earmark.engine.tickets import TicketSteps

T = TypeVar("T")

FIRST = "00000000-0000-0000-0000-000000000000"

_lines = msgspec.json.Decoder(Lines)


class TicketTransaction(StatementTransaction, Protocol):
    """A transaction that also has the steps of bookings."""

    async def lock_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        """Lock bookings, in the order of their ids."""
        ...

    async def read_events(self, ids: Collection[EventId]) -> dict[EventId, Event]:
        """Events by id, as this transaction sees them."""
        ...


class TicketStore(StatementStore, Protocol):
    """A store that also reads bookings."""

    async def read_booking(self, booking_id: BookingId) -> tuple[datetime, Booking | None]:
        """A booking by its id, and the moment of the read."""
        ...


class CheckInSteps:
    """The step about check-ins, for a transaction that runs named statements."""

    fetch: Callable[..., Awaitable[list[Any]]]

    async def read_checked_in(self, ids: Collection[BookingId]) -> frozenset[BookingId]:
        """By the index of a booking's tickets, in a statement that begins after the bookings were locked."""
        return _booking_ids(await self.fetch("list_checked_in", sorted(ids))) if ids else frozenset()


class CheckInReads:
    """What is read of check-ins outside of a transaction, for a store that runs named statements."""

    read_rows: Callable[..., Awaitable[list[Any]]]

    async def list_checked_in(self, ids: Collection[BookingId]) -> frozenset[BookingId]:
        """By the index of a booking's tickets."""
        return _booking_ids(await self.read_rows("list_checked_in", sorted(ids))) if ids else frozenset()


class StoredTickets:
    """The tickets of a store."""

    def __init__(self, store: TicketStore) -> None:
        self._store = store

    async def transact(self, work: Callable[[TicketSteps], Awaitable[T]]) -> T:
        """Run the work in one transaction of the store."""

        async def run(transaction: TicketTransaction) -> T:
            opening = await transaction.begin([])
            return await work(StoredTicketSteps(transaction, now=opening.now))

        return await self._store.transact(run, within=SECONDS_MAX)

    async def read_booking(self, booking_id: BookingId) -> Booking | None:
        """As the last commit left it."""
        return (await self._store.read_booking(booking_id))[1]

    async def read_page(self, booking_id: BookingId) -> TicketPage | None:
        """By the booking's id."""
        found = await self._store.read_rows("read_ticket_page", booking_id)
        return from_row(found[0], TicketPage) if found else None

    async def find_page(self, secret: str) -> TicketPage | None:
        """By the index of secrets."""
        found = await self._store.read_rows("find_ticket_page", secret)
        return from_row(found[0], TicketPage) if found else None

    async def list_tickets(self, booking_id: BookingId) -> list[KeptTicket]:
        """Each with the time of its admission."""
        found = await self._store.read_rows("list_tickets", booking_id)
        return [KeptTicket(ticket=from_row(row, Ticket), admitted_at=row["admitted_at"]) for row in found]

    async def list_event(self, event_id: EventId, *, after: str, limit: int) -> list[TicketOfEvent]:
        """A page of them, each with the state and the lines of its booking in the same snapshot."""
        found = await self._store.read_rows("list_tickets_of_event", event_id, after or FIRST, limit)
        return [
            TicketOfEvent(
                ticket=from_row(row, Ticket),
                admitted_at=row["admitted_at"],
                state=State(row["state"]),
                lines=_lines.decode(row["lines"]),
                others_inside=row["others_inside"],
            )
            for row in found
        ]

    async def list_scans(self, event_id: EventId, *, mode: Mode, after: str, limit: int) -> list[KeptScan]:
        """A page of them, each with what its ticket is for."""
        found = await self._store.read_rows("list_scans", event_id, mode, after or FIRST, limit)
        return [_kept(row) for row in found]


class StoredTicketSteps:
    """One transaction: what is read after the lock is as the transaction before left it."""

    def __init__(self, transaction: TicketTransaction, *, now: datetime) -> None:
        self._transaction = transaction
        self.now = now

    async def lock_booking(self, booking_id: BookingId) -> Booking | None:
        """Wait for the transaction that has it."""
        return (await self._transaction.lock_bookings([booking_id])).get(booking_id)

    async def read_event(self, event_id: EventId) -> Event | None:
        """The event of a ticket."""
        return (await self._transaction.read_events([event_id])).get(event_id)

    async def insert_page(self, page: TicketPage) -> None:
        """Where there is one it stays."""
        await self._transaction.execute("insert_ticket_page", page.booking_id, page.secret, page.created_at)

    async def insert_tickets(self, tickets: Sequence[Ticket]) -> None:
        """All in one statement."""
        first = tickets[0]
        columns = zip(*((t.id, t.kind.value, t.name, t.unit, t.secret) for t in tickets), strict=True)
        of_one = (first.booking_id, first.event_id, first.created_at)
        await self._transaction.execute("insert_tickets", *of_one, *map(list, columns))

    async def find_ticket(self, code: str) -> Ticket | None:
        """By the index of secrets."""
        found = await self._transaction.fetch("find_ticket", code)
        return from_row(found[0], Ticket) if found else None

    async def read_ticket(self, ticket_id: TicketId) -> Ticket | None:
        """The ticket of a scan that is sent again."""
        found = await self._transaction.fetch("read_ticket", ticket_id)
        return from_row(found[0], Ticket) if found else None

    async def find_scan(self, caller: str, nonce: str) -> Scan | None:
        """By the key that makes it one."""
        found = await self._transaction.fetch("find_scan", caller, nonce)
        return from_row(found[0], Scan) if found else None

    async def find_admission(self, ticket_id: TicketId) -> Scan | None:
        """The scan that admitted it."""
        found = await self._transaction.fetch("find_admission", ticket_id)
        return from_row(found[0], Scan) if found else None

    async def count_others_inside(self, ticket: Ticket) -> int:
        """By the index of a booking's tickets."""
        of_pool = (ticket.booking_id, ticket.kind.value, ticket.name)
        found = await self._transaction.fetch("count_others_inside", *of_pool, ticket.id)
        return int(found[0]["inside"])

    async def insert_scan(self, scan: Scan) -> bool:
        """False where its nonce was here before, or its ticket has admitted. One being written is waited for."""
        s = scan
        what = (s.code_hash, s.ticket_id, s.event_id, s.admitted, s.reason, s.offline, s.scanned_at, s.received_at)
        return bool(await self._transaction.execute("insert_scan", s.id, s.caller, s.nonce, s.mode, *what))

    async def undo(self, scan: Scan) -> bool:
        """By one guarded update."""
        return bool(await self._transaction.execute("undo_scan", scan.id, self.now))


def _booking_ids(rows: Sequence[Any]) -> frozenset[BookingId]:
    # SQLite has ids as text.
    return msgspec.convert([row["booking_id"] for row in rows], frozenset[BookingId])


def _kept(row: Any) -> KeptScan:
    scan = from_row(row, Scan)
    if scan.ticket_id is None:
        return KeptScan(scan=scan)
    return KeptScan(scan=scan, place=from_row(row, Place), booking_id=BookingId(UUID(str(row["booking_id"]))))
