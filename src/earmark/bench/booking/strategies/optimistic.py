"""optimistic: look without a lock, and write only if nothing changed since.

    look (version 7) ────── write where version = 7 ── 1 row: yours
         look (version 7) ────── write where version = 7 ── 0 rows: look again

The idea: most requests meet no other, so that a lock for each look is wasted. The write itself compares, and the
second writer notices. A seat's version is its pointer and its fence; a booking has a number.
The flaw: under contention the work is done before the conflict is seen, and then done again. The hotter the seat, the
more work is lost. And the comparison must stand in the write: a version that is compared in the program is `naive`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from earmark.bench.booking.strategies.shared_hold_and_confirm import (
    ChangedMeanwhile,
    ConfirmRequest,
    Connection,
    HoldRefused,
    StrategyDatabase,
    TableStrategy,
    judge_pools,
    judge_seats,
)
from earmark.bench.booking.strategy_protocol import StrategyInfo, StrategySettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from earmark.bench.booking.strategy_protocol import Want
    from earmark.domain.booking import Booking


class Optimistic(TableStrategy):
    """Write only if the rows are as they were read."""

    async def try_hold(self, want: Want) -> UUID:
        """Look; write what is still as it was seen; `ChangedMeanwhile` rolls the whole back, and it is tried again."""
        database = self.database
        async with database.connection() as connection:
            sale = await database.open_hold(connection, want)
            looked = await database.look_at_seats(connection, want)
            seats = judge_seats(want.seats, looked)
            pools = judge_pools(want.pools, await database.look_at_pools(connection, want))
        await database.pause()
        point = partial(self._point, fences={row["id"]: row["fence"] for row in looked})
        async with database.transaction() as connection:
            return await database.write_hold(
                connection, want, sale, seats=seats, pools=pools, point=point, take=self._take
            )

    async def try_confirm(self, paid: ConfirmRequest) -> None:
        """The booking's own version says whether it moved."""
        database = self.database
        async with database.connection() as connection:
            await database.find_key(connection, paid.key, paid.request_hash)
            row = await connection.fetchrow(database.sql["look_at_booking"], paid.booking_id)
        async with database.transaction() as connection:
            await database.write_confirm(connection, row, paid, mark=self._mark)

    async def _point(self, connection: Connection, booking: Booking, *, fences: Mapping[str, int]) -> None:
        ids = [line.id for line in booking.lines.seats]
        seen = (booking.event_id, ids, [fences[seat] for seat in ids], booking.id)
        if await connection.execute(self.database.sql["point_seats_as_seen"], *seen) != f"UPDATE {len(ids)}":
            raise ChangedMeanwhile

    async def _take(self, connection: Connection, booking: Booking) -> None:
        lines = booking.lines.pools
        asked = (booking.event_id, [line.id for line in lines], [line.units for line in lines])
        if await connection.execute(self.database.sql["take_pools"], *asked) != f"UPDATE {len(lines)}":
            raise HoldRefused

    async def _mark(self, connection: Connection, after: Booking) -> None:
        change = (after.id, after.confirmed_at, after.payment_id, after.version)
        if await connection.execute(self.database.sql["mark_confirmed_as_seen"], *change) != "UPDATE 1":
            raise ChangedMeanwhile


async def _open(settings: StrategySettings) -> Optimistic:
    return Optimistic(await StrategyDatabase.open(settings, "optimistic"))


ABOUT = StrategyInfo(
    name="optimistic",
    title="a version compared in the write, with retry",
    safe=True,
    why="Right where conflicts are rare: editing a record, changing an order, booking at a large event with many free "
    "seats. No lock is held while a buyer decides, not even for minutes. On a hot seat nearly every write is thrown "
    "away and tried again. Bound the retries, and read anew for each.",
    open=_open,
)
