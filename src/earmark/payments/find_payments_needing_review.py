"""Payments that need review by an operator: why, since when, and which command resolves them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.payment import DISPUTED, REFUNDED_ELSEWHERE, Payment, PaymentState, Refund, RefundState

if TYPE_CHECKING:
    from earmark.domain.live_or_test_mode import Mode
    from earmark.engine.ports.store import Store


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A payment that needs review, with all that an operator has to know."""

    payment_id: str
    booking_id: str
    booking_state: str
    event_id: str
    gateway: str
    gateway_id: str | None
    amount: int
    captured: int
    refunded: int
    currency: str
    since: datetime
    code: str | None
    message: str | None
    refused: list[Refund]
    """The refunds that the gateway refused."""
    what_to_do: str
    command: str
    """The command at the end of `what_to_do`, to be copied."""

    @property
    def advice(self) -> str:
        """`what_to_do` without the command."""
        return self.what_to_do.removesuffix(f"; then {self.command}")


async def cases(store: Store, *, limit: int, mode: Mode | None = None) -> list[Case]:
    """The payments that need review, oldest first; of one mode if `live` is given."""
    return [await _case(store, payment) for payment in await store.list_attention(limit=limit, mode=mode)]


async def _case(store: Store, payment: Payment) -> Case:
    about = await store.read_payment_snapshot(payment.id)
    assert about is not None, "a payment is never deleted"
    refused = [refund for refund in about.refunds if refund.state is RefundState.REFUSED]
    advice, command = _help(payment, refused=refused)
    return Case(
        payment_id=str(payment.id),
        booking_id=str(payment.booking_id),
        booking_state=about.booking.state,
        event_id=payment.event_id,
        gateway=payment.gateway,
        gateway_id=payment.gateway_id,
        amount=payment.amount,
        captured=payment.captured,
        refunded=payment.refunded,
        currency=payment.currency,
        since=await _since(store, payment),
        code=payment.code,
        message=payment.message,
        refused=refused,
        what_to_do=f"{advice}; then {command}",
        command=command,
    )


async def _since(store: Store, payment: Payment) -> datetime:
    """When the payment was last flagged for review, according to the booking's journal."""
    flagged = [
        entry.at
        for entry in await store.read_history(payment.booking_id)
        if (move := entry.facts.get("payment"))
        and move.get("id") == str(payment.id)
        and move.get("to") == PaymentState.NEEDS_ATTENTION
        and move.get("from") != PaymentState.NEEDS_ATTENTION
    ]
    return flagged[-1] if flagged else payment.created_at


def _help(payment: Payment, *, refused: list[Refund]) -> tuple[str, str]:
    """What the operator does, and the command that records it afterwards."""
    settle = f"earmark payments settle {payment.id} --as refunded|kept --note …"
    if not payment.captured:
        look = f"earmark payments look {payment.id}"
        gone = f"earmark payments settle {payment.id} --as nothing --note …"
        return "The gateway has not decided, and the booking waits: end the payment there", f"{look}, or {gone}"
    if payment.code == DISPUTED:
        return "The buyer has asked their bank for the money back: answer there, wait for the outcome", settle
    if payment.code == REFUNDED_ELSEWHERE:
        amount = f"{payment.refunded_elsewhere} {payment.currency}"
        made = f"{amount} went back at the gateway, and not by Earmark, and the booking stays as it is"
        return f"{made}: cancel it with no refund if the sale is undone", settle
    if refused:
        return "Give the money back another way, or decide to keep it", settle
    return "The gateway took another amount than was asked: put that right there", settle
