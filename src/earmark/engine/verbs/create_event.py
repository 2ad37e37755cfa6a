"""create: a new event, with everything it sells, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.engine.batch_transaction import Desk
from earmark.errors import EventExists

if TYPE_CHECKING:
    from earmark.engine.commands import Create, Outcome
    from earmark.engine.ports.store import Ids, Transaction


async def create(transaction: Transaction, ask: Create, *, ids: Ids) -> Outcome:
    """Earlier answer? → insert → tell."""
    desk = await Desk.open(transaction, [ask], ids=ids)
    if desk.waiting:
        event = msgspec.structs.replace(ask.event, created_at=desk.now)
        if await transaction.insert_event(event, seats=ask.seats, pools=ask.pools):
            facts = {
                **{name: value for name, value in msgspec.to_builtins(event).items() if value is not None},
                "seats": len(ask.seats),
                "pools": {pool.id: pool.capacity for pool in ask.pools},
            }
            desk.ledger.tell_of_event("create", event, ask=ask, facts=facts)
            desk.answer(ask, event)
        else:
            desk.refuse(ask, EventExists(event_id=event.id))
    return (await desk.close())[0]
