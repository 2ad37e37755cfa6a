"""The money's rows in SQLite: the steps of a transaction, and what is read outside of one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from earmark.domain.decline_limits import Payer, PayerRef
from earmark.domain.ids import BookingId, PaymentId, RefundId
from earmark.domain.journal import IdempotencyKey
from earmark.domain.payment import PAYING_SECONDS_MAX, Payment, PaymentKey, PaymentState, Refund, RefundState
from earmark.engine.ports.payment_watch import MoneyWatch
from earmark.engine.ports.store import Dossier
from earmark.store.sqlite import rows

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

READ_SECONDS = 10.0
_TRIES: Any = msgspec.json.Decoder(dict[UUID, datetime])


def payment(row: sqlite3.Row) -> Payment:
    """A row of `payments`."""
    facts = dict(row)
    facts["id"] = PaymentId(UUID(row["id"]))
    facts["booking_id"] = BookingId(UUID(row["booking_id"]))
    facts["state"] = PaymentState(row["state"])
    facts["action"] = msgspec.json.decode(row["action"]) if row["action"] else None
    facts |= {"live": bool(row["live"]), "automatic": bool(row["automatic"])}
    facts |= {"created_at": rows.moment(row["created_at"]), "due_at": rows.moment_or_none(row["due_at"])}
    facts["processed_at"] = rows.moment_or_none(row["processed_at"])
    return Payment(**facts)


def refund(row: sqlite3.Row) -> Refund:
    """A row of `refunds`."""
    facts = dict(row)
    facts["id"] = RefundId(UUID(row["id"]))
    facts["payment_id"] = PaymentId(UUID(row["payment_id"]))
    facts["booking_id"] = BookingId(UUID(row["booking_id"]))
    facts |= {"state": RefundState(row["state"]), "created_at": rows.moment(row["created_at"])}
    facts["processed_at"] = rows.moment_or_none(row["processed_at"])
    return Refund(**facts)


def payment_key(row: sqlite3.Row) -> PaymentKey:
    """A row of `payment_keys`."""
    return PaymentKey(
        key=IdempotencyKey(row["caller"], row["key"]),
        request_hash=row["request_hash"],
        payment_id=PaymentId(UUID(row["payment_id"])),
        opened_at=rows.moment(row["opened_at"]),
    )


def key_columns(k: PaymentKey) -> tuple[object, ...]:
    """For `write_payment_key`."""
    return (*k.key, k.request_hash, str(k.payment_id), rows.to_moment(k.opened_at))


def payer_columns(p: Payer) -> tuple[object, ...]:
    """For `write_payer`."""
    return (*p.ref, rows.to_json(p.tries), rows.to_moment(p.tried_at))


def inserted(p: Payment) -> tuple[object, ...]:
    """For `insert_payment`, in the order of the table."""
    whose = (str(p.id), str(p.booking_id), p.event_id, p.live, p.gateway, p.method)
    what = (p.amount, p.currency, p.automatic, rows.to_moment(p.created_at), p.state.value, p.gateway_id)
    money = (*_money(p), p.refunded_elsewhere)
    due, processed = rows.to_moment_or_none(p.due_at), rows.to_moment_or_none(p.processed_at)
    return (*whose, *what, *money, *_told(p), p.return_url, due, p.tries, p.version, processed)


def updated(p: Payment) -> tuple[object, ...]:
    """For `update_payment`."""
    due, processed = rows.to_moment_or_none(p.due_at), rows.to_moment_or_none(p.processed_at)
    decided = (due, p.tries, p.version, p.refunded_elsewhere, processed)
    return (str(p.id), p.state.value, p.gateway_id, *_money(p), *_told(p), *decided)


def written(r: Refund) -> tuple[object, ...]:
    """For `write_refund`."""
    whose = (str(r.id), str(r.payment_id), str(r.booking_id))
    what = (r.amount, rows.to_moment(r.created_at), r.reason, r.state.value, r.gateway_id, r.code)
    return (*whose, *what, rows.to_moment_or_none(r.processed_at))


def _money(p: Payment) -> tuple[int, int, int]:
    return (p.captured, p.refunding, p.refunded)


def _told(p: Payment) -> tuple[str | None, str | None, str | None]:
    return (p.code, p.message, None if p.action is None else rows.to_json(p.action))


class MoneySteps:
    """The steps about money, for the one transaction that is writing."""

    _connection: sqlite3.Connection
    _sql: Mapping[str, str]
    _now: datetime | None
    wrote: bool
    _fetch: Callable[..., list[Any]]

    async def take_callback(self, gateway: str, callback_id: str, *, payment_id: PaymentId) -> bool:
        """First come, first served."""
        assert self._now is not None, "a transaction begins first"
        row = (gateway, callback_id, str(payment_id), rows.to_moment(self._now))
        return self._connection.execute(self._sql["take_callback"], row).rowcount == 1

    async def lock_payments(self, ids: Collection[PaymentId]) -> dict[PaymentId, Payment]:
        """In key order, as everywhere."""
        found = self._fetch("lock_payments", rows.to_json(sorted(map(str, ids)))) if ids else []
        return {one.id: one for one in map(payment, found)}

    async def read_payment_key(self, key: IdempotencyKey) -> PaymentKey | None:
        """By key."""
        return next(map(payment_key, self._fetch("read_payment_key", *key)), None)

    async def lock_payer(self, ref: PayerRef) -> Payer:
        """By buyer."""
        found = self._fetch("read_payer", *ref)
        return Payer(ref=ref, tries=_TRIES.decode(found[0]["tries"]) if found else {})

    async def read_tries(self, booking_id: BookingId, ids: Collection[PaymentId]) -> dict[PaymentId, Payment]:
        """By key."""
        found = self._fetch("read_tries", str(booking_id), rows.to_json(sorted(map(str, ids))))
        return {one.id: one for one in map(payment, found)}

    async def read_refunds(self, payment_id: PaymentId) -> list[Refund]:
        """Oldest first."""
        return [refund(row) for row in self._fetch("read_refunds", rows.to_json([str(payment_id)]))]

    async def claim_payments(
        self, *, limit: int, lease_seconds: float, gateways: Collection[str] | None, now: datetime
    ) -> list[PaymentId]:
        """The longest due first."""
        named = None if gateways is None else rows.to_json(sorted(gateways))
        given_up = rows.to_moment(now - timedelta(seconds=PAYING_SECONDS_MAX))
        due = [row["id"] for row in self._fetch("due_payments", rows.to_moment(now), limit, named, given_up)]
        until = rows.to_moment(now + timedelta(seconds=lease_seconds))
        self._connection.executemany(self._sql["lease_payment"], ((one, until) for one in due))
        self.wrote = bool(due)
        return [PaymentId(UUID(one)) for one in due]

    def write_money(self, payments: Sequence[Payment], refunds: Sequence[Refund]) -> None:
        """A payment before the refunds that count against it."""
        for one in payments:
            name, columns = ("insert_payment", inserted(one)) if one.version == 1 else ("update_payment", updated(one))
            changed = self._connection.execute(self._sql[name], columns).rowcount
            assert changed == 1, f"payment {one.id} was not locked"
        if refunds:
            self._connection.executemany(self._sql["write_refund"], map(written, refunds))


class MoneyReads:
    """What is read of the money outside of a transaction, for a store that can read."""

    _sql: Mapping[str, str]
    _read: Callable[..., Awaitable[list[Any]]]
    _look: Callable[..., Awaitable[Any]]
    _moment: Callable[[], datetime]

    async def read_dossier(self, payment_id: PaymentId) -> Dossier | None:
        """As one commit left it."""

        def look(connection: sqlite3.Connection) -> Dossier | None:
            found = connection.execute(self._sql["read_payment"], (str(payment_id),)).fetchone()
            if found is None:
                return None
            paid = payment(found)
            booking = connection.execute(self._sql["read_booking"], (str(paid.booking_id),)).fetchone()
            back = connection.execute(self._sql["read_refunds"], (rows.to_json([str(payment_id)]),))
            refunds = [refund(row) for row in back]
            return Dossier(now=self._moment(), payment=paid, booking=rows.booking(booking), refunds=refunds)

        dossier: Dossier | None = await self._look(look, within=READ_SECONDS)
        return dossier

    async def list_payments(self, booking_id: BookingId) -> list[tuple[Payment, list[Refund]]]:
        """By age."""
        payments = [payment(row) for row in await self._read("list_payments", str(booking_id))]
        keys = rows.to_json([str(one.id) for one in payments])
        refunds = [refund(row) for row in await self._read("read_refunds", keys)]
        return [(one, [back for back in refunds if back.payment_id == one.id]) for one in payments]

    async def seconds_to_next_payment(self, *, gateways: Collection[str] | None = None) -> float | None:
        """By the reconciler's index."""
        due = (await self._read("next_payment", None if gateways is None else rows.to_json(sorted(gateways))))[0][0]
        return None if due is None else (rows.moment(due) - self._moment()).total_seconds()

    async def list_attention(self, *, limit: int, live: bool | None = None) -> list[Payment]:
        """By age."""
        return [payment(row) for row in await self._read("list_attention", limit, live)]

    async def watch_money(self, *, limit: int, live: bool | None = None) -> MoneyWatch:
        """By the index of what needs somebody, and by the reconciler's."""
        [(count, since)] = await self._read("count_open", limit, live)
        flagged = dict(await self._read("count_attention", limit, live))
        began = None if since is None else rows.moment(since)
        return MoneyWatch(attention=flagged, open=count, open_since=began, now=self._moment())

    async def page_payments(
        self, gateway: str, *, since: datetime, after: PaymentId | None, limit: int
    ) -> list[Payment]:
        """By id."""
        asked = (gateway, rows.to_moment(since), str(after or ""), limit)
        return [payment(row) for row in await self._read("page_payments", *asked)]
