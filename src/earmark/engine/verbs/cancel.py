"""cancel: a sale undone, whole or in part. The seats are freed in the transaction that records what is refunded.

How much is refunded is what the shop's request says, else what the event's rules say. A buyer cancels only while the
event's rules say so, judged by the same moment as the rest, and names no amount. Money taken elsewhere is refunded
elsewhere. Money that is authorised but not captured is voided if all of it would be refunded; else the cancel is
refused until it is captured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from earmark.domain import booking as booking_rules
from earmark.domain import buyer_cancel_rules
from earmark.domain.booking_state_machine import State, Verb
from earmark.domain.payment import PaymentState, payment_id_of
from earmark.domain.refund_rules import Ruling, as_asked, by_the_rules
from earmark.engine.batch_transaction import find, lock, lock_counts, open_on_bookings
from earmark.engine.commands_and_results import CancelResult, Full
from earmark.engine.record_owed_refund import give_up, owe, owed_facts
from earmark.errors import InvalidRequest, PaymentInProgress, RefundRefused, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking
    from earmark.domain.id_types import PaymentId
    from earmark.domain.payment import Payment
    from earmark.engine.batch_transaction import BatchDecisions
    from earmark.engine.commands_and_results import Cancel, Outcome
    from earmark.engine.limits_and_ids_for_verbs import VerbContext
    from earmark.engine.ports.store import Ids, Transaction


async def cancel(transaction: Transaction, batch: Sequence[Cancel], context: VerbContext) -> list[Outcome]:
    """Recorded response? → lock → decide → write what returns and what is owed."""
    decisions = await open_on_bookings(transaction, batch, ids=context.ids)
    bookings = await lock(decisions)
    payments = await transaction.lock_payments(_paid_for(bookings.values()))
    by_rules = bool(payments) or any(command.actor.buyer is not None for command in decisions.waiting)
    events = await transaction.read_events({booking.event_id for booking in bookings.values()}) if by_rules else {}
    by_buyers = {command.booking_id for command in decisions.waiting if command.actor.buyer is not None}
    checked_in = await transaction.read_checked_in(by_buyers & bookings.keys())
    for command in decisions.waiting:
        try:
            before = find(decisions, command, bookings, verb=Verb.CANCEL)
            after = _judge(command, before, decisions.now)
            payment = _payment_of(before, payments)
            if command.actor.buyer is not None and after is not before:
                _check_buyer(
                    command,
                    before,
                    events[before.event_id],
                    paid_here=payment is not None,
                    checked_in=before.id in checked_in,
                    now=decisions.now,
                )
            money = _rule(command, before, after, payment=payment, event=events.get(before.event_id), now=decisions.now)
        except Refusal as refusal:
            decisions.refuse(command, refusal)
            continue
        undone = CancelResult(booking=after, money=money)
        moved = after is not before
        record = decisions.record_response(command, undone)
        if moved:
            facts = _give_back(decisions, command, payment, undone, payments=payments, ids=context.ids)
            decisions.writes.move(
                Verb.CANCEL, before, after, command=command, record=record, reason=command.reason, money=facts
            )
        else:
            decisions.writes.record_repeat(Verb.CANCEL, after, command=command, record=record)
        decisions.complete(command, undone, record=record, wrote=moved or record is not None)
    await lock_counts(decisions)
    return await decisions.close()


def _judge(command: Cancel, booking: Booking, now: datetime) -> Booking:
    if command.seats or command.pools:
        kept, _ = booking_rules.cancel_lines(booking, seats=command.seats, pools=command.pools, now=now)
        return kept
    return booking_rules.cancel(booking, now=now)


def _check_buyer(
    command: Cancel, booking: Booking, event: Event, *, paid_here: bool, checked_in: bool, now: datetime
) -> None:
    if command.refund is not None:
        raise InvalidRequest.at("refund", "follows from the event's rules, so a buyer's request leaves it out")
    buyer_cancel_rules.buyer_may_cancel(booking, event, paid_here=paid_here, checked_in=checked_in, now=now)


def _paid_for(bookings: Iterable[Booking]) -> set[PaymentId]:
    named = {payment_id_of(booking.payment_id) for booking in bookings if booking.payment_id}
    return {payment_id for payment_id in named if payment_id}


def _payment_of(booking: Booking, payments: dict[PaymentId, Payment]) -> Payment | None:
    payment_id = payment_id_of(booking.payment_id) if booking.payment_id else None
    payment = payments.get(payment_id) if payment_id else None
    # A shop that confirms with one of our ids as its own reference has not been paid by it.
    return payment if payment and payment.booking_id == booking.id else None


def _rule(
    command: Cancel, before: Booking, after: Booking, *, payment: Payment | None, event: Event | None, now: datetime
) -> Ruling | None:
    """How much goes back of the money that was taken here; None where none was."""
    if after is before:
        return None
    price = before.total - (after.total if after.state is State.CONFIRMED else 0)
    if payment is None:
        if command.refund:
            raise RefundRefused(available=0, asked=price if isinstance(command.refund, Full) else command.refund)
        return None
    assert event is not None, "a booking with a payment has an event"
    if payment.state is PaymentState.AUTHORISED:
        if price != before.total or _ruling(command, event, share=price, now=now).refund != price:
            # What is set aside is taken whole. A moment later it is, and a part of it can go back.
            raise PaymentInProgress
        return None
    if not payment.captured:
        return None
    ruling = _ruling(command, event, share=min(price, payment.left), now=now)
    if ruling.refund > payment.left:
        raise RefundRefused(available=payment.left, asked=ruling.refund)
    return ruling


def _ruling(command: Cancel, event: Event, *, share: int, now: datetime) -> Ruling:
    """As the request says, else by the event's rules. A buyer's request says nothing."""
    if command.refund is None:
        return by_the_rules(event, share=share, now=now)
    return as_asked(share if isinstance(command.refund, Full) else command.refund, share=share)


def _give_back(
    decisions: BatchDecisions[Cancel],
    command: Cancel,
    payment: Payment | None,
    undone: CancelResult,
    *,
    payments: dict[PaymentId, Payment],
    ids: Ids,
) -> dict[str, Any] | None:
    """Record what goes back, or let go of what was only set aside; returns the facts for the journal."""
    if payment is None:
        return None
    if payment.state is PaymentState.AUTHORISED:
        payments[payment.id] = give_up(decisions.writes, payment)
    elif undone.money and undone.money.refund:
        reason = command.reason or "cancelled"
        payments[payment.id] = owe(
            decisions.writes, payment, undone.money.refund, refund_id=ids.refund_id(), reason=reason
        )
    return owed_facts(
        payments[payment.id], before=payment, **(msgspec.structs.asdict(undone.money) if undone.money else {})
    )
