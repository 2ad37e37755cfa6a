"""One PostgreSQL transaction, step by step: the port's steps as the named queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.domain.id_types import BookingId, Buyer, EventId, OutsidePaymentRef, PoolRef, SeatRef, TotalRef
from earmark.engine.ports.store import LOCK_SECONDS_MAX, Changes, TransactionStart
from earmark.store import load_named_sql
from earmark.store.both_databases.payments_and_refunds import PaymentSteps
from earmark.store.both_databases.tickets import CheckInSteps
from earmark.store.postgres import convert_rows_and_values
from earmark.store.postgres.find_rows_that_blocked_requests import WantedLocks

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime, timedelta

    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking
    from earmark.domain.idempotency_record import IdempotencyKey
    from earmark.domain.pool import Pool
    from earmark.domain.seat import Seat, SeatSeen
    from earmark.engine.ports.store import RowsNeeded

Connection = Any  # asyncpg ships no types


async def wait_for_standby(transaction: Any) -> None:
    """Write to no table: the commit then waits until the standby has all that was committed before."""
    await transaction.fetch("wait_for_standby")
    transaction.wrote = True


class PostgresTransaction(PaymentSteps, CheckInSteps):
    """READ COMMITTED, with row locks taken in the order of the port."""

    def __init__(
        self,
        connection: Connection,
        *,
        offset: timedelta,
        sql: Mapping[str, str] | None = None,
        lock_seconds: float = LOCK_SECONDS_MAX,
    ) -> None:
        self.connection = connection
        self._offset = offset
        self._lock_timeout = convert_rows_and_values.lock_timeout(lock_seconds)
        self.wanted = WantedLocks()
        """The rows that it asked to lock so far."""
        self._sql = sql or load_named_sql.statements("postgres")
        self._totals_made: list[TotalRef] = []
        self._now: datetime | None = None
        self.wrote = False
        self.written: Changes | None = None
        self.replays = False
        """Whether an answer is repeated that a synchronous standby must have too."""

    async def begin(self, keys: Sequence[IdempotencyKey], look: RowsNeeded | None = None) -> TransactionStart:  # noqa: ARG002 (looks later)
        """One round trip for the moment and the claims, one more for the idempotency records."""
        if not keys:
            self._now = await self.connection.fetchval(self._sql["begin_locking"], self._offset, self._lock_timeout)
            return TransactionStart(now=self._now)
        distinct = sorted(set(keys))
        claims = await self.fetch(
            "claim_keys", self._offset, *convert_rows_and_values.columns(distinct, width=2), self._lock_timeout
        )
        self._now = claims[0]["now"]
        busy = frozenset(distinct[claim["n"] - 1] for claim in claims if not claim["claimed"])
        mine = [key for key in distinct if key not in busy]
        found = (
            await self.fetch("read_idempotency_records", *convert_rows_and_values.columns(mine, width=2))
            if mine
            else []
        )
        self.replays = any(row["replicated"] for row in found)
        return TransactionStart(
            now=self._now, busy=busy, remembered=dict(map(convert_rows_and_values.idempotency_record, found))
        )

    async def read_events(self, ids: Collection[EventId]) -> dict[EventId, Event]:
        """Events by id, without a lock."""
        return {row["id"]: convert_rows_and_values.event(row) for row in await self.fetch("read_events", sorted(ids))}

    async def read_seats(self, refs: Collection[SeatRef]) -> dict[SeatRef, SeatSeen]:
        """The one unlocked read of seats and owners."""
        if not refs:
            return {}
        wanted = sorted(refs)
        found = await self.fetch("read_seats", *convert_rows_and_values.columns(wanted, width=2))
        seen = {ref: convert_rows_and_values.seat_seen(row, ref) for row in found for ref in (wanted[row[0] - 1],)}
        self.wanted.known_seats |= seen
        return seen

    async def read_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        """Bookings by id, without a lock."""
        found = map(convert_rows_and_values.booking, await self.fetch("read_bookings", list(ids)))
        return {booking.id: booking for booking in found}

    async def insert_event(self, event: Event, *, seats: Sequence[Seat], pools: Sequence[Pool]) -> bool:
        """Everything or, when the id is taken, nothing."""
        e = event
        window = (e.starts_at, e.sale_opens_at, e.sale_closes_at)
        head = (e.id, e.name, e.currency, e.mode, e.created_at)
        if not await self.fetch("insert_event", *head, *window, *convert_rows_and_values.event_rules(e)):
            return False
        self.wrote = True
        await self.fetch("insert_seats", e.id, *convert_rows_and_values.seat_columns(seats))
        numbered = ((pool.id, pool.capacity, pool.price, position) for position, pool in enumerate(pools))
        await self.fetch("insert_pools", e.id, *convert_rows_and_values.columns(numbered, width=4))
        return True

    async def lock_event(self, event_id: EventId) -> Event | None:
        """For an operator's change."""
        found = await self.fetch("lock_event", event_id)
        return convert_rows_and_values.event(found[0]) if found else None

    async def lock_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        """Sorted by the query."""
        if not ids:
            return {}
        self.wanted.bookings.update(ids)
        found = await self.fetch("lock_bookings", list(ids))
        locked = {booking.id: booking for booking in map(convert_rows_and_values.booking, found)}
        self.wanted.known_bookings |= locked
        return locked

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
        if pool is not None:
            found = await self.fetch("lock_due_of_pool", self._now, limit, pool.event_id, pool.pool_id)
        elif buyer is not None:
            found = await self.fetch("lock_due_of_buyer", self._now, limit, event_id, buyer)
        elif skip:
            found = await self.fetch("lock_due_behind", self._now, limit, skip)
        else:
            found = await self.fetch("lock_due", self._now, limit)
        return [convert_rows_and_values.booking(row) for row in found]

    async def have_due(self, refs: Sequence[PoolRef | TotalRef]) -> list[bool]:
        """By the same indexes, without a lock: one statement for all pools, and one for all buyers."""
        found = [False] * len(refs)
        for kind, name in ((PoolRef, "find_pools_with_due"), (TotalRef, "find_buyers_with_due")):
            places = [place for place, ref in enumerate(refs) if isinstance(ref, kind)]
            if places:
                wanted = convert_rows_and_values.columns([refs[place] for place in places], width=2)
                for row in await self.fetch(name, self._now, *wanted):
                    found[places[row["n"] - 1]] = True
        return found

    async def tie_outside_payments(self, uses: Mapping[OutsidePaymentRef, BookingId]) -> frozenset[OutsidePaymentRef]:
        """A transaction that ties the same payment is waited for."""
        if not uses:
            return frozenset()
        tied = [(*ref, booking_id) for ref, booking_id in sorted(uses.items())]
        won = await self.fetch("tie_outside_payments", *convert_rows_and_values.columns(tied, width=3))
        return frozenset(OutsidePaymentRef(*row) for row in won)

    async def lock_totals(self, refs: Collection[TotalRef]) -> dict[TotalRef, int]:
        """Made where there was none, then locked, each in order; `write` removes those that are not used."""
        if not refs:
            return {}
        self.wanted.totals.update(refs)
        wanted = convert_rows_and_values.columns(sorted(refs), width=2)
        self._totals_made += [TotalRef(*row) for row in await self.fetch("make_totals", *wanted)]
        return {TotalRef(*row[:2]): row["units"] for row in await self.fetch("lock_totals", *wanted)}

    async def lock_pools(self, refs: Collection[PoolRef]) -> dict[PoolRef, Pool]:
        """Sorted by the query."""
        if not refs:
            return {}
        self.wanted.pools.update(refs)
        found = await self.fetch("lock_pools", *convert_rows_and_values.columns(sorted(refs), width=2))
        return {pool.ref: pool for pool in map(convert_rows_and_values.pool, found)}

    async def lock_seats(self, seen: Collection[SeatSeen]) -> frozenset[SeatRef]:
        """Compare and lock, in one statement."""
        if not seen:
            return frozenset()
        self.wanted.seats.update(seat.ref for seat in seen)
        ordered = sorted(seen, key=lambda seat: seat.ref)
        wanted = convert_rows_and_values.columns(
            ((*seat.ref, seat.pointer, seat.fence, seat.blocked) for seat in ordered), width=5
        )
        return frozenset(SeatRef(*row) for row in await self.fetch("lock_seats", *wanted))

    async def write(self, changes: Changes) -> None:
        """Each kind of row in a statement of its own: in one, they would run in no defined order."""
        self.wrote = True
        self.written = changes
        c = changes
        if c.expired:
            await self._write(
                "update_bookings", convert_rows_and_values.moved_columns(c.expired), expect=len(c.expired)
            )
        if c.moved:
            await self._write("update_bookings", convert_rows_and_values.moved_columns(c.moved), expect=len(c.moved))
        await self.write_payments(c)
        await self._write_counts(c)
        if c.opened:
            await self._write("insert_bookings", convert_rows_and_values.opened_columns(c.opened), expect=len(c.opened))
        if c.seats:
            await self._write("point_seats", _pointers(c.seats), expect=len(c.seats))
        if c.reclaimed:
            await self._reclaim(c.reclaimed)
        if c.cleared:
            await self._write("clear_seats", _pointers(c.cleared), expect=len(c.cleared))
        await self._write_offer(c)
        if c.entries:
            await self._write("insert_entries", convert_rows_and_values.entry_columns(c.entries), expect=len(c.entries))

    async def _write_counts(self, c: Changes) -> None:
        if c.totals:
            added = convert_rows_and_values.columns(((*ref, units) for ref, units in sorted(c.totals.items())), width=3)
            await self._write("add_totals", added, expect=len(c.totals))
        if unused := [ref for ref in self._totals_made if not c.totals.get(ref)]:
            await self._write("drop_empty_totals", convert_rows_and_values.columns(unused, width=2), expect=len(unused))
        if c.pools:
            await self._write("add_pools", convert_rows_and_values.delta_columns(c.pools), expect=len(c.pools))

    async def _reclaim(self, bookings: Sequence[Booking]) -> None:
        """Their seats first: the schema refuses a sale whose seats are not its own."""
        seats = {ref: booking.id for booking in bookings for ref in booking.seat_refs}
        await self._write("reclaim_seats", _pointers(seats), expect=len(seats))
        await self._write("update_bookings", convert_rows_and_values.moved_columns(bookings), expect=len(bookings))

    async def _write_offer(self, c: Changes) -> None:
        if e := c.event:
            window = [e.starts_at, e.sale_opens_at, e.sale_closes_at]
            fields = [e.id, e.name, *window, *convert_rows_and_values.event_rules(e), e.version]
            await self._write("update_event", fields, expect=1)
        if c.seat_changes:
            changed = convert_rows_and_values.columns(
                ((*change.ref, change.blocked, change.price) for change in c.seat_changes), width=4
            )
            await self._write("change_seats", changed, expect=len(c.seat_changes))
        if c.pool_changes:
            sized = convert_rows_and_values.columns(
                ((*change.ref, change.capacity, change.price) for change in c.pool_changes), width=4
            )
            await self._write("change_pools", sized, expect=len(c.pool_changes))

    async def _write(self, name: str, arguments: Sequence[object], *, expect: int) -> None:
        """Every row that was locked can be written: one that cannot is our bug, and nothing is kept."""
        # Not by `execute`: this is on the way of every booking.
        status: str = await self.connection.execute(self._sql[name], *arguments)
        written = int(status.rpartition(" ")[2])
        assert written == expect, f"{name} wrote {written} rows, not {expect}"

    async def fetch(self, name: str, *arguments: object) -> list[Any]:
        """The rows that a named statement finds or returns."""
        found: list[Any] = await self.connection.fetch(self._sql[name], *arguments)
        return found

    async def execute(self, name: str, *arguments: object) -> int:
        """How many rows a named statement wrote."""
        status: str = await self.connection.execute(self._sql[name], *arguments)
        written = int(status.rpartition(" ")[2])
        self.wrote = self.wrote or written > 0
        return written


def _pointers(seats: Mapping[SeatRef, BookingId]) -> list[list[Any]]:
    return convert_rows_and_values.columns(((*ref, booking_id) for ref, booking_id in sorted(seats.items())), width=3)
