"""refund: money back for a sale, all of it or in parts, and never more than was taken.

The refund is recorded as owed; the payment driver requests it at the gateway afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain import booking as booking_rules
from earmark.domain.booking_state_machine import Verb, may, refusal
from earmark.engine.batch_transaction import find, lock, open_on_bookings
from earmark.engine.commands_and_results import PayResult
from earmark.engine.record_owed_refund import owe, owed_facts, payment_of
from earmark.errors import RefundRefused, Refusal

if TYPE_CHECKING:
    from earmark.engine.commands_and_results import Outcome, RefundPayment, Result
    from earmark.engine.engine import Engine
    from earmark.engine.ports.store import Ids, Transaction


async def record_refund(engine: Engine, command: RefundPayment) -> Result:
    """Run `refund` in a transaction of its own."""
    return await engine.run_alone("refund", command, lambda transaction: refund(transaction, command, ids=engine.ids))


async def refund(transaction: Transaction, command: RefundPayment, *, ids: Ids) -> Outcome:
    """Recorded response? → lock → decide → record what is owed."""
    decisions = await open_on_bookings(transaction, [command], ids=ids)
    if not decisions.waiting:
        return (await decisions.close())[0]
    bookings = await lock(decisions)
    try:
        booking = find(decisions, command, bookings, verb=Verb.REFUND)
        if not may(booking.state, Verb.REFUND):
            raise refusal(booking.state, Verb.REFUND)
        before = await payment_of(transaction, booking)
        if before is None or not before.captured:
            raise RefundRefused(available=0, asked=command.amount)
        after = owe(decisions.writes, before, command.amount, refund_id=command.refund_id, reason=command.reason)
    except Refusal as refused:
        decisions.refuse(command, refused)
        return (await decisions.close())[0]
    paid = PayResult(booking=booking_rules.noted(booking), payment=after)
    money = owed_facts(after, before=before, owed=command.amount)
    record = decisions.record_response(command, paid)
    decisions.writes.move(
        Verb.REFUND, booking, paid.booking, command=command, record=record, reason=command.reason, money=money
    )
    decisions.complete(command, paid, record=record)
    return (await decisions.close())[0]
