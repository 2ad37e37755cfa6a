"""What one transaction will write: bookings that moved, and what that means for totals, pools and seats.

A verb passes only a booking as it was and as it is now. What a buyer's total and each pool gain or lose follows from
the two states, by one rule for every verb: an active booking counts towards its buyer; held and paying units are held,
confirmed units are sold. Counts would drift if each verb did its own counting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from earmark.domain import booking as booking_rules
from earmark.domain import journal_before_and_after_values
from earmark.domain.booking_state_machine import State, Verb
from earmark.domain.journal_entry import Entry
from earmark.domain.payment import PaymentKey
from earmark.domain.pool import PoolDelta
from earmark.engine.ports.store import Changes

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking
    from earmark.domain.decline_limits import Payer
    from earmark.domain.id_types import BookingId, EntryId, PaymentId, PoolRef, RefundId, SeatRef, TotalRef
    from earmark.domain.idempotency_record import IdempotencyRecord
    from earmark.domain.payment import Payment, Refund
    from earmark.engine.commands_and_results import Command, KeyedRequest
    from earmark.engine.ports.store import Ids

CLOCK = "clock"
REPEAT = "repeat"
PAYMENT = "payment"
"""The verb of journal entries about a booking's money when the booking itself does not move."""


class PendingWrites:
    """The changes so far, in memory; the store writes them when it is given `changes`."""

    def __init__(self, *, now: datetime, ids: Ids) -> None:
        self.now = now
        self._ids = ids
        self._expired: dict[BookingId, Booking] = {}
        self._moved: dict[BookingId, Booking] = {}
        self._opened: dict[BookingId, Booking] = {}
        self._cleared: dict[SeatRef, BookingId] = {}
        self._reclaimed: dict[BookingId, Booking] = {}
        self._payments: dict[PaymentId, Payment] = {}
        self._payment_keys: list[PaymentKey] = []
        self._payers: list[Payer] = []
        self._refunds: dict[RefundId, Refund] = {}
        self._refunds_unrecorded: dict[str, dict[str, Any]] = {}
        """What changed of refunds and stands in no entry yet, by their payment."""
        self._entries: list[Entry] = []
        self.totals: dict[TotalRef, int] = {}
        self.pools: dict[PoolRef, PoolDelta] = {}
        self.seats: dict[SeatRef, BookingId] = {}

    def __bool__(self) -> bool:
        return bool(self._entries or self._payments or self._refunds)

    def current(self, booking: Booking) -> Booking:
        """The booking as this transaction has moved it so far."""
        return self._moved.get(booking.id) or self._expired.get(booking.id) or booking

    def expire(self, booking: Booking, *, reason: str) -> Booking:
        """The clock lets go of a due hold. Its seats need no write: a pointer to an ended booking is free."""
        after = booking_rules.expire(booking, now=self.now)
        self._expired[booking.id] = after
        self._count(booking, after)
        self._record(Verb.EXPIRE.value, booking, after, entry_id=self._ids.entry_id(), actor=CLOCK, reason=reason)
        return after

    def open(self, booking: Booking, *, command: Command, record: IdempotencyRecord | None) -> Booking:
        """A new hold, with its seats, and what its key remembers."""
        self._opened[booking.id] = booking
        self._count(None, booking)
        self.seats.update(dict.fromkeys(booking.seat_refs, booking.id))
        self._record(
            Verb.HOLD.value,
            None,
            booking,
            entry_id=command.entry_id,
            actor=command.actor.name,
            command=command,
            record=record,
        )
        return booking

    def move(
        self,
        verb: Verb,
        before: Booking,
        after: Booking,
        *,
        command: Command,
        record: IdempotencyRecord | None = None,
        reason: str | None = None,
        money: dict[str, Any] | None = None,
        opened: Payment | None = None,
    ) -> Booking:
        """A booking that a verb has moved, and what the command's key remembers.

        `opened` is a payment that is new with it.
        """
        self._moved[before.id] = after
        self._count(before, after)
        if after.is_active and after.lines is not before.lines:
            had, has = set(before.seat_refs), set(after.seat_refs)
            self._cleared |= dict.fromkeys(had - has, before.id)
            self.seats.update(dict.fromkeys(has - had, before.id))
        self._record(
            verb.value,
            before,
            after,
            entry_id=command.entry_id,
            actor=command.actor.name,
            command=command,
            record=record,
            reason=reason,
            money=money,
            opened=opened,
        )
        return after

    def move_for_payment(
        self, verb: Verb, before: Booking, after: Booking, *, actor: str, reason: str | None, money: dict[str, Any]
    ) -> Booking:
        """A booking moved by a payment, or by its absence; an expired one that is sold has all its seats again."""
        again = before.state is State.EXPIRED and after.state is State.CONFIRMED
        (self._reclaimed if again else self._moved)[before.id] = after
        self._count(before, after)
        entry_id = self._ids.entry_id()
        self._record(verb.value, before, after, entry_id=entry_id, actor=actor, reason=reason, money=money)
        return after

    def note(self, before: Booking, after: Booking, *, actor: str, reason: str | None, money: dict[str, Any]) -> None:
        """A journal entry about a booking's money that does not move the booking."""
        self._moved[before.id] = after
        entry_id = self._ids.entry_id()
        self._record(PAYMENT, before, after, entry_id=entry_id, actor=actor, reason=reason, money=money)

    def set_payment(self, payment: Payment) -> Payment:
        """A payment as it now is: one version on, however often it moves in one transaction."""
        if known := self._payments.get(payment.id):
            payment = msgspec.structs.replace(payment, version=known.version)
        self._payments[payment.id] = payment
        return payment

    def open_by_key(self, payment: Payment, idempotency: KeyedRequest) -> None:
        """The key is this payment's from here on: another request with it is refused."""
        opened = PaymentKey(
            key=idempotency.key,
            request_hash=idempotency.request_hash,
            payment_id=payment.id,
            opened_at=payment.created_at,
        )
        self._payment_keys.append(opened)

    def count_try(self, payer: Payer) -> None:
        """A payer with this payment counted as one more try."""
        self._payers.append(payer)

    def set_refund(self, refund: Refund, *, before: Refund | None = None) -> Refund:
        """A refund as it now is, and as it was if it is not new. The next entry about its payment records it."""
        self._refunds[refund.id] = refund
        unrecorded = self._refunds_unrecorded.setdefault(str(refund.payment_id), {})
        unrecorded[str(refund.id)] = journal_before_and_after_values.refund_pairs(before, refund)
        return refund

    def record_repeat(
        self, verb: Verb, booking: Booking, *, command: Command, record: IdempotencyRecord | None
    ) -> None:
        """A verb found its work done: nothing moved, so the entry has no version, but the key keeps its response."""
        if command.idempotency is None:
            return
        entry = Entry(
            id=command.entry_id,
            event_id=booking.event_id,
            verb=REPEAT,
            actor=command.actor.name,
            at=self.now,
            facts={"booking_id": str(booking.id), "verb": verb.value},
            key=command.idempotency.key,
            memory=record,
        )
        self._entries.append(entry)

    def owner(self, seat: SeatRef) -> Booking | None:
        """The booking that this transaction has given a seat to."""
        given = self.seats.get(seat)
        return (self._opened.get(given) or self._moved[given]) if given else None

    def record_event(
        self, verb: str, event: Event, *, command: Command, record: IdempotencyRecord | None, facts: dict[str, Any]
    ) -> None:
        """The journal entry of an operator's change to an event."""
        entry = Entry(
            id=command.entry_id,
            event_id=event.id,
            version=event.version,
            verb=verb,
            actor=command.actor.name,
            at=self.now,
            facts=facts,
            key=command.idempotency.key if command.idempotency else None,
            memory=record,
        )
        self._entries.append(entry)

    def changes(self, **event_changes: Any) -> Changes:
        """Everything to write; `event_changes` holds what an operator changed about the event."""
        return Changes(
            expired=list(self._expired.values()),
            moved=list(self._moved.values()),
            payments=list(self._payments.values()),
            payment_keys=self._payment_keys,
            payers=self._payers,
            refunds=list(self._refunds.values()),
            totals={ref: units for ref, units in self.totals.items() if units},
            pools={ref: delta for ref, delta in self.pools.items() if delta != PoolDelta()},
            opened=list(self._opened.values()),
            seats=self.seats,
            reclaimed=list(self._reclaimed.values()),
            cleared=self._cleared,
            entries=self._entries,
            **event_changes,
        )

    def _count(self, before: Booking | None, after: Booking) -> None:
        gained = _counted(after) - (_counted(before) if before else 0)
        if gained:
            total = after.total_ref
            self.totals[total] = self.totals.get(total, 0) + gained
        if not after.lines.pools and not (before and before.lines.pools):
            return
        for ref, delta in _units(after, sign=1).items():
            self.pools[ref] = self.pools.get(ref, PoolDelta()) + delta
        for ref, delta in (_units(before, sign=-1) if before else {}).items():
            self.pools[ref] = self.pools.get(ref, PoolDelta()) + delta

    def _record(
        self,
        verb: str,
        before: Booking | None,
        after: Booking,
        *,
        entry_id: EntryId,
        actor: str,
        command: Command | None = None,
        reason: str | None = None,
        money: dict[str, Any] | None = None,
        record: IdempotencyRecord | None = None,
        opened: Payment | None = None,
    ) -> None:
        idempotency = command.idempotency if command else None
        facts = _facts(before, after)
        if money:
            refunds = self._refunds_unrecorded.pop(money["id"], None)
            facts["payment"] = money | {journal_before_and_after_values.REFUNDS: refunds} if refunds else money
        if opened:
            pairs = journal_before_and_after_values.payment_pairs(None, opened)
            facts[journal_before_and_after_values.OPENED] = {name: new for name, (_, new) in pairs.items()}
        entry = Entry(
            id=entry_id,
            event_id=after.event_id,
            booking_id=after.id,
            version=after.version,
            verb=verb,
            before=before.state.value if before else None,
            after=after.state.value,
            actor=actor,
            reason=reason,
            at=self.now,
            facts=facts,
            key=idempotency.key if idempotency else None,
            memory=record,
        )
        self._entries.append(entry)


def _counted(booking: Booking) -> int:
    return booking.lines.units if booking.is_active else 0


def _units(booking: Booking, *, sign: int) -> dict[PoolRef, PoolDelta]:
    if booking.state is State.CONFIRMED:
        return booking.pool_deltas(sold=sign)
    return booking.pool_deltas(held=sign) if booking.is_active else {}


def _facts(before: Booking | None, after: Booking) -> dict[str, Any]:
    """The fields that changed, by name: as they now are, and as they were."""
    facts: dict[str, Any] = {}
    if before is not None:
        facts[journal_before_and_after_values.WAS] = journal_before_and_after_values.was(before, after)
    for name in journal_before_and_after_values.BOOKING_FIELDS:
        value = getattr(after, name)
        if value is None or (before is not None and (value is (was := getattr(before, name)) or value == was)):
            continue
        facts[name] = value
    return facts
