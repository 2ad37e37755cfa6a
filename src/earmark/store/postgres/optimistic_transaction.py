"""An optimistic write: a verb runs without locks, and one guarded call writes what it decided.

A transaction that locks takes a round trip for each kind of row, and keeps its locks while it waits for the next. An
optimistic write takes two: one look at everything, and one call that compares every row with what was seen as it
writes. The seat cache may have what a look would show, which leaves one. Where no other transaction wanted the same
rows in that moment, which is nearly always, that is all. Otherwise the call keeps nothing (`RowsMoved`), and the same
verb runs again: up to twice more without locks, then in a transaction that locks. A single hold of
seats that were never sold, judged from the seat cache, has a call of its own: it is what a buyer in a quiet shop waits
for.

The steps are the port's, in the port's order. Here the lock steps only read and lock nothing, whatever their
name says: `write` compares every row with what they read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from earmark.domain.booking_state_machine import ACTIVE_STATES
from earmark.domain.id_types import PaymentId, PoolRef, SeatRef, TotalRef
from earmark.engine.ports.store import LOCK_SECONDS_MAX, TransactionStart
from earmark.store.postgres import convert_rows_and_values
from earmark.store.postgres.find_rows_that_blocked_requests import WantedLocks

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime, timedelta

    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking
    from earmark.domain.decline_limits import Payer, PayerRef
    from earmark.domain.id_types import BookingId, EventId, OutsidePaymentRef
    from earmark.domain.idempotency_record import IdempotencyKey
    from earmark.domain.payment import Payment, PaymentKey, Refund
    from earmark.domain.pool import Pool
    from earmark.domain.seat import Seat, SeatSeen
    from earmark.engine.ports.store import Changes, RowsNeeded
    from earmark.store.postgres.rows_cached_for_optimistic_write import SeatCache

Connection = Any  # asyncpg ships no types


class SeatCacheOutdated(Exception):
    """Not every request was granted by what was cached: a refusal is decided on a look."""


class NeedsLocks(Exception):
    """This decision is made under locks only."""


class OptimisticWrite:
    """A `Transaction` that locks nothing before its one writing call: what was read so far, and that call.

    Its `lock_*` methods only read, or assume. They have these names because the port's steps have them: a verb runs on
    this class and on `PostgresTransaction`, which does lock, and does not know which it has.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        offset: timedelta,
        sql: Mapping[str, str],
        seat_cache: SeatCache,
        from_cache: bool = False,
        lock_seconds: float = LOCK_SECONDS_MAX,
    ) -> None:
        self.connection = connection
        self._seat_cache = seat_cache
        self._from_cache = from_cache
        self.cached = False
        """Whether this is judged from the seat cache."""
        self._cached_versions: list[tuple[EventId, int]] = []
        """The events that are judged from the seat cache, each with its version."""
        self._offset = offset
        self._lock_timeout = convert_rows_and_values.lock_timeout(lock_seconds)
        self._sql = sql
        self._now: datetime | None = None
        self._events: Mapping[EventId, Event] = {}
        self._seats: dict[SeatRef, SeatSeen] = {}
        self._bookings: dict[BookingId, Booking] = {}
        self._pools: dict[PoolRef, Pool] = {}
        self._uses: Mapping[OutsidePaymentRef, BookingId] = {}
        self._requests = 0
        self._looks_at_bookings = False
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
        """The moment, the idempotency records, and all that the verb will look at. No key is claimed before `write`."""
        assert look is not None, "only verbs that say what they look at run without locks"
        self._per_buyer_max = look.per_buyer_max
        self._looks_at_bookings = bool(look.bookings)
        if self._from_cache and (cached := self._seat_cache.find(look, offset=self._offset)):
            # Nothing to look at. If a key has an idempotency record after all, the write refuses.
            self.cached = True
            self._now, self._events, self._seats, self._bookings = cached
            self._cached_versions = [(event.id, event.version) for event in self._events.values()]
            self._requests = look.requests
            return TransactionStart(now=self._now)
        distinct = convert_rows_and_values.columns(set(keys), width=2)
        if look.bookings:
            (seen,) = await self._fetch("look_at_bookings", self._offset, *distinct, list(look.bookings))
            self._bookings = {booking.id: booking for booking in map(convert_rows_and_values.booking, seen[2])}
            self._seat_cache.keep_events((), now=seen[0] - self._offset)
        else:
            refs = sorted(look.seats)
            wanted = convert_rows_and_values.columns(refs, width=2)
            (seen,) = await self._fetch("look_to_hold", self._offset, *distinct, list(look.events), *wanted)
            self._events = {row["id"]: convert_rows_and_values.event(row) for row in seen[2]}
            self._seats = {
                ref: convert_rows_and_values.seat_seen(row, ref) for row in seen[3] for ref in (refs[row[0] - 1],)
            }
            free = all(seat.owner_state not in ACTIVE_STATES for seat in self._seats.values())
            self._seat_cache.keep_events(
                self._events.values(), now=seen[0] - self._offset, requests=look.requests if free else 0
            )
        self._now = seen[0]
        self.replays = bool(seen[1]) and seen["replicated"]
        return TransactionStart(now=seen[0], remembered=dict(map(convert_rows_and_values.idempotency_record, seen[1])))

    async def read_events(self, ids: Collection[EventId]) -> dict[EventId, Event]:
        """As they were seen, for holds. Verbs on bookings judge by rules that are read under locks only."""
        if self._looks_at_bookings and ids:
            raise NeedsLocks
        return {event_id: self._events[event_id] for event_id in ids if event_id in self._events}

    async def read_seats(self, refs: Collection[SeatRef]) -> dict[SeatRef, SeatSeen]:
        """As they were seen."""
        return {ref: self._seats[ref] for ref in refs if ref in self._seats}

    async def lock_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        """As they were seen; `write` keeps a move only of the version that was seen."""
        if unseen := [booking_id for booking_id in ids if booking_id not in self._bookings]:
            found = await self._fetch("see_bookings", unseen)
            self._bookings |= {booking.id: booking for booking in map(convert_rows_and_values.booking, found)}
        return {booking_id: self._bookings[booking_id] for booking_id in ids if booking_id in self._bookings}

    async def tie_outside_payments(self, uses: Mapping[OutsidePaymentRef, BookingId]) -> frozenset[OutsidePaymentRef]:
        """Assumed to be free; `write` keeps nothing unless all were."""
        self._uses = uses
        return frozenset(uses)

    async def lock_totals(self, refs: Collection[TotalRef]) -> dict[TotalRef, int]:
        """As they were seen, where a limit will be judged by it; `write` keeps a rise only within the limit.

        That is the event's own limit, which stands in its row. Another one must be judged under a lock.
        """
        if self._per_buyer_max is not None and any(event.per_buyer_max is None for event in self._events.values()):
            raise NeedsLocks
        limited = [ref for ref in refs if (event := self._events.get(ref.event_id)) and event.per_buyer_max is not None]
        found = await self._fetch("see_totals", *convert_rows_and_values.columns(limited, width=2)) if limited else []
        return dict.fromkeys(refs, 0) | {TotalRef(*row[:2]): row["units"] for row in found}

    async def lock_pools(self, refs: Collection[PoolRef]) -> dict[PoolRef, Pool]:
        """As seen, where a hold is judged by it; `write` keeps a rise only within capacity and at this price."""
        if not refs or not self._events:
            return {}
        if not (self.cached and (pools := self._seat_cache.pools(refs))):
            found = await self._fetch("see_pools", *convert_rows_and_values.columns(refs, width=2))
            pools = {pool.ref: pool for pool in map(convert_rows_and_values.pool, found)}
            self._seat_cache.keep_pools(pools.values())
        self._pools = pools
        return pools

    async def lock_seats(self, seen: Collection[SeatSeen]) -> frozenset[SeatRef]:
        """Assumed to be as they were seen; `write` compares."""
        return frozenset([seat.ref for seat in seen])

    async def write(self, changes: Changes) -> None:
        """Prepare the call of `commit`. Rows of each kind are in key order, in which the call locks them."""
        assert changes.event is None, "an operator's change works under locks"
        self.written = changes
        if self.cached and len(changes.opened) + len(changes.moved) < self._requests:
            raise SeatCacheOutdated
        if self.cached and self._requests == 1 and changes.opened and not changes.pools and self._are_fresh:
            self._query, self._arguments = "write_hold_alone", self._alone(changes)
            return
        moved = sorted((*changes.expired, *changes.moved), key=lambda booking: booking.id)
        seats, now = self._seats, self._now
        self._query = "write_optimistically"
        self._arguments = (
            now,
            self._offset,
            self.cached,
            self._cached_versions,
            [convert_rows_and_values.move(booking, seen=self._bookings[booking.id]) for booking in moved],
            [(*ref, booking_id) for ref, booking_id in sorted(self._uses.items())],
            list(map(convert_rows_and_values.opening, changes.opened)),
            list(map(convert_rows_and_values.guarded_entry, changes.entries)),
            [(*ref, units) for ref, units in sorted(changes.totals.items())],
            all(units > 0 for units in changes.totals.values()),
            [(*ref, delta.held, delta.sold, self._price(ref)) for ref, delta in sorted(changes.pools.items())],
            [convert_rows_and_values.taking(seats[ref], owner) for ref, owner in sorted(changes.seats.items())],
            [(*ref, owner, 0, 0, None) for ref, owner in sorted(changes.cleared.items())],
            self._lock_timeout,
        )

    @property
    def _are_fresh(self) -> bool:
        """Whether these seats were never held."""
        return all(seat.pointer is None for seat in self._seats.values())

    def _alone(self, changes: Changes) -> tuple[object, ...]:
        """One hold of fresh seats, as plain values: taking rows apart costs the server as much as writing them."""
        ((event_id, version),), (booking,), (entry,) = self._cached_versions, changes.opened, changes.entries
        seats = [self._seats[ref] for ref in sorted(changes.seats)]
        return (
            self._now,
            self._offset,
            event_id,
            version,
            *convert_rows_and_values.opening(booking)[2:],
            booking.id,
            changes.totals[TotalRef(event_id, booking.buyer)],
            [seat.ref.seat_id for seat in seats],
            [seat.fence for seat in seats],
            [seat.price for seat in seats],
            *convert_rows_and_values.alone_entry(entry),
            self._lock_timeout,
        )

    @property
    def wanted(self) -> WantedLocks:
        """The rows that the write locks."""
        changes = self.written
        if changes is None:
            return WantedLocks()
        return WantedLocks(
            bookings={booking.id for booking in (*changes.expired, *changes.moved)},
            totals=set(changes.totals),
            pools=set(changes.pools),
            seats={*changes.seats, *changes.cleared},
            known_bookings=self._bookings,
            known_seats=self._seats,
        )

    async def commit(self) -> None:
        """One call, after the verb has decided: where its answer is lost, the journal tells the outcome."""
        if self.written is not None:
            self.writing = True
            await self.connection.fetch(self._sql[self._query], *self._arguments)
        elif self.cached:
            raise SeatCacheOutdated
        elif self.replays:
            self.writing = True
            await self._fetch("wait_for_standby")

    def drop_outdated(self) -> None:
        """Drop from the seat cache what this was judged from."""
        if self.cached:
            self._seat_cache.drop_outdated(self._events, self._bookings)

    async def read_checked_in(self, ids: Collection[BookingId]) -> frozenset[BookingId]:
        """Read under locks only: a scan locks the booking too."""
        if ids:
            raise NeedsLocks
        return frozenset()

    async def read_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        """Refused: the verb that takes this step works under locks only."""
        _refuse(ids)

    async def insert_event(self, event: Event, *, seats: Sequence[Seat], pools: Sequence[Pool]) -> bool:
        """Refused: this step works under locks only."""
        _refuse(event, seats, pools)

    async def lock_event(self, event_id: EventId) -> Event | None:
        """Refused: this step works under locks only."""
        _refuse(event_id)

    async def take_callback(self, gateway: str, callback_id: str, *, payment_id: PaymentId) -> bool:
        """Refused: this step works under locks only."""
        _refuse(gateway, callback_id, payment_id)

    async def lock_payments(self, ids: Collection[PaymentId]) -> dict[PaymentId, Payment]:
        """Payments are decided under locks."""
        if ids:
            raise NeedsLocks
        return {}

    async def lock_payer(self, ref: PayerRef) -> Payer:
        """Refused: this step works under locks only."""
        _refuse(ref)

    async def read_tries(self, booking_id: BookingId, ids: Collection[PaymentId]) -> dict[PaymentId, Payment]:
        """Refused: this step works under locks only."""
        _refuse(booking_id, ids)

    async def read_payment_key(self, key: IdempotencyKey) -> PaymentKey | None:
        """Refused: this step works under locks only."""
        _refuse(key)

    async def read_refunds(self, payment_id: PaymentId) -> list[Refund]:
        """Refused: this step works under locks only."""
        _refuse(payment_id)

    async def lock_due(self, **wanted: Any) -> list[Booking]:
        """Under locks only: what is due is found among rows that no other transaction is changing."""
        _refuse(wanted)

    async def have_due(self, refs: Sequence[PoolRef | TotalRef]) -> list[bool]:
        """Refused: this step works under locks only."""
        _refuse(refs)

    def _price(self, ref: PoolRef) -> int | None:
        return pool.price if (pool := self._pools.get(ref)) else None

    async def _fetch(self, name: str, *arguments: object) -> list[Any]:
        found: list[Any] = await self.connection.fetch(self._sql[name], *arguments)
        return found


def _refuse(*_: object) -> NoReturn:
    raise AssertionError("this verb works under locks")
