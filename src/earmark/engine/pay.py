"""pay: a payment is opened for a hold, before anybody is asked for money.

The payment's id comes from the caller's idempotency key, so that the same request again, in another process or after a
crash, is the same payment. Nothing is remembered for the key here: what it shall be told is only known at the end
(`conclude`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.domain import booking as law
from earmark.domain.machine import State, Verb
from earmark.domain.payment import PAYING_SECONDS, Payment, payment_id_of, scheduled
from earmark.engine.asks import Paid
from earmark.engine.desk import find, lock, lock_counts, open_on_bookings
from earmark.errors import IdempotencyMismatch, Refusal

if TYPE_CHECKING:
    from earmark.domain.booking import Booking
    from earmark.engine.asks import Outcome, Pay
    from earmark.engine.desk import Desk
    from earmark.engine.ports import Ids, Transaction


async def pay(transaction: Transaction, ask: Pay, *, ids: Ids) -> Outcome:
    """Earlier answer? → lock → judge → record the payment, and the hold is pinned."""
    desk = await open_on_bookings(transaction, [ask], ids=ids)
    if not desk.waiting:
        return (await desk.close())[0]
    bookings = await lock(desk)
    try:
        booking = find(desk, ask, bookings, verb=Verb.PAY)
        paid = await _known(transaction, ask, booking) or _open(desk, ask, booking)
    except Refusal as refusal:
        desk.refuse(ask, refusal)
    else:
        desk.answer(ask, paid, wrote=bool(desk.ledger))
    await lock_counts(desk)
    return (await desk.close())[0]


async def conclude(transaction: Transaction, ask: Pay, *, ids: Ids) -> Outcome:
    """What the key of a payment that is decided shall be told, now and for good."""
    desk = await open_on_bookings(transaction, [ask], ids=ids)
    if not desk.waiting:
        return (await desk.close())[0]
    bookings = await lock(desk)
    payments = await transaction.lock_payments({ask.payment_id})
    paid = Paid(booking=bookings[ask.booking_id], payment=payments[ask.payment_id])
    desk.ledger.remember(Verb.PAY, paid.booking, ask=ask, told=paid)
    desk.answer(ask, paid, wrote=ask.memo is not None)
    return (await desk.close())[0]


async def _known(transaction: Transaction, ask: Pay, booking: Booking) -> Paid | None:
    """This very payment if it was opened before; else the one that is under way."""
    open_one = payment_id_of(booking.payment_id) if booking.payment_id and booking.state is State.PAYING else None
    found = await transaction.lock_payments({ask.payment_id} | ({open_one} if open_one else set()))
    payment = found.get(ask.payment_id) or (found.get(open_one) if open_one else None)
    if payment is not None and payment.booking_id != booking.id:
        # The key, which the id comes from, was used to pay for something else.
        raise IdempotencyMismatch
    return Paid(booking=booking, payment=payment) if payment else None


def _open(desk: Desk[Pay], ask: Pay, booking: Booking) -> Paid:
    if booking.total == 0:
        paid = Paid(booking=law.pay_nothing(booking, now=desk.now))
        desk.ledger.move(Verb.PAY, booking, paid.booking, ask=ask, told=paid)
        return paid
    if ask.unpayable is not None:
        raise ask.unpayable
    assert ask.gateway is not None, "what can be paid has a gateway"
    assert ask.method is not None, "what can be paid is charged to something"
    until = desk.now + timedelta(seconds=PAYING_SECONDS)
    pinned = law.begin_paying(booking, payment_id=str(ask.payment_id), method=ask.method, until=until, now=desk.now)
    payment = Payment(
        id=ask.payment_id,
        booking_id=booking.id,
        event_id=booking.event_id,
        live=booking.live,
        gateway=ask.gateway,
        method=ask.method,
        amount=booking.total,
        currency=booking.currency,
        automatic=ask.automatic,
        created_at=desk.now,
        return_url=ask.return_url,
    )
    desk.ledger.pay(scheduled(payment, now=desk.now, tried=False))
    quiet = msgspec.structs.replace(ask, memo=None)
    return Paid(booking=desk.ledger.move(Verb.PAY, booking, pinned, ask=quiet), payment=payment)
