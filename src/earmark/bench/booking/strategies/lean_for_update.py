"""lean_for_update: the same locks as `for_update`, with one statement that locks and one that writes.

    BEGIN ── lock A1, A2, A3 and look ── write it all ── COMMIT

The idea: the locks are right; it is the round trips that cost. One statement locks all seats in key order and reads
what else the hold is judged by, and one writes every table.
The flaw: as `for_update`, only less of it. A buyer still takes a connection for the whole of it, each commit still
waits for the disk alone, and losers still wait in line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.ports import About, Place
from earmark.bench.booking.strategies import drafts
from earmark.bench.booking.strategies.drafts import CALLER
from earmark.bench.booking.strategies.ground import (
    Ground,
    Paid,
    Peer,
    Refused,
    judge_key,
    judge_opening,
    judge_pools,
    judge_seats,
)
from earmark.domain import booking as law
from earmark.uuids import uuid7

if TYPE_CHECKING:
    from uuid import UUID

    from earmark.bench.booking.ports import Want


class LeanForUpdate(Peer):
    """Pessimistic, in as few statements as it takes."""

    async def try_hold(self, want: Want) -> UUID:
        """Lock, look, write."""
        ground = self.ground
        if not want.pools:
            return await self._try_seats(want)
        async with ground.transaction() as step:
            sale = await ground.open_hold(step, want)
            seats = judge_seats(want.seats, await ground.look_at_seats(step, want, "lock_seats"))
            pools = judge_pools(want.pools, await ground.look_at_pools(step, want, "lock_pools"))
            await ground.pause()
            return await ground.write_hold(step, want, sale, seats=seats, pools=pools)

    async def _try_seats(self, want: Want) -> UUID:
        """A claim of seats, which most are: one statement locks, one writes."""
        ground = self.ground
        async with ground.transaction() as step:
            rows = await step.fetch(ground.sql["lock_to_hold"], want.event_id, sorted(want.seats), CALLER, want.key)
            sale = judge_opening(rows[0] if rows else None, want)
            seats = judge_seats(want.seats, rows)
            await ground.pause()
            held = drafts.held(want, booking_id=uuid7(), sale=sale, seats=seats)
            entry = drafts.hold_entry(held, key=want.key, request_hash=drafts.hash_of(want))
            limit = sale.per_buyer_max
            # What the entry repeats of the booking is not sent twice.
            told = (entry[0], *entry[7:9], *entry[10:])
            count = (drafts.units(want), sorted(want.seats))
            written = await step.fetchval(ground.sql["write_hold"], *drafts.opened_row(held), *count, limit, *told)
            if written is None:
                raise Refused
            return held.id

    async def try_confirm(self, paid: Paid) -> None:
        """Lock the booking, look at it, write."""
        ground = self.ground
        async with ground.transaction() as step:
            row = await step.fetchrow(ground.sql["lock_booking"], paid.booking_id, CALLER, paid.key)
            if row is None:
                raise Refused
            if row["earlier"]:
                judge_key(row, paid.request_hash)
            before = drafts.booking(row)
            after = law.confirm(before, payment_id=paid.payment_id, payment_method=None, now=row["now"])
            if after.lines.pools or after is before:
                await ground.write_confirm(step, row, paid)
                return
            entry = drafts.confirm_entry(before, after, key=paid.key, request_hash=paid.request_hash)
            moved = (after.id, after.confirmed_at, after.payment_id, after.version)
            await step.execute(ground.sql["write_confirm"], *moved, *entry)


async def _open(place: Place) -> LeanForUpdate:
    return LeanForUpdate(await Ground.open(place, "lean_for_update"))


ABOUT = About(
    name="lean_for_update",
    title="SELECT … FOR UPDATE, one lock statement, one write statement",
    safe=True,
    why="Right wherever `for_update` is, and quicker the more seats a claim has. It asks for SQL by hand where an ORM "
    "would have written it row by row. Below a few hundred bookings a second there is no reason to look further.",
    open=_open,
)
