"""Refunds that were made and failed weeks later: the operator learns that the buyer has no money. On all stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.money.conftest import PRICE
from tests.money.scripted_gateway import CAPTURED
from tests.money.shop_and_bank import World

from earmark.domain.payment import PaymentState, RefundState
from earmark.engine.ports.gateway import GatewaySilent, RefundReport, ReportedRefundState
from earmark.payments import drive_payment_to_its_end
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.sandbox.model import LedgerMove

if TYPE_CHECKING:
    from tests.money.conftest import Shop

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.domain.payment import Refund
    from earmark.engine.ports.store import Store
    from earmark.uuids import Uuid7Ids

FAILED = RefundReport(state=ReportedRefundState.REFUSED, gateway_id="re_1", code="lost_or_stolen_card")
WEEKS = 21 * 86_400


async def refunded_sale(shop: Shop, *amounts: int) -> Booking:
    """A sale of which so much was refunded."""
    shop.gateway.says["status"] = CAPTURED
    paid = await shop.pay(await shop.hold("A1"))
    for amount in amounts:
        await shop.refund(paid.booking, amount)
    assert (await shop.payment(paid.booking)).refunded == sum(amounts)
    return paid.booking


async def refunds_of(shop: Shop, booking: Booking) -> list[Refund]:
    [(_, refunds)] = await shop.store.list_payments(booking.id)
    return refunds


@pytest.mark.parametrize("amount", [PRICE, 1000], ids=["all of it", "a part"])
async def test_a_refund_that_failed_after_it_was_made_needs_attention(shop: Shop, amount: int) -> None:
    """Its row says what happened, the payment no longer counts it as refunded, and the journal has it."""
    booking = await refunded_sale(shop, amount)
    payment = await shop.payment(booking)
    shop.clock.advance(WEEKS)
    shop.gateway.made = FAILED
    await shop.driver.advance(payment.id, ask_gateway=True)
    after = await shop.payment(booking)
    assert (after.state, after.code) == (PaymentState.NEEDS_ATTENTION, "lost_or_stolen_card")
    assert (after.captured, after.refunding, after.refunded) == (PRICE, amount, 0)
    assert [(one.state, one.code) for one in await refunds_of(shop, booking)] == [
        (RefundState.REFUSED, "lost_or_stolen_card")
    ]
    assert (await shop.store.watch_money(limit=9)).attention == {"scripted": 1}
    last = (await shop.store.read_history(booking.id))[-1]
    assert (last.reason, last.facts["payment"]["refused"]) == ("a refund that was made has failed since", amount)
    assert (last.facts["payment"]["from"], last.facts["payment"]["to"]) == (payment.state, "needs_attention")


async def test_a_refund_that_has_stayed_there_changes_nothing(shop: Shop) -> None:
    """The reconciler looks it up, and writes nothing."""
    booking = await refunded_sale(shop, 1000)
    payment, told = await shop.payment(booking), await shop.store.read_history(booking.id)
    await shop.driver.advance(payment.id, ask_gateway=True)
    assert "refund_status 1000" in shop.gateway.calls
    after = await shop.payment(booking)
    assert (after.state, after.refunded, after.due_at) == (PaymentState.PARTIALLY_REFUNDED, 1000, None)
    assert await shop.store.read_history(booking.id) == told


async def test_one_failed_refund_leaves_the_others_refunded(shop: Shop) -> None:
    """And what is left can still be refunded."""
    booking = await refunded_sale(shop, 1000, 2000)
    payment = await shop.payment(booking)
    first, _ = await refunds_of(shop, booking)
    about = await shop.store.read_payment_snapshot(payment.id)
    assert about is not None
    await shop.driver._apply_refund_report(FAILED, first, about)
    after = await shop.payment(booking)
    assert (after.refunding, after.refunded, after.left) == (3000, 2000, PRICE - 3000)
    assert [one.state for one in await refunds_of(shop, booking)] == [RefundState.REFUSED, RefundState.DONE]
    await shop.refund(booking, PRICE - 3000)
    assert (await shop.payment(booking)).refunded == PRICE - 1000


async def test_two_failed_refunds_are_both_recorded(shop: Shop) -> None:
    """One look finds them, and nothing is left due."""
    booking = await refunded_sale(shop, 1000, 2000)
    shop.gateway.made = FAILED
    await shop.driver.advance((await shop.payment(booking)).id, ask_gateway=True)
    after = await shop.payment(booking)
    assert (after.state, after.refunded, after.due_at) == (PaymentState.NEEDS_ATTENTION, 0, None)


async def test_a_gateway_that_does_not_say_is_queried_again(shop: Shop) -> None:
    """The callback came, and the answer did not: it is due until it does."""
    booking = await refunded_sale(shop, 1000)
    shop.gateway.made = GatewaySilent("no answer")
    await shop.driver.advance((await shop.payment(booking)).id, ask_gateway=True)
    rests = await shop.payment(booking)
    assert rests.state is PaymentState.PARTIALLY_REFUNDED
    assert rests.due_at is not None
    assert rests.due_at > shop.clock.now()
    shop.gateway.made = FAILED
    await shop.reconcile(seconds=600)
    assert (await shop.payment(booking)).state is PaymentState.NEEDS_ATTENTION


async def test_a_refund_that_takes_days_hides_none_that_failed(shop: Shop) -> None:
    """Both are of one payment; the reconciler queries both."""
    booking = await refunded_sale(shop, 1000)
    shop.gateway.refunds = RefundReport(state=ReportedRefundState.PROCESSING)
    await shop.refund(booking, 500)
    shop.gateway.made = FAILED
    await shop.reconcile(seconds=600)
    after = await shop.payment(booking)
    assert (after.state, after.refunded) == (PaymentState.NEEDS_ATTENTION, 0)
    assert after.due_at is not None


async def test_control_without_the_query_nothing_is_noticed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """How a payment stands says nothing of its refunds."""
    monkeypatch.setattr(drive_payment_to_its_end, "REFUNDS_LOOKED_AT_MAX", -PRICE)
    booking = await refunded_sale(shop, 1000)
    shop.gateway.made = FAILED
    await shop.driver.advance((await shop.payment(booking)).id, ask_gateway=True)
    assert (await shop.payment(booking)).state is PaymentState.PARTIALLY_REFUNDED


async def test_a_callback_about_a_refund_that_failed_needs_attention(
    store: Store, clock: MovableClock, ids: Uuid7Ids
) -> None:
    """From the bank's books to ours, in another process than the one that gave the money back, any number of times."""
    world = World(store, clock=clock, ids=ids)
    await world.open()
    held = await world.hold("A1")
    await world.pay(world.ask_to_pay(held))
    await world.refund(world.ask_to_refund(held, 1000))
    clock.advance(WEEKS)
    [refund] = world.bank.refunds()
    world.bank.return_refund(refund.id)
    later = PaymentDriver(world.engine, {"sandbox": world.gateway})
    for _ in range(3):
        told = world.gateway.read_callback(*world.sandbox.callbacks.signed(world.bank.events[-1]))
        assert (told.kind, await later.receive_callback("sandbox", told)) == ("refund.failed", True)
    [(payment, [known])] = await store.list_payments(held.id)
    assert (payment.state, payment.refunded, known.state) == (PaymentState.NEEDS_ATTENTION, 0, RefundState.REFUSED)
    assert payment.refunded == world.bank.total(LedgerMove.REFUNDED) - world.bank.total(LedgerMove.RETURNED)
    assert await store.find_flaws(limit=9) == []
    await world.settle()
    assert [one.id for one in await store.list_attention(limit=9)] == [payment.id]
