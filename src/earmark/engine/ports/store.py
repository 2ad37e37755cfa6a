"""What the verbs need from outside: a clock, ids, and a store with transactions.

A verb orders the steps; a store only runs them. The steps of a `Transaction` stand here in the one order
in which every verb takes them, so that no two transactions can wait for each other:

    begin (idempotency keys) → take_callback → lock_event → lock_bookings → tie_outside_payments, lock_payments
        → lock_payer → lock_totals → lock_pools → lock_seats → write

Each lock step locks in key order. Nothing is decided in the step that waited: a verb decides by the rows that the step
returns. Stores with one writer (SQLite, memory) have nothing to lock and only read. In an optimistic write the lock
steps only read too, and `write` compares every row with what they read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from earmark.domain.bookable_event import Event
from earmark.domain.booking import Booking
from earmark.domain.booking_state_machine import State
from earmark.domain.decline_limits import Payer, PayerRef
from earmark.domain.id_types import (
    BookingId,
    Buyer,
    EntryId,
    EventId,
    OutsidePaymentRef,
    PaymentId,
    PoolRef,
    RefundId,
    SeatId,
    SeatRef,
    TotalRef,
)
from earmark.domain.idempotency_record import IdempotencyKey, IdempotencyRecord
from earmark.domain.journal_entry import Entry
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import Payment, PaymentKey, Refund
from earmark.domain.pool import Pool, PoolDelta
from earmark.domain.seat import Seat, SeatSeen
from earmark.engine.ports.combined_store_ports import Parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.engine.ports.number_and_read_journal import Outbox

T = TypeVar("T")

LOCK_SECONDS_MAX = 5.0
"""How long a locked row is waited for at most."""


class Clock(Protocol):
    """Time for what lives in this process; a database with a clock of its own takes only the offset."""

    offset: timedelta

    def now(self) -> datetime:
        """This moment, in aware UTC."""
        ...


class Ids(Protocol):
    """New identities, which sort by the time they were made."""

    def booking_id(self) -> BookingId:
        """For a new booking."""
        ...

    def entry_id(self) -> EntryId:
        """For a new journal entry."""
        ...

    def payment_id(self) -> PaymentId:
        """For a new payment."""
        ...

    def refund_id(self) -> RefundId:
        """For a new refund."""
        ...


class TransactionStart(msgspec.Struct, frozen=True, kw_only=True):
    """How a transaction begins: its one moment, and what its keys remember."""

    now: datetime
    busy: frozenset[IdempotencyKey] = frozenset()
    """Keys that another transaction is deciding at this moment: their requests are tried again."""
    remembered: dict[IdempotencyKey, IdempotencyRecord] = {}


class RowsNeeded(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that a verb will read next: a store may fetch them together with the idempotency records."""

    requests: int = 1
    """How many requests the verb decides."""
    events: Collection[EventId] = ()
    seats: Collection[SeatRef] = ()
    bookings: Collection[BookingId] = ()
    per_buyer_max: int | None = None  # for events that have no limit of their own


class SeatUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator changes about a seat; None leaves it as it is."""

    ref: SeatRef
    blocked: bool | None = None
    price: int | None = None


class PoolUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator changes about a pool; None leaves it as it is."""

    ref: PoolRef
    capacity: int | None = None
    price: int | None = None


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one transaction writes. The store writes it in the order of these fields."""

    expired: Sequence[Booking] = ()
    """Due holds that end here. First of all, for the schema refuses a seat whose owner still lives."""
    moved: Sequence[Booking] = ()
    """Bookings as they now are; each was locked by this transaction."""
    payments: Sequence[Payment] = ()
    """Payments as they now are: new ones at version 1, the others locked by this transaction."""
    payment_keys: Sequence[PaymentKey] = ()
    """Which keys opened payments here; each key was claimed by this transaction."""
    payers: Sequence[Payer] = ()
    """Buyers with what they tried; each was locked by this transaction."""
    refunds: Sequence[Refund] = ()
    """Refunds as they now are, new or of a payment that is locked; after the payment that they count against."""
    totals: Mapping[TotalRef, int] = {}
    """What to add to buyers' totals. A total that this transaction made and leaves at zero is not kept."""
    pools: Mapping[PoolRef, PoolDelta] = {}
    opened: Sequence[Booking] = ()
    """New bookings, version 1."""
    seats: Mapping[SeatRef, BookingId] = {}
    """Seats that now point to a booking."""
    reclaimed: Sequence[Booking] = ()
    """Expired bookings that are sold after all. All their seats point to them from here on, with a higher fence."""
    cleared: Mapping[SeatRef, BookingId] = {}
    """Seats that point to this booking and shall point to none."""
    event: Event | None = None
    """The event as it now is (an existing one, locked by this transaction)."""
    seat_changes: Sequence[SeatUpdate] = ()
    pool_changes: Sequence[PoolUpdate] = ()
    entries: Sequence[Entry] = ()

    @property
    def freed(self) -> list[SeatRef]:
        """Seats that other bookings may take from now on."""
        ended = (booking for booking in (*self.expired, *self.moved) if not booking.is_active)
        return [*self.cleared, *(ref for booking in ended for ref in booking.seat_refs)]


