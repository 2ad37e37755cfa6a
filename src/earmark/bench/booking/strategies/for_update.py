"""for_update: lock the rows, look at them, write them. A statement for each row.

    BEGIN ── lock A1 ── lock A2 ── look ── write A1 ── write A2 ── … ── COMMIT
             lock A1 (waits) ·········································── look: taken

The idea: what is locked cannot change between the look and the write. It is the usual answer to the race.
The flaw: none in its promise, if all programs lock in one order. But every row is a round trip to the database while
the locks before it are held, every buyer takes a connection for all of them, and a buyer of a hot seat waits for the
lock only to be refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.strategies.build_rows_all_strategies_write import hash_of
from earmark.bench.booking.strategies.shared_hold_and_confirm import (
    ConfirmRequest,
    Connection,
    StrategyDatabase,
    TableStrategy,
    judge_opening,
    judge_pools,
    judge_seats,
)
from earmark.bench.booking.strategy_protocol import StrategyInfo, StrategySettings

if TYPE_CHECKING:
    from uuid import UUID

    from earmark.bench.booking.strategy_protocol import Want
    from earmark.domain.booking import Booking


class RowByRow(StrategyDatabase):
    """Writes each row with a statement of its own."""

    async def point_seats(self, connection: Connection, booking: Booking) -> None:
        """One statement per row."""
        for line in booking.lines.seats:
            await connection.execute(self.sql["point_seat"], booking.event_id, line.id, booking.id)

    async def add_pools(self, connection: Connection, booking: Booking, *, held: int, sold: int) -> None:
        """One statement per row."""
        for line in booking.lines.pools:
            change = (line.units * held, line.units * sold)
            await connection.execute(self.sql["add_pool"], booking.event_id, line.id, *change)


class ForUpdate(TableStrategy):
    """Pessimistic, row by row."""

    async def try_hold(self, want: Want) -> UUID:
        """Lock the seats, check that they are free, write the booking."""
        database = self.database
        seats: dict[str, int] = {}
        pools: dict[str, int] = {}
        async with database.transaction() as connection:
            await database.find_key(connection, want.key, hash_of(want))
            sale = judge_opening(await connection.fetchrow(database.sql["read_event"], want.event_id), want)
            # Sorted, so that buyers of A1+A2 and of A2+A1 lock in the same order and cannot deadlock.
            for seat in sorted(want.seats):
                seats |= judge_seats([seat], await connection.fetch(database.sql["lock_seat"], want.event_id, seat))
            for pool in sorted(want.pools):
                asked = {pool: want.pools[pool]}
                pools |= judge_pools(asked, await connection.fetch(database.sql["lock_pool"], want.event_id, pool))
            await database.pause()
            return await database.write_hold(connection, want, sale, seats=seats, pools=pools)

    async def try_confirm(self, paid: ConfirmRequest) -> None:
        """Lock the booking, look at it, write."""
        database = self.database
        async with database.transaction() as connection:
            await database.find_key(connection, paid.key, paid.request_hash)
            row = await connection.fetchrow(database.sql["lock_booking"], paid.booking_id)
            await database.write_confirm(connection, row, paid)


async def _open(settings: StrategySettings) -> ForUpdate:
    return ForUpdate(await RowByRow.open(settings, "for_update"))


ABOUT = StrategyInfo(
    name="for_update",
    title="SELECT … FOR UPDATE, a statement per row",
    safe=True,
    why="Right, and right for most shops: a few dozen bookings a second never notice what it costs. It works with any "
    "number of servers on one database. It costs a round trip per row while the rows before are locked, so that "
    "on a hot seat the losers wait in line for a no. Lock in one order everywhere, or it deadlocks.",
    open=_open,
)
