"""expire: the clock lets go of holds whose time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain.ids import PoolRef, TotalRef
from earmark.engine.ledger import Ledger

if TYPE_CHECKING:
    from earmark.domain.booking import Booking
    from earmark.engine.ports import Ids, Transaction


async def expire(
    transaction: Transaction,
    *,
    limit: int,
    ids: Ids,
    reason: str,
    skip: int = 0,
    within: PoolRef | TotalRef | None = None,
) -> list[Booking]:
    """End up to `limit` due holds, of one pool or one buyer if asked; those that are being changed are passed over."""
    opening = await transaction.begin([])
    match within:
        case PoolRef():
            due = await transaction.lock_due(limit=limit, pool=within)
        case TotalRef(event_id, buyer):
            due = await transaction.lock_due(limit=limit, event_id=event_id, buyer=buyer)
        case None:
            due = await transaction.lock_due(limit=limit, skip=skip)
    ledger = Ledger(now=opening.now, ids=ids)
    expired = [ledger.expire(booking, reason=reason) for booking in due]
    if ledger:
        await transaction.lock_totals({ref for ref, units in ledger.totals.items() if units})
        await transaction.lock_pools(ledger.pools.keys())
        await transaction.write(ledger.changes())
    return expired
