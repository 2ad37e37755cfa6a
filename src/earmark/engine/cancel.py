"""cancel: a sale undone, whole or in part. Money taken elsewhere goes back elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain import booking as law
from earmark.domain.machine import Verb
from earmark.engine.desk import open_on_bookings, settle

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from earmark.domain.booking import Booking
    from earmark.engine.asks import Cancel, Outcome
    from earmark.engine.ports import Ids, Transaction


async def cancel(transaction: Transaction, batch: Sequence[Cancel], *, ids: Ids) -> list[Outcome]:
    """Earlier answer? → lock → judge → write."""
    desk = await open_on_bookings(transaction, batch, ids=ids)
    return await settle(desk, Verb.CANCEL, _judge, reason=lambda ask: ask.reason)


def _judge(ask: Cancel, booking: Booking, now: datetime) -> Booking:
    if ask.seats or ask.pools:
        kept, _ = law.cancel_lines(booking, seats=ask.seats, pools=ask.pools, now=now)
        return kept
    return law.cancel(booking, now=now)
