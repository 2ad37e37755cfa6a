"""optimistic: look without a lock, and write only if nothing changed since.

    look (version 7) ────── write where version = 7 ── 1 row: yours
         look (version 7) ────── write where version = 7 ── 0 rows: look again

The idea: most of the time nobody is in the way, so that a lock for each look is paid for nothing. The write itself
compares, and who comes second notices. A seat's version is its pointer and its fence; a booking has a number.
The flaw: under contention the work is done before the conflict is seen, and then done again. The hotter the seat, the
more is thrown away. And the comparison must stand in the write: a version that is compared in the program is `naive`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from earmark.bench.booking.ports import About, Place
from earmark.bench.booking.strategies.ground import Ground, Moved, Paid, Peer, Refused, Step, judge_pools, judge_seats

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from earmark.bench.booking.ports import Want
    from earmark.domain.booking import Booking


class Optimistic(Peer):
    """Compare and set."""

    async def try_hold(self, want: Want) -> UUID:
        """Look; write what is still as it was seen; `Moved` rolls the whole back, and it is tried again."""
        ground = self.ground
        async with ground.connection() as step:
            sale = await ground.open_hold(step, want)
            looked = await ground.look_at_seats(step, want)
            seats = judge_seats(want.seats, looked)
            pools = judge_pools(want.pools, await ground.look_at_pools(step, want))
        await ground.pause()
        point = partial(self._point, fences={row["id"]: row["fence"] for row in looked})
        async with ground.transaction() as step:
            return await ground.write_hold(step, want, sale, seats=seats, pools=pools, point=point, take=self._take)

    async def try_confirm(self, paid: Paid) -> None:
        """The booking's own version says whether it moved."""
        ground = self.ground
        async with ground.connection() as step:
            await ground.find_key(step, paid.key, paid.request_hash)
            row = await step.fetchrow(ground.sql["look_at_booking"], paid.booking_id)
        async with ground.transaction() as step:
            await ground.write_confirm(step, row, paid, mark=self._mark)

    async def _point(self, step: Step, booking: Booking, *, fences: Mapping[str, int]) -> None:
        ids = [line.id for line in booking.lines.seats]
        seen = (booking.event_id, ids, [fences[seat] for seat in ids], booking.id)
        if await step.execute(self.ground.sql["point_seats_as_seen"], *seen) != f"UPDATE {len(ids)}":
            raise Moved

    async def _take(self, step: Step, booking: Booking) -> None:
        lines = booking.lines.pools
        asked = (booking.event_id, [line.id for line in lines], [line.units for line in lines])
        if await step.execute(self.ground.sql["take_pools"], *asked) != f"UPDATE {len(lines)}":
            raise Refused

    async def _mark(self, step: Step, after: Booking) -> None:
        change = (after.id, after.confirmed_at, after.payment_id, after.version)
        if await step.execute(self.ground.sql["mark_confirmed_as_seen"], *change) != "UPDATE 1":
            raise Moved


async def _open(place: Place) -> Optimistic:
    return Optimistic(await Ground.open(place, "optimistic"))


ABOUT = About(
    name="optimistic",
    title="a version compared in the write, with retry",
    safe=True,
    why="Right where conflicts are rare: editing a record, changing an order, booking in a large half-empty house. No "
    "lock is held while somebody thinks, not even for minutes. On a hot seat nearly every write is thrown away "
    "and tried again. Bound the retries, and read anew for each.",
    open=_open,
)
