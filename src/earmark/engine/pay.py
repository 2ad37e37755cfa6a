"""pay: a payment is opened for a hold, before anybody is asked for money.

The payment's id comes from the caller's idempotency key and the booking, so that the same request again, in another
process or after a crash, is the same payment. With the payment it is recorded which request opened it: from then on
another request with the same key is refused. The answer is not recorded here, for it is only known at the end
(`conclude`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.domain import booking as law
from earmark.domain.machine import State, Verb
from earmark.domain.payment import PAYING_SECONDS, Payment, PaymentState, payment_id_of, scheduled
from earmark.engine.asks import Paid
from earmark.engine.desk import find, lock, lock_counts, open_on_bookings
from earmark.errors import IdempotencyMismatch, Refusal

if TYPE_CHECKING:
    from earmark.domain.booking import Booking
    from earmark.domain.payment import PaymentKey
    from earmark.domain.policy import Policy
    from earmark.engine.asks import Memo, Outcome, Pay
    from earmark.engine.desk import Desk
    from earmark.engine.ports import Ids, Transaction


async def pay(transaction: Transaction, ask: Pay, *, ids: Ids, policy: Policy) -> Outcome:
    """Earlier answer? → lock → judge → record the payment, and the hold is pinned."""
    desk = await open_on_bookings(transaction, [ask], ids=ids)
    if not desk.waiting:
        return (await desk.close())[0]
    bookings = await lock(desk)
    try:
        booking = find(desk, ask, bookings, verb=Verb.PAY)
        paid = await _known(desk, ask, booking, policy=policy) or _open(desk, ask, booking)
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


def has_answer(booking: Booking, payment: Payment) -> bool:
    """Whether a payment has come to an end that its key remembers: sold, or declined."""
    return booking.state is State.CONFIRMED or payment.state is PaymentState.FAILED


async def _known(desk: Desk[Pay], ask: Pay, booking: Booking, *, policy: Policy) -> Paid | None:
    """This very payment if it was opened before; else the one that is under way."""
    if ask.memo and (opened := await desk.transaction.read_payment_key(ask.memo.key)):
        _refuse_another(opened, ask, ask.memo, over=opened.is_over(now=desk.now, seconds=policy.key_seconds))
    open_one = payment_id_of(booking.payment_id) if booking.payment_id and booking.state is State.PAYING else None
    ids = [one for one in (ask.payment_id, ask.first_payment_id, open_one) if one]
    found = await desk.transaction.lock_payments(set(ids))
    first = found.get(ask.first_payment_id) if ask.first_payment_id else None
    if first is not None and first.booking_id != booking.id:
        # An older release opened it with this key, for something else.
        if desk.now - first.created_at < timedelta(seconds=policy.key_seconds):
            raise IdempotencyMismatch
        del found[first.id]
    payment = next((found[one] for one in ids if one in found), None)
    return Paid(booking=booking, payment=payment) if payment else None


def _refuse_another(opened: PaymentKey, ask: Pay, memo: Memo, *, over: bool) -> None:
    """One key, one request, from the first transaction on; when its time is over, it may pay for another booking."""
    same_payment = opened.payment_id == ask.payment_id
    if opened.request_hash != memo.request_hash and (same_payment or not over):
        raise IdempotencyMismatch


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
    if ask.memo is not None:
        desk.ledger.open_by_key(payment, ask.memo)
    quiet = msgspec.structs.replace(ask, memo=None)
    return Paid(booking=desk.ledger.move(Verb.PAY, booking, pinned, ask=quiet), payment=payment)