class Transaction(Protocol):
    """One transaction, from its first read to the writes; the store commits it when the work returns."""

    written: Changes | None
    """What `write` was given."""

    async def begin(self, keys: Sequence[IdempotencyKey], needed: RowsNeeded | None = None) -> TransactionStart:
        """The transaction's moment, and its idempotency keys: claimed until the end, busy, or remembered."""
        ...

    async def read_events(self, ids: Collection[EventId]) -> dict[EventId, Event]:
        """The events there are, unlocked."""
        ...

    async def read_seats(self, refs: Collection[SeatRef]) -> dict[SeatRef, SeatSeen]:
        """The seats there are, each with its owner, in one snapshot and unlocked."""
        ...

    async def read_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        """The bookings there are, unlocked: to judge what never changes of them, the event and the mode."""
        ...

    async def insert_event(self, event: Event, *, seats: Sequence[Seat], pools: Sequence[Pool]) -> bool:
        """A new event with all it sells; False when the id is taken."""
        ...

    async def lock_event(self, event_id: EventId) -> Event | None:
        """The event, for an operator's change."""
        ...

    async def lock_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        """Lock these bookings, as far as they exist, and return each as it is once no other transaction changes it."""
        ...

    async def lock_due(
        self,
        *,
        limit: int,
        skip: int = 0,
        event_id: EventId | None = None,
        buyer: Buyer | None = None,
        pool: PoolRef | None = None,
    ) -> list[Booking]:
        """Holds whose time is over, the longest due first, passing over those that another transaction is changing.

        `skip` leaves out the first ones: those that the sweeper could not end before.
        """
        ...

    async def have_due(self, refs: Sequence[PoolRef | TotalRef]) -> list[bool]:
        """For each of these pools and buyers whether holds are still due.

        Those that another transaction is changing are included.
        """
        ...

    async def tie_outside_payments(self, uses: Mapping[OutsidePaymentRef, BookingId]) -> frozenset[OutsidePaymentRef]:
        """Tie outside payments to bookings of their mode; the ones that were still free to tie."""
        ...

    async def take_callback(self, gateway: str, callback_id: str, *, payment_id: PaymentId) -> bool:
        """Record this callback for good; False when it was recorded before."""
        ...

    async def lock_payments(self, ids: Collection[PaymentId]) -> dict[PaymentId, Payment]:
        """Lock these payments, as far as they exist, and return each as it is once no other transaction changes it."""
        ...

    async def read_payment_key(self, key: IdempotencyKey) -> PaymentKey | None:
        """The payment that this key opened last, if it opened one. The key was claimed by `begin`."""
        ...

    async def lock_payer(self, ref: PayerRef) -> Payer:
        """What a buyer tried lately, once no other transaction is opening a payment of this buyer."""
        ...

    async def read_tries(self, booking_id: BookingId, ids: Collection[PaymentId]) -> dict[PaymentId, Payment]:
        """All payments of a booking, and these of other bookings, unlocked."""
        ...

    async def read_checked_in(self, ids: Collection[BookingId]) -> frozenset[BookingId]:
        """Those of these locked bookings of which a ticket was let in at the door."""
        ...

    async def read_refunds(self, payment_id: PaymentId) -> list[Refund]:
        """A payment's refunds, oldest first. They change only under the lock of their payment."""
        ...

    async def lock_totals(self, refs: Collection[TotalRef]) -> dict[TotalRef, int]:
        """What these buyers have of these events; zero where there was nothing yet."""
        ...

    async def lock_pools(self, refs: Collection[PoolRef]) -> dict[PoolRef, Pool]:
        """The pools there are."""
        ...

    async def lock_seats(self, seen: Collection[SeatSeen]) -> frozenset[SeatRef]:
        """Those seats whose pointer, fence and block are still as seen. The others have moved: decide again."""
        ...

    async def write(self, changes: Changes) -> None:
        """Everything at once. After a verb has decided, this must succeed."""
        ...


