"""cancel: a sale undone, whole or in part. The seats return in the transaction that records what goes back.

Money taken elsewhere goes back elsewhere. Money that was set aside and not taken yet is let go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.domain import booking as law
from earmark.domain.machine import State, Verb
from earmark.domain.payment import PaymentState, payment_id_of
from earmark.engine.asks import Full
from earmark.engine.desk import find, lock, lock_counts, open_on_bookings
from earmark.engine.refund import give_up, owe, told
from earmark.errors import PaymentInProgress, RefundRefused, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from earmark.domain.booking import Booking
    from earmark.domain.ids import PaymentId
    from earmark.domain.payment import Payment
    from earmark.engine.asks import Cancel, Outcome
    from earmark.engine.desk import Desk
    from earmark.engine.ports import Ids, Transaction


async def cancel(transaction: Transaction, batch: Sequence[Cancel], *, ids: Ids) -> list[Outcome]:
    """Earlier answer? → lock → judge → write what returns and what is owed."""
    desk = await open_on_bookings(transaction, batch, ids=ids)
    bookings = await lock(desk)
    payments = await transaction.lock_payments(_paid_for(bookings.values()))
    for ask in desk.waiting:
        try:
            before = find(desk, ask, bookings, verb=Verb.CANCEL)
            after = _judge(ask, before, desk.now)
            money = _give_back(desk, ask, before, after, payments=payments, ids=ids)
        except Refusal as refusal:
            desk.refuse(ask, refusal)
            continue
        moved = after is not before
        if moved:
            desk.ledger.move(Verb.CANCEL, before, after, ask=ask, reason=ask.reason, money=money)
        else:
            desk.ledger.remember(Verb.CANCEL, after, ask=ask)
        desk.answer(ask, after, wrote=moved or ask.memo is not None)
    await lock_counts(desk)
    return await desk.close()


def _judge(ask: Cancel, booking: Booking, now: datetime) -> Booking:
    if ask.seats or ask.pools:
        kept, _ = law.cancel_lines(booking, seats=ask.seats, pools=ask.pools, now=now)
        return kept
    return law.cancel(booking, now=now)


def _paid_for(bookings: Iterable[Booking]) -> set[PaymentId]:
    named = {payment_id_of(booking.payment_id) for booking in bookings if booking.payment_id}
    return {payment_id for payment_id in named if payment_id}


def _give_back(
    desk: Desk[Cancel], ask: Cancel, before: Booking, after: Booking, *, payments: dict[PaymentId, Payment], ids: Ids
) -> dict[str, Any] | None:
    """Record what goes back of the money that was taken here; what of that the journal tells."""
    price = before.total - (after.total if after.state is State.CONFIRMED else 0)
    payment_id = payment_id_of(before.payment_id) if before.payment_id else None
    payment = payments.get(payment_id) if payment_id else None
    if payment is not None and payment.booking_id != before.id:
        # A shop that confirms with one of our ids as its own reference has not been paid by it.
        payment = None
    if after is before:
        return None
    if payment is None:
        if ask.refund:
            raise RefundRefused(available=0, asked=price if isinstance(ask.refund, Full) else ask.refund)
        return None
    if payment.state is PaymentState.AUTHORISED:
        if price != before.total or (isinstance(ask.refund, int) and ask.refund != price):
            # What is set aside is taken whole. A moment later it is, and a part of it can go back.
            raise PaymentInProgress
        payments[payment.id] = give_up(desk.ledger, payment)
        return told(payments[payment.id])
    if not payment.captured:
        return told(payment)
    amount = ask.refund if isinstance(ask.refund, int) else min(price, payment.left)
    if amount == 0:
        return told(payment)
    payments[payment.id] = owe(
        desk.ledger, payment, amount, refund_id=ids.refund_id(), reason=ask.reason or "cancelled"
    )
    return told(payments[payment.id], owed=amount)
