"""for_update_in_two_statements: the same locks as `for_update`, with one statement that locks and one that writes.

    BEGIN ── lock A1, A2, A3 and look ── write it all ── COMMIT

The idea: the locks are right; it is the round trips that cost. One statement locks all seats in key order and reads
what else the hold is judged by, and one writes every table.
The flaw: as `for_update`, only less of it. A buyer still takes a connection for the whole of it, each commit still
waits for the disk alone, and losers still wait for the lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.strategies import build_rows_all_strategies_write
from earmark.bench.booking.strategies.build_rows_all_strategies_write import CALLER
from earmark.bench.booking.strategies.shared_hold_and_confirm import (
    ConfirmRequest,
    HoldRefused,
    StrategyDatabase,
    TableStrategy,
    judge_key,
    judge_opening,
    judge_pools,
    judge_seats,
)
from earmark.bench.booking.strategy_protocol import StrategyInfo, StrategySettings
from earmark.domain import booking as booking_rules
from earmark.uuids import uuid7

if TYPE_CHECKING:
    from uuid import UUID

    from earmark.bench.booking.strategy_protocol import Want


class LeanForUpdate(TableStrategy):
    """Pessimistic, in as few statements as it takes."""

    async def try_hold(self, want: Want) -> UUID:
        """Lock the seats, check that they are free, write the booking."""
        database = self.database
        if not want.pools:
            return await self._try_seats(want)
        async with database.transaction() as connection:
            sale = await database.open_hold(connection, want)
            seats = judge_seats(want.seats, await database.look_at_seats(connection, want, "lock_seats"))
            pools = judge_pools(want.pools, await database.look_at_pools(connection, want, "lock_pools"))
            await database.pause()
            return await database.write_hold(connection, want, sale, seats=seats, pools=pools)

    async def _try_seats(self, want: Want) -> UUID:
        """A claim of seats, which most are: one statement locks, one writes."""
        database = self.database
        async with database.transaction() as connection:
            rows = await connection.fetch(
                database.sql["lock_to_hold"], want.event_id, sorted(want.seats), CALLER, want.key
            )
            sale = judge_opening(rows[0] if rows else None, want)
            seats = judge_seats(want.seats, rows)
            await database.pause()
            held = build_rows_all_strategies_write.held(want, booking_id=uuid7(), sale=sale, seats=seats)
            entry = build_rows_all_strategies_write.hold_entry(
                held, key=want.key, request_hash=build_rows_all_strategies_write.hash_of(want)
            )
            limit = sale.per_buyer_max
            # The columns that entry and booking share are sent once.
            told = (entry[0], *entry[7:9], *entry[10:])
            count = (build_rows_all_strategies_write.units(want), sorted(want.seats))
            written = await connection.fetchval(
                database.sql["write_hold"], *build_rows_all_strategies_write.opened_row(held), *count, limit, *told
            )
            if written is None:
                raise HoldRefused
            return held.id

    async def try_confirm(self, paid: ConfirmRequest) -> None:
        """Lock the booking, look at it, write."""
        database = self.database
        async with database.transaction() as connection:
            row = await connection.fetchrow(database.sql["lock_booking"], paid.booking_id, CALLER, paid.key)
            if row is None:
                raise HoldRefused
            if row["earlier"]:
                judge_key(row, paid.request_hash)
            before = build_rows_all_strategies_write.booking(row)
            after = booking_rules.confirm(before, payment_id=paid.payment_id, payment_method=None, now=row["now"])
            if after.lines.pools or after is before:
                await database.write_confirm(connection, row, paid)
                return
            entry = build_rows_all_strategies_write.confirm_entry(
                before, after, key=paid.key, request_hash=paid.request_hash
            )
            moved = (after.id, after.confirmed_at, after.payment_id, after.version)
            await connection.execute(database.sql["write_confirm"], *moved, *entry)


async def _open(settings: StrategySettings) -> LeanForUpdate:
    return LeanForUpdate(await StrategyDatabase.open(settings, "for_update_in_two_statements"))


ABOUT = StrategyInfo(
    name="for_update_in_two_statements",
    title="SELECT … FOR UPDATE, one lock statement, one write statement",
    safe=True,
    why="Right wherever `for_update` is, and quicker the more seats a claim has. It asks for SQL by hand where an ORM "
    "would have written it row by row. Below a few hundred bookings a second there is no reason to look further.",
    open=_open,
)
