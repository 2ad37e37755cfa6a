"""Payments that make no progress by repeating the same call, and what ends them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.money.conftest import PRICE
from tests.money.scripted_gateway import CAPTURED
from tests.money.shop_and_bank import World
from tests.money.test_needs_attention import settle
from tests.payments.gateways.conformance.gateways_under_test import served_sandbox

from earmark.clock import MovableClock
from earmark.domain import payment as payment_rules
from earmark.domain.booking_state_machine import State
from earmark.domain.payment import PaymentState, ReportedState, SettledAs
from earmark.engine.ports.gateway import GatewaySilent, RefundReport, Report, ReportedRefundState
from earmark.errors import InvalidRequest
from earmark.payments import apply_payment_report
from earmark.payments.drive_payment_to_its_end import PaymentDriver, PaymentStep, next_step
from earmark.payments.gateways.stripe.gateway import StripeGateway
from earmark.sandbox.faults import Fault
from earmark.sandbox.model import LedgerMove
from earmark.store.sqlite.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from tests.money.conftest import Shop

    from earmark.domain.booking import Booking
    from earmark.engine.ports.store import Store


async def unanswered(world: World, fault: Fault) -> Booking:
    """A buyer whose card was charged once, and whose key is answered with a 500 for ever."""
    await world.open()
    world.sandbox.script.sticky_errors = True
    world.sandbox.script.add(fault, "authorise")
    held = await world.hold("A1", ttl=1700)
    paid = await world.pay(world.ask_to_pay(held))
    assert paid.payment.state is PaymentState.UNKNOWN
    return held


async def wait(world: World, *, seconds: int) -> None:
    """Time passes, and the reconciler does its rounds."""
    for _ in range(seconds // 30):
        world.clock.advance(30)
        await world.driver.reconcile(limit=10)


async def test_a_500_that_is_repeated_for_ever_does_not_lose_the_sale(
    store: Store, clock: MovableClock, ids: Uuid7Ids
) -> None:
    """The card was charged and only the answer is stuck: the payment is looked up by our id, and charged once."""
    world = World(store, clock=clock, ids=ids)
    held = await unanswered(world, Fault.ERROR_AFTER)
    await wait(world, seconds=600)
    assert (await world.booking(held)).state is State.CONFIRMED
    assert [world.bank.total(move) for move in (LedgerMove.AUTHORISED, LedgerMove.CAPTURED)] == [PRICE, PRICE]
    assert await world.disagreements() == []


async def test_a_500_that_is_repeated_and_did_nothing_ends_with_the_hold(
    store: Store, clock: MovableClock, ids: Uuid7Ids
) -> None:
    """There is nothing to find: nothing is charged, and the seat is free again."""
    world = World(store, clock=clock, ids=ids)
    held = await unanswered(world, Fault.ERROR_BEFORE)
    await wait(world, seconds=1200)
    await world.settle()
    assert (await world.booking(held)).state is State.EXPIRED
    assert world.bank.ledger == []
    assert await world.disagreements() == []


async def test_control_without_the_look_up_the_sale_is_lost(
    store: Store, clock: MovableClock, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same order again and again is the same 500."""
    monkeypatch.setattr(payment_rules, "is_to_be_looked_up", lambda _: False)
    world = World(store, clock=clock, ids=ids)
    held = await unanswered(world, Fault.ERROR_AFTER)
    await wait(world, seconds=1200)
    assert (await world.booking(held)).state is State.EXPIRED


async def test_a_reconciler_that_was_down_for_a_day_sends_no_create_again(
    store: Store, clock: MovableClock, ids: Uuid7Ids
) -> None:
    """The gateway may have forgotten the key by then: the payment is given up and voided, by what our id finds."""
    world = World(store, clock=clock, ids=ids)
    await world.open()
    world.sandbox.script.add(Fault.REPLY_LOST, "authorise")
    held = await world.hold("A1", ttl=1700)
    await world.pay(world.ask_to_pay(held))
    clock.advance(21 * 3600)
    await world.settle()
    assert [call.name for call in world.sandbox.pipeline.calls if call.name == "authorise"] == ["authorise"]
    assert (await world.booking(held)).state is State.EXPIRED
    assert [world.bank.total(move) for move in (LedgerMove.AUTHORISED, LedgerMove.VOIDED, LedgerMove.CAPTURED)] == [
        PRICE,
        PRICE,
        0,
    ]
    assert await world.disagreements() == []


