"""Buyers who dispute a charge at their bank: the operator is notified, once, whatever the callback carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.money.conftest import PRICE
from tests.money.scripted_gateway import CAPTURED
from tests.money.shop_and_bank import World
from tests.money.test_needs_attention import settle
from tests.payments.gateways.conformance.gateways_under_test import served_sandbox
from tests.sandbox.payment_methods import Method

from earmark.clock import MovableClock
from earmark.domain.booking_state_machine import State
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import PaymentState, SettledAs
from earmark.engine.ports.gateway import Callback, GatewaySilent
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.payments.gateways.stripe.gateway import StripeGateway
from earmark.store.sqlite.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from tests.money.conftest import Shop

    from earmark.domain.payment import Payment
    from earmark.engine.ports.gateway import Gateway
    from earmark.engine.ports.store import Store


def about(payment: Payment, *, event: str = "evt_1", kind: str = "charge.dispute.created") -> Callback:
    """What a gateway says of a dispute, with our id."""
    return Callback(id=event, kind=kind, mode=Mode.LIVE, payment_id=payment.id, gateway_id="pi_1", disputed=True)


async def test_a_dispute_needs_attention_and_the_journal_records_it(
    store: Store, clock: MovableClock, ids: Uuid7Ids
) -> None:
    """Three times the same callback is one note; the sale stands."""
    world = World(store, clock=clock, ids=ids)
    await world.open()
    held = await world.hold("A1")
    await world.pay(world.ask_to_pay(held, method=Method.DISPUTE))
    [event] = [event for event in world.bank.events if event.kind == "charge.dispute.created"]
    for _ in range(3):
        told = world.gateway.read_callback(*world.sandbox.callbacks.signed(event))
        assert await world.driver.receive_callback("sandbox", told)
    [payment] = await store.list_attention(limit=9)
    assert (payment.booking_id, payment.code, payment.captured) == (held.id, "disputed", PRICE)
    notes = [entry for entry in await store.read_history(held.id) if entry.reason == "the buyer disputes the payment"]
    assert [entry.facts["payment"]["event"] for entry in notes] == ["charge.dispute.created"]
    assert (await world.booking(held)).state is State.CONFIRMED
    assert await store.seconds_to_next_payment() is None
    assert await store.find_flaws(limit=9) == []


async def test_a_dispute_without_our_id_is_found_by_the_charge() -> None:
    """Stripe keeps our ids with the charge and not with its dispute; through the official SDK, over a socket."""
    with served_sandbox() as (sandbox, do):
        clock = sandbox.clock
        assert isinstance(clock, MovableClock)
        world = World(MemoryStore(clock=clock), clock=clock, ids=Uuid7Ids())
        gateway: Gateway = StripeGateway(
            sandbox.key, webhook_secret=sandbox.secret, url=sandbox.base_url, clock=clock, seconds_max=20
        )
        world.driver = PaymentDriver(world.engine, {"sandbox": gateway})
        await world.open()
        held = await world.hold("A1")
        await world.pay(world.ask_to_pay(held, method=Method.DISPUTE))
        headers, body = do(lambda box: box.callbacks.signed(box.bank.events[-1]))
        told = gateway.read_callback(headers, body)
        assert (told.kind, told.payment_id, told.disputed) == ("charge.dispute.created", None, True)
        assert await world.driver.receive_callback("sandbox", told)
        assert [one.code for one in await world.store.list_attention(limit=9)] == ["disputed"]
        await world.driver.close()


async def test_a_dispute_of_another_shops_charge_is_ignored(shop: Shop) -> None:
    """The account may be another business's too."""
    foreign = Callback(id="evt_1", kind="charge.dispute.created", mode=Mode.LIVE, payment_id=None, gateway_id="pi_9")
    assert not await shop.driver.receive_callback("scripted", msgspec.structs.replace(foreign, disputed=True))
    assert shop.gateway.calls == ["whose pi_9"]
    assert not await shop.driver.receive_callback("scripted", foreign)
    assert shop.gateway.calls == ["whose pi_9"], "only a dispute is looked up"


async def test_a_dispute_that_overtakes_the_capture_is_to_be_sent_again(shop: Shop) -> None:
    """A payment of which we know of no money is never flagged for it: that would void what is sold."""
    shop.gateway.says["capture"] = GatewaySilent("no answer")
    paid = await shop.pay(await shop.hold("A1"))
    payment = await shop.payment(paid.booking)
    with pytest.raises(GatewaySilent):
        await shop.driver.receive_callback("scripted", about(payment))
    assert (await shop.payment(paid.booking)).state is PaymentState.AUTHORISED
    shop.gateway.says["capture"] = CAPTURED
    await shop.reconcile(seconds=600)
    assert await shop.driver.receive_callback("scripted", about(payment))
    assert (await shop.payment(paid.booking)).code == "disputed"


async def test_a_lost_dispute_is_settled_as_refunded_and_the_next_callback_needs_attention(shop: Shop) -> None:
    """The bank took the money; a later turn of the dispute needs attention too."""
    paid = await shop.pay(await shop.hold("A1"))
    await shop.driver.receive_callback("scripted", about(await shop.payment(paid.booking)))
    settled = await settle(shop, await shop.payment(paid.booking), SettledAs.REFUNDED)
    assert (settled.state, settled.left) == (PaymentState.SETTLED, 0)
    closed = about(settled, event="evt_2", kind="charge.dispute.closed")
    assert await shop.driver.receive_callback("scripted", closed)
    assert (await shop.payment(paid.booking)).state is PaymentState.NEEDS_ATTENTION
