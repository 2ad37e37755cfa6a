"""The memory store: for tests, tutorials and the pytest plugin. It forgets everything when it is closed.

A transaction works on a copy of the tables, which takes their place when it commits. The values in them are frozen,
so the copy is shallow, and a transaction that fails leaves nothing behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from earmark.domain.ids import (
    BookingId,
    Buyer,
    EntryId,
    EventId,
    OutsidePaymentRef,
    PoolRef,
    SeatId,
    SeatRef,
    TotalRef,
)
from earmark.domain.seat import Seat, SeatSeen
from earmark.domain.state_machine import EDGES, LIVE, State
from earmark.engine.accounts import Accounts
from earmark.engine.api_keys import Keys
from earmark.engine.ports.store import (
    LOCK_SECONDS_MAX,
    BookingFilter,
    Changes,
    Flaw,
    SeatMap,
    SeatOnMap,
    TransactionStart,
)
from earmark.store.inline import drive
from earmark.store.memory_accounts import MemoryAccounts
from earmark.store.memory_keys import MemoryKeys
from earmark.store.memory_live import MemoryLive
from earmark.store.memory_money import MoneyReads, MoneySteps, MoneyTables, short_payments
from earmark.store.memory_outbox import MemoryOutbox
from earmark.store.memory_upkeep import MemoryBeats, MemoryUpkeep
from earmark.store.memory_webhooks import MemoryWebhooks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from datetime import datetime

    from earmark.domain.booking import Booking
    from earmark.domain.event import Event
    from earmark.domain.journal import Entry, IdempotencyKey, IdempotencyRecord
    from earmark.domain.pool import Pool
    from earmark.engine.ports.store import Clock, RowsNeeded, Transaction

T = TypeVar("T")


class _Seat(msgspec.Struct, frozen=True, kw_only=True):
    seat: Seat
    pointer: BookingId | None = None
    fence: int = 0


class _Tables(MoneyTables):
    def __init__(self) -> None:
        super().__init__()
        self.events: dict[EventId, Event] = {}
        self.seats: dict[SeatRef, _Seat] = {}
        self.pools: dict[PoolRef, Pool] = {}
        self.bookings: dict[BookingId, Booking] = {}
        self.totals: dict[TotalRef, int] = {}
        self.outside_payments: dict[OutsidePaymentRef, BookingId] = {}
        self.entries: dict[EntryId, Entry] = {}
        self.memories: dict[IdempotencyKey, IdempotencyRecord] = {}
        self.numbers: dict[EntryId, int] = {}

    def fork(self) -> _Tables:
        fork = _Tables()
        for name, table in vars(self).items():
            setattr(fork, name, dict(table))
        return fork


class MemoryStore(MoneyReads):
    """The truth, for as long as the process lives."""

    _tables: _Tables

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._tables = _Tables()
        self.webhooks = MemoryWebhooks(clock, events=lambda: self._tables.events)
        self.outbox = MemoryOutbox(
            lambda: (self._tables.entries, self._tables.numbers), queue=self.webhooks.queue_entries
        )
        self.live = MemoryLive(self.outbox, read_map=self.read_map)
        self.accounts = Accounts(MemoryAccounts(clock))
        self.keys = Keys(MemoryKeys(clock))
        self.heartbeats = MemoryBeats(clock)
        self.upkeep = MemoryUpkeep(lambda: self._tables, clock=clock)

    async def transact(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        within: float,  # noqa: ARG002 (instant)
        optimistic: bool = False,  # noqa: ARG002 (alone)
        lock_seconds: float = LOCK_SECONDS_MAX,  # noqa: ARG002 (alone)
    ) -> T:
        """At once, and alone."""
        transaction = MemoryTransaction(self._tables.fork(), now=self._clock.now())
        result = drive(work, transaction)
        if transaction.wrote:
            self._tables = transaction.tables
        return result

    async def has_entry(self, entry_id: EntryId) -> bool:
        """By id."""
        return entry_id in self._tables.entries

    async def known_keys(self, keys: Sequence[IdempotencyKey]) -> Collection[IdempotencyKey]:
        """By key."""
        return self._tables.memories.keys() & set(keys)

    async def read_event(self, event_id: EventId) -> Event | None:
        """By id."""
        return self._tables.events.get(event_id)

    async def list_events(self, *, live: bool, after: EventId | None, limit: int) -> list[Event]:
        """By id."""
        known = sorted(self._tables.events.values(), key=lambda event: event.id)
        return [event for event in known if event.live == live and event.id > (after or "")][:limit]

    async def read_map(self, event_id: EventId, *, seat_id: SeatId | None = None) -> SeatMap:
        """In the order in which they were laid out."""
        now, tables = self._clock.now(), self._tables
        seats = [
            row for ref, row in tables.seats.items() if ref.event_id == event_id and seat_id in {None, ref.seat_id}
        ]
        pools = [self._less_lapsed(pool, now) for ref, pool in tables.pools.items() if ref.event_id == event_id]
        held = [one for one in tables.bookings.values() if one.event_id == event_id and one.state is State.HELD]
        ends_at = min((one.expires_at for one in held if one.expires_at > now), default=None)
        return SeatMap(now=now, seats=[_on_map(row, tables) for row in seats], pools=pools, ends_at=ends_at)

    def _less_lapsed(self, pool: Pool, now: datetime) -> Pool:
        due = (booking for booking in self._tables.bookings.values() if booking.is_due(now))
        lapsed = sum(booking.pool_deltas(held=1)[pool.ref].held for booking in due if pool.ref in booking.pool_deltas())
        return msgspec.structs.replace(pool, held=pool.held - lapsed)

    async def read_booking(self, booking_id: BookingId) -> tuple[datetime, Booking | None]:
        """By id."""
        return self._clock.now(), self._tables.bookings.get(booking_id)

    async def list_bookings(self, wanted: BookingFilter) -> tuple[datetime, list[Booking]]:
        """By id, which is by age."""
        now = self._clock.now()
        known = sorted(self._tables.bookings.values(), key=lambda booking: booking.id)
        return now, [booking for booking in known if _matches(booking, wanted, now)][: wanted.limit]

    async def read_history(self, booking_id: BookingId) -> list[Entry]:
        """By version."""
        told = (entry for entry in self._tables.entries.values() if entry.booking_id == booking_id)
        return sorted(told, key=lambda entry: entry.version)

    async def seconds_to_next_due(self) -> float | None:
        """Over all holds."""
        ends = [booking.expires_at for booking in self._tables.bookings.values() if booking.state is State.HELD]
        return (min(ends) - self._clock.now()).total_seconds() if ends else None

    async def find_flaws(self, *, limit: int) -> list[Flaw]:
        """The rules that every other one leans on: live bookings have their seats, and sales their money."""
        flaws = [
            Flaw(
                promise="P1", rule="every seat of a live booking points to it", row=f"booking {booking.id}, seat {ref}"
            )
            for booking in self._tables.bookings.values()
            if booking.is_live
            for ref in booking.seat_refs
            if self._tables.seats[ref].pointer != booking.id
        ]
        return [*flaws, *short_payments(self._tables)][:limit]

    async def check(self) -> None:
        """Nothing to check."""

    def requests_at_once_max(self, *, batches: int) -> int | None:  # noqa: ARG002 (one writer)
        """Nothing limits it."""
        return None

    async def check_ready(self) -> None:
        """What answers is what is written to."""
        await self.check()

    async def close(self) -> None:
        """Nothing to let go of."""


class MemoryTransaction(MoneySteps):
    """The port's steps over dictionaries. One writer, so there is nothing to lock."""

    tables: _Tables

    def __init__(self, tables: _Tables, *, now: datetime) -> None:
        self.tables = tables
        self.wrote = False
        self.written: Changes | None = None
        self._now = now

    async def begin(self, keys: Sequence[IdempotencyKey], look: RowsNeeded | None = None) -> TransactionStart:  # noqa: ARG002 (looks later)
        """Nobody else is deciding anything."""
        remembered = {key: self.tables.memories[key] for key in keys if key in self.tables.memories}
        return TransactionStart(now=self._now, remembered=remembered)

    async def read_events(self, ids: Collection[EventId]) -> dict[EventId, Event]:
        """By id."""
        return {event_id: self.tables.events[event_id] for event_id in ids if event_id in self.tables.events}

    async def read_seats(self, refs: Collection[SeatRef]) -> dict[SeatRef, SeatSeen]:
        """With their owners."""
        return {ref: _seen(self.tables.seats[ref], self.tables) for ref in refs if ref in self.tables.seats}

    async def insert_event(self, event: Event, *, seats: Sequence[Seat], pools: Sequence[Pool]) -> bool:
        """All or nothing."""
        if event.id in self.tables.events:
            return False
        self.wrote = True
        self.tables.events[event.id] = event
        self.tables.seats |= {seat.ref: _Seat(seat=seat) for seat in seats}
        self.tables.pools |= {pool.ref: pool for pool in pools}
        return True

    async def lock_event(self, event_id: EventId) -> Event | None:
        """By id."""
        return self.tables.events.get(event_id)

    async def lock_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        """By id."""
        known = self.tables.bookings
        return {booking_id: known[booking_id] for booking_id in ids if booking_id in known}

    async def lock_due(
        self,
        *,
        limit: int,
        skip: int = 0,
        event_id: EventId | None = None,
        buyer: Buyer | None = None,
        pool: PoolRef | None = None,
    ) -> list[Booking]:
        """The longest due first."""
        due = sorted(
            (booking for booking in self.tables.bookings.values() if booking.is_due(self._now)),
            key=lambda booking: booking.expires_at,
        )
        if buyer is not None:
            due = [booking for booking in due if booking.total_ref == (event_id, buyer)]
        if pool is not None:
            due = [booking for booking in due if pool in booking.pool_deltas()]
        return due[skip : skip + limit]

    async def has_due(self, within: PoolRef | TotalRef) -> bool:
        """Among all that is due."""
        if isinstance(within, PoolRef):
            return bool(await self.lock_due(limit=1, pool=within))
        return bool(await self.lock_due(limit=1, event_id=within.event_id, buyer=within.buyer))

    async def take_payments(self, uses: Mapping[OutsidePaymentRef, BookingId]) -> frozenset[OutsidePaymentRef]:
        """First come, first served."""
        taken = self.tables.outside_payments
        won = {payment: booking for payment, booking in uses.items() if payment not in taken}
        taken |= won
        return frozenset(won)

    async def lock_totals(self, refs: Collection[TotalRef]) -> dict[TotalRef, int]:
        """Zero where there was nothing yet."""
        return {ref: self.tables.totals.get(ref, 0) for ref in refs}

    async def lock_pools(self, refs: Collection[PoolRef]) -> dict[PoolRef, Pool]:
        """By key."""
        return {ref: self.tables.pools[ref] for ref in refs if ref in self.tables.pools}

    async def lock_seats(self, seen: Collection[SeatSeen]) -> frozenset[SeatRef]:
        """Compared with what they are now."""
        now = {seat.ref: self.tables.seats.get(seat.ref) for seat in seen}
        return frozenset(
            seat.ref
            for seat in seen
            if (row := now[seat.ref])
            and (seat.pointer, seat.fence, seat.blocked) == (row.pointer, row.fence, row.seat.blocked)
        )

    async def write(self, changes: Changes) -> None:
        """The law stands here too: a write that breaks it is our bug, and nothing of it is kept."""
        self.wrote = True
        self.written = changes
        tables = self.tables
        for booking in (*changes.expired, *changes.moved):
            self._move(booking)
        self.write_money(changes.payments, changes.refunds)
        tables.payment_keys |= {one.key: one for one in changes.payment_keys}
        tables.payers |= {one.ref: one for one in changes.payers}
        for total, units in changes.totals.items():
            if not units:
                continue
            tables.totals[total] = tables.totals.get(total, 0) + units
            assert tables.totals[total] >= 0, f"total of {total} below zero"
        for ref, delta in changes.pools.items():
            pool = tables.pools[ref]
            pool = msgspec.structs.replace(pool, held=pool.held + delta.held, sold=pool.sold + delta.sold)
            assert min(pool.held, pool.sold, pool.free) >= 0, f"pool {ref} would be {pool}"
            tables.pools[ref] = pool
        tables.bookings |= {booking.id: booking for booking in changes.opened}
        for seat, booking_id in changes.seats.items():
            self._point(seat, booking_id)
        for booking in changes.reclaimed:
            self._reclaim(booking)
        for seat in changes.cleared:
            self._point(seat, None)
        self._write_offer(changes)
        for entry in changes.entries:
            tables.entries[entry.id] = msgspec.structs.replace(entry, facts=msgspec.to_builtins(entry.facts))
            if entry.key and entry.memory:
                assert entry.key not in tables.memories, "a key remembers one answer"
                tables.memories[entry.key] = entry.memory

    def _move(self, booking: Booking) -> None:
        before = self.tables.bookings[booking.id].state
        assert before == booking.state or (before, booking.state) in EDGES, f"{before} to {booking.state}"
        self.tables.bookings[booking.id] = booking
        if (before, booking.state) == (State.EXPIRED, State.CONFIRMED):
            for ref in booking.seat_refs:
                row = self.tables.seats[ref]
                assert row.pointer == booking.id, f"seat {ref} belongs to {row.pointer}"
                self.tables.seats[ref] = msgspec.structs.replace(row, fence=row.fence + 1)

    def _reclaim(self, booking: Booking) -> None:
        for ref in booking.seat_refs:
            self._point(ref, booking.id)
        self._move(booking)

    def _point(self, ref: SeatRef, booking_id: BookingId | None) -> None:
        row = self.tables.seats[ref]
        owner = self.tables.bookings.get(row.pointer) if row.pointer else None
        lives = owner is not None and owner.state in LIVE and ref in owner.seat_refs
        assert not lives, f"seat {ref} belongs to {row.pointer}"
        assert not (row.seat.blocked and booking_id), f"seat {ref} is blocked"
        fence = row.fence + (booking_id is None)
        self.tables.seats[ref] = msgspec.structs.replace(row, pointer=booking_id, fence=fence)

    def _write_offer(self, changes: Changes) -> None:
        if changes.event:
            self.tables.events[changes.event.id] = changes.event
        for change in changes.seat_changes:
            row = self.tables.seats[change.ref]
            set_ = {"blocked": change.blocked, "price": change.price}
            seat = msgspec.structs.replace(row.seat, **{name: v for name, v in set_.items() if v is not None})
            self.tables.seats[change.ref] = msgspec.structs.replace(row, seat=seat)
        for sized in changes.pool_changes:
            given = {"capacity": sized.capacity, "price": sized.price}
            pool = msgspec.structs.replace(
                self.tables.pools[sized.ref], **{name: v for name, v in given.items() if v is not None}
            )
            assert pool.free >= 0, f"pool {sized.ref} would be {pool}"
            self.tables.pools[sized.ref] = pool


