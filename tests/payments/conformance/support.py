"""What any gateway is asked with, and what has to be known of the world behind it.

A gateway joins the suite with a `World` of its own: the gateway, and a way to see what it really did. It declares the
groups of rules that it supports; the core has no group and is for all.
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
    """Rules that a gateway may leave out, because the thing cannot happen there."""

    AUTOMATIC = "automatic"
    """It can take the money at once."""
    CARDS = "cards"
    """Somebody behind it may say no for reasons of their own."""
    ACTION = "action"
    """The buyer may have to do something first."""
    PROCESSING = "processing"
    """It may take its time."""
    CAPTURE_REFUSAL = "capture refusal"
    """What was set aside may be refused when it is to be taken."""
    REFUND_REFUSAL = "refund refusal"
    """A refund may fail for good, or take its time."""
    CALLBACKS = "callbacks"
    ELSEWHERE = "elsewhere"
    """An operator may give money back at its own page, without Earmark."""


class Situation(StrEnum):
    """What a method of payment leads to."""

    FINE = "fine"
    NO_FUNDS = "no funds"
    DECLINED = "declined"
    ACTION = "action"
    PROCESSING = "processing"
    CAPTURE_REFUSED = "capture refused"
    REFUND_REFUSED = "refund refused"
    REFUND_PENDING = "refund pending"
    UNKNOWN = "unknown"
    """No method that the gateway knows."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What really happened to the money of one payment."""

    authorised: int = 0
    captured: int = 0
    voided: int = 0
    refunded: int = 0


class Letter(msgspec.Struct, frozen=True):
    """A callback as it is sent."""

    headers: Mapping[str, str]
    body: bytes


class World(Protocol):
    """A gateway and whoever stands behind it."""

    gateway: Gateway
    clock: MovableClock
    no_funds: str
    """Its word for a lack of funds."""

    def method(self, situation: Situation) -> str:
        """What to pay with to get there."""
        ...

    async def act(self, gateway_id: str, *, succeed: bool) -> None:
        """The buyer comes back from the action."""
        ...

    async def decide(self, gateway_id: str, *, succeed: bool) -> None:
        """Whoever took their time has made up their mind, about a payment or a refund."""
        ...

    async def give_back(self, gateway_id: str, amount: int) -> None:
        """An operator gives money back at the gateway's own page."""
        ...

    async def moved(self, payment_id: UUID) -> Totals:
        """What really happened, by the world's own ledger and not by the gateway's word."""
        ...

    async def letters(self) -> list[Letter]:
        """The callbacks that were sent so far."""
        ...

    def sign(self, body: bytes, *, at: datetime, secret: str | None = None) -> Mapping[str, str]:
        """The headers that this body would come with."""
        ...


def order_in(world: World, situation: Situation = Situation.FINE, **changes: Any) -> Order:
    """A new payment of this world."""
    whole = {
        "payment_id": _ids.payment_id(),
        "booking_id": _ids.booking_id(),
        "event_id": "opera",
        "amount": PRICE,
        "currency": "EUR",
        "method": world.method(situation),
        "created_at": world.clock.now(),
        "return_url": "https://shop.example/back",
    }
    return Order(**{**whole, **changes})


def refund_of(order: Order, amount: int = PRICE) -> RefundOrder:
    """A new refund of a payment."""
    return RefundOrder(refund_id=_ids.refund_id(), payment=order, amount=amount)


async def authorised(world: World, situation: Situation = Situation.FINE, **changes: Any) -> Order:
    """A payment whose money is set aside, and whose id at the gateway is known."""
    order = order_in(world, situation, **changes)
    report = await world.gateway.authorise(order)
    return msgspec.structs.replace(order, gateway_id=report.gateway_id)


async def captured(world: World, situation: Situation = Situation.FINE) -> Order:
    """A payment whose money was taken."""
    order = await authorised(world, situation)
    await world.gateway.capture(order)
    return order


def unlearnt(order: Order) -> Order:
    """The same payment, where the gateway's answer never arrived."""
    return msgspec.structs.replace(order, gateway_id=None)
