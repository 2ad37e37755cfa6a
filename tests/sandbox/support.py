"""Helpers of the sandbox tests: payments, orders, Stripe's client, and waiting for a condition."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import stripe
from tests.sandbox.payment_methods import Method

from earmark.engine.ports.gateway import Order, RefundOrder
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.engine.ports.store import Clock
    from earmark.sandbox.bank import Bank
    from earmark.sandbox.model import BankIntent
    from earmark.sandbox.server import RunningSandbox

PRICE = 4500
DAY = 86_400
BOUND_SECONDS = 60.0
"""The timeout for a condition, far above what it takes."""
_ids = Uuid7Ids()


def authorised(bank: Bank, method: str = Method.VISA, **changes: Any) -> BankIntent:
    """Authorise a payment, unless its method leads elsewhere."""
    fields: dict[str, Any] = {"amount": PRICE, "currency": "EUR", "metadata": {"payment_id": "ours"}}
    return bank.authorise(method=method, **{**fields, **changes})


def captured(bank: Bank, method: str = Method.VISA) -> BankIntent:
    """Authorise and capture a payment."""
    return bank.capture(authorised(bank, method).id)


def order(clock: Clock, method: str = Method.VISA, **changes: Any) -> Order:
    """The order of a new payment, as the payment saga makes it."""
    fields: dict[str, Any] = {
        "payment_id": _ids.payment_id(),
        "booking_id": _ids.booking_id(),
        "event_id": "opera",
        "amount": PRICE,
        "currency": "EUR",
        "method": method,
        "created_at": clock.now(),
    }
    return Order(**{**fields, **changes})


def refund_of(payment: Order, amount: int = PRICE) -> RefundOrder:
    """The order of a new refund, as the payment saga makes it."""
    return RefundOrder(refund_id=_ids.refund_id(), payment=payment, amount=amount)


def client_of(
    running: RunningSandbox, *, key: str | None = None, seconds: float = BOUND_SECONDS
) -> stripe.StripeClient:
    """Stripe's official client, without retries and with this timeout."""
    return stripe.StripeClient(
        key or running.sandbox.key,
        base_addresses={"api": running.url},
        http_client=stripe.RequestsClient(timeout=seconds),
        max_network_retries=0,
    )


def create(client: stripe.StripeClient, method: str = Method.VISA, *, key: str | None = None, **changes: Any) -> Any:
    """Create and confirm a payment intent."""
    fields: Any = {
        "amount": PRICE,
        "currency": "eur",
        "payment_method": method,
        "confirm": True,
        "capture_method": "manual",
        "metadata": {"payment_id": "ours"},
        "automatic_payment_methods": {"enabled": True, "allow_redirects": "never"},
        "expand": ["latest_charge"],
    }
    return client.v1.payment_intents.create(fields | changes, {"idempotency_key": key} if key else {})


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + BOUND_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.01)
