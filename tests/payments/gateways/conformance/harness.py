"""The harness through which the conformance tests use a gateway, and helpers that make orders.

A gateway joins the suite with its own `GatewayHarness`: the gateway, and a way to read what it really did. It declares
the groups of rules that it supports; rules without a group are for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from earmark.engine.ports.gateway import Order, RefundOrder
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from earmark.clock import MovableClock
    from earmark.engine.ports.gateway import Gateway

PRICE = 4500
_ids = Uuid7Ids()


class Group(StrEnum):
    """Groups of rules that a gateway need not support, because their case cannot happen there."""

    AUTOMATIC = "automatic"
    """It can capture in the call that authorises."""
    CARDS = "cards"
    """The buyer's bank may decline."""
    ACTION = "action"
    """The buyer may have to do something first."""
    PROCESSING = "processing"
    """A decision may take time."""
    CAPTURE_REFUSAL = "capture refusal"
    """The capture of an authorised payment may be declined."""
    REFUND_REFUSAL = "refund refusal"
    """A refund may fail, or take time."""
    CALLBACKS = "callbacks"
    ELSEWHERE = "elsewhere"
    """An operator may refund on the gateway's dashboard, without Earmark."""


class Situation(StrEnum):
    """What happens to a payment; `GatewayHarness.method` gives the method that causes it."""

    FINE = "fine"
    NO_FUNDS = "no funds"
    DECLINED = "declined"
    ACTION = "action"
    PROCESSING = "processing"
    CAPTURE_REFUSED = "capture refused"
    REFUND_REFUSED = "refund refused"
    REFUND_PENDING = "refund pending"
    UNKNOWN = "unknown"
    """The gateway does not have the method."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts that were really moved for one payment."""

    authorised: int = 0
    captured: int = 0
    voided: int = 0
    refunded: int = 0


class SignedCallback(msgspec.Struct, frozen=True):
    """A callback with its signature, as it is sent."""

    headers: Mapping[str, str]
    body: bytes


class GatewayHarness(Protocol):
    """A gateway, and control over the buyer, the bank and the dashboard behind it."""

    gateway: Gateway
    clock: MovableClock
    no_funds: str
    """Its code for a lack of funds."""

    def method(self, situation: Situation) -> str:
        """The payment method that leads to this situation."""
        ...

    async def act(self, gateway_id: str, *, succeed: bool) -> None:
        """The buyer completes the action, or fails it."""
        ...

    async def decide(self, gateway_id: str, *, succeed: bool) -> None:
        """The buyer's bank decides a processing payment or a pending refund."""
        ...

    async def give_back(self, gateway_id: str, amount: int) -> None:
        """An operator refunds on the gateway's dashboard."""
        ...

    async def moved(self, payment_id: UUID) -> Totals:
        """The amounts that were moved, from the ledger behind the gateway and not from its reports."""
        ...

    async def callbacks(self) -> list[SignedCallback]:
        """The callbacks of all events so far."""
        ...

    def sign(self, body: bytes, *, at: datetime, secret: str | None = None) -> Mapping[str, str]:
        """The headers of this body, with a signature of this time."""
        ...


def order_in(harness: GatewayHarness, situation: Situation = Situation.FINE, **changes: Any) -> Order:
    """The order of a new payment."""
    whole = {
        "payment_id": _ids.payment_id(),
        "booking_id": _ids.booking_id(),
        "event_id": "opera",
        "amount": PRICE,
        "currency": "EUR",
        "method": harness.method(situation),
        "created_at": harness.clock.now(),
        "return_url": "https://shop.example/back",
    }
    return Order(**{**whole, **changes})


def refund_of(order: Order, amount: int = PRICE) -> RefundOrder:
    """The order of a new refund."""
    return RefundOrder(refund_id=_ids.refund_id(), payment=order, amount=amount)


async def authorised(harness: GatewayHarness, situation: Situation = Situation.FINE, **changes: Any) -> Order:
    """An authorised payment, with its gateway id."""
    order = order_in(harness, situation, **changes)
    report = await harness.gateway.authorise(order)
    return msgspec.structs.replace(order, gateway_id=report.gateway_id)


async def captured(harness: GatewayHarness, situation: Situation = Situation.FINE) -> Order:
    """A captured payment."""
    order = await authorised(harness, situation)
    await harness.gateway.capture(order)
    return order


def without_gateway_id(order: Order) -> Order:
    """The same order without its gateway id, as when the gateway's answer was lost."""
    return msgspec.structs.replace(order, gateway_id=None)
