"""Ends the lapsed holds of a pool or a buyer, a few with each commit, until enough units are free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain.id_types import PoolRef, TotalRef
from earmark.engine.verbs.expire import Room
from earmark.errors import RowBusy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MAKE_ROOM_HOLDS_MAX = 50
"""How many holds one step ends."""
FEWER_HOLDS = 7
"""By how much fewer holds of a pool are ended at once where one may need a locked row: each try waits for it."""


async def make_room_in_steps(
    end_holds: Callable[..., Awaitable[Room]],
    ref: PoolRef | TotalRef,
    *,
    units: int,
    freed_now: Callable[[int], None],
) -> Room:
    """Run `end_holds(limit=…)`, one transaction, until so many units are free, or no hold is left that could be ended.

    Where a row is locked that one of the holds needs, fewer are ended; where all need it, none. A buyer has few holds:
    those are ended one by one then. What was ended counts, whatever fails later.
    """
    ended, freed, limit = 0, 0, MAKE_ROOM_HOLDS_MAX
    while True:
        try:
            room = await end_holds(limit=limit)
        except Exception as broken:
            if ended:
                return Room(ended=ended, units=freed, passed_over=True)
            if not isinstance(broken, RowBusy) or limit == 1 or _is_locked(ref, broken):
                raise
            limit = 1 if isinstance(ref, TotalRef) else max(1, limit // FEWER_HOLDS)
            continue
        ended, freed = ended + room.ended, freed + room.units
        freed_now(room.units)
        if room.ended < limit or freed >= units:
            return Room(ended=ended, units=freed, passed_over=room.passed_over)


def _is_locked(ref: PoolRef | TotalRef, busy: RowBusy) -> bool:
    """Whether it is the pool's or the total's own row that is locked, which every one of its holds needs."""
    return ("pools" if isinstance(ref, PoolRef) else "totals", ref) in busy.rows
