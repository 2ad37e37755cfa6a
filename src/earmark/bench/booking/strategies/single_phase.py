"""single_phase: sold first, paid later.

    lock ── look ── write "sold" ── COMMIT ········ pay? ········ or never

The idea: one step and not two. The row is locked as in `for_update_in_two_statements`, so that no seat is sold twice,
and there are no holds to count down and no expired ones to sweep.
The flaw: a sale is final, and the money is not there yet. Every buyer who closes the page, or whose card is declined,
leaves a seat that counts as sold and was never paid for. An operator has to find these seats and decide which sale to
undo: a hold with a time limit, done by hand. Taking the money first only reverses the problem: then the seat is paid
for and perhaps taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.bench.booking.strategies import build_rows_all_strategies_write
from earmark.bench.booking.strategies.shared_hold_and_confirm import (
    ConfirmRequest,
    Connection,
    HoldRefused,
    StrategyDatabase,
    TableStrategy,
    judge_limit,
    judge_pools,
    judge_seats,
)
from earmark.bench.booking.strategy_protocol import StrategyInfo, StrategySettings
from earmark.domain.booking_state_machine import State
from earmark.uuids import uuid7

if TYPE_CHECKING:
    from uuid import UUID

    from earmark.bench.booking.strategies.build_rows_all_strategies_write import EventRules
    from earmark.bench.booking.strategy_protocol import Want
    from earmark.domain.booking import Booking


class SinglePhase(TableStrategy):
    """There is no hold: what `hold` returns is a sale."""

    async def try_hold(self, want: Want) -> UUID:
        """Lock the seats, check that they are free, sell them at once."""
        database = self.database
        async with database.transaction() as connection:
            sale = await database.open_hold(connection, want)
            seats = judge_seats(want.seats, await database.look_at_seats(connection, want, "lock_seats"))
            pools = judge_pools(want.pools, await database.look_at_pools(connection, want, "lock_pools"))
            await database.pause()
            booking = build_rows_all_strategies_write.held(
                want, booking_id=uuid7(), sale=sale, seats=seats, pools=pools
            )
            await self._sell(connection, want, sale, booking)
            return booking.id

    async def try_confirm(self, paid: ConfirmRequest) -> None:
        """Attach the payment to the sale. Without it, the seat stays sold."""
        database = self.database
        async with database.transaction() as connection:
            await database.find_key(connection, paid.key, paid.request_hash)
            row = await connection.fetchrow(database.sql["lock_sold"], paid.booking_id)
            if row is None or row["payment_id"] not in {None, paid.payment_id}:
                raise HoldRefused
            if row["payment_id"] is not None:
                return
            before = build_rows_all_strategies_write.booking(row)
            after = msgspec.structs.replace(before, payment_id=paid.payment_id, version=before.version + 1)
            await connection.execute(database.sql["insert_payment"], paid.payment_id, after.id)
            await connection.execute(database.sql["attach_payment"], after.id, paid.payment_id, after.version)
            entry = build_rows_all_strategies_write.confirm_entry(
                before, after, key=paid.key, request_hash=paid.request_hash
            )
            await connection.execute(database.sql["insert_entry"], *entry)

    async def _sell(self, connection: Connection, want: Want, sale: EventRules, booking: Booking) -> None:
        database = self.database
        total = await connection.fetchval(
            database.sql["add_total"], want.event_id, want.buyer, build_rows_all_strategies_write.units(want)
        )
        judge_limit(total, sale)
        await database.add_pools(connection, booking, held=0, sold=1)
        await connection.execute(database.sql["insert_booking"], *build_rows_all_strategies_write.opened_row(booking))
        await database.point_seats(connection, booking)
        await connection.execute(database.sql["mark_sold"], booking.id, sale.now)
        sold = msgspec.structs.replace(booking, state=State.CONFIRMED, confirmed_at=sale.now)
        entry = build_rows_all_strategies_write.hold_entry(
            sold, key=want.key, request_hash=build_rows_all_strategies_write.hash_of(want)
        )
        await connection.execute(database.sql["insert_entry"], *entry)


async def _open(settings: StrategySettings) -> SinglePhase:
    return SinglePhase(await StrategyDatabase.open(settings, "for_update_in_two_statements", "single_phase"))


ABOUT = StrategyInfo(
    name="single_phase",
    title="sold before paid, no hold",
    safe=True,
    why="Right where nothing is paid, or payment is certain: free tickets, members on account, a box office where the "
    "buyer pays at once. Sold online, it never sells a seat twice and yet loses sales, one for every buyer who "
    "walks away while paying.",
    open=_open,
)
