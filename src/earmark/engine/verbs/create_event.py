"""create: a new event, with everything it sells, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.engine.batch_transaction import BatchDecisions
from earmark.errors import EventExists

if TYPE_CHECKING:
    from earmark.engine.commands_and_results import CreateEvent, Outcome
    from earmark.engine.ports.store import Ids, Transaction


async def create_event(transaction: Transaction, command: CreateEvent, *, ids: Ids) -> Outcome:
    """Recorded response? → insert → record in the journal."""
    decisions = await BatchDecisions.open(transaction, [command], ids=ids)
    if decisions.waiting:
        event = msgspec.structs.replace(command.event, created_at=decisions.now)
        if await transaction.insert_event(event, seats=command.seats, pools=command.pools):
            facts = {
                **{name: value for name, value in msgspec.to_builtins(event).items() if value is not None},
                "seats": len(command.seats),
                "pools": {pool.id: pool.capacity for pool in command.pools},
            }
            record = decisions.record_response(command, event)
            decisions.writes.record_event("create_event", event, command=command, record=record, facts=facts)
            decisions.complete(command, event, record=record)
        else:
            decisions.refuse(command, EventExists(event_id=event.id))
    return (await decisions.close())[0]
