"""The money's rows in memory: the tables, the steps of a transaction, and what is read outside of one."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.domain.decline_limits import Payer, PayerRef
from earmark.domain.payment import EDGES, UNDECIDED, Payment, PaymentState, Refund, RefundState, is_past_cap
from earmark.engine.ports.payment_watch import MoneyWatch
from earmark.engine.ports.store import Dossier, Flaw

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from earmark.domain.booking import Booking
    from earmark.domain.ids import BookingId, PaymentId, RefundId
    from earmark.domain.journal import IdempotencyKey
    from earmark.domain.payment import PaymentKey
    from earmark.engine.ports.store import Clock


class MoneyTables:
    """Rows by their keys."""

    bookings: dict[BookingId, Booking]

    def __init__(self) -> None:
        self.payments: dict[PaymentId, Payment] = {}
        self.refunds: dict[RefundId, Refund] = {}
        self.payment_keys: dict[IdempotencyKey, PaymentKey] = {}
        self.payers: dict[PayerRef, Payer] = {}
        self.callbacks: dict[tuple[str, str], PaymentId] = {}


class MoneySteps:
    """The steps about money. One writer, so there is nothing to lock."""

    tables: MoneyTables

    async def take_callback(self, gateway: str, callback_id: str, *, payment_id: PaymentId) -> bool:
        """First come, first served."""
        if (gateway, callback_id) in self.tables.callbacks:
            return False
        self.tables.callbacks[gateway, callback_id] = payment_id
        return True

    async def lock_payments(self, ids: Collection[PaymentId]) -> dict[PaymentId, Payment]:
        """By id."""
        known = self.tables.payments
        return {payment_id: known[payment_id] for payment_id in ids if payment_id in known}

    async def read_payment_key(self, key: IdempotencyKey) -> PaymentKey | None:
        """By key."""
        return self.tables.payment_keys.get(key)

    async def lock_payer(self, ref: PayerRef) -> Payer:
        """By buyer."""
        return self.tables.payers.get(ref) or Payer(ref=ref)

    async def read_tries(self, booking_id: BookingId, ids: Collection[PaymentId]) -> dict[PaymentId, Payment]:
        """Over all payments."""
        known = self.tables.payments
        return {key: one for key, one in known.items() if key in ids or one.booking_id == booking_id}

    async def read_refunds(self, payment_id: PaymentId) -> list[Refund]:
        """In the order in which they were made."""
        return _refunds(self.tables, payment_id)

    def write_money(self, payments: Sequence[Payment], refunds: Sequence[Refund]) -> None:
        """The law stands here too: a write that breaks it is our bug."""
        tables = self.tables
        for payment in payments:
            before = tables.payments.get(payment.id)
            assert payment.version == (before.version + 1 if before else 1), f"payment {payment.id} was not locked"
            _check(payment, before)
            tables.payments[payment.id] = payment
        for refund in refunds:
            _check_refund(refund, tables.refunds.get(refund.id), of=tables.payments[refund.payment_id])
            tables.refunds[refund.id] = refund
            owed = sum(one.amount for one in _refunds(tables, refund.payment_id))
            assert owed <= tables.payments[refund.payment_id].refunding, f"{refund} is owed by nobody"


def _check(payment: Payment, before: Payment | None) -> None:
    assert payment.amount > 0, f"{payment} asks for nothing"
    in_order = 0 <= payment.refunded <= payment.refunding <= payment.captured <= payment.amount
    assert in_order, f"{payment} takes or gives back too much"
    assert 0 <= payment.refunded_elsewhere <= payment.captured - payment.refunded, f"{payment} gives back too much"
    if before is None:
        assert (payment.state, payment.captured) == (PaymentState.PENDING, 0), f"{payment} has begun before"
        return
    assert before.captured in {0, payment.captured}, f"{payment.id} has captured {before.captured}"
    failed = payment.state is PaymentState.NEEDS_ATTENTION
    shrinks = payment.refunding < before.refunding or (payment.refunded < before.refunded and not failed)
    assert not shrinks, f"{payment} gives back less than {before}"
    told = failed or payment.refunded_elsewhere <= before.refunded_elsewhere
    assert told, f"{payment} gave money back elsewhere, and nobody is told"
    if before.state is not payment.state:
        assert (before.state, payment.state) in EDGES, f"{payment.id} from {before.state} to {payment.state}"


def _check_refund(refund: Refund, before: Refund | None, *, of: Payment) -> None:
    assert refund.amount > 0, f"{refund} gives nothing back"
    was = before.state if before else RefundState.PENDING
    settled = before is not None and was is RefundState.PENDING
    failed = (was, refund.state) == (RefundState.DONE, RefundState.REFUSED)
    told = failed and of.state is PaymentState.NEEDS_ATTENTION
    assert refund.state is was or settled or told, f"refund {refund.id} from {was} to {refund.state}"


class MoneyReads:
    """What is read of the money outside of a transaction."""

    _clock: Clock
    _tables: MoneyTables

    async def read_dossier(self, payment_id: PaymentId) -> Dossier | None:
        """By id."""
        payment = self._tables.payments.get(payment_id)
        if payment is None:
            return None
        return Dossier(
            now=self._clock.now(),
            payment=payment,
            booking=self._tables.bookings[payment.booking_id],
            refunds=_refunds(self._tables, payment_id),
        )

    async def list_payments(self, booking_id: BookingId) -> list[tuple[Payment, list[Refund]]]:
        """By age."""
        payments = [payment for payment in self._tables.payments.values() if payment.booking_id == booking_id]
        return [(payment, _refunds(self._tables, payment.id)) for payment in sorted(payments, key=_age)]

    async def claim_payments(
        self, *, limit: int, lease_seconds: float, gateways: Collection[str] | None = None
    ) -> list[PaymentId]:
        """The longest due first."""
        now = self._clock.now()
        ours = (
            one
            for one in self._tables.payments.values()
            if gateways is None or one.gateway in gateways or (one.state in UNDECIDED and is_past_cap(one, now=now))
        )
        due = sorted((at, payment.id) for payment in ours if (at := payment.due_at))
        claimed = [payment_id for at, payment_id in due if at <= now][:limit]
        for payment_id in claimed:
            leased = msgspec.structs.replace(
                self._tables.payments[payment_id], due_at=now + timedelta(seconds=lease_seconds)
            )
            self._tables.payments[payment_id] = leased
        return claimed

    async def seconds_to_next_payment(self, *, gateways: Collection[str] | None = None) -> float | None:
        """Over all payments."""
        ours = (one for one in self._tables.payments.values() if gateways is None or one.gateway in gateways)
        due = [payment.due_at for payment in ours if payment.due_at]
        return (min(due) - self._clock.now()).total_seconds() if due else None

    async def list_attention(self, *, limit: int, live: bool | None = None) -> list[Payment]:
        """By age."""
        flagged = (one for one in self._of(live) if one.state is PaymentState.NEEDS_ATTENTION)
        return sorted(flagged, key=_age)[:limit]

    async def watch_money(self, *, limit: int, live: bool | None = None) -> MoneyWatch:
        """Over all payments."""
        flagged = await self.list_attention(limit=limit, live=live)
        due = sorted((one for one in self._of(live) if one.due_at), key=lambda one: one.due_at or 0)
        began = [at for one in due[:limit] if (at := _open_since(self._tables, one))]
        return MoneyWatch(
            attention=Counter(one.gateway for one in flagged),
            open=len(began),
            open_since=min(began, default=None),
            now=self._clock.now(),
        )

    async def page_payments(
        self, gateway: str, *, since: datetime, after: PaymentId | None, limit: int
    ) -> list[Payment]:
        """By id."""
        known = sorted(self._tables.payments.items())
        ours = (one for _, one in known if one.gateway == gateway and one.created_at >= since)
        return [one for one in ours if after is None or one.id > after][:limit]

    def _of(self, live: bool | None) -> list[Payment]:  # noqa: FBT001 (the rows of a kind; None is both)
        return [one for one in self._tables.payments.values() if live is None or one.live is live]


def short_payments(tables: MoneyTables) -> list[Flaw]:
    """Payments that took another amount than was asked, though nobody was told."""
    taken = {PaymentState.CAPTURED, PaymentState.PARTIALLY_REFUNDED, PaymentState.REFUNDED}
    rule = "a payment that is captured took all that was asked, or somebody was told"
    return [
        Flaw(
            promise="P3",
            rule=rule,
            row=f"payment {one.id} is {one.state}: amount {one.amount}, captured {one.captured}",
        )
        for one in tables.payments.values()
        if one.state in taken and one.captured != one.amount
    ]


def _open_since(tables: MoneyTables, payment: Payment) -> datetime | None:
    pending = [one.created_at for one in _refunds(tables, payment.id) if one.state is RefundState.PENDING]
    over = payment.captured or payment.state in {PaymentState.FAILED, PaymentState.VOIDED}
    return min(pending) if pending else None if over else payment.created_at


def _age(one: Payment | Refund) -> tuple[datetime, Any]:
    return one.created_at, one.id


def _refunds(tables: MoneyTables, payment_id: PaymentId) -> list[Refund]:
    return sorted((refund for refund in tables.refunds.values() if refund.payment_id == payment_id), key=_age)
