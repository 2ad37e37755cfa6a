"""confirm: the shop took the money itself, and the hold becomes a sale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain import booking as booking_rules
from earmark.domain.booking_state_machine import Verb
from earmark.domain.id_types import OutsidePaymentRef
from earmark.engine.batch_transaction import decide, find, lock, lock_counts, open_on_bookings
from earmark.engine.commands_and_results import TryAgain
from earmark.errors import PaymentUsed, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from earmark.domain.booking import Booking
    from earmark.domain.id_types import BookingId
    from earmark.engine.batch_transaction import BatchDecisions
    from earmark.engine.commands_and_results import Confirm, Outcome
    from earmark.engine.limits_and_ids_for_verbs import VerbContext
    from earmark.engine.ports.store import Transaction

ROUNDS_MAX = 100


async def confirm(transaction: Transaction, batch: Sequence[Confirm], context: VerbContext) -> list[Outcome]:
    """Recorded response? → lock → tie payments → decide → write. One outside payment, one booking, in each mode."""
    decisions = await open_on_bookings(transaction, batch, ids=context.ids)
    bookings = await lock(decisions)
    uses, second = _uses(decisions, bookings)
    won = await transaction.tie_outside_payments(uses)
    for command, first in second:
        if first not in won:
            decisions.again(
                command, TryAgain(refusal=PaymentUsed(payment_id=command.payment_id), rounds_max=ROUNDS_MAX)
            )

    def judge(command: Confirm, booking: Booking, now: datetime) -> Booking:
        after = booking_rules.confirm(
            booking, payment_id=command.payment_id, payment_method=command.payment_method, now=now
        )
        ref = OutsidePaymentRef(command.payment_id, booking.mode)
        used_here = ref in won and uses[ref] == booking.id
        if after is not booking and not used_here:
            raise PaymentUsed(payment_id=command.payment_id)
        return after

    decide(decisions, Verb.CONFIRM, judge, bookings=bookings, reason=lambda _: None)
    await lock_counts(decisions)
    return await decisions.close()


def _uses(
    decisions: BatchDecisions[Confirm], bookings: Mapping[BookingId, Booking]
) -> tuple[dict[OutsidePaymentRef, BookingId], list[tuple[Confirm, OutsidePaymentRef]]]:
    """The payments that this batch would use: one for each booking, the first to be named.

    And the commands that name a second one, each with the first: they are decided in the next batch if the first
    turns out to be used already. A second booking for a payment is refused, whichever booking has it.
    """
    uses: dict[OutsidePaymentRef, BookingId] = {}
    firsts: dict[BookingId, OutsidePaymentRef] = {}
    second: list[tuple[Confirm, OutsidePaymentRef]] = []
    for command in decisions.waiting:
        try:
            booking = find(decisions, command, bookings, verb=Verb.CONFIRM)
        except Refusal:
            continue
        ref = OutsidePaymentRef(command.payment_id, booking.mode)
        if booking_rules.refusal(booking, Verb.CONFIRM, now=decisions.now) or ref in uses:
            continue
        if booking.id in firsts:
            second.append((command, firsts[booking.id]))
        else:
            uses[ref] = booking.id
            firsts[booking.id] = ref
    return uses, second
