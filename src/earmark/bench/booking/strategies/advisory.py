"""advisory: a lock of PostgreSQL on the seat's name, then look and write as if alone.

    BEGIN ── lock "A1" ── look ── write ── COMMIT (the lock goes with it)
             lock "A1" (waits) ··········── look: taken

The idea: PostgreSQL can lock any number, and the program decides what it means. The lock needs no row, writes
nothing, and ends with the transaction. So it guards what has no row yet, such as a time slot without a booking.
The flaw: it stops only programs that take it. An import, an admin's page or hand-written SQL that writes the row
without the lock is not stopped. Two names with the same number wait for each other, harmlessly. And a lock of the
*session*, behind a pooler that shares sessions, is granted to two clients at once: take the transaction's, as here.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from earmark.bench.booking.strategies.shared_hold_and_confirm import (
    ConfirmRequest,
    Connection,
    StrategyDatabase,
    TableStrategy,
    judge_pools,
    judge_seats,
)
from earmark.bench.booking.strategy_protocol import StrategyInfo, StrategySettings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from earmark.bench.booking.strategy_protocol import Want


class Advisory(TableStrategy):
    """Locks names, not rows."""

    async def try_hold(self, want: Want) -> UUID:
        """Lock the names, look, write."""
        database = self.database
        async with database.transaction() as connection:
            await self._lock(connection, (f"{want.event_id}/{name}" for name in (*want.seats, *want.pools)))
            # A separate statement: one that had waited for the lock would read the rows as they were before.
            sale = await database.open_hold(connection, want)
            seats = judge_seats(want.seats, await database.look_at_seats(connection, want))
            pools = judge_pools(want.pools, await database.look_at_pools(connection, want))
            await database.pause()
            return await database.write_hold(connection, want, sale, seats=seats, pools=pools)

    async def try_confirm(self, paid: ConfirmRequest) -> None:
        """Lock the booking's name, look, write."""
        database = self.database
        async with database.transaction() as connection:
            await self._lock(connection, [str(paid.booking_id)])
            await database.find_key(connection, paid.key, paid.request_hash)
            row = await connection.fetchrow(database.sql["look_at_booking"], paid.booking_id)
            await database.write_confirm(connection, row, paid)

    async def _lock(self, connection: Connection, names: Iterable[str]) -> None:
        # Sorted by number, because numbers are locked: the order of the names may differ.
        await connection.execute(self.database.sql["lock_names"], sorted(map(_number, names)))


def _number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


async def _open(settings: StrategySettings) -> Advisory:
    return Advisory(await StrategyDatabase.open(settings, "advisory"))


ABOUT = StrategyInfo(
    name="advisory",
    title="a PostgreSQL advisory lock per seat, then look and write",
    safe=True,
    why="Right for what has no row to lock: a slot in a calendar, a name that shall be unique across tables, a job "
    "that should run once. For seats, whose rows are there, it is a convention where `FOR UPDATE` is a fact: a program "
    "that does not take it is not stopped by it.",
    open=_open,
)
