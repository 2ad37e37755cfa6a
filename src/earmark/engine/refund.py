"""refund: money back for a sale, all of it or in parts, and never more than was taken.

The refund is recorded as owed; the gateway is asked for it afterwards, by whoever drives the payment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from earmark.domain import booking as booking_law
from earmark.domain import changes
from earmark.domain import payment as law
from earmark.domain.machine import Verb, may, refusal
from earmark.domain.payment import PaymentState, Refund, payment_id_of
from earmark.engine.asks import Paid
from earmark.engine.desk import find, lock, open_on_bookings
from earmark.errors import RefundRefused, Refusal

if TYPE_CHECKING:
    from earmark.domain.booking import Booking
    from earmark.domain.ids import RefundId
    from earmark.domain.payment import Payment
    from earmark.engine.asks import GiveBack, Outcome
    from earmark.engine.ledger import Ledger
    from earmark.engine.ports import Ids, Transaction


async def refund(transaction: Transaction, ask: GiveBack, *, ids: Ids) -> Outcome:
    """Earlier answer? → lock → judge → record what is owed."""
    desk = await open_on_bookings(transaction, [ask], ids=ids)
    if not desk.waiting:
        return (await desk.close())[0]
    bookings = await lock(desk)
    try:
        booking = find(desk, ask, bookings, verb=Verb.REFUND)
        if not may(booking.state, Verb.REFUND):
            raise refusal(booking.state, Verb.REFUND)
        before = await payment_of(transaction, booking)
        if before is None or not before.captured:
            raise RefundRefused(available=0, asked=ask.amount)
        after = owe(desk.ledger, before, ask.amount, refund_id=ask.refund_id, reason=ask.reason)
    except Refusal as refused:
        desk.refuse(ask, refused)
        return (await desk.close())[0]
    paid = Paid(booking=booking_law.noted(booking), payment=after)
    money = told(after, before=before, owed=ask.amount)
    desk.ledger.move(Verb.REFUND, booking, paid.booking, ask=ask, reason=ask.reason, told=paid, money=money)
    desk.answer(ask, paid)
    return (await desk.close())[0]


async def payment_of(transaction: Transaction, booking: Booking) -> Payment | None:
    """The payment that a booking was sold for, locked; None when the money was taken elsewhere."""
    payment_id = payment_id_of(booking.payment_id) if booking.payment_id else None
    if payment_id is None:
        return None
    payment = (await transaction.lock_payments({payment_id})).get(payment_id)
    return payment if payment and payment.booking_id == booking.id else None


def owe(ledger: Ledger, before: Payment, amount: int, *, refund_id: RefundId, reason: str | None) -> Payment:
    """So much of a payment is to go back: recorded here, and made by whoever drives the payment."""
    after = law.scheduled(law.owing(before, amount), now=ledger.now, tried=False, open_question=True)
    ledger.refund(
        Refund(
            id=refund_id,
            payment_id=before.id,
            booking_id=before.booking_id,
            amount=amount,
            created_at=ledger.now,
            reason=reason,
        )
    )
    return ledger.pay(msgspec.structs.replace(after, version=before.version + 1))


def give_up(ledger: Ledger, before: Payment) -> Payment:
    """Money that was set aside and not taken yet is let go."""
    assert before.state is PaymentState.AUTHORISED, f"a {before.state} payment is not let go"
    after = law.scheduled(law.given_up(before), now=ledger.now, tried=False)
    return ledger.pay(msgspec.structs.replace(after, version=before.version + 1))


def told(payment: Payment, *, before: Payment, **facts: Any) -> dict[str, Any]:
    """A payment, as the journal tells of what is owed of it."""
    own = {"id": str(payment.id), "state": payment.state.value, "currency": payment.currency}
    return own | {changes.CHANGED: changes.payment_pairs(before, payment)} | facts
