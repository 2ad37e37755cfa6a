"""The commands that verbs are given, and the results that they return.

A command carries the ids of whatever it may create, made before the first attempt, so that a lost commit can be
looked up instead of being tried again blindly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from earmark.domain.bookable_event import Event
from earmark.domain.booking import Booking
from earmark.domain.id_types import (
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
from earmark.domain.idempotency_record import IdempotencyKey, IdempotencyRecord
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import Payment
from earmark.domain.pool import Pool
from earmark.domain.refund_rules import Ruling
from earmark.domain.seat import Seat
from earmark.engine.ports.encode_result_as_stored_response import ResponseWriter
from earmark.errors import InvalidRequest, Refusal


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of a verb: a shop's key, or one buyer."""

    name: str
    """As the journal records it."""
    mode: Mode
    """Whether it deals in live events or in test events: each sees only its kind."""
    buyer: Buyer | None = None
    """The one buyer it acts for; None for a shop that acts for any."""

    def may_see(self, booking: Booking) -> bool:
        """Whether this booking exists for the actor: another buyer's does not."""
        return booking.mode == self.mode and self.buyer in {None, booking.buyer}


class KeyedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request with an idempotency key, and how to write the response that the key keeps."""

    key: IdempotencyKey
    request_hash: bytes
    write: ResponseWriter
    """Writes the response that a repeat gets again."""
    older_hashes: tuple[bytes, ...] = ()
    """How the same request may have been recorded before, under an older secret."""

    def is_of(self, request_hash: bytes) -> bool:
        """Whether this is the request that was recorded so."""
        return request_hash == self.request_hash or request_hash in self.older_hashes

    def record(self, result: object, now: datetime) -> IdempotencyRecord:
        """What the key keeps from now on: the response, byte for byte."""
        status, body = self.write(result, now)
        return IdempotencyRecord(request_hash=self.request_hash, status=status, body=body)


Row = tuple[str, object]
"""A table and a key in it: a pool, a total and a seat may have the same key."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What all commands have: the actor, the id of the journal entry, and the key if the client sent one."""

    actor: Actor
    entry_id: EntryId
    idempotency: KeyedRequest | None = None

    @property
    def rows(self) -> Collection[Row]:
        """The rows it needs that others may want too, as far as it names them itself."""
        return ()


class Hold(Command, frozen=True, kw_only=True):
    """Hold these seats and units, all or nothing. The schema has checked that none is named twice."""

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
    """A command about one booking."""

    booking_id: BookingId

    @property
    def rows(self) -> Collection[Row]:
        """The booking's row: the only one that it names."""
        return (("bookings", self.booking_id),)


class Change(BookingCommand, frozen=True, kw_only=True):
    """Give a hold other lines. The schema has checked that no seat is named twice."""

    add_seats: tuple[SeatId, ...] = ()
    drop_seats: tuple[SeatId, ...] = ()
    pools: Mapping[PoolId, int] = {}
    """How many units it shall have of each pool that is named; 0 gives them all back."""
    _event_id: EventId | None = None

    def learn_event(self, event_id: EventId) -> None:
        """Of which event its booking is, which the request does not say: from then on its rows can be named."""
        msgspec.structs.force_setattr(self, "_event_id", event_id)

    @property
    def rows(self) -> Collection[Row]:
        """The booking's row; once its event is known, also the pools and seats that it names, pools first."""
        event_id, own = self._event_id, ("bookings", self.booking_id)
        if event_id is None:
            return (own,)
        pools = [("pools", PoolRef(event_id, pool)) for pool in self.pools]
        seats = [("seats", SeatRef(event_id, seat)) for seat in (*self.add_seats, *self.drop_seats)]
        return (*pools, *seats, own)

    @property
    def claims(self) -> Collection[object]:
        """What a batch that is under way keeps for itself: its booking, and the seats that it may take."""
        return (self.booking_id, *self.add_seats)


class Extend(BookingCommand, frozen=True, kw_only=True):
    """Give a hold more time."""

    seconds: int


class Confirm(BookingCommand, frozen=True, kw_only=True):
    """Confirm a hold whose money the shop has taken elsewhere."""

    payment_id: str
    payment_method: str | None = None


class Release(BookingCommand, frozen=True, kw_only=True):
    """Let go of a hold."""


class Full(StrEnum):
    """A refund of the full price of what is undone."""

    FULL = "full"


class Cancel(BookingCommand, frozen=True, kw_only=True):
    """Undo a sale, or some lines of it."""

    seats: frozenset[SeatId] = frozenset()
    pools: Mapping[PoolId, int] = {}
    reason: str | None = None
    refund: int | Full | None = None
    """How much goes back of money that was taken here: `Full` is the price of what is undone; None is what the event's
    rules give. A buyer names none."""


class Pay(BookingCommand, frozen=True, kw_only=True):
    """Open a payment. Every attempt with one key for one booking has the same id, and so is the same payment."""

    payment_id: PaymentId
    gateway: str | None = None
    method: str | None = None
    automatic: bool = False
    return_url: str | None = None
    amount: int | None = None
    """What the buyer was shown; None where the request does not say."""
    address: str | None = None
    """The buyer's address as a keyed hash; None where it is not known, or the request is not a buyer's."""
    unpayable: InvalidRequest | None = None
    """Why no money can be taken this way; a booking that costs nothing is confirmed all the same."""


class RefundPayment(BookingCommand, frozen=True, kw_only=True):
    """Refund money, without a change to what was sold."""

    refund_id: RefundId
    amount: int
    reason: str | None = None


class CreateEvent(Command, frozen=True, kw_only=True):
    """Create an event and what it sells."""

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
    """Change an event, as its operator."""

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
    """Whether another request opened the payment: then its end is not this request's result."""
    gives_way: bool = False
    """Whether that payment is to be ended, so that this request can open its own."""


class CancelResult(msgspec.Struct, frozen=True, kw_only=True):
    """A booking of which a sale was undone, and what became of its money; None where none was taken here."""

    booking: Booking
    money: Ruling | None = None


class Decided(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a verb decided: the booking (or event) as it now is, at the moment that decided."""

    value: Any
    now: datetime
    wrote: bool = True
    """False when the verb found its work done already and wrote nothing."""
    record: IdempotencyRecord | None = None


class Replayed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The response that the first request with this key got."""

    record: IdempotencyRecord


class TryAgain(msgspec.Struct, frozen=True, kw_only=True):
    """Not decided: a row moved, or a request with the same key is being decided. The next batch decides it."""

    refusal: Refusal
    """What the caller gets when there is no next time."""
    rounds_max: int
    delay_seconds: float = 0.0
    full: object = None
    """A pool or a total that is full of lapsed holds, perhaps: expire some, then decide."""
    short: int = 0
    """How many units of it are missing."""


Result = Decided | Replayed
Outcome = Decided | Replayed | TryAgain | Refusal