async def test_no_create_is_sent_after_twenty_hours_whatever_pins_the_hold(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second guard behind the first: with a booking that is still pinned it is looked up by our id alone."""
    shop.gateway.says["authorise"] = GatewaySilent("no answer")
    held = await shop.hold("A1")
    await shop.pay(held)
    about = await shop.store.read_payment_snapshot((await shop.payment(held)).id)
    assert about is not None
    later = about.now + timedelta(hours=20)
    pinned = msgspec.structs.replace(about.booking, paying_until=later + timedelta(hours=1))
    late = msgspec.structs.replace(about, now=later, booking=pinned)
    assert next_step(late, ask_gateway=False) is PaymentStep.STATUS
    monkeypatch.setattr(payment_rules, "may_resend", lambda *_, **__: True)
    assert next_step(late, ask_gateway=False) is PaymentStep.AUTHORISE, "the control"


async def without_its_gateway(shop: Shop, *, seconds: int, **how: Any) -> Booking:
    """A hold whose payment was not answered, and whose gateway is not configured from then on."""
    shop.gateway.says["authorise"] = GatewaySilent("no answer")
    held = await shop.hold("A1", ttl=5)
    await shop.pay(held, **how)
    await shop.driver.close()
    shop.driver = PaymentDriver(shop.engine, {})
    for _ in range(seconds // 300):
        await shop.reconcile(seconds=300)
    return held


async def test_a_payment_whose_gateway_is_gone_frees_its_seats(shop: Shop) -> None:
    """After the longest time that paying pins a hold, by whichever process is there; not a moment sooner."""
    held = await without_its_gateway(shop, seconds=3300)
    assert (await shop.booking(held)).state is State.PAYING
    await shop.reconcile(seconds=600)
    assert (await shop.booking(held)).state is State.EXPIRED
    assert (await shop.payment(held)).state is PaymentState.VOIDING
    assert (await shop.hold("A1", buyer="bob")).state is State.HELD


async def test_a_payment_whose_gateway_is_configured_again_is_ended_there(shop: Shop) -> None:
    """What was given up meanwhile is still voided, and late money is refunded."""
    held = await without_its_gateway(shop, seconds=4200)
    await shop.hold("A1", buyer="bob")
    shop.driver = PaymentDriver(shop.engine, {"scripted": shop.gateway})
    shop.gateway.says["void"] = CAPTURED
    await shop.reconcile(seconds=600)
    payment = await shop.payment(held)
    assert (payment.state, payment.refunded) == (PaymentState.REFUNDED, PRICE)


async def test_a_payment_whose_gateway_is_gone_and_may_have_taken_the_money_is_settled_by_hand(shop: Shop) -> None:
    """The outcome is unknown: it is flagged and pinned, until an operator says that nothing was taken."""
    held = await without_its_gateway(shop, seconds=4200, automatic=True)
    flagged = await shop.payment(held)
    assert (flagged.state, (await shop.booking(held)).state) == (PaymentState.NEEDS_ATTENTION, State.PAYING)
    settled = await settle(shop, flagged, SettledAs.NOTHING)
    assert (settled.state, settled.code) == (PaymentState.FAILED, "nothing_by_hand")
    assert (await shop.booking(held)).state is State.EXPIRED
    assert await shop.store.list_attention(limit=9) == []
    assert (await shop.hold("A1", buyer="bob")).state is State.HELD
    last = (await shop.store.read_history(held.id))[-1]
    assert (last.actor, last.facts["payment"]["settled_as"]) == ("operator", "nothing")


async def test_money_that_comes_after_an_operator_settled_as_nothing_is_refunded(shop: Shop) -> None:
    """It is late money, as after the gateway's own decline."""
    held = await without_its_gateway(shop, seconds=4200, automatic=True)
    await settle(shop, await shop.payment(held), SettledAs.NOTHING)
    await shop.hold("A1", buyer="bob")
    shop.driver = PaymentDriver(shop.engine, {"scripted": shop.gateway})
    shop.gateway.says["status"] = CAPTURED
    await shop.driver.advance((await shop.payment(held)).id, ask_gateway=True)
    payment = await shop.payment(held)
    assert (payment.state, payment.refunded) == (PaymentState.REFUNDED, PRICE)


async def test_money_that_was_taken_is_not_settled_as_nothing(shop: Shop) -> None:
    """A fact stays one."""
    paid = await shop.pay(await shop.hold("A1"))
    shop.gateway.refunds = RefundReport(state=ReportedRefundState.REFUSED, code="charge_disputed")
    await shop.refund(paid.booking, 1000)
    with pytest.raises(InvalidRequest, match=f"has taken {PRICE}"):
        await settle(shop, await shop.payment(paid.booking), SettledAs.NOTHING)


async def test_a_sale_for_which_nothing_was_taken_is_cancelled(shop: Shop) -> None:
    """The gateway said that it took nothing, which is another amount; an operator has seen the same."""
    shop.gateway.says["capture"] = GatewaySilent("no answer")
    paid = await shop.pay(await shop.hold("A1"))
    about = await shop.store.read_payment_snapshot((await shop.payment(paid.booking)).id)
    assert about is not None
    nothing = Report(state=ReportedState.CAPTURED, gateway_id="pi_1", captured=0)
    hear = partial(
        apply_payment_report.apply_report, report=nothing, about=about, ids=shop.engine.ids, policy=shop.engine.policy
    )
    await shop.engine.transact(hear)
    await settle(shop, await shop.payment(paid.booking), SettledAs.NOTHING)
    assert (await shop.booking(paid.booking)).state is State.CANCELLED


async def test_stripe_that_repeats_a_500_does_not_lose_the_sale() -> None:
    """The same through the official SDK, over a socket."""
    with served_sandbox() as (sandbox, do):
        clock = sandbox.clock
        assert isinstance(clock, MovableClock)
        world = World(MemoryStore(clock=clock), clock=clock, ids=Uuid7Ids())
        world.sandbox, world.bank = sandbox, sandbox.bank
        gateway = StripeGateway(
            sandbox.key, webhook_secret=sandbox.secret, url=sandbox.base_url, clock=clock, seconds_max=20
        )
        world.driver = PaymentDriver(world.engine, {"sandbox": gateway})
        held = await unanswered(world, Fault.ERROR_AFTER)
        await wait(world, seconds=600)
        assert (await world.booking(held)).state is State.CONFIRMED
        assert do(lambda box: [box.bank.total(move) for move in (LedgerMove.AUTHORISED, LedgerMove.CAPTURED)]) == [
            PRICE,
            PRICE,
        ]
        await world.driver.close()
