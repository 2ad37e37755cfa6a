"""Applies what a gateway reported of a payment to the payment and its booking, whichever process got the report.

    read the seats that a re-claim would need → lock the booking, with the lapsed owners of those seats → the payment
         → judge on the locked rows → lock totals, pools and seats where the booking takes or gives → write

Money that came late finds its booking expired. If everything is still free it is sold after all; if something moved
meanwhile, that is decided again; if something is gone, the money goes back. It is never kept without a booking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.domain import booking as booking_rules
from earmark.domain import journal_before_and_after_values
from earmark.domain import payment as payment_rules
from earmark.domain.bookable_event import OnDecline, per_buyer_max
from earmark.domain.booking_state_machine import State, Verb
from earmark.domain.id_types import PoolRef, TotalRef
from earmark.domain.payment import Payment, PaymentState, Refund, RefundState, ReportedState
from earmark.domain.seat import SeatAvailability, availability
from earmark.engine.pending_writes import PendingWrites
from earmark.payments import record_and_schedule_payment_step as notes

if TYPE_CHECKING:
    from collections.abc import Collection

    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking
    from earmark.domain.default_limits_for_all_events import Policy
    from earmark.domain.id_types import BookingId, SeatRef
    from earmark.domain.seat import SeatSeen
    from earmark.engine.ports.gateway import Report
    from earmark.engine.ports.store import Ids, PaymentSnapshot, Transaction

LATE = "the payment came too late"


class PaymentRowsMoved(msgspec.Struct, frozen=True, kw_only=True):
    """Not decided: a row is not as it was read. Read again; first end the lapsed holds of `full`, if any."""

    full: PoolRef | TotalRef | None = None
    short: int = 0
    """How many units of it are missing."""


async def apply_report(
    transaction: Transaction,
    *,
    report: Report,
    about: PaymentSnapshot,
    ids: Ids,
    policy: Policy,
    nothing_due_in: Collection[PoolRef | TotalRef] = (),
) -> Payment | PaymentRowsMoved:
    """Apply a gateway's report of a payment. No lapsed hold is left in `nothing_due_in`."""
    start = await transaction.begin([])
    reported = await _ReportedPayment.open(transaction, about, writes=PendingWrites(now=start.now, ids=ids), ids=ids)
    if reported is None:
        return PaymentRowsMoved()
    return await reported.apply(report, policy=policy, nothing_due_in=nothing_due_in)


async def apply_silence(transaction: Transaction, *, about: PaymentSnapshot, ids: Ids) -> Payment:
    """The gateway was silent: the call may have taken effect, so the payment is due again later."""
    start = await transaction.begin([])
    writes = PendingWrites(now=start.now, ids=ids)
    booking = (await transaction.lock_bookings({about.booking.id}))[about.booking.id]
    before = (await transaction.lock_payments({about.payment.id}))[about.payment.id]
    unknown = payment_rules.unanswered(before)
    if unknown is not before:
        notes.note(writes, booking, before, unknown, reason="the gateway did not answer")
    after = notes.scheduled(before, unknown, about=about, now=writes.now, open_question=True)
    writes.set_payment(after)
    await transaction.write(writes.changes())
    return after


