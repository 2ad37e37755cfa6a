"""single_phase: sold first, paid later.

    lock ── look ── write "sold" ── COMMIT ········ pay? ········ or never

The idea: one step instead of two. The row is locked as in `lean_for_update`, so that no seat is sold twice, and there
are no holds to count down and no expired ones to sweep.
The flaw: a sale is final, and the money is not there yet. Every buyer who closes the page, or whose card is declined,
leaves a seat that counts as sold and was never paid for. Somebody has to find these seats and decide which buyer is
not coming back: a hold with a time limit, invented a second time, by hand. Asking for the money first only turns the
problem round: then it is paid for and perhaps not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.bench.booking.ports import About, Place
from earmark.bench.booking.strategies import drafts
from earmark.bench.booking.strategies.ground import (
    Ground,
    Paid,
    Peer,
    Refused,
    Step,
    judge_limit,
    judge_pools,
    judge_seats,
)
from earmark.domain.state_machine import State
from earmark.uuids import uuid7

if TYPE_CHECKING:
    from uuid import UUID

    from earmark.bench.booking.ports import Want
    from earmark.bench.booking.strategies.drafts import Sale
    from earmark.domain.booking import Booking


class SinglePhase(Peer):
    """There is no hold: what `hold` returns is a sale."""

    async def try_hold(self, want: Want) -> UUID:
        """Lock, look, sell."""
        ground = self.ground
        async with ground.transaction() as step:
            sale = await ground.open_hold(step, want)
            seats = judge_seats(want.seats, await ground.look_at_seats(step, want, "lock_seats"))
            pools = judge_pools(want.pools, await ground.look_at_pools(step, want, "lock_pools"))
            await ground.pause()
            booking = drafts.held(want, booking_id=uuid7(), sale=sale, seats=seats, pools=pools)
            await self._sell(step, want, sale, booking)
            return booking.id

    async def try_confirm(self, paid: Paid) -> None:
        """The money for what was sold already. Who never gets here leaves the seat sold."""
        ground = self.ground
        async with ground.transaction() as step:
            await ground.find_key(step, paid.key, paid.request_hash)
            row = await step.fetchrow(ground.sql["lock_sold"], paid.booking_id)
            if row is None or row["payment_id"] not in {None, paid.payment_id}:
                raise Refused
            if row["payment_id"] is not None:
                return
            before = drafts.booking(row)
            after = msgspec.structs.replace(before, payment_id=paid.payment_id, version=before.version + 1)
            await step.execute(ground.sql["insert_payment"], paid.payment_id, after.id)
            await step.execute(ground.sql["attach_payment"], after.id, paid.payment_id, after.version)
            entry = drafts.confirm_entry(before, after, key=paid.key, request_hash=paid.request_hash)
            await step.execute(ground.sql["insert_entry"], *entry)

    async def _sell(self, step: Step, want: Want, sale: Sale, booking: Booking) -> None:
        ground = self.ground
        total = await step.fetchval(ground.sql["add_total"], want.event_id, want.buyer, drafts.units(want))
        judge_limit(total, sale)
        await ground.add_pools(step, booking, held=0, sold=1)
        await step.execute(ground.sql["insert_booking"], *drafts.opened_row(booking))
        await ground.point_seats(step, booking)
        await step.execute(ground.sql["mark_sold"], booking.id, sale.now)
        sold = msgspec.structs.replace(booking, state=State.CONFIRMED, confirmed_at=sale.now)
        entry = drafts.hold_entry(sold, key=want.key, request_hash=drafts.hash_of(want))
        await step.execute(ground.sql["insert_entry"], *entry)


async def _open(place: Place) -> SinglePhase:
    return SinglePhase(await Ground.open(place, "lean_for_update", "single_phase"))


ABOUT = About(
    name="single_phase",
    title="sold before paid, no hold",
    safe=True,
    why="Right where nothing is paid, or payment is certain: free tickets, members on account, a till where the buyer "
    "stands in front of you. Sold online, it never sells a seat twice and yet loses sales, one for every buyer "
    "who walks away while paying.",
    open=_open,
)
