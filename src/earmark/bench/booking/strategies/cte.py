"""cte: a verb is one statement. It locks, looks and writes, and the database does it all in one go.

    hold ─────────────── one round trip, one transaction ──── booking, or why not

The idea: no time passes between look and write but the database's own, and nobody waits for a round trip under a
lock. It is the fastest that a request on its own can be.
The flaw: none in its promise, but a long statement that few dare to change. Two of its traps are worth a warning: a
look at another table in a statement that had to wait is old news, so that only the seat's own columns may decide; and
what a statement writes in several places it writes in no defined order. A request is still a commit of its own, and
each commit waits for the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.ports import About, Place
from earmark.bench.booking.strategies.drafts import CALLER, hash_of
from earmark.bench.booking.strategies.ground import Ground, Paid, Peer, Refused, judge_key
from earmark.uuids import uuid7

if TYPE_CHECKING:
    from uuid import UUID

    from earmark.bench.booking.ports import Want


class Cte(Peer):
    """One statement per verb. There is no moment in it for a pause."""

    async def try_hold(self, want: Want) -> UUID:
        """One statement."""
        request_hash = hash_of(want)
        pools = sorted(want.pools.items())
        units = ([pool for pool, _ in pools], [units for _, units in pools])
        asked = (want.event_id, want.buyer, sorted(want.seats), *units)
        made = (uuid7(), want.ttl_seconds, uuid7(), CALLER, want.key, request_hash)
        async with self.ground.connection() as step:
            row = await step.fetchrow(self.ground.sql["hold_with_pools" if pools else "hold"], *asked, *made)
        if row is None:
            raise LookupError(f"There is no event {want.event_id}.")
        if row["earlier"]:
            judge_key(row, request_hash)
        if row["booking_id"] is None:
            raise Refused(stale=row["stale"])
        booking_id: UUID = row["booking_id"]
        return booking_id

    async def try_confirm(self, paid: Paid) -> None:
        """One statement, and a second one only when the first wrote nothing."""
        ground = self.ground
        asked = (paid.booking_id, paid.payment_id, uuid7(), CALLER, paid.key, paid.request_hash)
        async with ground.connection() as step:
            if await step.fetchval(ground.sql["confirm"], *asked) is None:
                await ground.find_key(step, paid.key, paid.request_hash)
                raise Refused


async def _open(place: Place) -> Cte:
    return Cte(await Ground.open(place, "cte"))


ABOUT = About(
    name="cte",
    title="one tuned statement per request",
    safe=True,
    why="Right, and the quickest way for requests that come one by one: a lone buyer waits for one round trip and one "
    "commit. It is what to write by hand when `for_update` has become too slow. Business rules then live in SQL, "
    "where fewer people read them, and every buyer still pays for a commit.",
    pauses=False,
    open=_open,
)
