"""The money's rows in PostgreSQL: the steps of a transaction, and what is read outside of one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from earmark.domain.decline_limits import Payer, PayerRef
from earmark.domain.journal import IdempotencyKey
from earmark.domain.payment import PAYING_SECONDS_MAX, Payment, PaymentKey, PaymentState, Refund, RefundState
from earmark.engine.ports.payment_watch import MoneyWatch
from earmark.engine.ports.store import Dossier
from earmark.store.postgres import rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from earmark.domain.ids import BookingId, PaymentId
    from earmark.engine.ports.store import Clock

Row = Any
_TRIES: Any = msgspec.json.Decoder(dict[UUID, datetime])


def payment(row: Row) -> Payment:
    """A row of `payments`."""
    facts = dict(row)
    action = facts.pop("action")
    state = PaymentState(facts.pop("state"))
    return Payment(**facts, state=state, action=msgspec.json.decode(action) if action else None)


def refund(row: Row) -> Refund:
    """A row of `refunds`."""
    facts = dict(row)
    return Refund(**facts | {"state": RefundState(facts["state"])})


def payment_key(row: Row) -> PaymentKey:
    """A row of `payment_keys`."""
    facts = dict(row)
    return PaymentKey(key=IdempotencyKey(facts.pop("caller"), facts.pop("key")), **facts)


def inserted(p: Payment) -> list[object]:
    """For `insert_payment`, in the order of the table."""
    facts = msgspec.structs.asdict(p)
    facts |= {"state": p.state.value, "action": None if p.action is None else rows.to_json(p.action)}
    return [facts[name] for name in _COLUMNS]


def updated(p: Payment) -> list[object]:
    """For `update_payment`."""
    action = None if p.action is None else rows.to_json(p.action)
    money = [p.captured, p.refunding, p.refunded]
    told = [p.code, p.message, action, p.due_at, p.tries, p.version, p.refunded_elsewhere, p.processed_at]
    return [p.id, p.state.value, p.gateway_id, *money, *told]


def written(r: Refund) -> list[object]:
    """For `write_refund`."""
    head = [r.id, r.payment_id, r.booking_id, r.amount, r.created_at, r.reason]
    return [*head, r.state.value, r.gateway_id, r.code, r.processed_at]


_COLUMNS = [
    "id",
    "booking_id",
    "event_id",
    "live",
    "gateway",
    "method",
    "amount",
    "currency",
    "automatic",
    "created_at",
    "state",
    "gateway_id",
    "captured",
    "refunding",
    "refunded",
    "refunded_elsewhere",
    "code",
    "message",
    "action",
    "return_url",
    "due_at",
    "tries",
    "version",
    "processed_at",
]


class MoneySteps:
    """The steps about money, for a transaction that can fetch and write."""

    _now: datetime | None
    _fetch: Callable[..., Awaitable[list[Any]]]
    _write: Callable[..., Awaitable[None]]

    async def take_callback(self, gateway: str, callback_id: str, *, payment_id: PaymentId) -> bool:
        """Waits for a twin that is taking the same one, and then knows."""
        return bool(await self._fetch("take_callback", gateway, callback_id, payment_id, self._now))

    async def lock_payments(self, ids: Collection[PaymentId]) -> dict[PaymentId, Payment]:
        """Sorted by the query."""
        found = await self._fetch("lock_payments", list(ids)) if ids else []
        return {one.id: one for one in map(payment, found)}

    async def read_payment_key(self, key: IdempotencyKey) -> PaymentKey | None:
        """By key."""
        return next(map(payment_key, await self._fetch("read_payment_key", *key)), None)

    async def lock_payer(self, ref: PayerRef) -> Payer:
        """By buyer."""
        [row] = await self._fetch("lock_payer", *ref)
        return Payer(ref=ref, tries=_TRIES.decode(row["tries"]))

    async def read_tries(self, booking_id: BookingId, ids: Collection[PaymentId]) -> dict[PaymentId, Payment]:
        """In a statement that begins after the buyer was locked, so it sees what was committed until then."""
        return {one.id: one for one in map(payment, await self._fetch("read_tries", booking_id, list(ids)))}

    async def read_refunds(self, payment_id: PaymentId) -> list[Refund]:
        """Oldest first."""
        return [refund(row) for row in await self._fetch("read_refunds", [payment_id])]

    async def write_money(self, payments: Sequence[Payment], refunds: Sequence[Refund]) -> None:
        """One by one: few transactions write more than one."""
        for one in payments:
            name, columns = ("insert_payment", inserted(one)) if one.version == 1 else ("update_payment", updated(one))
            await self._write(name, columns, expect=1)
        for back in refunds:
            await self._write("write_refund", written(back), expect=1)


class MoneyReads:
    """What is read of the money outside of a transaction, for a store that can read and knows what time it is."""

    _clock: Clock
    _sql: Mapping[str, str]
    _read: Callable[..., Awaitable[list[Any]]]
    _look: Callable[..., Awaitable[Any]]
    _now: Callable[[], Awaitable[datetime]]

    async def read_dossier(self, payment_id: PaymentId) -> Dossier | None:
        """In one snapshot: a payment that owes is read with the refund that it owes."""

        async def look(connection: Any) -> Dossier | None:
            found = await connection.fetchrow(self._sql["read_payment"], payment_id)
            if found is None:
                return None
            paid = payment(found)
            read = await connection.fetchrow(self._sql["read_booking"], paid.booking_id, self._clock.offset)
            refunds = [refund(row) for row in await connection.fetch(self._sql["read_refunds"], [payment_id])]
            return Dossier(now=read["now"], payment=paid, booking=rows.booking(read), refunds=refunds)

        dossier: Dossier | None = await self._look(look)
        return dossier

    async def list_payments(self, booking_id: BookingId) -> list[tuple[Payment, list[Refund]]]:
        """By age."""
        payments = [payment(row) for row in await self._read("list_payments", booking_id)]
        refunds = [refund(row) for row in await self._read("read_refunds", [one.id for one in payments])]
        return [(one, [back for back in refunds if back.payment_id == one.id]) for one in payments]

    async def claim_payments(
        self, *, limit: int, lease_seconds: float, gateways: Collection[str] | None = None
    ) -> list[PaymentId]:
        """In a statement of its own, which passes over what others are taking."""
        lease = timedelta(seconds=lease_seconds)
        named = None if gateways is None else list(gateways)
        now = await self._now()
        given_up = now - timedelta(seconds=PAYING_SECONDS_MAX)
        return [row["id"] for row in await self._read("claim_payments", now, limit, lease, named, given_up)]

    async def seconds_to_next_payment(self, *, gateways: Collection[str] | None = None) -> float | None:
        """By the reconciler's index."""
        due: datetime | None = (await self._read("next_payment", None if gateways is None else list(gateways)))[0][0]
        return None if due is None else (due - await self._now()).total_seconds()

    async def list_attention(self, *, limit: int, live: bool | None = None) -> list[Payment]:
        """By age."""
        return [payment(row) for row in await self._read("list_attention", limit, live)]

    async def watch_money(self, *, limit: int, live: bool | None = None) -> MoneyWatch:
        """By the index of what needs somebody, and by the reconciler's."""
        [(count, since)] = await self._read("count_open", limit, live)
        flagged = dict(await self._read("count_attention", limit, live))
        return MoneyWatch(attention=flagged, open=count, open_since=since, now=await self._now())

    async def page_payments(
        self, gateway: str, *, since: datetime, after: PaymentId | None, limit: int
    ) -> list[Payment]:
        """By id."""
        return [payment(row) for row in await self._read("page_payments", gateway, since, after or UUID(int=0), limit)]
