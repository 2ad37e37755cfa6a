"""naive: look whether the seat is free, then write that it is sold.

    look ── free! ──────────── write
            look ── free! ──────────── write

The idea: the code reads like the rule. It passes every test that has one buyer.
The flaw: nothing protects the seat between the look and the write. All buyers who look before the first write see a
free seat, and all of them write. A transaction around the two changes nothing at READ COMMITTED: it makes the writes
appear together, not the look and the write.

In a race it breaks every time: the race puts a pause between look and write, in which all other buyers look, too.
Without the pause it breaks as well, only not in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.strategies.shared_hold_and_confirm import (
    ConfirmRequest,
    StrategyDatabase,
    TableStrategy,
    judge_pools,
    judge_seats,
)
from earmark.bench.booking.strategy_protocol import StrategyInfo, StrategySettings

if TYPE_CHECKING:
    from uuid import UUID

    from earmark.bench.booking.strategy_protocol import Want


class Naive(TableStrategy):
    """Check that the seats are free, then write, with nothing in between."""

    async def try_hold(self, want: Want) -> UUID:
        """Look, then write without a lock."""
        database = self.database
        async with database.connection() as connection:
            sale = await database.open_hold(connection, want)
            seats = judge_seats(want.seats, await database.look_at_seats(connection, want))
            pools = judge_pools(want.pools, await database.look_at_pools(connection, want))
        await database.pause()
        async with database.transaction() as connection:
            return await database.write_hold(connection, want, sale, seats=seats, pools=pools)

    async def try_confirm(self, paid: ConfirmRequest) -> None:
        """Look whether it is held, then write without a lock."""
        database = self.database
        async with database.connection() as connection:
            await database.find_key(connection, paid.key, paid.request_hash)
            row = await connection.fetchrow(database.sql["look_at_booking"], paid.booking_id)
        async with database.transaction() as connection:
            await database.write_confirm(connection, row, paid)


async def _open(settings: StrategySettings) -> Naive:
    return Naive(await StrategyDatabase.open(settings))


ABOUT = StrategyInfo(
    name="naive",
    title="look, then write",
    safe=False,
    why="Right for one buyer at a time: a script, an import, a test. With two at once it sells the same seat to both, "
    "and the more popular the seat, the surer. What saves a shop that does this is a constraint in its schema, "
    "which refuses the second write of any program.",
    open=_open,
)
