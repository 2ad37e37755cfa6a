"""advisory: a lock of PostgreSQL on the seat's name, then look and write as if alone.

    BEGIN ── lock "A1" ── look ── write ── COMMIT (the lock goes with it)
             lock "A1" (waits) ··········── look: taken

The idea: PostgreSQL can lock a number that means whatever we like. It needs no row to be there, writes nothing, and
is gone with the transaction. So it guards what has no row yet, such as a time slot that nobody has booked before.
The flaw: it binds only those who ask for it. An import, an admin's page or hand-written SQL that writes the row
without asking for the name walks straight in. Two names that share a number wait for each other, harmlessly. And a
lock of the *session*, behind a pooler that shares sessions, is granted to two at once: take the transaction's, as
here.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from earmark.bench.booking.ports import About, Place
from earmark.bench.booking.strategies.ground import Ground, Paid, Peer, Step, judge_pools, judge_seats

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from earmark.bench.booking.ports import Want


class Advisory(Peer):
    """Names are locked, rows are not."""

    async def try_hold(self, want: Want) -> UUID:
        """Lock the names, look, write."""
        ground = self.ground
        async with ground.transaction() as step:
            await self._lock(step, (f"{want.event_id}/{name}" for name in (*want.seats, *want.pools)))
            # A statement of its own: one that had waited for the lock would look at what was before.
            sale = await ground.open_hold(step, want)
            seats = judge_seats(want.seats, await ground.look_at_seats(step, want))
            pools = judge_pools(want.pools, await ground.look_at_pools(step, want))
            await ground.pause()
            return await ground.write_hold(step, want, sale, seats=seats, pools=pools)

    async def try_confirm(self, paid: Paid) -> None:
        """Lock the booking's name, look, write."""
        ground = self.ground
        async with ground.transaction() as step:
            await self._lock(step, [str(paid.booking_id)])
            await ground.find_key(step, paid.key, paid.request_hash)
            row = await step.fetchrow(ground.sql["look_at_booking"], paid.booking_id)
            await ground.write_confirm(step, row, paid)

    async def _lock(self, step: Step, names: Iterable[str]) -> None:
        # Sorted by the number, which is what is locked: names that sort one way may be numbers that sort the other.
        await step.execute(self.ground.sql["lock_names"], sorted(map(_number, names)))


def _number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


async def _open(place: Place) -> Advisory:
    return Advisory(await Ground.open(place, "advisory"))


ABOUT = About(
    name="advisory",
    title="a PostgreSQL advisory lock per seat, then look and write",
    safe=True,
    why="Right for what has no row to lock: a slot in a calendar, a name that shall be unique across tables, a job "
    "that should run once. For seats, whose rows are there, it is a convention where `FOR UPDATE` is a fact: "
    "whoever does not know of it is not held up by it.",
    open=_open,
)
