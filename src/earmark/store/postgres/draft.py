"""A draft: a verb run without a lock, and what it decides written in one guarded call.

A transaction that locks takes a round trip for each kind of row, and keeps its locks while it waits for the next. A
draft takes two: one look at everything, and one call that compares every row with what was seen as it writes. Of free
seats, and of holds that it wrote itself, this process may remember what a look would show (`recall`), which leaves one.
Where nobody else wanted the same rows in that moment, which is nearly always, that is all. Else the call keeps nothing
(`Moved`), and the same verb runs again in a transaction that locks. One hold alone, of fresh seats and from memory, has
a call of its own: it is what a buyer in a quiet shop waits for.

The steps are the port's, in the port's order. Here the lock steps only look, and `write` does what locks would do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from earmark.domain.ids import PaymentId, PoolRef, SeatRef, TotalRef
from earmark.domain.state_machine import LIVE
from earmark.engine.ports.store import LOCK_SECONDS_MAX, TransactionStart
from earmark.store.postgres import rows
from earmark.store.postgres.busy_rows import Wanted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime, timedelta

    from earmark.domain.booking import Booking
    from earmark.domain.decline_limits import Payer, PayerRef
    from earmark.domain.event import Event
    from earmark.domain.ids import BookingId, EventId, OutsidePaymentRef
    from earmark.domain.journal import IdempotencyKey
    from earmark.domain.payment import Payment, PaymentKey, Refund
    from earmark.domain.pool import Pool
    from earmark.domain.seat import Seat, SeatSeen
    from earmark.engine.ports.store import Changes, RowsNeeded
    from earmark.store.postgres.recall import Recall

Connection = Any  # asyncpg ships no types


class Misremembered(Exception):
    """Judged from memory, and not every request was granted: what refuses somebody must be looked at."""


class NeedsLocks(Exception):
    """What is to be decided is never decided on a look alone."""


class PostgresDraft:
    """What was seen so far, by kind."""

    def __init__(
        self,
        connection: Connection,
        *,
        offset: timedelta,
        sql: Mapping[str, str],
        recall: Recall,
        from_memory: bool = False,
        lock_seconds: float = LOCK_SECONDS_MAX,
    ) -> None:
        self._connection = connection
        self._recall = recall
        self._from_memory = from_memory
        self.remembered = False
        """Whether this is judged from memory."""
        self._recalled: list[tuple[EventId, int]] = []
        """The events that are judged from memory, each with its version."""
        self._offset = offset
        self._lock_timeout = rows.lock_timeout(lock_seconds)
        self._sql = sql
        self._now: datetime | None = None
        self._events: Mapping[EventId, Event] = {}
        self._seats: dict[SeatRef, SeatSeen] = {}
        self._bookings: dict[BookingId, Booking] = {}
        self._pools: dict[PoolRef, Pool] = {}
        self._uses: Mapping[OutsidePaymentRef, BookingId] = {}
        self._requests = 0
        self._per_buyer_max: int | None = None
        self._query = ""
        self._arguments: tuple[object, ...] = ()
        """Of the call that writes."""
        self.written: Changes | None = None
        self.writing = False
        """Whether the call that writes was sent: from then on, silence leaves the outcome unknown."""
        self.replays = False
        """Whether an answer is repeated that a synchronous standby must have, too."""

    async def begin(self, keys: Sequence[IdempotencyKey], look: RowsNeeded | None = None) -> TransactionStart:
        """The moment, what the keys remember, and all that the verb will look at. No key is claimed before `write`."""
        assert look is not None, "a draft is for verbs that say what they look at"
        self._per_buyer_max = look.per_buyer_max
        if self._from_memory and (memory := self._recall.of(look, offset=self._offset)):
            # Nothing to look at. A key that remembers something after all makes the write refuse.
            self.remembered = True
            self._now, self._events, self._seats, self._bookings = memory
            self._recalled = [(event.id, event.version) for event in self._events.values()]
            self._requests = look.requests
            return TransactionStart(now=self._now)
        distinct = rows.columns(set(keys), width=2)
        if look.bookings:
            (seen,) = await self._fetch("look_at_bookings", self._offset, *distinct, list(look.bookings))
            self._bookings = {booking.id: booking for booking in map(rows.booking, seen[2])}
            self._recall.learn((), now=seen[0] - self._offset)
        else:
            refs = sorted(look.seats)
            wanted = rows.columns(refs, width=2)
            (seen,) = await self._fetch("look_to_hold", self._offset, *distinct, list(look.events), *wanted)
            self._events = {row["id"]: rows.event(row) for row in seen[2]}
            self._seats = {ref: rows.seat_seen(row, ref) for row in seen[3] for ref in (refs[row[0] - 1],)}
            free = all(seat.owner_state not in LIVE for seat in self._seats.values())
            self._recall.learn(self._events.values(), now=seen[0] - self._offset, requests=look.requests if free else 0)
        self._now = seen[0]
        self.replays = bool(seen[1]) and seen["replicated"]
        return TransactionStart(now=seen[0], remembered=dict(map(rows.memory, seen[1])))

    async def read_events(self, ids: Collection[EventId]) -> dict[EventId, Event]:
        """As seen."""
        return {event_id: self._events[event_id] for event_id in ids if event_id in self._events}

    async def read_seats(self, refs: Collection[SeatRef]) -> dict[SeatRef, SeatSeen]:
        """As seen."""
        return {ref: self._seats[ref] for ref in refs if ref in self._seats}

    async def lock_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        """Seen; `write` keeps a move only of the version that was seen."""
        if unseen := [booking_id for booking_id in ids if booking_id not in self._bookings]:
            found = await self._fetch("see_bookings", unseen)
            self._bookings |= {booking.id: booking for booking in map(rows.booking, found)}
        return {booking_id: self._bookings[booking_id] for booking_id in ids if booking_id in self._bookings}

    async def take_payments(self, uses: Mapping[OutsidePaymentRef, BookingId]) -> frozenset[OutsidePaymentRef]:
        """Taken to be free; `write` keeps nothing unless all were."""
        self._uses = uses
        return frozenset(uses)

    async def lock_totals(self, refs: Collection[TotalRef]) -> dict[TotalRef, int]:
        """Seen where a limit will be judged by it; `write` keeps a rise only within the limit.

        That is the event's own limit, which stands in its row. Another one must be judged under a lock.
        """
        if self._per_buyer_max is not None and any(event.per_buyer_max is None for event in self._events.values()):
            raise NeedsLocks
        limited = [ref for ref in refs if (event := self._events.get(ref.event_id)) and event.per_buyer_max is not None]
        found = await self._fetch("see_totals", *rows.columns(limited, width=2)) if limited else []
        return dict.fromkeys(refs, 0) | {TotalRef(*row[:2]): row["units"] for row in found}

    async def lock_pools(self, refs: Collection[PoolRef]) -> dict[PoolRef, Pool]:
        """Seen where a hold will be judged by it; `write` keeps a rise only within the capacity, and at this price."""
        if not refs or not self._events:
            return {}
        if not (self.remembered and (remembered := self._recall.pools(refs))):
            found = await self._fetch("see_pools", *rows.columns(refs, width=2))
            remembered = {pool.ref: pool for pool in map(rows.pool, found)}
            self._recall.saw_pools(remembered.values())
        self._pools = remembered
        return remembered

    async def lock_seats(self, seen: Collection[SeatSeen]) -> frozenset[SeatRef]:
        """Taken to be as they were; `write` compares."""
        return frozenset([seat.ref for seat in seen])

    async def write(self, changes: Changes) -> None:
        """Kept for `commit`. Rows of each kind in key order, for that is the order in which they will be locked."""
        assert changes.event is None, "an operator's change works under locks"
        self.written = changes
        if self.remembered and len(changes.opened) + len(changes.moved) < self._requests:
            raise Misremembered
        if self.remembered and self._requests == 1 and changes.opened and not changes.pools and self._are_fresh:
            self._query, self._arguments = "write_hold_alone", self._alone(changes)
            return
        moved = sorted((*changes.expired, *changes.moved), key=lambda booking: booking.id)
        seats, now = self._seats, self._now
        self._query = "write_draft"
        self._arguments = (
            now,
            self._offset,
            self.remembered,
            self._recalled,
            [rows.move(booking, seen=self._bookings[booking.id]) for booking in moved],
            [(ref.payment_id, booking_id) for ref, booking_id in sorted(self._uses.items())],
            list(map(rows.opening, changes.opened)),
            list(map(rows.draft_entry, changes.entries)),
            [(*ref, units) for ref, units in sorted(changes.totals.items())],
            all(units > 0 for units in changes.totals.values()),
            [(*ref, delta.held, delta.sold, self._price(ref)) for ref, delta in sorted(changes.pools.items())],
            [rows.taking(seats[ref], owner) for ref, owner in sorted(changes.seats.items())],
            [(*ref, owner, 0, 0, None) for ref, owner in sorted(changes.cleared.items())],
            self._lock_timeout,
        )

    @property
    def _are_fresh(self) -> bool:
        """Whether nobody has had these seats."""
        return all(seat.pointer is None for seat in self._seats.values())

    def _alone(self, changes: Changes) -> tuple[object, ...]:
        """One hold of fresh seats, as plain values: taking rows apart costs the server as much as writing them."""
        ((event_id, version),), (booking,), (entry,) = self._recalled, changes.opened, changes.entries
        seats = [self._seats[ref] for ref in sorted(changes.seats)]
        return (
            self._now,
            self._offset,
            event_id,
            version,
            *rows.opening(booking)[2:],
            booking.id,
            changes.totals[TotalRef(event_id, booking.buyer)],
            [seat.ref.seat_id for seat in seats],
            [seat.fence for seat in seats],
            [seat.price for seat in seats],
            *rows.alone_entry(entry),
            self._lock_timeout,
        )

    @property
    def wanted(self) -> Wanted:
        """The rows that the write locks."""
        changes = self.written
        if changes is None:
            return Wanted()
        return Wanted(
            bookings={booking.id for booking in (*changes.expired, *changes.moved)},
            totals=set(changes.totals),
            pools=set(changes.pools),
            seats={*changes.seats, *changes.cleared},
            known_bookings=self._bookings,
            known_seats=self._seats,
        )

    async def commit(self) -> None:
        """One call, after the verb has said what it came to: an answer that is lost can then be looked up."""
        if self.written is not None:
            self.writing = True
            await self._connection.fetch(self._sql[self._query], *self._arguments)
        elif self.remembered:
            raise Misremembered
        elif self.replays:
            self.writing = True
            await self._fetch("wait_for_standby")

    def doubt(self) -> None:
        """What was remembered was not so."""
        if self.remembered:
            self._recall.doubt(self._events, self._bookings)

    async def insert_event(self, event: Event, *, seats: Sequence[Seat], pools: Sequence[Pool]) -> bool:
        """Never in a draft."""
        _refuse(event, seats, pools)

    async def lock_event(self, event_id: EventId) -> Event | None:
        """Never in a draft."""
        _refuse(event_id)

    async def take_callback(self, gateway: str, callback_id: str, *, payment_id: PaymentId) -> bool:
        """Never in a draft."""
        _refuse(gateway, callback_id, payment_id)

    async def lock_payments(self, ids: Collection[PaymentId]) -> dict[PaymentId, Payment]:
        """Money is decided under locks."""
        if ids:
            raise NeedsLocks
        return {}

    async def lock_payer(self, ref: PayerRef) -> Payer:
        """Never in a draft."""
        _refuse(ref)

    async def read_tries(self, booking_id: BookingId, ids: Collection[PaymentId]) -> dict[PaymentId, Payment]:
        """Never in a draft."""
        _refuse(booking_id, ids)

    async def read_payment_key(self, key: IdempotencyKey) -> PaymentKey | None:
        """Never in a draft."""
        _refuse(key)

    async def read_refunds(self, payment_id: PaymentId) -> list[Refund]:
        """Never in a draft."""
        _refuse(payment_id)

    async def lock_due(self, **wanted: Any) -> list[Booking]:
        """Never in a draft: what is due is found among rows that nobody else is changing."""
        _refuse(wanted)

    async def has_due(self, within: PoolRef | TotalRef) -> bool:
        """Never in a draft."""
        _refuse(within)

    def _price(self, ref: PoolRef) -> int | None:
        return pool.price if (pool := self._pools.get(ref)) else None

    async def _fetch(self, name: str, *arguments: object) -> list[Any]:
        found: list[Any] = await self._connection.fetch(self._sql[name], *arguments)
        return found


def _refuse(*_: object) -> NoReturn:
    raise AssertionError("this verb works under locks")
