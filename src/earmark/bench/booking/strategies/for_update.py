"""for_update: lock the rows, look at them, write them. A statement for each row.

    BEGIN ── lock A1 ── lock A2 ── look ── write A1 ── write A2 ── … ── COMMIT
             lock A1 (waits) ·········································── look: taken

The idea: what is locked cannot change between the look and the write. It is what most people write who know of the
race.
The flaw: none in its promise, if everybody locks in one order. But every row is a round trip to the database while
the locks before it are held, every buyer takes a connection for all of them, and whoever wants a hot seat waits in
line only to hear that it is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.ports import About, Place
from earmark.bench.booking.strategies.drafts import hash_of
from earmark.bench.booking.strategies.ground import (
    Ground,
    Paid,
    Peer,
    Step,
    judge_opening,
    judge_pools,
    judge_seats,
)

if TYPE_CHECKING:
    from uuid import UUID

    from earmark.bench.booking.ports import Want
    from earmark.domain.booking import Booking


class RowByRow(Ground):
    """The shared rows, each in a statement of its own."""

    async def point_seats(self, step: Step, booking: Booking) -> None:
        """One by one."""
        for line in booking.lines.seats:
            await step.execute(self.sql["point_seat"], booking.event_id, line.id, booking.id)

    async def add_pools(self, step: Step, booking: Booking, *, held: int, sold: int) -> None:
        """One by one."""
        for line in booking.lines.pools:
            change = (line.units * held, line.units * sold)
            await step.execute(self.sql["add_pool"], booking.event_id, line.id, *change)


class ForUpdate(Peer):
    """Pessimistic, row by row."""

    async def try_hold(self, want: Want) -> UUID:
        """Lock, look, write."""
        ground = self.ground
        seats: dict[str, int] = {}
        pools: dict[str, int] = {}
        async with ground.transaction() as step:
            await ground.find_key(step, want.key, hash_of(want))
            sale = judge_opening(await step.fetchrow(ground.sql["read_event"], want.event_id), want)
            # Sorted, so that buyers of A1+A2 and of A2+A1 stand in one line and not in each other's way.
            for seat in sorted(want.seats):
                seats |= judge_seats([seat], await step.fetch(ground.sql["lock_seat"], want.event_id, seat))
            for pool in sorted(want.pools):
                asked = {pool: want.pools[pool]}
                pools |= judge_pools(asked, await step.fetch(ground.sql["lock_pool"], want.event_id, pool))
            await ground.pause()
            return await ground.write_hold(step, want, sale, seats=seats, pools=pools)

    async def try_confirm(self, paid: Paid) -> None:
        """Lock the booking, look at it, write."""
        ground = self.ground
        async with ground.transaction() as step:
            await ground.find_key(step, paid.key, paid.request_hash)
            row = await step.fetchrow(ground.sql["lock_booking"], paid.booking_id)
            await ground.write_confirm(step, row, paid)


async def _open(place: Place) -> ForUpdate:
    return ForUpdate(await RowByRow.open(place, "for_update"))


ABOUT = About(
    name="for_update",
    title="SELECT … FOR UPDATE, a statement per row",
    safe=True,
    why="Right, and right for most shops: a few dozen bookings a second never notice what it costs. It works with any "
    "number of servers on one database. It costs a round trip per row while the rows before are locked, so that "
    "on a hot seat the losers wait in line for a no. Lock in one order everywhere, or it deadlocks.",
    open=_open,
)
