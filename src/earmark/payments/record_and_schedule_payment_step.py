"""Records a step of a payment: when the payment is due next, and what the booking's journal says of the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from earmark.domain import booking as booking_rules
from earmark.domain import journal_before_and_after_values
from earmark.domain import payment as payment_rules

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.domain.booking import Booking
    from earmark.domain.payment import Payment
    from earmark.engine.pending_writes import PendingWrites
    from earmark.engine.ports.store import PaymentSnapshot

DETAILS = "details"
"""The fact of an entry that no webhook is called about."""


def note(
    writes: PendingWrites, booking: Booking, before: Payment, after: Payment, *, reason: str | None, **facts: Any
) -> None:
    """Record a step that does not move the booking."""
    noted = booking_rules.noted(booking)
    writes.note(booking, noted, actor=actor(before), reason=reason, money=step_facts(before, after) | facts)


def learn(writes: PendingWrites, booking: Booking, before: Payment, after: Payment) -> None:
    """Record a report that moves nothing, such as the gateway's id of the payment. No webhook is called."""
    note(writes, booking, before, after, reason=None, **{DETAILS: True})


def dispute(writes: PendingWrites, booking: Booking, before: Payment, *, kind: str) -> Payment:
    """Flag a payment whose buyer has asked their bank for the money back, and make it due at once."""
    after = payment_rules.flagged(before, code=payment_rules.DISPUTED)
    note(writes, booking, before, after, reason="the buyer disputes the payment", event=kind)
    return writes.set_payment(msgspec.structs.replace(after, due_at=writes.now, version=before.version + 1))


def scheduled(
    before: Payment, after: Payment, *, about: PaymentSnapshot, now: datetime, open_question: bool = False
) -> Payment:
    """With when it is due next: at once if another process changed it since it was read, for that may be newer."""
    tried = (before.state, before.refunded) == (after.state, after.refunded)
    due = payment_rules.scheduled(after, now=now, tried=tried, open_question=open_question)
    if before.version != about.payment.version:
        due = msgspec.structs.replace(due, due_at=now)
    return msgspec.structs.replace(due, version=before.version + 1)


def actor(payment: Payment) -> str:
    """The actor of a journal entry about what this payment's gateway reported."""
    return f"gateway:{payment.gateway}"


def step_facts(before: Payment, after: Payment, *, typed: bool = False) -> dict[str, Any]:
    """A payment's step, as the journal records it; `typed` where an operator has written what stands in it."""
    facts = {
        "id": str(after.id),
        "gateway": after.gateway,
        "from": before.state.value,
        "to": after.state.value,
        "amount": after.amount,
        "currency": after.currency,
        "code": after.code if after.code != before.code else None,
        "owed": after.refunding - before.refunding or None,
        journal_before_and_after_values.CHANGED: journal_before_and_after_values.payment_pairs(
            before, after, typed=typed
        )
        or None,
    }
    return {name: value for name, value in facts.items() if value is not None}
