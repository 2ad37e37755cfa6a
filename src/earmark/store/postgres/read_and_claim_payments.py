"""Payments in PostgreSQL: each is read in one snapshot, and a claim passes over what others are claiming."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from earmark.domain.payment import PAYING_SECONDS_MAX
from earmark.engine.ports.store import PaymentSnapshot
from earmark.store.both_databases.payments_and_refunds import PaymentReads, payment, refund
from earmark.store.postgres import convert_rows_and_values

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from earmark.domain.id_types import PaymentId
    from earmark.engine.ports.store import Clock


class PostgresPaymentReads(PaymentReads):
    """For the PostgreSQL store."""

    _clock: Clock
    _sql: Mapping[str, str]
    _look: Callable[..., Awaitable[Any]]

    async def read_payment_snapshot(self, payment_id: PaymentId) -> PaymentSnapshot | None:
        """In one snapshot: a payment that owes is read with the refund that it owes."""

        async def look(connection: Any) -> PaymentSnapshot | None:
            found = await connection.fetchrow(self._sql["read_payment"], payment_id)
            if found is None:
                return None
            paid = payment(found)
            read = await connection.fetchrow(self._sql["read_booking"], paid.booking_id, self._clock.offset)
            refunds = [refund(row) for row in await connection.fetch(self._sql["read_refunds"], [payment_id])]
            return PaymentSnapshot(
                now=read["now"], payment=paid, booking=convert_rows_and_values.booking(read), refunds=refunds
            )

        snapshot: PaymentSnapshot | None = await self._look(look)
        return snapshot

    async def claim_payments(
        self, *, limit: int, lease_seconds: float, gateways: Collection[str] | None = None
    ) -> list[PaymentId]:
        """In a statement of its own."""
        lease = timedelta(seconds=lease_seconds)
        named = None if gateways is None else list(gateways)
        now = await self.now()
        given_up = now - timedelta(seconds=PAYING_SECONDS_MAX)
        return [row["id"] for row in await self.read_rows("claim_payments", now, limit, lease, named, given_up)]
