"""A gateway that refuses the shop itself (a revoked key, a permission) is an outage: no buyer was declined."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from tests.money.scripted import AUTHORISED, CAPTURED, DECLINED
from tests.money.test_pay_keys import ask_of, pay

from earmark.domain.event import OnDecline
from earmark.domain.machine import State
from earmark.domain.payment import GATEWAY_UNAVAILABLE, PaymentState
from earmark.engine.gateway import GatewayDenied, GatewayRefused
from earmark.errors import GatewayUnavailable

if TYPE_CHECKING:
    from tests.money.conftest import Shop

DENIED = GatewayDenied("not_permitted", "Expired API key: sk_live_…")


async def test_a_gateway_that_refuses_the_shop_leaves_the_hold_payable(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage for the request, an error in the log; the same request again pays when the shop's key is good again."""
    held = await shop.hold("A1")
    shop.gateway.says["authorise"] = DENIED
    for _ in range(2):
        caplog.clear()
        with pytest.raises(GatewayUnavailable) as outage:
            await pay(shop, ask_of(shop, held))
        assert (outage.value.transient, outage.value.gateway) == (True, "scripted")
        assert [line.levelno for line in caplog.records if "refuses this shop" in line.message] == [logging.ERROR]
        now = await shop.booking(held)
        assert (now.state, now.expires_at) == (State.HELD, held.expires_at)
    shop.gateway.says["authorise"] = AUTHORISED
    assert (await pay(shop, ask_of(shop, held))).memory.body == b"confirmed"
    told = [(one.state, one.code) for one, _ in await shop.store.list_payments(held.id)]
    unserved = (PaymentState.FAILED, GATEWAY_UNAVAILABLE)
    assert told == [unserved, unserved, (PaymentState.CAPTURED, None)]


async def test_it_does_not_end_a_hold_that_a_decline_would_end(shop: Shop) -> None:
    """The policy `release` is about declines."""
    await shop.open_another("strict", on_decline=OnDecline.RELEASE)
    held = await shop.hold("A1", event="strict")
    shop.gateway.says["authorise"] = DENIED
    with pytest.raises(GatewayUnavailable):
        await pay(shop, ask_of(shop, held))
    assert (await shop.booking(held)).state is State.HELD
    shop.gateway.says["authorise"] = DECLINED
    await pay(shop, ask_of(shop, held))
    assert (await shop.booking(held)).state is State.FAILED


async def test_what_the_gateway_cannot_read_is_still_a_decline(shop: Shop) -> None:
    """The control: a token that is no token is the buyer's to change, and the key remembers the no."""
    held = await shop.hold("A1")
    shop.gateway.says["authorise"] = GatewayRefused("resource_missing", "No such token")
    assert (await pay(shop, ask_of(shop, held))).value.payment.code == "resource_missing"
    shop.gateway.says["authorise"] = AUTHORISED
    assert (await pay(shop, ask_of(shop, held))).memory.body == b"held"


async def test_a_later_call_that_is_denied_says_nothing_of_the_money(shop: Shop) -> None:
    """An earlier call may have set it aside: it is asked again until the gateway answers."""
    held = await shop.hold("A1")
    shop.gateway.says |= {"capture": DENIED, "status": DENIED}
    paid = await shop.pay(held)
    assert (paid.booking.state, paid.payment.state if paid.payment else None) == (
        State.CONFIRMED,
        PaymentState.AUTHORISED,
    )
    shop.gateway.says |= {"capture": CAPTURED}
    await shop.reconcile(seconds=600)
    assert (await shop.payment(held)).state is PaymentState.CAPTURED
