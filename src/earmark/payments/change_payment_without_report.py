"""Changes a payment without a report: gives it up, marks it replaced, settles it by hand, or takes a callback of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.domain import booking as booking_rules
from earmark.domain import payment as payment_rules
from earmark.domain.booking_state_machine import State, Verb
from earmark.domain.payment import UNDECIDED, Payment, PaymentState, SettledAs
from earmark.engine.pending_writes import PendingWrites
from earmark.engine.ports.store import Changes
from earmark.payments import record_and_schedule_payment_step as notes

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.engine.ports.gateway import Callback
    from earmark.engine.ports.store import Ids, PaymentSnapshot, Transaction

OPERATOR = "operator"


async def give_up(transaction: Transaction, *, about: PaymentSnapshot, ids: Ids, hand_over: bool = False) -> Payment:
    """End the wait for this money: its booking is lost, or the gateway took too long to decide.

    Where the gateway takes the money by itself only its own report ends the wait: such a payment is flagged instead,
    and its booking stays pinned until an operator has looked.

    With `hand_over` the payment is due at once, for another driver to end it at its gateway.
    """
    start = await transaction.begin([])
    writes = PendingWrites(now=start.now, ids=ids)
    booking = (await transaction.lock_bookings({about.booking.id}))[about.booking.id]
    before = (await transaction.lock_payments({about.payment.id}))[about.payment.id]
    waits = booking_rules.wants(booking, before) and booking.state is State.PAYING
    over = waits and booking.paying_until is not None and writes.now >= booking.paying_until
    after = before
    if over and before.state in UNDECIDED:
        if before.automatic:
            after = payment_rules.flagged(before, code="undecided")
            notes.note(writes, booking, before, after, reason="the gateway did not decide")
        else:
            after = payment_rules.given_up(before)
            lost = booking_rules.expire_unpaid(booking, now=writes.now)
            writes.move_for_payment(
                Verb.EXPIRE,
                booking,
                lost,
                actor=notes.actor(before),
                reason="not paid in time",
                money=notes.step_facts(before, after),
            )
    elif not booking_rules.wants(booking, before) and before.state in UNDECIDED | {PaymentState.AUTHORISED}:
        after = payment_rules.given_up(before)
        notes.note(writes, booking, before, after, reason="its booking is lost")
    after = notes.scheduled(before, after, about=about, now=writes.now)
    after = writes.set_payment(msgspec.structs.replace(after, due_at=writes.now) if hand_over else after)
    await transaction.lock_totals({ref for ref, units in writes.totals.items() if units})
    await transaction.lock_pools(writes.pools.keys())
    await transaction.write(writes.changes())
    return after


async def mark_replaced(transaction: Transaction, *, about: PaymentSnapshot, ids: Ids) -> Payment:
    """Mark a payment whose buyer left its action undone and named another method: it will be ended at its gateway."""
    start = await transaction.begin([])
    writes = PendingWrites(now=start.now, ids=ids)
    booking = (await transaction.lock_bookings({about.booking.id}))[about.booking.id]
    before = (await transaction.lock_payments({about.payment.id}))[about.payment.id]
    if before.state is not PaymentState.REQUIRES_ACTION or before.code == payment_rules.REPLACED:
        return before
    marked = msgspec.structs.replace(before, code=payment_rules.REPLACED)
    notes.note(writes, booking, before, marked, reason="the buyer has named another method")
    after = writes.set_payment(notes.scheduled(before, marked, about=about, now=writes.now, open_question=True))
    await transaction.write(writes.changes())
    return after


async def resolve_by_hand(
    transaction: Transaction, *, how: SettledAs, note: str, about: PaymentSnapshot, ids: Ids
) -> Payment:
    """An operator has dealt with a flagged payment elsewhere. A booking that still waits for it is sold, or lost."""
    start = await transaction.begin([])
    writes = PendingWrites(now=start.now, ids=ids)
    booking = (await transaction.lock_bookings({about.booking.id}))[about.booking.id]
    before = (await transaction.lock_payments({about.payment.id}))[about.payment.id]
    after = payment_rules.settled(before, await transaction.read_refunds(before.id), how=how, note=note)
    told = notes.step_facts(before, after, typed=True) | {"settled_as": how.value}
    waits = booking_rules.wants(booking, before) and (booking.state is State.PAYING or how is SettledAs.NOTHING)
    if not waits:
        writes.note(booking, booking_rules.noted(booking), actor=OPERATOR, reason=note, money=told)
    elif how is SettledAs.KEPT:
        sold = booking_rules.confirm_paid(booking, payment_id=str(after.id), method=after.shown_method, now=writes.now)
        writes.move_for_payment(Verb.CONFIRM, booking, sold, actor=OPERATOR, reason=note, money=told)
    elif booking.state is State.CONFIRMED:
        undone = booking_rules.cancel(booking, now=writes.now)
        writes.move_for_payment(Verb.CANCEL, booking, undone, actor=OPERATOR, reason=note, money=told)
    else:
        lost = booking_rules.expire_unpaid(booking, now=writes.now)
        writes.move_for_payment(Verb.EXPIRE, booking, lost, actor=OPERATOR, reason=note, money=told)
    after = writes.set_payment(notes.scheduled(before, after, about=about, now=writes.now))
    await transaction.lock_totals({ref for ref, units in writes.totals.items() if units})
    await transaction.lock_pools(writes.pools.keys())
    await transaction.write(writes.changes())
    return after


async def take_callback(
    transaction: Transaction, *, gateway: str, callback: Callback, about: PaymentSnapshot, ids: Ids
) -> bool:
    """Record the callback and make its payment due, in one transaction.

    A process that crashes afterwards loses nothing.
    """
    start = await transaction.begin([])
    if not await transaction.take_callback(gateway, callback.id, payment_id=about.payment.id):
        return False
    booking = (await transaction.lock_bookings({about.booking.id}))[about.booking.id]
    payment = (await transaction.lock_payments({about.payment.id}))[about.payment.id]
    if callback.disputed:
        writes = PendingWrites(now=start.now, ids=ids)
        notes.dispute(writes, booking, payment, kind=callback.kind)
        await transaction.write(writes.changes())
    else:
        await transaction.write(due_now(payment, now=start.now))
    return True


def due_now(payment: Payment, *, now: datetime) -> Changes:
    """Make this payment due at once, in whatever state it is."""
    return Changes(payments=[msgspec.structs.replace(payment, due_at=now, version=payment.version + 1)])
