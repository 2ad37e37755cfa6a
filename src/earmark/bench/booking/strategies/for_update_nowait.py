"""for_update_nowait: lock the rows if nobody else has, and give up at once if somebody has.

    BEGIN ── lock A1, A2 ── look ── write ── COMMIT
             lock A1 ── locked: "somebody is booking this seat"

The idea: whoever meets a lock on a hot seat has lost anyway, so that waiting for it is waste. Losers fail in a
millisecond, and connections stay free for those who may win.
The flaw: the one who held the lock may still be refused, or leave. Then the seat is free, and those who were sent
away would have had it. In a crowd for overlapping sets many are refused who stood in nobody's way for long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from earmark.bench.booking.ports import About, Place
from earmark.bench.booking.strategies.ground import Ground, Refused
from earmark.bench.booking.strategies.lean_for_update import LeanForUpdate

if TYPE_CHECKING:
    from uuid import UUID

    from earmark.bench.booking.ports import Want


class ForUpdateNowait(LeanForUpdate):
    """As the lean way, with statements that do not wait."""

    async def try_hold(self, want: Want) -> UUID:
        """A row that is locked is as good as taken."""
        try:
            return await super().try_hold(want)
        except asyncpg.LockNotAvailableError as locked:
            raise Refused from locked


async def _open(place: Place) -> ForUpdateNowait:
    return ForUpdateNowait(await Ground.open(place, "lean_for_update", "for_update_nowait"))


ABOUT = About(
    name="for_update_nowait",
    title="SELECT … FOR UPDATE NOWAIT",
    safe=True,
    why="Right where a quick no is worth more than a fair one: named seats in a rush, with a page that offers another "
    "seat. Wrong for stock, where the row is always locked by somebody and nearly everybody would be sent away "
    "from a full shelf.",
    open=_open,
)
