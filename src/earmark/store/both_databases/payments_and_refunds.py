"""Payments, refunds and what bounds them: the steps of a transaction, and what is read outside of one."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from earmark.domain.decline_limits import Payer, PayerRef
from earmark.domain.id_types import BookingId
from earmark.domain.payment import Payment, PaymentKey, Refund
from earmark.engine.ports.payment_monitoring_reads import MoneyWatch
from earmark.store.both_databases.named_statement_runner_protocols import from_row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from earmark.domain.id_types import PaymentId
    from earmark.domain.idempotency_record import IdempotencyKey
    from earmark.domain.live_or_test_mode import Mode
    from earmark.engine.ports.store import Changes

FIRST = UUID(int=0)
_TRIES: Any = msgspec.json.Decoder(dict[UUID, datetime])
_encoder = msgspec.json.Encoder()


def payment(row: Any) -> Payment:
    """A row of `payments`."""
    action = row["action"]
    return from_row(row, Payment, action=msgspec.json.decode(action) if action else None)


def refund(row: Any) -> Refund:
    """A row of `refunds`."""
    return from_row(row, Refund)


def inserted(p: Payment) -> tuple[object, ...]:
    """For `insert_payment`, in the order of the table."""
    whose = (p.id, p.booking_id, p.event_id, p.mode, p.gateway, p.method)
    what = (p.amount, p.currency, p.automatic, p.created_at, p.state.value, p.gateway_id)
    money = (p.captured, p.refunding, p.refunded, p.refunded_elsewhere)
    said = (p.code, p.message, _action(p), p.return_url)
    return (*whose, *what, *money, *said, p.due_at, p.tries, p.version, p.processed_at)


def updated(p: Payment) -> tuple[object, ...]:
    """Columns for `update_payment`, with the version that guards it."""
    money = (p.captured, p.refunding, p.refunded, p.code, p.message, _action(p))
    decided = (p.due_at, p.tries, p.version, p.refunded_elsewhere, p.processed_at)
    return (p.id, p.state.value, p.gateway_id, *money, *decided)


def _action(p: Payment) -> str | None:
    return None if p.action is None else _encoder.encode(p.action).decode()


class PaymentSteps:
    """The steps about payments, for a transaction that runs named statements."""

    _now: datetime | None
    fetch: Callable[..., Awaitable[list[Any]]]
    execute: Callable[..., Awaitable[int]]

    async def take_callback(self, gateway: str, callback_id: str, *, payment_id: PaymentId) -> bool:
        """False where it was taken before. A transaction that takes the same one is waited for."""
        assert self._now is not None, "a transaction begins first"
        return bool(await self.execute("take_callback", gateway, callback_id, payment_id, self._now))

    async def lock_payments(self, ids: Collection[PaymentId]) -> dict[PaymentId, Payment]:
        """Payments by key, locked in key order."""
        found = await self.fetch("lock_payments", sorted(ids)) if ids else []
        return {one.id: one for one in map(payment, found)}

    async def read_payment_key(self, key: IdempotencyKey) -> PaymentKey | None:
        """Which payment a request with this key opened, if one did."""
        found = await self.fetch("read_payment_key", *key)
        return from_row(found[0], PaymentKey, key=tuple(key)) if found else None

    async def lock_payer(self, ref: PayerRef) -> Payer:
        """By buyer; a buyer without a row has no tries."""
        found = await self.fetch("lock_payer", *ref)
        return Payer(ref=ref, tries=_TRIES.decode(found[0]["tries"]) if found else {})

    async def read_tries(self, booking_id: BookingId, ids: Collection[PaymentId]) -> dict[PaymentId, Payment]:
        """In a statement that begins after the buyer was locked, so it sees what was committed until then."""
        found = await self.fetch("read_tries", booking_id, list(ids))
        return {one.id: one for one in map(payment, found)}

    async def read_refunds(self, payment_id: PaymentId) -> list[Refund]:
        """The refunds of a payment, oldest first."""
        return [refund(row) for row in await self.fetch("read_refunds", [payment_id])]

    async def write_payments(self, changes: Changes) -> None:
        """One by one, for most transactions write one; a payment before the refunds that count against it."""
        for p in changes.payments:
            name, columns = ("insert_payment", inserted(p)) if p.version == 1 else ("update_payment", updated(p))
            written = await self.execute(name, *columns)
            assert written == 1, f"payment {p.id} was not locked"
        for r in changes.refunds:
            head = (r.id, r.payment_id, r.booking_id, r.amount, r.created_at, r.reason)
            await self.execute("write_refund", *head, r.state.value, r.gateway_id, r.code, r.processed_at)
        for k in changes.payment_keys:
            await self.execute("write_payment_key", *k.key, k.request_hash, k.payment_id, k.opened_at)
        for payer in changes.payers:
            tries = _encoder.encode(payer.tries).decode()
            written = await self.execute("write_payer", *payer.ref, tries, payer.tried_at)
            assert written == 1, "the payer was not locked"


class PaymentReads:
    """What is read of payments outside of a transaction, for a store that runs named statements."""

    read_rows: Callable[..., Awaitable[list[Any]]]
    now: Callable[[], Awaitable[datetime]]

    async def list_payments(self, booking_id: BookingId) -> list[tuple[Payment, list[Refund]]]:
        """The payments of a booking with their refunds, oldest first."""
        payments = [payment(row) for row in await self.read_rows("list_payments", booking_id)]
        refunds = [refund(row) for row in await self.read_rows("read_refunds", [one.id for one in payments])]
        return [(one, [back for back in refunds if back.payment_id == one.id]) for one in payments]

    async def list_paid_here(self, ids: Collection[BookingId]) -> frozenset[BookingId]:
        """By the primary key of bookings, and the payments' index by booking."""
        rows = await self.read_rows("list_paid_here", sorted(ids)) if ids else []
        # SQLite has ids as text.
        return msgspec.convert([row["booking_id"] for row in rows], frozenset[BookingId])

    async def seconds_to_next_payment(self, *, gateways: Collection[str] | None = None) -> float | None:
        """By the reconciler's index."""
        (row,) = await self.read_rows("next_payment", None if gateways is None else sorted(gateways))
        due_at: datetime | None = row["due_at"]
        return None if due_at is None else (due_at - await self.now()).total_seconds()

    async def list_attention(self, *, limit: int, mode: Mode | None = None) -> list[Payment]:
        """Payments that need an operator, oldest first."""
        return [payment(row) for row in await self.read_rows("list_attention", limit, mode)]

    async def watch_money(self, *, limit: int, mode: Mode | None = None) -> MoneyWatch:
        """By the index of payments that need an operator, and by the reconciler's."""
        (open_,) = await self.read_rows("count_open", limit, mode)
        flagged = {row["gateway"]: row["payments"] for row in await self.read_rows("count_attention", limit, mode)}
        return MoneyWatch(attention=flagged, now=await self.now(), **dict(open_))

    async def page_payments(
        self, gateway: str, *, since: datetime, after: PaymentId | None, limit: int
    ) -> list[Payment]:
        """A page of the payments at a gateway, by id."""
        return [payment(row) for row in await self.read_rows("page_payments", gateway, since, after or FIRST, limit)]
