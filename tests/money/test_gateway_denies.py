"""A gateway that refuses the shop itself (a revoked key, a permission) is an outage: no buyer was declined."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from tests.money.scripted_gateway import AUTHORISED, CAPTURED, DECLINED
from tests.money.test_pay_keys import command_of, pay

from earmark.domain.bookable_event import OnDecline
from earmark.domain.booking_state_machine import State
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.domain.payment import GATEWAY_UNAVAILABLE, PaymentState
from earmark.engine.ports.gateway import GatewayDenied, GatewayInvalid, GatewayRefused, GatewaySilent
from earmark.errors import GatewayUnavailable, InvalidRequest

if TYPE_CHECKING:
    from tests.money.conftest import Shop

UNKNOWN = GatewayInvalid("resource_missing", "No such PaymentMethod: 'pm_nonsense'", field="method")
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
            await pay(shop, command_of(shop, held))
        assert (outage.value.transient, outage.value.gateway) == (True, "scripted")
        assert [line.levelno for line in caplog.records if "refuses this shop" in line.message] == [logging.ERROR]
        now = await shop.booking(held)
        assert (now.state, now.expires_at) == (State.HELD, held.expires_at)
    shop.gateway.says["authorise"] = AUTHORISED
    assert (await pay(shop, command_of(shop, held))).record.body == b"confirmed"
    told = [(one.state, one.code) for one, _ in await shop.store.list_payments(held.id)]
    unserved = (PaymentState.FAILED, GATEWAY_UNAVAILABLE)
    assert told == [unserved, unserved, (PaymentState.CAPTURED, None)]


async def test_it_does_not_end_a_hold_that_a_decline_would_end(shop: Shop) -> None:
    """The policy `release` is about declines."""
    await shop.open_another("strict", on_decline=OnDecline.RELEASE)
    held = await shop.hold("A1", event="strict")
    shop.gateway.says["authorise"] = DENIED
    with pytest.raises(GatewayUnavailable):
        await pay(shop, command_of(shop, held))
    assert (await shop.booking(held)).state is State.HELD
    shop.gateway.says["authorise"] = DECLINED
    await pay(shop, command_of(shop, held))
    assert (await shop.booking(held)).state is State.FAILED


@pytest.mark.parametrize("on_decline", OnDecline)
async def test_a_method_that_the_gateway_does_not_know_is_a_wrong_request(shop: Shop, on_decline: OnDecline) -> None:
    """It names the field, ends no hold and counts as no try; the same request again gets the same error, unsent."""
    await shop.open_another("strict", on_decline=on_decline)
    held = await shop.hold("A1", event="strict")
    shop.gateway.says["authorise"] = UNKNOWN
    for number in range(7):
        key = IdempotencyKey("key:shop", f"basket-{number // 2}")
        with pytest.raises(InvalidRequest) as refused:
            await pay(shop, command_of(shop, held, key=key))
        [error] = refused.value.errors
        assert (error["path"], "No such PaymentMethod" in error["message"]) == ("method", True)
        assert (await shop.booking(held)).state is State.HELD
    assert shop.gateway.calls == ["authorise"] * 4
    shop.gateway.says["authorise"] = AUTHORISED
    assert (await pay(shop, command_of(shop, held))).record.body == b"confirmed"


async def test_a_later_call_that_is_invalid_says_nothing_of_the_money(shop: Shop) -> None:
    """The first may have been taken, though its answer was lost."""
    held = await shop.hold("A1")
    shop.gateway.says["authorise"] = GatewaySilent("no answer")
    await shop.pay(held)
    shop.gateway.says |= {"authorise": UNKNOWN, "status": UNKNOWN}
    await shop.reconcile(seconds=60)
    assert (await shop.booking(held)).state is State.PAYING
    shop.gateway.says["status"] = CAPTURED
    await shop.reconcile(seconds=600)
    assert (await shop.booking(held)).state is State.CONFIRMED


async def test_what_the_gateway_refuses_for_another_reason_is_still_a_decline(shop: Shop) -> None:
    """The control: without a wrong field, the key remembers the decline."""
    held = await shop.hold("A1")
    shop.gateway.says["authorise"] = GatewayRefused("resource_missing", "No such token")
    assert (await pay(shop, command_of(shop, held))).value.payment.code == "resource_missing"
    shop.gateway.says["authorise"] = AUTHORISED
    assert (await pay(shop, command_of(shop, held))).record.body == b"held"


async def test_a_later_call_that_is_denied_says_nothing_of_the_money(shop: Shop) -> None:
    """An earlier call may have set it aside: it is queried again until the gateway answers."""
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
