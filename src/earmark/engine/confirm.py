"""confirm: the shop took the money itself, and the hold becomes a sale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain import booking as law
from earmark.domain.machine import Verb
from earmark.engine.asks import Again
from earmark.engine.desk import Desk, decide, find, lock, lock_counts
from earmark.errors import PaymentUsed, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from earmark.domain.booking import Booking
    from earmark.domain.ids import BookingId
    from earmark.engine.asks import Confirm, Outcome
    from earmark.engine.ports import Ids, Transaction

ROUNDS_MAX = 100


async def confirm(transaction: Transaction, batch: Sequence[Confirm], *, ids: Ids) -> list[Outcome]:
    """Earlier answer? → lock → take the payments → judge → write. One outside payment confirms one booking."""
    desk = await Desk.open(transaction, batch, ids=ids)
    bookings = await lock(desk)
    uses = _uses(desk, bookings)
    won = await transaction.take_payments(uses)

    def judge(ask: Confirm, booking: Booking, now: datetime) -> Booking:
        after = law.confirm(booking, payment_id=ask.payment_id, payment_method=ask.payment_method, now=now)
        used_here = ask.payment_id in won and uses[ask.payment_id] == booking.id
        if after is not booking and not used_here:
            raise PaymentUsed(payment_id=ask.payment_id)
        return after

    decide(desk, Verb.CONFIRM, judge, bookings=bookings, reason=lambda _: None)
    await lock_counts(desk)
    return await desk.close()


def _uses(desk: Desk[Confirm], bookings: Mapping[BookingId, Booking]) -> dict[str, BookingId]:
    """The payments that this batch would use: one for each booking, the first to be named.

    A second payment for a booking, or a second booking for a payment, waits for the next batch: only when the first
    has won or lost is it known whether there is anything left to use.
    """
    uses: dict[str, BookingId] = {}
    for ask in desk.waiting:
        try:
            booking = find(desk, ask, bookings, verb=Verb.CONFIRM)
            after = law.confirm(booking, payment_id=ask.payment_id, payment_method=None, now=desk.now)
        except Refusal:
            continue
        named = uses.get(ask.payment_id) == booking.id
        if after is booking or named:
            continue
        if ask.payment_id in uses or booking.id in uses.values():
            desk.again(ask, Again(refusal=PaymentUsed(payment_id=ask.payment_id), rounds_max=ROUNDS_MAX))
        else:
            uses[ask.payment_id] = booking.id
    return uses
