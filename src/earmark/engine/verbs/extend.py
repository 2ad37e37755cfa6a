"""extend: more time for a hold, within its longest life."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain import booking as booking_rules
from earmark.domain.booking_state_machine import Verb
from earmark.engine.batch_transaction import decide_on_bookings, open_on_bookings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.engine.commands_and_results import Extend, Outcome
    from earmark.engine.limits_and_ids_for_verbs import VerbContext
    from earmark.engine.ports.store import Transaction


async def extend(transaction: Transaction, batch: Sequence[Extend], context: VerbContext) -> list[Outcome]:
    """Recorded response? → lock → decide → write."""
    decisions = await open_on_bookings(transaction, batch, ids=context.ids)
    return await decide_on_bookings(
        decisions,
        Verb.EXTEND,
        lambda command, booking, now: booking_rules.extend(
            booking, seconds=command.seconds, policy=context.policy, now=now
        ),
        reason=lambda _: None,
    )
