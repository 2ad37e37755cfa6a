"""cte: a verb is one statement, which locks, looks and writes.

    hold ─────────────── one round trip, one transaction ──── booking, or why not

The idea: no time passes between look and write but the database's own, and no lock is held during a round trip. It is
the fastest way for a single request.
The flaw: none in its promise, but a long statement that is hard to change. Two of its traps: in a statement that had to
wait, what it reads of another table is outdated, so that only the seat's own columns may decide; and the parts of one
statement write in no defined order. Each request is still a commit of its own, and each commit waits for the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.strategies.build_rows_all_strategies_write import CALLER, hash_of
from earmark.bench.booking.strategies.shared_hold_and_confirm import (
    ConfirmRequest,
    HoldRefused,
    StrategyDatabase,
    TableStrategy,
    judge_key,
)
from earmark.bench.booking.strategy_protocol import StrategyInfo, StrategySettings
from earmark.uuids import uuid7

if TYPE_CHECKING:
    from uuid import UUID

    from earmark.bench.booking.strategy_protocol import Want


class Cte(TableStrategy):
    """One statement per verb, without a moment in which a race could pause it."""

    async def try_hold(self, want: Want) -> UUID:
        """Hold with one statement."""
        request_hash = hash_of(want)
        pools = sorted(want.pools.items())
        units = ([pool for pool, _ in pools], [units for _, units in pools])
        asked = (want.event_id, want.buyer, sorted(want.seats), *units)
        made = (uuid7(), want.ttl_seconds, uuid7(), CALLER, want.key, request_hash)
        async with self.database.connection() as connection:
            row = await connection.fetchrow(self.database.sql["hold_with_pools" if pools else "hold"], *asked, *made)
        if row is None:
            raise LookupError(f"There is no event {want.event_id}.")
        if row["earlier"]:
            judge_key(row, request_hash)
        if row["booking_id"] is None:
            raise HoldRefused(stale=row["stale"])
        booking_id: UUID = row["booking_id"]
        return booking_id

    async def try_confirm(self, paid: ConfirmRequest) -> None:
        """Confirm with one statement, and a second one only when the first wrote nothing."""
        database = self.database
        asked = (paid.booking_id, paid.payment_id, uuid7(), CALLER, paid.key, paid.request_hash)
        async with database.connection() as connection:
            if await connection.fetchval(database.sql["confirm"], *asked) is None:
                await database.find_key(connection, paid.key, paid.request_hash)
                raise HoldRefused


async def _open(settings: StrategySettings) -> Cte:
    return Cte(await StrategyDatabase.open(settings, "cte"))


ABOUT = StrategyInfo(
    name="cte",
    title="one tuned statement per request",
    safe=True,
    why="Right, and the quickest way for requests that come one by one: a lone buyer waits for one round trip and one "
    "commit. It is what to write by hand when `for_update` has become too slow. Business rules then live in SQL, "
    "where fewer people read them, and every buyer still pays for a commit.",
    pauses=False,
    open=_open,
)
