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
from earmark.domain import decline_limits
from earmark.domain.payment import (
    PAYING_SECONDS,
    Payment,
    PaymentState,
    ended_for_another,
    gives_way,
    is_unserved,
    next_payment_id,
    payment_id_of,
    scheduled,
    was_denied,
)
from earmark.domain.payment_method import show
from earmark.domain.state_machine import State, Verb
from earmark.engine.batch_transaction import find, lock, lock_counts, open_on_bookings
from earmark.engine.commands import Paid
from earmark.errors import IdempotencyMismatch, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from earmark.domain.booking import Booking
    from earmark.domain.decline_limits import Payer
    from earmark.domain.ids import PaymentId
    from earmark.domain.payment import PaymentKey
    from earmark.domain.policy import Policy
    from earmark.engine.batch_transaction import Desk
    from earmark.engine.commands import Answer, Memo, Outcome, Pay
    from earmark.engine.engine import Engine
    from earmark.engine.ports.store import Ids, Transaction


async def open_payment(engine: Engine, ask: Pay) -> Answer:
    """Run `pay` in a transaction of its own. The payment driver asks the gateway for the money afterwards."""
    return await engine.run_alone(
        "pay", ask, lambda transaction: pay(transaction, ask=ask, ids=engine.ids, policy=engine.policy)
    )


async def conclude_payment(engine: Engine, ask: Pay) -> Answer:
    """Run `conclude` in a transaction of its own."""
    return await engine.run_alone("conclude", ask, lambda transaction: conclude(transaction, ask, ids=engine.ids))


async def pay(transaction: Transaction, ask: Pay, *, ids: Ids, policy: Policy) -> Outcome:
    """Earlier answer? → lock → judge → record the payment, and the hold is pinned."""
    desk = await open_on_bookings(transaction, [ask], ids=ids)
    if not desk.waiting:
        return (await desk.close())[0]
    bookings = await lock(desk)
    try:
        booking = find(desk, ask, bookings, verb=Verb.PAY)
        known = await _known(desk, ask, booking, policy=policy)
        paid = known if isinstance(known, Paid) else await _open(desk, ask, booking, payment_id=known, policy=policy)
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
    return booking.state is State.CONFIRMED or (payment.state is PaymentState.FAILED and not is_unserved(payment))


async def _known(desk: Desk[Pay], ask: Pay, booking: Booking, *, policy: Policy) -> Paid | PaymentId:
    """This very payment if it was opened before; else the one that is under way; else the id of the one to open."""
    own = ask.payment_id
    if ask.memo and (opened := await desk.transaction.read_payment_key(ask.memo.key)):
        _refuse_another(opened, ask, ask.memo, over=opened.is_over(now=desk.now, seconds=policy.key_seconds))
        own = opened.payment_id if ask.memo.is_of(opened.request_hash) else own
    open_one = payment_id_of(booking.payment_id) if booking.payment_id and booking.state is State.PAYING else None
    found = await desk.transaction.lock_payments({one for one in (own, ask.first_payment_id, open_one) if one})
    if own in found and found[own].booking_id != booking.id:
        raise IdempotencyMismatch
    payment = found.get(own) or _opened_first(desk, ask, booking, found, policy=policy)
    while payment is not None and was_denied(payment):
        own = next_payment_id(payment.id)
        payment = (await desk.transaction.lock_payments({own})).get(own)
    if payment is not None:
        return Paid(booking=booking, payment=payment)
    if open_one in found:
        return await _joined(desk, ask, booking, found[open_one], payment_id=own, policy=policy)
    return own


async def _joined(
    desk: Desk[Pay], ask: Pay, booking: Booking, open_one: Payment, *, payment_id: PaymentId, policy: Policy
) -> Paid:
    """The payment that is under way; it gives way to one by another method if its buyer left its action undone.

    Not when the hold's own time is over: without an open payment the seats would be lost. And not for a payment that
    would be refused: then the buyer can still act.
    """
    way = ask.unpayable is None and gives_way(open_one, method=ask.method, gateway=ask.gateway)
    if way := way and desk.now < booking.expires_at:
        ended = {open_one.id: ended_for_another(open_one)}
        await _tries(desk, ask, booking, payment_id=payment_id, policy=policy, as_if=ended)
    return Paid(booking=booking, payment=open_one, joined=True, gives_way=way)


def _opened_first(
    desk: Desk[Pay], ask: Pay, booking: Booking, found: Mapping[PaymentId, Payment], *, policy: Policy
) -> Payment | None:
    """The payment that an older release opened with this key, if it is for this booking."""
    first = found.get(ask.first_payment_id) if ask.first_payment_id else None
    if first is None or first.booking_id == booking.id:
        return first
    if desk.now - first.created_at < timedelta(seconds=policy.key_seconds):
        raise IdempotencyMismatch
    return None


def _refuse_another(opened: PaymentKey, ask: Pay, memo: Memo, *, over: bool) -> None:
    """One key, one request, from the first transaction on; when its time is over, it may pay for another booking."""
    same_booking = opened.payment_id == ask.payment_id
    if not memo.is_of(opened.request_hash) and (same_booking or not over):
        raise IdempotencyMismatch


async def _tries(
    desk: Desk[Pay],
    ask: Pay,
    booking: Booking,
    *,
    payment_id: PaymentId,
    policy: Policy,
    as_if: Mapping[PaymentId, Payment] | None = None,
) -> list[Payer]:
    """Whose tries are counted, each with this payment as one more. Refuses what is too many."""
    refs = decline_limits.payers_of(policy, booking, address=ask.address)
    payers = [await desk.transaction.lock_payer(ref) for ref in refs]
    if not payers and policy.declines_per_hold_max is None:
        return []
    tried = {known for payer in payers for known in payer.tries}
    payments = await desk.transaction.read_tries(booking.id, tried)
    payments |= as_if or {}
    decline_limits.check_hold(policy, booking, payments, now=desk.now)
    return [decline_limits.with_try(policy, payer, payments, payment_id=payment_id, now=desk.now) for payer in payers]


async def _open(desk: Desk[Pay], ask: Pay, booking: Booking, *, payment_id: PaymentId, policy: Policy) -> Paid:
    if booking.total == 0:
        paid = Paid(booking=law.pay_nothing(booking, now=desk.now))
        desk.ledger.move(Verb.PAY, booking, paid.booking, ask=ask, told=paid)
        return paid
    if ask.unpayable is not None:
        raise ask.unpayable
    assert ask.gateway is not None, "what can be paid has a gateway"
    assert ask.method is not None, "what can be paid is charged to something"
    until = desk.now + timedelta(seconds=PAYING_SECONDS)
    shown = show(ask.gateway, ask.method)
    pinned = law.begin_paying(booking, payment_id=str(payment_id), method=shown, until=until, now=desk.now)
    # Counted before its gateway is asked: those that are opened at once wait for each other here.
    for payer in await _tries(desk, ask, booking, payment_id=payment_id, policy=policy):
        desk.ledger.count_try(payer)
    payment = Payment(
        id=payment_id,
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
    return Paid(booking=desk.ledger.move(Verb.PAY, booking, pinned, ask=quiet, opened=payment), payment=payment)
