"""Payments in SQLite: each is read in one snapshot, and claims are made by the one writer."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from earmark.domain.id_types import PaymentId
from earmark.domain.payment import PAYING_SECONDS_MAX
from earmark.engine.ports.store import PaymentSnapshot
from earmark.store.both_databases.named_statement_runner_protocols import SECONDS_MAX
from earmark.store.both_databases.payments_and_refunds import PaymentReads, payment, refund
from earmark.store.sqlite import convert_rows_and_values

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from earmark.engine.ports.store import Clock
    from earmark.store.sqlite.reader_and_writer_threads import SqliteAccess


class SqlitePaymentReads(PaymentReads):
    """For the SQLite store."""

    access: SqliteAccess
    _clock: Clock
    _sql: Mapping[str, str]
    transact: Callable[..., Awaitable[Any]]

    async def read_payment_snapshot(self, payment_id: PaymentId) -> PaymentSnapshot | None:
        """As one commit left it."""

        def look(connection: sqlite3.Connection) -> PaymentSnapshot | None:
            found = connection.execute(self._sql["read_payment"], (str(payment_id),)).fetchone()
            if found is None:
                return None
            paid = payment(convert_rows_and_values.to_python(found))
            booking = connection.execute(self._sql["read_booking"], (str(paid.booking_id),)).fetchone()
            back = connection.execute(self._sql["read_refunds"], (convert_rows_and_values.to_json([payment_id]),))
            refunds = [refund(convert_rows_and_values.to_python(row)) for row in back]
            return PaymentSnapshot(
                now=self._clock.now(), payment=paid, booking=convert_rows_and_values.booking(booking), refunds=refunds
            )

        return await self.access.read(look, within=SECONDS_MAX)

    async def claim_payments(
        self, *, limit: int, lease_seconds: float, gateways: Collection[str] | None = None
    ) -> list[PaymentId]:
        """The longest due first, so that no other reconciler is given the same ones."""
        named = None if gateways is None else sorted(gateways)

        async def claim(transaction: Any) -> list[PaymentId]:
            now = (await transaction.begin([])).now
            given_up = now - timedelta(seconds=PAYING_SECONDS_MAX)
            due = [row["id"] for row in await transaction.fetch("due_payments", now, limit, named, given_up)]
            for one in due:
                await transaction.execute("lease_payment", one, now + timedelta(seconds=lease_seconds))
            return [PaymentId(UUID(one)) for one in due]

        claimed: list[PaymentId] = await self.transact(claim, within=SECONDS_MAX)
        return claimed