class _ReportedPayment:
    """A reported payment and its booking, on rows that are locked by now."""

    def __init__(
        self,
        transaction: Transaction,
        *,
        about: PaymentSnapshot,
        writes: PendingWrites,
        ids: Ids,
        event: Event,
        booking: Booking,
        payment: Payment,
        seen: dict[SeatRef, SeatSeen],
        owners: dict[BookingId, Booking],
    ) -> None:
        self._transaction = transaction
        self._about = about
        self._writes = writes
        self._ids = ids
        self._event = event
        self._booking = booking
        self._payment = payment
        self._seen = seen
        self._owners = owners
        self._recorded = False
        """Whether the journal has what was reported."""

    @classmethod
    async def open(
        cls, transaction: Transaction, about: PaymentSnapshot, *, writes: PendingWrites, ids: Ids
    ) -> _ReportedPayment | None:
        """Read, then lock; None when the booking ran out between the two."""
        was = about.booking
        [event] = (await transaction.read_events({was.event_id})).values()
        seen = await transaction.read_seats(was.seat_refs) if was.state is State.EXPIRED else {}
        lapsed = {seat.pointer for seat in seen.values() if seat.pointer and _is_lapsed(seat, writes)}
        locked = await transaction.lock_bookings({was.id, *lapsed})
        payments = await transaction.lock_payments({about.payment.id})
        booking = locked.pop(was.id)
        if booking.state is State.EXPIRED and was.state is not State.EXPIRED:
            return None
        return cls(
            transaction,
            about=about,
            writes=writes,
            ids=ids,
            event=event,
            booking=booking,
            payment=payments[about.payment.id],
            seen=seen,
            owners=locked,
        )

    async def apply(
        self, report: Report, *, policy: Policy, nothing_due_in: Collection[PoolRef | TotalRef]
    ) -> Payment | PaymentRowsMoved:
        """Decide what the report means, and write it."""
        before, booking, now = self._payment, self._booking, self._writes.now
        wanted = booking_rules.wants(booking, before)
        wanted_still = wanted and not payment_rules.is_replaced(before)
        after = payment_rules.after_report(before, report.state, wanted=wanted_still, captured=report.captured)
        news = after is not before
        after = _known(after, report)
        if news and report.state in payment_rules.DECISIONS:
            after = msgspec.structs.replace(after, processed_at=now)
        if news and booking.state is State.EXPIRED and after.state is PaymentState.CAPTURED:
            moved = await self._reclaim(after, policy=policy, nothing_due_in=nothing_due_in)
            if isinstance(moved, PaymentRowsMoved):
                return moved
            if moved is None:
                after = self._give_back(after, reason=LATE)
                self._note(before, after, reason=LATE)
            else:
                self._move_booking(
                    Verb.CONFIRM, moved, before, after, reason="late money, and everything was still free"
                )
        elif news:
            after = self._follow(before, after, wanted=wanted)
        elif self._is_deciding(report) and wanted:
            self._pin(before, after, processing=report.state is ReportedState.PROCESSING)
        if not self._recorded and journal_before_and_after_values.payment_pairs(before, after):
            notes.learn(self._writes, booking, before, after)
        # A refund on its way is read again later, also of a payment that an operator has to look at.
        asked = any(refund.state is RefundState.PENDING for refund in self._about.refunds)
        after = self._writes.set_payment(
            notes.scheduled(before, after, about=self._about, now=now, open_question=asked)
        )
        if booking.state is not State.EXPIRED:
            await self._transaction.lock_totals({ref for ref, units in self._writes.totals.items() if units})
            await self._transaction.lock_pools(self._writes.pools.keys())
        await self._transaction.write(self._writes.changes())
        return after

    def _follow(self, before: Payment, after: Payment, *, wanted: bool) -> Payment:
        """What a changed payment means for a booking that has not run out."""
        booking, now = self._booking, self._writes.now
        match after.state:
            case PaymentState.AUTHORISED | PaymentState.CAPTURED if wanted and booking.state is State.PAYING:
                sold = booking_rules.confirm_paid(booking, payment_id=str(after.id), method=after.shown_method, now=now)
                self._move_booking(Verb.CONFIRM, sold, before, after)
            case PaymentState.CAPTURED if not wanted:
                after = self._give_back(after, reason=LATE)
                self._note(before, after, reason=LATE)
            case PaymentState.FAILED if wanted and booking.state is State.PAYING:
                # What the shop did wrong at its gateway costs no buyer the hold, nor does a change of card.
                keep = self._event.on_decline is OnDecline.KEEP or payment_rules.keeps_hold(after)
                kept = booking_rules.decline(booking, keep=keep, now=now)
                self._move_booking(Verb.DECLINE, kept, before, after, reason=after.code)
            case PaymentState.VOIDING if wanted and booking.state is State.PAYING:
                # It is being ended for another, and was authorised meanwhile: the hold is free for the other.
                kept = booking_rules.decline(booking, keep=True, now=now)
                self._move_booking(Verb.DECLINE, kept, before, after, reason=payment_rules.REPLACED)
            case PaymentState.FAILED if wanted:
                undone = booking_rules.cancel(booking, now=now)
                self._move_booking(Verb.CANCEL, undone, before, after, reason=f"the capture was refused: {after.code}")
            case PaymentState.REQUIRES_ACTION | PaymentState.PENDING if wanted:
                self._pin(before, after, processing=after.state is PaymentState.PENDING)
            case _:
                self._note(before, after)
        return after

    async def _reclaim(
        self, payment: Payment, *, policy: Policy, nothing_due_in: Collection[PoolRef | TotalRef]
    ) -> Booking | PaymentRowsMoved | None:
        """The booking, sold after all; None when something of it is gone."""
        booking, writes = self._booking, self._writes
        # A hold may have been changed after this payment had ended: then what was paid for is not what would be sold.
        if payment.amount != booking.total or self._event.is_over(now=writes.now) or not self._all_free():
            return None
        flipped = [owner for owner in self._owners.values() if owner.is_due(writes.now)]
        if any(owner.is_active and not owner.is_due(writes.now) for owner in self._owners.values()):
            return None
        for owner in flipped:
            writes.expire(owner, reason="taken over")
        sold = booking_rules.confirm_paid(
            booking, payment_id=str(payment.id), method=payment.shown_method, now=writes.now
        )
        totals = await self._transaction.lock_totals({booking.total_ref, *writes.totals})
        pools = await self._transaction.lock_pools({*booking.pool_deltas(), *writes.pools})
        if len(await self._transaction.lock_seats(list(self._seen.values()))) < len(self._seen):
            return PaymentRowsMoved()
        limit = per_buyer_max(policy, of_event=self._event.per_buyer_max)
        have = totals[booking.total_ref] + writes.totals.get(booking.total_ref, 0)
        if limit is not None and have + booking.lines.units > limit:
            short = have + booking.lines.units - limit
            return (
                None if booking.total_ref in nothing_due_in else PaymentRowsMoved(full=booking.total_ref, short=short)
            )
        for ref, delta in booking.pool_deltas(sold=1).items():
            given = writes.pools.get(ref)
            free = pools[ref].free - (given.held + given.sold if given else 0)
            if delta.sold > free:
                return None if ref in nothing_due_in else PaymentRowsMoved(full=ref, short=delta.sold - free)
        return sold

    def _all_free(self) -> bool:
        """As far as the unlocked read shows: each seat is this booking's, free, or lapsed."""
        free = {SeatAvailability.FREE, SeatAvailability.LAPSED}
        return all(availability(seat, now=self._writes.now) in free for seat in self._seen.values())

    def _give_back(self, payment: Payment, *, reason: str) -> Payment:
        """All that is left of it is owed from here on."""
        refund = Refund(
            id=self._ids.refund_id(),
            payment_id=payment.id,
            booking_id=payment.booking_id,
            amount=payment.left,
            created_at=self._writes.now,
            reason=reason,
        )
        self._writes.set_refund(refund)
        return payment_rules.owing(payment, refund.amount)

    def _pin(self, before: Payment, after: Payment, *, processing: bool) -> None:
        """The gateway is deciding: the hold waits for it, within bounds. A buyer who has to act has no more time."""
        booking = self._booking
        assert booking.paying_until is not None, "paying has an end"
        until = booking.paying_until
        if processing:
            until = payment_rules.paying_until(began=before.created_at, now=self._writes.now)
        if (
            after.state is not before.state
            or (until - booking.paying_until).total_seconds() > payment_rules.WAIT_SECONDS_MAX
        ):
            self._recorded = True
            pinned = booking_rules.noted(booking, paying_until=max(until, booking.paying_until))
            self._writes.note(
                booking, pinned, actor=notes.actor(before), reason=None, money=notes.step_facts(before, after)
            )

    def _is_deciding(self, report: Report) -> bool:
        deciding = {ReportedState.PROCESSING, ReportedState.REQUIRES_ACTION}
        return report.state in deciding and self._booking.state is State.PAYING

    def _move_booking(
        self, verb: Verb, booking: Booking, before: Payment, after: Payment, reason: str | None = None
    ) -> None:
        self._recorded = True
        told = notes.step_facts(before, after)
        self._writes.move_for_payment(
            verb, self._booking, booking, actor=notes.actor(before), reason=reason, money=told
        )

    def _note(self, before: Payment, after: Payment, reason: str | None = None) -> None:
        self._recorded = True
        notes.note(self._writes, self._booking, before, after, reason=reason)


def _is_lapsed(seat: SeatSeen, writes: PendingWrites) -> bool:
    return availability(seat, now=writes.now) is SeatAvailability.LAPSED


def _known(payment: Payment, report: Report) -> Payment:
    """With the report's other facts. What an operator wrote when settling it is not overwritten."""
    if payment.state is PaymentState.SETTLED:
        return payment
    return msgspec.structs.replace(
        payment,
        gateway_id=report.gateway_id or payment.gateway_id,
        code=report.code or payment_rules.code_after(payment),
        message=report.message or payment.message,
        action=report.action,
    )
