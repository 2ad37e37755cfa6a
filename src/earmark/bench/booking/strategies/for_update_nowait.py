"""for_update_nowait: lock the rows, and refuse at once if another transaction has locked one of them.

    BEGIN ── lock A1, A2 ── look ── write ── COMMIT
             lock A1 ── locked: "this seat is being booked"

The idea: a buyer who meets a lock on a hot seat loses in most cases, so that waiting for it is waste. Losers are
refused in a millisecond, and connections stay free for other buyers.
The flaw: the holder of the lock may still be refused, or leave. Then the seat is free, and the refused buyers could
have had it. With many buyers for overlapping sets, many are refused because of locks that end a moment later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from earmark.bench.booking.strategies.for_update_in_two_statements import LeanForUpdate
from earmark.bench.booking.strategies.shared_hold_and_confirm import HoldRefused, StrategyDatabase
from earmark.bench.booking.strategy_protocol import StrategyInfo, StrategySettings

if TYPE_CHECKING:
    from uuid import UUID

    from earmark.bench.booking.strategy_protocol import Want


class ForUpdateNowait(LeanForUpdate):
    """As `for_update_in_two_statements`, with statements that do not wait for a lock."""

    async def try_hold(self, want: Want) -> UUID:
        """A locked row counts as taken."""
        try:
            return await super().try_hold(want)
        except asyncpg.LockNotAvailableError as locked:
            raise HoldRefused from locked


async def _open(settings: StrategySettings) -> ForUpdateNowait:
    return ForUpdateNowait(await StrategyDatabase.open(settings, "for_update_in_two_statements", "for_update_nowait"))


ABOUT = StrategyInfo(
    name="for_update_nowait",
    title="SELECT … FOR UPDATE NOWAIT",
    safe=True,
    why="Right where a quick no is worth more than a fair one: named seats in a rush, with a page that offers another "
    "seat. Wrong for stock, where the row is always locked and nearly all buyers would be refused although there is "
    "enough.",
    open=_open,
)