def _seen(row: _Seat, tables: _Tables) -> SeatSeen:
    owner = tables.bookings.get(row.pointer) if row.pointer else None
    return SeatSeen(
        ref=row.seat.ref,
        price=row.seat.price,
        blocked=row.seat.blocked,
        pointer=row.pointer,
        fence=row.fence,
        owner_state=owner.state if owner else None,
        owner_expires_at=owner.expires_at if owner else None,
        owner_buyer=owner.buyer if owner else None,
        row=row.seat.row,
        number=row.seat.number,
        section=row.seat.section,
        category=row.seat.category,
    )


def _on_map(row: _Seat, tables: _Tables) -> SeatOnMap:
    seen = _seen(row, tables)
    return SeatOnMap(
        seat=row.seat,
        fence=row.fence,
        owner_id=row.pointer,
        owner_state=seen.owner_state,
        owner_expires_at=seen.owner_expires_at,
        owner_buyer=seen.owner_buyer,
    )


def _matches(booking: Booking, wanted: BookingFilter, now: datetime) -> bool:
    state = State.EXPIRED if booking.is_due(now) else booking.state
    return (
        booking.live == wanted.live
        and (wanted.after is None or booking.id > wanted.after)
        and wanted.buyer in {None, booking.buyer}
        and wanted.event_id in {None, booking.event_id}
        and wanted.state in {None, state}
    )
