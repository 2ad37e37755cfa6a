"""What the tests of the sandbox share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import stripe
from tests.payments.methods import Method

from earmark.engine.ports.gateway import Order, RefundOrder
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.engine.ports.store import Clock
    from earmark.sandbox.bank import Bank
    from earmark.sandbox.model import Intent
    from earmark.sandbox.server import RunningSandbox

PRICE = 4500
DAY = 86_400
BOUND_SECONDS = 60.0
"""How long a fact is waited for: far more than it takes."""
_ids = Uuid7Ids()


def authorised(bank: Bank, method: str = Method.VISA, **changes: Any) -> Intent:
    """A payment whose money is set aside, unless its method says otherwise."""
    asked: dict[str, Any] = {"amount": PRICE, "currency": "EUR", "metadata": {"payment_id": "ours"}}
    return bank.authorise(method=method, **{**asked, **changes})


def captured(bank: Bank, method: str = Method.VISA) -> Intent:
    """A payment whose money was taken."""
    return bank.capture(authorised(bank, method).id)


def order(clock: Clock, method: str = Method.VISA, **changes: Any) -> Order:
    """A new payment, as the saga asks for it."""
    asked: dict[str, Any] = {
        "payment_id": _ids.payment_id(),
        "booking_id": _ids.booking_id(),
        "event_id": "opera",
        "amount": PRICE,
        "currency": "EUR",
        "method": method,
        "created_at": clock.now(),
    }
    return Order(**{**asked, **changes})


def refund_of(payment: Order, amount: int = PRICE) -> RefundOrder:
    """A new refund, as the saga asks for it."""
    return RefundOrder(refund_id=_ids.refund_id(), payment=payment, amount=amount)


def client_of(
    running: RunningSandbox, *, key: str | None = None, seconds: float = BOUND_SECONDS
) -> stripe.StripeClient:
    """The official client, which asks once and waits so long."""
    return stripe.StripeClient(
        key or running.sandbox.key,
        base_addresses={"api": running.url},
        http_client=stripe.RequestsClient(timeout=seconds),
        max_network_retries=0,
    )


def create(client: stripe.StripeClient, method: str = Method.VISA, *, key: str | None = None, **changes: Any) -> Any:
    """A payment intent that is confirmed at once."""
    asked: Any = {
        "amount": PRICE,
        "currency": "eur",
        "payment_method": method,
        "confirm": True,
        "capture_method": "manual",
        "metadata": {"payment_id": "ours"},
        "automatic_payment_methods": {"enabled": True, "allow_redirects": "never"},
        "expand": ["latest_charge"],
    }
    return client.v1.payment_intents.create(asked | changes, {"idempotency_key": key} if key else {})


def until(fact: Callable[[], bool]) -> None:
    """Wait for a fact."""
    deadline = time.monotonic() + BOUND_SECONDS
    while not fact():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
