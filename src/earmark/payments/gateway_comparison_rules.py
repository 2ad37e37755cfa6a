"""Compares our payments with a gateway's own records: where they differ, and whether that is wrong.

A payment that the reconciler or an operator will still look at may differ, and is only listed. Any other agrees to the
cent, and all money that the gateway took under an id of ours is a payment of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.domain.payment import PaymentState, ReportedState
from earmark.engine.ports.store import Flaw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.domain.payment import Payment
    from earmark.engine.ports.gateway import Record

PROMISE = "P3"
TOOK = "a gateway has taken what our books say"
GAVE_BACK = "a gateway has given back what our books say"
UNKNOWN_THERE = "a gateway knows every payment that took money there"
SET_ASIDE = "no gateway keeps money set aside for a payment that is over"
CURRENCY = "a gateway has the payment in our currency"
TWICE = "a payment is charged once"
ORPHAN = "money that a gateway took under an id of ours is a payment of ours"


class Comparison(msgspec.Struct, kw_only=True):
    """The result of a comparison."""

    agree: int = 0
    flaws: list[Flaw] = msgspec.field(default_factory=list)
    still_open: list[Flaw] = msgspec.field(default_factory=list)
    """They differ, and the reconciler, or an operator who was called, will look."""
    foreign: int = 0
    """Charges there without an id of ours: made by other programs."""


def is_open(payment: Payment) -> bool:
    """Whether it will be looked at again, by the reconciler or by a person."""
    return payment.due_at is not None or payment.state is PaymentState.NEEDS_ATTENTION


def chosen(payment: Payment, records: Sequence[Record]) -> Record | None:
    """The gateway's record of this payment; of several the one it is known by, or that took money."""
    by_worth = sorted(records, key=lambda one: (one.gateway_id == payment.gateway_id, one.captured), reverse=True)
    return by_worth[0] if by_worth else None


def differences(payment: Payment, record: Record | None) -> list[Flaw]:
    """Where a payment and the gateway's record of it differ."""
    if record is None:
        told = f"{_named(payment)}: captured {payment.captured} here, and unknown there"
        return [_flaw(UNKNOWN_THERE, told)] if payment.captured else []
    found = []
    if record.currency != payment.currency:
        found.append(_flaw(CURRENCY, f"{_named(payment)}: {payment.currency} here and {record.currency} there"))
    if record.captured != payment.captured and not _was_told(payment, record):
        found.append(_flaw(TOOK, f"{_named(payment)}: captured {payment.captured} here and {record.captured} there"))
    refunded = payment.refunded + payment.refunded_elsewhere
    if not refunded <= record.refunded <= _refunded_max(payment):
        told = f"{_named(payment)}: refunded {refunded} here and {record.refunded} there"
        found.append(_flaw(GAVE_BACK, told))
    if record.state is ReportedState.AUTHORISED and payment.state in {PaymentState.FAILED, PaymentState.VOIDED}:
        found.append(_flaw(SET_ASIDE, f"{_named(payment)}: {payment.state} here and set aside there"))
    return found


def strays(payment: Payment, records: Sequence[Record]) -> list[Flaw]:
    """Further charges for the same payment whose money was not refunded."""
    known = chosen(payment, records)
    return [
        _flaw(TWICE, f"{_named(payment)}: {_kept(one)} more was taken as {one.gateway_id}")
        for one in records
        if one is not known and _holds(one)
    ]


def orphans(records: Sequence[Record]) -> list[Flaw]:
    """Charges under an id that is no payment here."""
    return [
        _flaw(ORPHAN, f"{one.gateway_id} took {_kept(one)} for payment {one.payment_id}, which is not here")
        for one in records
        if _holds(one)
    ]


def _refunded_max(payment: Payment) -> int:
    """A settled payment may have been refunded at the gateway's own page, or by another way: both are right."""
    known = payment.refunded + payment.refunded_elsewhere
    return payment.captured if payment.state is PaymentState.SETTLED else known


def _was_told(payment: Payment, record: Record) -> bool:
    """Whether an operator has settled that the gateway took more than the amount: ours then counts the amount."""
    return payment.state is PaymentState.SETTLED and payment.captured == payment.amount < record.captured


def _holds(record: Record) -> bool:
    return record.captured > record.refunded


def _kept(record: Record) -> str:
    return f"{record.captured - record.refunded} {record.currency}"


def _named(payment: Payment) -> str:
    return f"payment {payment.id} of booking {payment.booking_id} ({payment.gateway} {payment.gateway_id or 'unknown'})"


def _flaw(rule: str, row: str) -> Flaw:
    return Flaw(promise=PROMISE, rule=rule, row=row)
