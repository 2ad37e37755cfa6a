"""confirm: the shop took the money itself, and the hold becomes a sale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain import booking as law
from earmark.domain.ids import OutsidePaymentRef
from earmark.domain.state_machine import Verb
from earmark.engine.batch_transaction import decide, find, lock, lock_counts, open_on_bookings
from earmark.engine.commands import Again
from earmark.errors import PaymentUsed, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from earmark.domain.booking import Booking
    from earmark.domain.ids import BookingId
    from earmark.engine.batch_transaction import Desk
    from earmark.engine.commands import Confirm, Outcome
    from earmark.engine.ports.store import Ids, Transaction

ROUNDS_MAX = 100


async def confirm(transaction: Transaction, batch: Sequence[Confirm], *, ids: Ids) -> list[Outcome]:
    """Earlier answer? → lock → take the payments → judge → write. One outside payment, one booking, in each mode."""
    desk = await open_on_bookings(transaction, batch, ids=ids)
    bookings = await lock(desk)
    uses, second = _uses(desk, bookings)
    won = await transaction.take_payments(uses)
    for ask, first in second:
        if first not in won:
            desk.again(ask, Again(refusal=PaymentUsed(payment_id=ask.payment_id), rounds_max=ROUNDS_MAX))

    def judge(ask: Confirm, booking: Booking, now: datetime) -> Booking:
        after = law.confirm(booking, payment_id=ask.payment_id, payment_method=ask.payment_method, now=now)
        ref = OutsidePaymentRef(ask.payment_id, booking.live)
        used_here = ref in won and uses[ref] == booking.id
        if after is not booking and not used_here:
            raise PaymentUsed(payment_id=ask.payment_id)
        return after

    decide(desk, Verb.CONFIRM, judge, bookings=bookings, reason=lambda _: None)
    await lock_counts(desk)
    return await desk.close()


def _uses(
    desk: Desk[Confirm], bookings: Mapping[BookingId, Booking]
) -> tuple[dict[OutsidePaymentRef, BookingId], list[tuple[Confirm, OutsidePaymentRef]]]:
    """The payments that this batch would use: one for each booking, the first to be named.

    And the asks that name a second one, each with the first: they are decided in the next batch should the first
    turn out to be used already. A second booking for a payment is simply too late, whoever has it.
    """
    uses: dict[OutsidePaymentRef, BookingId] = {}
    firsts: dict[BookingId, OutsidePaymentRef] = {}
    second: list[tuple[Confirm, OutsidePaymentRef]] = []
    for ask in desk.waiting:
        try:
            booking = find(desk, ask, bookings, verb=Verb.CONFIRM)
        except Refusal:
            continue
        ref = OutsidePaymentRef(ask.payment_id, booking.live)
        if law.refusal(booking, Verb.CONFIRM, now=desk.now) or ref in uses:
            continue
        if booking.id in firsts:
            second.append((ask, firsts[booking.id]))
        else:
            uses[ref] = booking.id
            firsts[booking.id] = ref
    return uses, second
