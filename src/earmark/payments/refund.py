"""refund: money back for a sale, all of it or in parts, and never more than was taken.

The refund is recorded as owed; the payment driver asks the gateway for it afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain import booking as booking_law
from earmark.domain.state_machine import Verb, may, refusal
from earmark.engine.batch_transaction import find, lock, open_on_bookings
from earmark.engine.commands import Paid
from earmark.engine.owed_refunds import owe, payment_of, told
from earmark.errors import RefundRefused, Refusal

if TYPE_CHECKING:
    from earmark.engine.commands import Answer, GiveBack, Outcome
    from earmark.engine.engine import Engine
    from earmark.engine.ports.store import Ids, Transaction


async def record_refund(engine: Engine, ask: GiveBack) -> Answer:
    """Run `refund` in a transaction of its own."""
    return await engine.run_alone("refund", ask, lambda transaction: refund(transaction, ask, ids=engine.ids))


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
