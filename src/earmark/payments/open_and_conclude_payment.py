"""Opens a payment for a hold in one transaction, before any gateway is called, and records its response in another.

The payment's id comes from the caller's idempotency key and the booking, so that the same request again, in another
process or after a crash, is the same payment. With the payment it is recorded which request opened it: from then on
another request with the same key is refused. The response is only known at the end, when
`conclude_in_transaction` records it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.domain import booking as booking_rules
from earmark.domain import decline_limits
from earmark.domain.booking_state_machine import State, Verb
from earmark.domain.mask_and_reference_payment_method import show
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
from earmark.engine.batch_transaction import find, lock, lock_counts, open_on_bookings
from earmark.engine.commands_and_results import PayResult
from earmark.errors import IdempotencyMismatch, Refusal, TotalChanged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from earmark.domain.booking import Booking
    from earmark.domain.decline_limits import Payer
    from earmark.domain.default_limits_for_all_events import Policy
    from earmark.domain.id_types import PaymentId
    from earmark.domain.payment import PaymentKey
    from earmark.engine.batch_transaction import BatchDecisions
    from earmark.engine.commands_and_results import KeyedRequest, Outcome, Pay, Result
    from earmark.engine.engine import Engine
    from earmark.engine.ports.store import Ids, Transaction


async def open_payment(engine: Engine, command: Pay) -> Result:
    """Run `open_in_transaction` in a transaction of its own. The payment driver calls the gateway afterwards."""
    return await engine.run_alone(
        "pay",
        command,
        lambda transaction: open_in_transaction(transaction, command=command, ids=engine.ids, policy=engine.policy),
    )


async def conclude_payment(engine: Engine, command: Pay) -> Result:
    """Run `conclude_in_transaction` in a transaction of its own."""
    return await engine.run_alone(
        "conclude", command, lambda transaction: conclude_in_transaction(transaction, command, ids=engine.ids)
    )


async def open_in_transaction(transaction: Transaction, command: Pay, *, ids: Ids, policy: Policy) -> Outcome:
    """Earlier answer? → lock → judge → record the payment, and the hold is pinned."""
    decisions = await open_on_bookings(transaction, [command], ids=ids)
    if not decisions.waiting:
        return (await decisions.close())[0]
    bookings = await lock(decisions)
    try:
        booking = find(decisions, command, bookings, verb=Verb.PAY)
        known = await _known(decisions, command, booking, policy=policy)
        if isinstance(known, PayResult):
            decisions.complete(command, known, wrote=bool(decisions.writes))
        elif command.amount is not None and command.amount != booking.total:
            raise TotalChanged(total=booking.total, asked=command.amount)
        elif booking.total == 0:
            _pay_nothing(decisions, command, booking)
        else:
            paid = await _open(decisions, command, booking, payment_id=known, policy=policy)
            decisions.complete(command, paid, wrote=bool(decisions.writes))
    except Refusal as refusal:
        decisions.refuse(command, refusal)
    await lock_counts(decisions)
    return (await decisions.close())[0]


async def conclude_in_transaction(transaction: Transaction, command: Pay, *, ids: Ids) -> Outcome:
    """Record the response of a decided payment under its key, for good."""
    decisions = await open_on_bookings(transaction, [command], ids=ids)
    if not decisions.waiting:
        return (await decisions.close())[0]
    bookings = await lock(decisions)
    payments = await transaction.lock_payments({command.payment_id})
    paid = PayResult(booking=bookings[command.booking_id], payment=payments[command.payment_id])
    record = decisions.record_response(command, paid)
    decisions.writes.record_repeat(Verb.PAY, paid.booking, command=command, record=record)
    decisions.complete(command, paid, record=record, wrote=record is not None)
    return (await decisions.close())[0]


def is_concluded(booking: Booking, payment: Payment) -> bool:
    """Whether a payment has come to an end that its key records: sold, or declined."""
    return booking.state is State.CONFIRMED or (payment.state is PaymentState.FAILED and not is_unserved(payment))


async def _known(
    decisions: BatchDecisions[Pay], command: Pay, booking: Booking, *, policy: Policy
) -> PayResult | PaymentId:
    """This very payment if it was opened before; else the one that is under way; else the id of the one to open."""
    own = command.payment_id
    if command.idempotency and (opened := await decisions.transaction.read_payment_key(command.idempotency.key)):
        _refuse_another(
            opened, command, command.idempotency, over=opened.is_over(now=decisions.now, seconds=policy.key_seconds)
        )
        own = opened.payment_id if command.idempotency.is_of(opened.request_hash) else own
    open_one = payment_id_of(booking.payment_id) if booking.payment_id and booking.state is State.PAYING else None
    found = await decisions.transaction.lock_payments({one for one in (own, open_one) if one})
    if own in found and found[own].booking_id != booking.id:
        raise IdempotencyMismatch
    payment = found.get(own)
    while payment is not None and was_denied(payment):
        own = next_payment_id(payment.id)
        payment = (await decisions.transaction.lock_payments({own})).get(own)
    if payment is not None:
        return PayResult(booking=booking, payment=payment)
    if open_one in found:
        return await _joined(decisions, command, booking, found[open_one], payment_id=own, policy=policy)
    return own


async def _joined(
    decisions: BatchDecisions[Pay],
    command: Pay,
    booking: Booking,
    open_one: Payment,
    *,
    payment_id: PaymentId,
    policy: Policy,
) -> PayResult:
    """The payment that is under way; it gives way to one by another method if its buyer left its action undone.

    Not when the hold's own time is over: without an open payment the seats would be lost. And not for a payment that
    would be refused: then the buyer can still act.
    """
    way = command.unpayable is None and gives_way(open_one, method=command.method, gateway=command.gateway)
    if way := way and decisions.now < booking.expires_at:
        ended = {open_one.id: ended_for_another(open_one)}
        await _tries(decisions, command, booking, payment_id=payment_id, policy=policy, as_if=ended)
    return PayResult(booking=booking, payment=open_one, joined=True, gives_way=way)


def _refuse_another(opened: PaymentKey, command: Pay, idempotency: KeyedRequest, *, over: bool) -> None:
    """One key, one request, from the first transaction on; when its time is over, it may pay for another booking."""
    same_booking = opened.payment_id == command.payment_id
    if not idempotency.is_of(opened.request_hash) and (same_booking or not over):
        raise IdempotencyMismatch


async def _tries(
    decisions: BatchDecisions[Pay],
    command: Pay,
    booking: Booking,
    *,
    payment_id: PaymentId,
    policy: Policy,
    as_if: Mapping[PaymentId, Payment] | None = None,
) -> list[Payer]:
    """Whose tries are counted, each with this payment as one more. Refuses what is too many."""
    refs = decline_limits.payers_of(policy, booking, address=command.address)
    payers = [await decisions.transaction.lock_payer(ref) for ref in refs]
    if not payers and policy.declines_per_hold_max is None:
        return []
    tried = {known for payer in payers for known in payer.tries}
    payments = await decisions.transaction.read_tries(booking.id, tried)
    payments |= as_if or {}
    decline_limits.check_hold(policy, booking, payments, now=decisions.now)
    return [
        decline_limits.with_try(policy, payer, payments, payment_id=payment_id, now=decisions.now) for payer in payers
    ]


def _pay_nothing(decisions: BatchDecisions[Pay], command: Pay, booking: Booking) -> None:
    """A free booking is confirmed at once, and no gateway is asked."""
    paid = PayResult(booking=booking_rules.pay_nothing(booking, now=decisions.now))
    record = decisions.record_response(command, paid)
    decisions.writes.move(Verb.PAY, booking, paid.booking, command=command, record=record)
    decisions.complete(command, paid, record=record)


async def _open(
    decisions: BatchDecisions[Pay], command: Pay, booking: Booking, *, payment_id: PaymentId, policy: Policy
) -> PayResult:
    if command.unpayable is not None:
        raise command.unpayable
    assert command.gateway is not None, "what can be paid has a gateway"
    assert command.method is not None, "what can be paid is charged to something"
    until = decisions.now + timedelta(seconds=PAYING_SECONDS)
    shown = show(command.gateway, command.method)
    pinned = booking_rules.begin_paying(
        booking, payment_id=str(payment_id), method=shown, until=until, now=decisions.now
    )
    # Counted before its gateway is asked: those that are opened at once wait for each other here.
    for payer in await _tries(decisions, command, booking, payment_id=payment_id, policy=policy):
        decisions.writes.count_try(payer)
    payment = Payment(
        id=payment_id,
        booking_id=booking.id,
        event_id=booking.event_id,
        mode=booking.mode,
        gateway=command.gateway,
        method=command.method,
        amount=booking.total,
        currency=booking.currency,
        automatic=command.automatic,
        created_at=decisions.now,
        return_url=command.return_url,
    )
    decisions.writes.set_payment(scheduled(payment, now=decisions.now, tried=False))
    if command.idempotency is not None:
        decisions.writes.open_by_key(payment, command.idempotency)
    quiet = msgspec.structs.replace(command, idempotency=None)
    return PayResult(
        booking=decisions.writes.move(Verb.PAY, booking, pinned, command=quiet, opened=payment), payment=payment
    )
