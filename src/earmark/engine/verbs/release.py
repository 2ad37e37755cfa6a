"""release: the buyer lets go of a hold, and everything returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain import booking as booking_rules
from earmark.domain.booking_state_machine import Verb
from earmark.engine.batch_transaction import decide_on_bookings, open_on_bookings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.engine.commands_and_results import Outcome, Release
    from earmark.engine.limits_and_ids_for_verbs import VerbContext
    from earmark.engine.ports.store import Transaction


async def release(transaction: Transaction, batch: Sequence[Release], context: VerbContext) -> list[Outcome]:
    """Recorded response? → lock → decide → write. Seats need no write: a pointer to an ended booking is free."""
    decisions = await open_on_bookings(transaction, batch, ids=context.ids)
    return await decide_on_bookings(
        decisions, Verb.RELEASE, lambda _, booking, now: booking_rules.release(booking, now=now), reason=lambda _: None
    )
