"""What callers ask of the verbs, and what they are told.

An ask carries the ids of whatever it may create, made before the first attempt, so that a lost commit can be
looked up instead of being tried again blindly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from earmark.domain.booking import Booking
from earmark.domain.event import Event
from earmark.domain.ids import (
    BookingId,
    Buyer,
    EntryId,
    EventId,
    PaymentId,
    PoolId,
    PoolRef,
    RefundId,
    SeatId,
    SeatRef,
    TotalRef,
)
from earmark.domain.journal import IdempotencyKey, IdempotencyRecord
from earmark.domain.payment import Payment
from earmark.domain.pool import Pool
from earmark.domain.refund_rules import Ruling
from earmark.domain.seat import Seat
from earmark.engine.ports.response_writer import ResponseWriter
from earmark.errors import InvalidRequest, Refusal


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks."""

    name: str
    """As the journal remembers them."""
    live: bool
    """Whether they deal in live events or in test events: each sees only its kind."""
    buyer: Buyer | None = None
    """The one buyer they speak for; None for a shop that acts for any."""

    def may_see(self, booking: Booking) -> bool:
        """Another buyer's booking does not exist for them."""
        return booking.live == self.live and self.buyer in {None, booking.buyer}


class KeyedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An idempotency key and how to word the answer that it shall remember."""

    key: IdempotencyKey
    request_hash: bytes
    write: ResponseWriter
    """Writes the response that a repeat gets again."""
    older_hashes: tuple[bytes, ...] = ()
    """As what the same request may have been recorded before: under an older secret, or by an older release."""

    def is_of(self, request_hash: bytes) -> bool:
        """Whether this is the request that was recorded so."""
        return request_hash == self.request_hash or request_hash in self.older_hashes

    def record(self, result: object, now: datetime) -> IdempotencyRecord:
        """What the key remembers from now on: the response, byte for byte."""
        status, body = self.write(result, now)
        return IdempotencyRecord(request_hash=self.request_hash, status=status, body=body)


Row = tuple[str, object]
"""A table and a key in it: a pool, a total and a seat may have the same key."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What all asks have in common."""

    actor: Actor
    entry_id: EntryId
    idempotency: KeyedRequest | None = None

    @property
    def rows(self) -> Collection[Row]:
        """The rows it needs that others may want too, as far as it names them itself."""
        return ()


class Hold(Command, frozen=True, kw_only=True):
    """These seats and units, all or nothing. The claim was checked for doubles at the door."""

    booking_id: BookingId
    event_id: EventId
    buyer: Buyer
    seats: tuple[SeatId, ...] = ()
    pools: Mapping[PoolId, int] = {}
    ttl_seconds: int | None = None
    _seat_refs: tuple[SeatRef, ...] | None = None

    @property
    def seat_refs(self) -> tuple[SeatRef, ...]:
        """The seats in the order of locks; made once, for they are looked at again and again."""
        refs = self._seat_refs
        if refs is None:
            event_id = self.event_id
            refs = tuple([SeatRef(event_id, seat) for seat in sorted(self.seats)])
            msgspec.structs.force_setattr(self, "_seat_refs", refs)
        return refs

    @property
    def pool_refs(self) -> dict[PoolRef, int]:
        """The units of each pool, in the order of locks."""
        if not self.pools:
            return {}
        return {PoolRef(self.event_id, pool_id): units for pool_id, units in sorted(self.pools.items())}

    @property
    def total_ref(self) -> TotalRef:
        """The buyer's total that it counts towards."""
        return TotalRef(self.event_id, self.buyer)

    @property
    def rows(self) -> Collection[Row]:
        """Its pools first: those are what most requests share."""
        pools = [("pools", ref) for ref in self.pool_refs] if self.pools else []
        return (*pools, *(("seats", ref) for ref in self.seat_refs), ("totals", self.total_ref))

    @property
    def units(self) -> int:
        """How much it counts towards the buyer's limit."""
        return len(self.seats) + sum(self.pools.values())


class BookingCommand(Command, frozen=True, kw_only=True):
    """Something about one booking."""

    booking_id: BookingId

    @property
    def rows(self) -> Collection[Row]:
        """The booking."""
        return (("bookings", self.booking_id),)


