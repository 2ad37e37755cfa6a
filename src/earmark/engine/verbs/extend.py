"""extend: more time for a hold, within its longest life."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain import booking as law
from earmark.domain.state_machine import Verb
from earmark.engine.batch_transaction import open_on_bookings, settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.domain.policy import Policy
    from earmark.engine.commands import Extend, Outcome
    from earmark.engine.ports.store import Ids, Transaction


async def extend(transaction: Transaction, batch: Sequence[Extend], *, policy: Policy, ids: Ids) -> list[Outcome]:
    """Earlier answer? → lock → judge → write."""
    decisions = await open_on_bookings(transaction, batch, ids=ids)
    return await settle(
        decisions,
        Verb.EXTEND,
        lambda command, booking, now: law.extend(booking, seconds=command.seconds, policy=policy, now=now),
        reason=lambda _: None,
    )
