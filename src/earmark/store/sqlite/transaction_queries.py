"""One SQLite transaction, step by step: the port's steps as the named queries.

The whole transaction runs in the writer's thread, and `BEGIN IMMEDIATE` has shut out every other writer before it
starts. So no step waits: they are coroutines only because the port says so, and never suspend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.domain.id_types import BookingId, Buyer, EventId, OutsidePaymentRef, PoolRef, SeatRef, TotalRef
from earmark.engine.ports.store import Changes, TransactionStart
from earmark.store.both_databases.payments_and_refunds import PaymentSteps
from earmark.store.both_databases.tickets import CheckInSteps
from earmark.store.sqlite import convert_rows_and_values

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking
    from earmark.domain.idempotency_record import IdempotencyKey
    from earmark.domain.pool import Pool
    from earmark.domain.seat import Seat, SeatSeen
    from earmark.engine.ports.store import Clock, RowsNeeded


class SqliteTransaction(PaymentSteps, CheckInSteps):
    """The one transaction that is writing."""

    def __init__(self, connection: sqlite3.Connection, *, clock: Clock, sql: Mapping[str, str]) -> None:
        self.connection = connection
        self._clock = clock
        self._sql = sql
        self._now: datetime | None = None
        self._without_total: set[TotalRef] = set()
        self.wrote = False
        self.written: Changes | None = None

    async def begin(self, keys: Sequence[IdempotencyKey], look: RowsNeeded | None = None) -> TransactionStart:  # noqa: ARG002 (looks later)
        """No other transaction runs, so no key is ever busy."""
        self._now = self._clock.now()
        found = self._fetch_grouped("read_idempotency_records", set(keys))
        return TransactionStart(now=self._now, remembered=dict(map(convert_rows_and_values.idempotency_record, found)))

    async def read_events(self, ids: Collection[EventId]) -> dict[EventId, Event]:
        """Events by id, as this transaction sees them."""
        return {
            row["id"]: convert_rows_and_values.event(row)
            for row in self._fetch("read_events", convert_rows_and_values.to_json(sorted(ids)))
        }

    async def read_seats(self, refs: Collection[SeatRef]) -> dict[SeatRef, SeatSeen]:
        """Seats with their owners."""
        return {
            seen.ref: seen for seen in map(convert_rows_and_values.seat_seen, self._fetch_grouped("read_seats", refs))
        }

    async def insert_event(self, event: Event, *, seats: Sequence[Seat], pools: Sequence[Pool]) -> bool:
        """Everything or, when the id is taken, nothing."""
        if (
            self.connection.execute(self._sql["insert_event"], convert_rows_and_values.event_columns(event)).rowcount
            == 0
        ):
            return False
        self.wrote = True
        numbered = (
            convert_rows_and_values.seat_columns(seat, event_id=event.id, position=n) for n, seat in enumerate(seats)
        )
        self._run("insert_seats", numbered)
        counted = ((event.id, pool.id, pool.capacity, pool.price, n) for n, pool in enumerate(pools))
        self._run("insert_pools", counted)
        return True

    async def lock_event(self, event_id: EventId) -> Event | None:
        """For an operator's change."""
        return (await self.read_events([event_id])).get(event_id)

    async def read_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        """There is one writer, so a read is as good as a lock."""
        return await self.lock_bookings(ids)

    async def lock_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        """Bookings by id, in key order."""
        found = self._fetch("lock_bookings", convert_rows_and_values.to_json(sorted(map(str, ids)))) if ids else []
        return {booking.id: booking for booking in map(convert_rows_and_values.booking, found)}

    async def lock_due(
        self,
        *,
        limit: int,
        skip: int = 0,
        event_id: EventId | None = None,
        buyer: Buyer | None = None,
        pool: PoolRef | None = None,
    ) -> list[Booking]:
        """The sweeper's query, or the one for a pool or a buyer."""
        assert self._now is not None, "a transaction begins before it judges what is due"
        now = convert_rows_and_values.to_moment(self._now)
        if pool is not None:
            found = self._fetch("lock_due_of_pool", now, limit, pool.event_id, pool.pool_id)
        elif buyer is not None:
            found = self._fetch("lock_due_of_buyer", now, limit, event_id, buyer)
        else:
            found = self._fetch("lock_due", now, limit, skip)
        return [convert_rows_and_values.booking(row) for row in found]

    async def have_due(self, refs: Sequence[PoolRef | TotalRef]) -> list[bool]:
        """By the queries that find them, one by one: each is a step in an index, and none leaves this process."""
        found = [
            await self.lock_due(limit=1, pool=ref)
            if isinstance(ref, PoolRef)
            else await self.lock_due(limit=1, event_id=ref.event_id, buyer=ref.buyer)
            for ref in refs
        ]
        return list(map(bool, found))

    async def tie_outside_payments(self, uses: Mapping[OutsidePaymentRef, BookingId]) -> frozenset[OutsidePaymentRef]:
        """One by one, since each says whether it was free."""
        statement = self._sql["tie_outside_payments"]
        return frozenset(
            ref
            for ref, booking_id in sorted(uses.items())
            if self.connection.execute(statement, (*ref, str(booking_id))).rowcount == 1
        )

    async def lock_totals(self, refs: Collection[TotalRef]) -> dict[TotalRef, int]:
        """Nothing is made here; `write` makes the totals that were missing and are needed."""
        totals = dict.fromkeys(sorted(refs), 0)
        found = {TotalRef(event_id, buyer): n for event_id, buyer, n in self._fetch_grouped("lock_totals", refs)}
        self._without_total |= totals.keys() - found.keys()
        return totals | found

    async def lock_pools(self, refs: Collection[PoolRef]) -> dict[PoolRef, Pool]:
        """Pools by key, in key order."""
        return {pool.ref: pool for pool in map(convert_rows_and_values.pool, self._fetch_grouped("lock_pools", refs))}

    async def lock_seats(self, seen: Collection[SeatSeen]) -> frozenset[SeatRef]:
        """Compared in one read: what was seen in an earlier transaction may have changed."""
        expected = {
            (*seat.ref, None if seat.pointer is None else str(seat.pointer), seat.fence, int(seat.blocked))
            for seat in seen
        }
        found = self._fetch_grouped("lock_seats", [seat.ref for seat in seen])
        return frozenset(SeatRef(row[0], row[1]) for row in found if tuple(row) in expected)

    async def write(self, changes: Changes) -> None:
        """In the order of the port: the triggers see each row after what it stands on."""
        self.wrote = True
        self.written = changes
        c = changes
        self._run("update_bookings", map(convert_rows_and_values.moved_columns, c.expired))
        self._run("update_bookings", map(convert_rows_and_values.moved_columns, c.moved))
        if c.payments or c.refunds or c.payment_keys or c.payers:
            await self.write_payments(c)
        self._write_totals(c.totals)
        self._run("add_pools", ((*ref, delta.held, delta.sold) for ref, delta in sorted(c.pools.items())))
        self._run("insert_bookings", map(convert_rows_and_values.opened_columns, c.opened))
        self._run("point_seats", _pointers(c.seats))
        self._run("reclaim_seats", _pointers({ref: one.id for one in c.reclaimed for ref in one.seat_refs}))
        self._run("update_bookings", map(convert_rows_and_values.moved_columns, c.reclaimed))
        self._run("clear_seats", _pointers(c.cleared))
        if c.event:
            self._run("update_event", [convert_rows_and_values.changed_event_columns(c.event)])
        self._run("change_seats", ((*change.ref, change.blocked, change.price) for change in c.seat_changes))
        self._run("change_pools", ((*change.ref, change.capacity, change.price) for change in c.pool_changes))
        self._run("insert_entries", map(convert_rows_and_values.entry_columns, c.entries))

    def _write_totals(self, totals: Mapping[TotalRef, int]) -> None:
        changed = [(ref, units) for ref, units in sorted(totals.items()) if units]
        self._run("add_totals", ((*ref, units) for ref, units in changed if ref not in self._without_total))
        made = [(ref, units) for ref, units in changed if ref in self._without_total]
        self._run("make_totals", ((*ref, units) for ref, units in made))
        self._without_total -= {ref for ref, _ in made}

    async def fetch(self, name: str, *arguments: object) -> list[dict[str, Any]]:
        """The rows that a named statement finds or returns, as Python's own values."""
        return [
            convert_rows_and_values.to_python(row)
            for row in self._fetch(name, *map(convert_rows_and_values.to_column, arguments))
        ]

    async def execute(self, name: str, *arguments: object) -> int:
        """How many rows a named statement wrote."""
        written = self.connection.execute(
            self._sql[name], tuple(map(convert_rows_and_values.to_column, arguments))
        ).rowcount
        self.wrote = self.wrote or written > 0
        return written

    def _run(self, name: str, changed: Iterable[Sequence[Any]]) -> None:
        self.connection.executemany(self._sql[name], changed)

    def _fetch(self, name: str, *arguments: object) -> list[Any]:
        return self.connection.execute(self._sql[name], arguments).fetchall()

    def _fetch_grouped(self, name: str, refs: Collection[tuple[str, str]]) -> Iterator[Any]:
        """One statement per event (or caller), with the rest of the keys as one array."""
        groups: dict[str, list[str]] = {}
        for first, second in sorted(refs):
            groups.setdefault(first, []).append(second)
        for first, seconds in groups.items():
            yield from self._fetch(name, first, convert_rows_and_values.to_json(seconds))


def _pointers(seats: Mapping[SeatRef, BookingId]) -> Iterator[tuple[str, str, str]]:
    return ((*ref, str(booking_id)) for ref, booking_id in sorted(seats.items()))