class Extend(BookingCommand, frozen=True, kw_only=True):
    """More time."""

    seconds: int


class Confirm(BookingCommand, frozen=True, kw_only=True):
    """The money was taken elsewhere."""

    payment_id: str
    payment_method: str | None = None


class Release(BookingCommand, frozen=True, kw_only=True):
    """Let go of a hold."""


class Full(StrEnum):
    """All of it."""

    FULL = "full"


class Cancel(BookingCommand, frozen=True, kw_only=True):
    """Undo a sale, or some lines of it."""

    seats: frozenset[SeatId] = frozenset()
    pools: Mapping[PoolId, int] = {}
    reason: str | None = None
    refund: int | Full | None = None
    """How much goes back of money that was taken here: `Full` is the price of what is undone; None is what the event's
    rules give, and a buyer's own cancel never gives more than those."""


class Pay(BookingCommand, frozen=True, kw_only=True):
    """Open a payment. Every attempt with one key for one booking has the same id, and so is the same payment."""

    payment_id: PaymentId
    first_payment_id: PaymentId | None = None
    """How an older release would have called the payment of this key: one that it opened is found by this."""
    gateway: str | None = None
    method: str | None = None
    automatic: bool = False
    return_url: str | None = None
    address: str | None = None
    """From where a buyer asks, as a name that tells no address; None where that is not known, or not a buyer's."""
    unpayable: InvalidRequest | None = None
    """Why no money can be taken this way; a booking that costs nothing is confirmed all the same."""


class RefundPayment(BookingCommand, frozen=True, kw_only=True):
    """Money back, without a change to what was sold."""

    refund_id: RefundId
    amount: int
    reason: str | None = None


class CreateEvent(Command, frozen=True, kw_only=True):
    """A new event and what it sells."""

    event: Event
    seats: tuple[Seat, ...] = ()
    pools: tuple[Pool, ...] = ()


class SeatPatch(msgspec.Struct, frozen=True, kw_only=True):
    """What to change about one seat."""

    id: SeatId
    blocked: bool | None = None
    price: int | None = None


class PoolPatch(msgspec.Struct, frozen=True, kw_only=True):
    """What to change about one pool."""

    id: PoolId
    capacity: int | None = None
    price: int | None = None


class ChangeEvent(Command, frozen=True, kw_only=True):
    """An operator's change to an event."""

    event_id: EventId
    fields: Mapping[str, Any] = {}
    """The event's own fields, by name, with their new values."""
    seats: tuple[SeatPatch, ...] = ()
    pools: tuple[PoolPatch, ...] = ()


class PayResult(msgspec.Struct, frozen=True, kw_only=True):
    """A booking and the payment that was opened for it; None where nothing was to be paid."""

    booking: Booking
    payment: Payment | None = None
    joined: bool = False
    """Whether another request opened the payment: then its end is not this request's answer."""
    gives_way: bool = False
    """Whether that payment is to be ended, so that this request can open its own."""


class CancelResult(msgspec.Struct, frozen=True, kw_only=True):
    """A booking of which a sale was undone, and what became of its money; None where none was taken here."""

    booking: Booking
    money: Ruling | None = None


class Decided(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A verb's answer: the booking (or event) as it now is, at the moment that decided."""

    value: Any
    now: datetime
    wrote: bool = True
    """False when the verb found its work done already and wrote nothing."""
    record: IdempotencyRecord | None = None


class Replayed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer that this key got the first time."""

    record: IdempotencyRecord


class TryAgain(msgspec.Struct, frozen=True, kw_only=True):
    """Not decided: something moved underneath, or a twin is being decided. The next batch looks anew."""

    refusal: Refusal
    """What to answer when there is no next time."""
    rounds_max: int
    delay_seconds: float = 0.0
    relief: object = None
    """A pool or a total that is full of lapsed holds, perhaps: expire some, then decide."""
    short: int = 0
    """How many units of it are missing."""


Result = Decided | Replayed
Outcome = Decided | Replayed | TryAgain | Refusal
