"""expire: the clock lets go of holds whose time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.domain.id_types import PoolRef, TotalRef
from earmark.engine.pending_writes import PendingWrites

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.domain.booking import Booking
    from earmark.engine.ports.store import Ids, Transaction

CONTENDED_SECONDS = 0.02
"""How long to wait for lapsed holds that another transaction is ending at this moment."""


async def expire(
    transaction: Transaction,
    *,
    limit: int,
    ids: Ids,
    reason: str,
    skip: int = 0,
    within: PoolRef | TotalRef | None = None,
) -> list[Booking]:
    """End up to `limit` due holds, of one pool or buyer if `within`; those that are being changed are passed over."""
    start = await transaction.begin([])
    match within:
        case PoolRef():
            due = await transaction.lock_due(limit=limit, pool=within)
        case TotalRef(event_id, buyer):
            due = await transaction.lock_due(limit=limit, event_id=event_id, buyer=buyer)
        case None:
            due = await transaction.lock_due(limit=limit, skip=skip)
    writes = PendingWrites(now=start.now, ids=ids)
    expired = [writes.expire(booking, reason=reason) for booking in due]
    if writes:
        await transaction.lock_totals({ref for ref, units in writes.totals.items() if units})
        await transaction.lock_pools(writes.pools.keys())
        await transaction.write(writes.changes())
    return expired


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What ending the lapsed holds of one pool or one buyer brought."""

    ended: int
    """How many holds."""
    units: int
    """How much of the pool, or of the buyer's total, is free with that."""
    passed_over: bool
    """Whether lapsed holds are left that another transaction is changing at this moment."""

    @property
    def has_nothing_due(self) -> bool:
        """Whether nothing more can come of it."""
        return not self.ended and not self.passed_over


async def make_room(transaction: Transaction, *, limit: int, ids: Ids, within: PoolRef | TotalRef) -> Room:
    """End up to `limit` lapsed holds of one pool or one buyer, before that is called exhausted."""
    expired = await expire(transaction, limit=limit, ids=ids, reason="made room", within=within)
    match within:
        case PoolRef():
            units = sum(line.units for booking in expired for line in booking.lines.pools if line.id == within.pool_id)
        case TotalRef():
            units = sum(booking.lines.units for booking in expired)
    passed_over = len(expired) < limit and any(await transaction.have_due([within]))
    return Room(ended=len(expired), units=units, passed_over=passed_over)


async def have_due(transaction: Transaction, *, refs: Sequence[PoolRef | TotalRef]) -> list[bool]:
    """For each of these pools and buyers, whether making room could bring anything."""
    await transaction.begin([])
    return await transaction.have_due(refs)
