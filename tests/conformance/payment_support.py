"""What the tests of payment steps share: the shop of the other steps, with payments."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec

from earmark.domain.payment import Payment, PaymentState, Refund
from earmark.engine.ports.store import Changes

from .steps_support import Shop

if TYPE_CHECKING:
    from earmark.domain.booking import Booking
    from earmark.store.postgres import PostgresStore

REFUSED = (AssertionError, sqlite3.IntegrityError, asyncpg.IntegrityConstraintViolationError)
"""How each store says that a write breaks the rules: always our bug."""


class PaymentShop(Shop):
    """The shop, with payments that are written step by step."""

    def payment(self, booking: Booking, **fields: Any) -> Payment:
        """A payment before its gateway is called; nothing is written."""
        known: dict[str, Any] = {
            "booking_id": booking.id,
            "event_id": booking.event_id,
            "mode": booking.mode,
            "gateway": "bank",
            "method": "card",
            "amount": booking.total,
            "currency": booking.currency,
            "automatic": False,
            "created_at": self.clock.now(),
        }
        return Payment(**({"id": self.ids.payment_id()} | known | fields))

    async def pay(self, booking: Booking, **fields: Any) -> Payment:
        """A new payment, written."""
        payment = self.payment(booking, **fields)
        await self.write(Changes(payments=[payment]))
        return payment

    async def step_on(self, payment: Payment, *refunds: Refund, **fields: Any) -> Payment:
        """The payment as it then is, written."""
        after = msgspec.structs.replace(payment, version=payment.version + 1, **fields)
        await self.write(Changes(payments=[after], refunds=refunds))
        return after

    async def take(self, booking: Booking, **fields: Any) -> Payment:
        """A payment that was captured."""
        payment = await self.pay(booking, **fields)
        return await self.step_on(payment, state=PaymentState.CAPTURED, captured=payment.amount)

    def refund(self, payment: Payment, amount: int, **fields: Any) -> Refund:
        """So much of it back; nothing is written."""
        known: dict[str, Any] = {"payment_id": payment.id, "booking_id": payment.booking_id, "amount": amount}
        known["created_at"] = self.clock.now()
        return Refund(**({"id": self.ids.refund_id()} | known | fields))

    async def read(self, payment: Payment) -> Payment | None:
        """As it now stands."""
        about = await self.store.read_payment_snapshot(payment.id)
        return about.payment if about else None

    async def due(self, *seconds_ago: float) -> list[Payment]:
        """One payment for each, due so long ago."""
        held = await self.hold("A1")
        now = self.clock.now()
        return [await self.pay(held, due_at=now - timedelta(seconds=seconds)) for seconds in seconds_ago]


async def until_a_transaction_waits(store: PostgresStore) -> None:
    """Wait until a transaction waits for a lock."""
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    while not await store.pool.fetchval(waits):  # noqa: ASYNC110 (only the server knows)
        await asyncio.sleep(0.01)
