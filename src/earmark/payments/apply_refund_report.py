"""Applies what a gateway reported of a refund to the refund and its payment.

    pending ──► done ──► refused      (made, and weeks later it came back: an account that is closed by now)
       └──────────────► refused

A refused refund leaves money without a booking, or a buyer without money: an operator has to look. So an operator has
where a person gave money back at the gateway's own page: the booking stays sold until the operator says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.domain import payment as payment_rules
from earmark.domain.payment import RefundState
from earmark.engine.pending_writes import PendingWrites
from earmark.engine.ports.gateway import RefundReport, ReportedRefundState
from earmark.payments import record_and_schedule_payment_step as notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.domain.booking import Booking
    from earmark.domain.id_types import RefundId
    from earmark.domain.payment import Payment, Refund
    from earmark.engine.ports.gateway import RefundRecord
    from earmark.engine.ports.store import Ids, PaymentSnapshot, Transaction

REFUNDED_ELSEWHERE = "a refund was made at the gateway, and not by Earmark"
FAILED_ELSEWHERE = "a refund that was made at the gateway, and not by Earmark, has failed since"


async def apply_refund_report(
    transaction: Transaction, *, report: RefundReport, refund_id: RefundId, about: PaymentSnapshot, ids: Ids
) -> Payment:
    """Apply a gateway's report of a refund to the refund and its payment."""
    start = await transaction.begin([])
    writes = PendingWrites(now=start.now, ids=ids)
    booking = (await transaction.lock_bookings({about.booking.id}))[about.booking.id]
    before = (await transaction.lock_payments({about.payment.id}))[about.payment.id]
    refunds = {one.id: one for one in await transaction.read_refunds(before.id)}
    refund, after = _apply(writes, booking, before, refunds.pop(refund_id), report)
    on_their_way = any(one.state is RefundState.PENDING for one in (refund, *refunds.values()))
    after = writes.set_payment(notes.scheduled(before, after, about=about, now=writes.now, open_question=on_their_way))
    await transaction.write(writes.changes())
    return after


async def apply_refunds_elsewhere(
    transaction: Transaction, *, found: Sequence[RefundRecord], about: PaymentSnapshot, ids: Ids
) -> Payment:
    """Compare the gateway's list of refunds with ours: what is on none of our rows was made without Earmark.

    A refund of ours is recorded before its gateway is called, so it is never taken for another's.
    """
    start = await transaction.begin([])
    writes = PendingWrites(now=start.now, ids=ids)
    booking = (await transaction.lock_bookings({about.booking.id}))[about.booking.id]
    before = (await transaction.lock_payments({about.payment.id}))[about.payment.id]
    refunds = {one.id: one for one in await transaction.read_refunds(before.id)}
    after = before
    if before.version == about.payment.version:
        # Else the list may be older than what is known: the payment is due at once, and the gateway is asked again.
        others = [one for one in found if one.refund_id not in refunds and one.state is not ReportedRefundState.REFUSED]
        after = payment_rules.refunded_elsewhere(before, sum(one.amount for one in others))
    more = after.refunded_elsewhere - before.refunded_elsewhere
    if more:
        why = REFUNDED_ELSEWHERE if more > 0 else FAILED_ELSEWHERE
        facts = {"more": more, "refunded_elsewhere": after.refunded_elsewhere}
        notes.note(writes, booking, before, after, reason=why, **facts)
    on_their_way = any(one.state is RefundState.PENDING for one in refunds.values())
    after = writes.set_payment(notes.scheduled(before, after, about=about, now=writes.now, open_question=on_their_way))
    await transaction.write(writes.changes())
    return after


def _apply(
    writes: PendingWrites, booking: Booking, before: Payment, refund: Refund, report: RefundReport
) -> tuple[Refund, Payment]:
    after = before
    known = msgspec.structs.replace(refund, gateway_id=report.gateway_id or refund.gateway_id, code=report.code)
    decided = msgspec.structs.replace(known, processed_at=writes.now)
    match refund.state, report.state:
        case RefundState.PENDING, ReportedRefundState.DONE:
            after = payment_rules.repaid(before, refund)
            refund = writes.set_refund(msgspec.structs.replace(decided, state=RefundState.DONE), before=refund)
            notes.note(writes, booking, before, after, reason=refund.reason, refunded=refund.amount)
        case RefundState.PENDING, ReportedRefundState.REFUSED:
            after = payment_rules.flagged(before, code=report.code or "refund_refused")
            refund = writes.set_refund(msgspec.structs.replace(decided, state=RefundState.REFUSED), before=refund)
            notes.note(writes, booking, before, after, reason="the gateway refused the refund", refused=refund.amount)
        case RefundState.PENDING, ReportedRefundState.PROCESSING if known != refund:
            refund = writes.set_refund(known, before=refund)
            notes.learn(writes, booking, before, after)
        case RefundState.DONE, ReportedRefundState.REFUSED:
            after = payment_rules.came_back(before, refund, code=report.code or "refund_failed")
            refund = writes.set_refund(msgspec.structs.replace(decided, state=RefundState.REFUSED), before=refund)
            why = "a refund that was made has failed since"
            notes.note(writes, booking, before, after, reason=why, refused=refund.amount)
    return refund, after
