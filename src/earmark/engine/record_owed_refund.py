"""Recording, in a verb's transaction, that money of a payment is owed back. The payment driver sends it afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from earmark.domain import journal_before_and_after_values
from earmark.domain import payment as payment_rules
from earmark.domain.payment import PaymentState, Refund, payment_id_of

if TYPE_CHECKING:
    from earmark.domain.booking import Booking
    from earmark.domain.id_types import RefundId
    from earmark.domain.payment import Payment
    from earmark.engine.pending_writes import PendingWrites
    from earmark.engine.ports.store import Transaction


async def payment_of(transaction: Transaction, booking: Booking) -> Payment | None:
    """The payment that a booking was sold for, locked; None when the money was taken elsewhere."""
    payment_id = payment_id_of(booking.payment_id) if booking.payment_id else None
    if payment_id is None:
        return None
    payment = (await transaction.lock_payments({payment_id})).get(payment_id)
    return payment if payment and payment.booking_id == booking.id else None


def owe(writes: PendingWrites, before: Payment, amount: int, *, refund_id: RefundId, reason: str | None) -> Payment:
    """So much of a payment is to go back: recorded here, and sent by the payment driver."""
    after = payment_rules.scheduled(
        payment_rules.owing(before, amount), now=writes.now, tried=False, open_question=True
    )
    writes.set_refund(
        Refund(
            id=refund_id,
            payment_id=before.id,
            booking_id=before.booking_id,
            amount=amount,
            created_at=writes.now,
            reason=reason,
        )
    )
    return writes.set_payment(msgspec.structs.replace(after, version=before.version + 1))


def give_up(writes: PendingWrites, before: Payment) -> Payment:
    """Money that was set aside and not taken yet is let go."""
    assert before.state is PaymentState.AUTHORISED, f"a {before.state} payment is not let go"
    after = payment_rules.scheduled(payment_rules.given_up(before), now=writes.now, tried=False)
    return writes.set_payment(msgspec.structs.replace(after, version=before.version + 1))


def owed_facts(payment: Payment, *, before: Payment, **facts: Any) -> dict[str, Any]:
    """A payment, as the journal records what is owed of it."""
    own = {"id": str(payment.id), "state": payment.state.value, "currency": payment.currency}
    return (
        own
        | {journal_before_and_after_values.CHANGED: journal_before_and_after_values.payment_pairs(before, payment)}
        | facts
    )