class SeatOnMap(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A seat and its owner, for showing."""

    seat: Seat
    fence: int = 0
    owner_id: BookingId | None = None
    owner_state: State | None = None
    owner_expires_at: datetime | None = None
    owner_buyer: Buyer | None = None


MAP_HORIZON = timedelta(seconds=10)
"""How far ahead a map looks for holds that run out."""


class SeatMap(msgspec.Struct, frozen=True, kw_only=True):
    """An event's seats and pools at one moment. For showing: nothing is ever decided by it."""

    now: datetime
    seats: Sequence[SeatOnMap]
    pools: Sequence[Pool]
    ends_at: datetime | None = None
    """When the clock alone changes it: the first hold on it runs out. None when none does within `MAP_HORIZON`."""


class BookingFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which bookings to list, oldest first, after the one that the last page ended with."""

    mode: Mode
    limit: int
    after: BookingId | None = None
    buyer: Buyer | None = None
    event_id: EventId | None = None
    state: State | None = None


class PaymentSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A payment with what it pays for and what goes back of it, in one snapshot."""

    now: datetime
    payment: Payment
    booking: Booking
    refunds: Sequence[Refund]


class Flaw(msgspec.Struct, frozen=True, kw_only=True):
    """Something that must never be: a promise broken, and the row that shows it."""

    promise: str
    rule: str
    row: str


class Store(Parts, Protocol):
    """Where bookings, payments and the journal are kept: what it has committed is sold, and nothing else is."""

    @property
    def outbox(self) -> Outbox:
        """The journal as clients read it."""
        ...

    async def transact(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        within: float,
        optimistic: bool = False,
        lock_seconds: float = LOCK_SECONDS_MAX,
    ) -> T:
        """Run the work in one transaction, at most `within` seconds, and commit it.

        A row that another transaction has locked is waited for `lock_seconds`; then `RowBusy` says which rows are
        locked, as far as that can be found out, and nothing was kept.

        With `optimistic`, a store may first run it without locks: what the work reads is then only seen, and what it
        writes is kept if none of that has moved, in one step, or not at all. If something has, the work is run again,
        in the end with locks. Work that passes over locked rows or changes an event is never optimistic.

        The work awaits nothing but its transaction and may be run again from its start after a deadlock or
        a serialization failure. Raises `StoreUnavailable` when nothing was kept, and `OutcomeUnknown` when
        the commit was sent and its answer lost: then `has_entry` says which.
        """
        ...

    async def has_entry(self, entry_id: EntryId) -> bool:
        """Whether the journal has this entry: how the outcome of a lost commit is looked up.

        True is certain. False is not: the lost commit may still be on its way.
        """
        ...

    async def known_keys(self, keys: Sequence[IdempotencyKey]) -> Collection[IdempotencyKey]:
        """Which of these keys have a recorded response. A plain read: it claims nothing and waits for no standby."""
        ...

    async def read_event(self, event_id: EventId) -> Event | None:
        """One event; None when there is no such id."""
        ...

    async def read_events(self, ids: Collection[EventId]) -> dict[EventId, Event]:
        """Those of these events that there are."""
        ...

    async def list_events(self, *, mode: Mode, after: EventId | None, limit: int) -> list[Event]:
        """Events by id, after this one, at most `limit`."""
        ...

    async def read_map(self, event_id: EventId, *, seat_id: SeatId | None = None) -> SeatMap:
        """The seats (or just one) and the pools of an event."""
        ...

    async def read_booking(self, booking_id: BookingId) -> tuple[datetime, Booking | None]:
        """One booking, and the moment it was read at."""
        ...

    async def list_bookings(self, wanted: BookingFilter) -> tuple[datetime, list[Booking]]:
        """Bookings by id, which is by age; with `state=expired` also the holds whose time is over."""
        ...

    async def read_history(self, booking_id: BookingId) -> list[Entry]:
        """All that happened to a booking, in order."""
        ...

    async def read_payment_snapshot(self, payment_id: PaymentId) -> PaymentSnapshot | None:
        """One payment and what belongs to it."""
        ...

    async def list_payments(self, booking_id: BookingId) -> list[tuple[Payment, list[Refund]]]:
        """All payments of a booking, oldest first, each with its refunds."""
        ...

    async def list_paid_here(self, ids: Collection[BookingId]) -> frozenset[BookingId]:
        """Those of these bookings whose payment Earmark made; the others cost nothing, or were paid elsewhere."""
        ...

    async def list_checked_in(self, ids: Collection[BookingId]) -> frozenset[BookingId]:
        """Those of these bookings of which a ticket was let in at the door."""
        ...

    async def claim_payments(
        self, *, limit: int, lease_seconds: float, gateways: Collection[str] | None = None
    ) -> list[PaymentId]:
        """Payments that are due, the longest due first. For `lease_seconds` no other process is given them.

        Of these gateways only, if they are named: a process that cannot reach a gateway leaves its payments to others.
        Except payments that were not decided within the longest time that paying pins a hold: giving one up needs no
        gateway, and perhaps no process has this gateway any more.
        """
        ...

    async def seconds_to_next_payment(self, *, gateways: Collection[str] | None = None) -> float | None:
        """How long until the next payment is due (zero or less: now); None when none is under way."""
        ...

    async def seconds_to_next_due(self) -> float | None:
        """How long until the next hold is due (zero or less: now); None when nothing is held."""
        ...

    async def find_flaws(self, *, limit: int) -> list[Flaw]:
        """The rows that break a promise, by plain queries over the tables. Empty is right."""
        ...

    async def check(self) -> None:
        """Raise unless the database answers and its schema is the one this program was written for."""
        ...

    async def close(self) -> None:
        """Let go of connections, files and threads."""
        ...
