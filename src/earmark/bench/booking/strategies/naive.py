"""naive: look whether the seat is free, then write that it is sold.

    look ── free! ──────────── write
            look ── free! ──────────── write

The idea: the code reads as the rule is spoken. It passes every test that has one buyer.
The flaw: nothing holds the seat between the look and the write. Everybody who looks before the first one has written
sees a free seat, and everybody writes. A transaction around the two changes nothing at READ COMMITTED: it makes the
writes appear together, not the look and the write.

In a race it breaks every time, and not by luck: the race puts a pause between look and write, in which everybody else
who comes at the same moment looks too. Without the pause it breaks as well, only not in each and every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.ports import About, Place
from earmark.bench.booking.strategies.ground import Ground, Paid, Peer, judge_pools, judge_seats

if TYPE_CHECKING:
    from uuid import UUID

    from earmark.bench.booking.ports import Want


class Naive(Peer):
    """Check, then write."""

    async def try_hold(self, want: Want) -> UUID:
        """Look, and believe it."""
        ground = self.ground
        async with ground.connection() as step:
            sale = await ground.open_hold(step, want)
            seats = judge_seats(want.seats, await ground.look_at_seats(step, want))
            pools = judge_pools(want.pools, await ground.look_at_pools(step, want))
        await ground.pause()
        async with ground.transaction() as step:
            return await ground.write_hold(step, want, sale, seats=seats, pools=pools)

    async def try_confirm(self, paid: Paid) -> None:
        """Look whether it is held, and believe that too."""
        ground = self.ground
        async with ground.connection() as step:
            await ground.find_key(step, paid.key, paid.request_hash)
            row = await step.fetchrow(ground.sql["look_at_booking"], paid.booking_id)
        async with ground.transaction() as step:
            await ground.write_confirm(step, row, paid)


async def _open(place: Place) -> Naive:
    return Naive(await Ground.open(place))


ABOUT = About(
    name="naive",
    title="look, then write",
    safe=False,
    why="Right for one buyer at a time: a script, an import, a test. With two at once it sells the same seat to both, "
    "and the more popular the seat, the surer. What saves a shop that does this is a constraint in its schema, "
    "which refuses the second write whoever sends it.",
    open=_open,
)
