"""Payments that only an operator can settle: how they are counted, and how they are settled, on each of the stores."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.money.conftest import PRICE, Shop
from tests.money.scripted_gateway import AUTHORISED, PROCESSING

from earmark.domain.booking_state_machine import State
from earmark.domain.payment import PaymentState, RefundState, ReportedState, SettledAs
from earmark.engine.ports.gateway import GatewaySilent, RefundReport, Report, ReportedRefundState
from earmark.engine.ports.store import Changes
from earmark.errors import InvalidRequest
from earmark.payments import apply_payment_report, change_payment_without_report

if TYPE_CHECKING:
    from earmark.domain.booking import Booking
    from earmark.domain.payment import Payment
    from earmark.engine.ports.store import Transaction

REFUSED = RefundReport(state=ReportedRefundState.REFUSED, code="charge_disputed")
DONE = RefundReport(state=ReportedRefundState.DONE, gateway_id="re_2")
LESS = Report(state=ReportedState.CAPTURED, gateway_id="pi_1", captured=1000)
NOTE = "Paid back by bank transfer on Monday."


async def settle(shop: Shop, payment: Payment, how: SettledAs) -> Payment:
    about = await shop.store.read_payment_snapshot(payment.id)
    assert about is not None
    return await shop.engine.transact(
        partial(change_payment_without_report.resolve_by_hand, how=how, note=NOTE, about=about, ids=shop.engine.ids)
    )


async def refused(shop: Shop, amount: int = PRICE) -> tuple[Booking, Payment]:
    """A sale of which so much was to be refunded, and the gateway refused."""
    paid = await shop.pay(await shop.hold("A1"))
    shop.gateway.refunds = REFUSED
    await shop.refund(paid.booking, amount)
    payment = await shop.payment(paid.booking)
    assert payment.state is PaymentState.NEEDS_ATTENTION
    return paid.booking, payment


async def test_a_refused_refund_is_settled_by_hand_and_the_journal_has_the_operator(shop: Shop) -> None:
    """What the gateway captured, refunded and refused stays as it was: those are facts."""
    booking, payment = await refused(shop)
    settled = await settle(shop, payment, SettledAs.REFUNDED)
    assert (settled.state, settled.code, settled.message) == (PaymentState.SETTLED, "refund_by_hand", NOTE)
    assert (settled.captured, settled.refunding, settled.refunded, settled.due_at) == (PRICE, PRICE, 0, None)
    [(_, [refund])] = await shop.store.list_payments(booking.id)
    assert refund.state is RefundState.REFUSED
    assert await shop.store.list_attention(limit=9) == []
    last = (await shop.store.read_history(booking.id))[-1]
    assert (last.actor, last.reason, last.verb) == ("operator", NOTE, "payment")
    told = last.facts["payment"]
    assert (told["from"], told["to"], told["settled_as"]) == ("needs_attention", "settled", "refunded")


async def test_money_that_is_kept_leaves_the_booking_as_it_is(shop: Shop) -> None:
    """It was settled outside; the gateway is not called again."""
    booking, payment = await refused(shop)
    await settle(shop, payment, SettledAs.KEPT)
    asked = list(shop.gateway.calls)
    await shop.reconcile(seconds=30 * 86_400)
    assert (await shop.booking(booking)).state is State.CONFIRMED
    assert shop.gateway.calls == asked


async def test_a_settled_payment_can_refund_what_is_left_and_need_attention_again(shop: Shop) -> None:
    """Settled is what was refused, and not what comes later."""
    booking, payment = await refused(shop, 1000)
    await settle(shop, payment, SettledAs.KEPT)
    shop.gateway.refunds = DONE
    await shop.refund(booking, 500)
    after = await shop.payment(booking)
    assert (after.state, after.refunded) == (PaymentState.SETTLED, 500)
    shop.gateway.refunds = REFUSED
    await shop.refund(booking, 500)
    assert (await shop.payment(booking)).state is PaymentState.NEEDS_ATTENTION


@pytest.mark.parametrize("how, state", [(SettledAs.KEPT, State.CONFIRMED), (SettledAs.REFUNDED, State.EXPIRED)])
async def test_a_booking_that_still_waits_is_sold_for_what_is_kept_and_else_lost(
    shop: Shop, how: SettledAs, state: State
) -> None:
    """Another amount was captured than requested: an operator decides, and the hold is pinned no longer."""
    held = await shop.hold("A1", pools={"GA": 2})
    shop.gateway.says |= {"authorise": PROCESSING, "status": PROCESSING}
    await shop.pay(held)
    payment = await shop.payment(held)
    about = await shop.store.read_payment_snapshot(payment.id)
    assert about is not None
    await shop.engine.transact(
        partial(
            apply_payment_report.apply_report, report=LESS, about=about, ids=shop.engine.ids, policy=shop.engine.policy
        )
    )
    flagged = await shop.payment(held)
    assert (flagged.state, flagged.captured) == (PaymentState.NEEDS_ATTENTION, 1000)
    assert await shop.store.find_flaws(limit=9) == []
    await settle(shop, flagged, how)
    assert (await shop.booking(held)).state is state
    assert (await shop.payment(held)).state is PaymentState.SETTLED
    free = (await shop.hold("A1", buyer="bob")).state if state is State.EXPIRED else None
    assert free in {State.HELD, None}


@pytest.mark.parametrize("how, asked", [(SettledAs.REFUNDED, []), (SettledAs.KEPT, ["refund 1000"])])
async def test_what_an_operator_refunded_outside_is_not_refunded_again(
    shop: Shop, how: SettledAs, asked: list[str]
) -> None:
    """The sale stays, and is cancelled later: only money that was kept is refunded then."""
    shop.gateway.says["capture"] = GatewaySilent("no answer")
    paid = await shop.pay(await shop.hold("A1"))
    about = await shop.store.read_payment_snapshot((await shop.payment(paid.booking)).id)
    assert about is not None
    await shop.engine.transact(
        partial(
            apply_payment_report.apply_report, report=LESS, about=about, ids=shop.engine.ids, policy=shop.engine.policy
        )
    )
    await settle(shop, await shop.payment(paid.booking), how)
    assert (await shop.cancel(paid.booking)).state is State.CANCELLED
    await shop.reconcile(seconds=600)
    assert [call for call in shop.gateway.calls if call.startswith("refund")] == asked


async def test_an_operators_note_outlives_the_next_look(shop: Shop) -> None:
    """The gateway has a reason of its own."""
    booking, payment = await refused(shop)
    settled = await settle(shop, payment, SettledAs.KEPT)
    shop.gateway.says["status"] = Report(state=ReportedState.DECLINED, code="odd", message="Odd.")
    await shop.driver.advance(payment.id, ask_gateway=True)
    after = await shop.payment(booking)
    assert (after.code, after.message, after.state) == (settled.code, settled.message, PaymentState.SETTLED)


async def test_a_payment_that_needs_no_attention_is_not_settled(shop: Shop) -> None:
    """A mistyped id changes nothing."""
    paid = await shop.pay(await shop.hold("A1"))
    before = await shop.payment(paid.booking)
    with pytest.raises(InvalidRequest, match="is captured"):
        await settle(shop, before, SettledAs.KEPT)
    assert await shop.payment(paid.booking) == before
    assert (await shop.store.read_history(paid.booking.id))[-1].actor == "gateway:scripted"


async def test_a_payment_is_settled_once(shop: Shop) -> None:
    """Of two operators who both settle it, the second is refused with the first's decision."""
    booking, payment = await refused(shop)
    first = await settle(shop, payment, SettledAs.KEPT)
    with pytest.raises(InvalidRequest, match="is settled"):
        await settle(shop, payment, SettledAs.REFUNDED)
    assert await shop.payment(booking) == first


async def test_what_the_gateway_has_not_decided_only_the_gateway_decides(shop: Shop) -> None:
    """It is not known whether there is money, so no operator settles it."""
    held = await shop.hold("A1")
    shop.gateway.says |= dict.fromkeys(("authorise", "status", "void"), PROCESSING)
    await shop.pay(held, automatic=True)
    for _ in range(10):
        await shop.reconcile(seconds=600)
    flagged = await shop.payment(held)
    assert flagged.state is PaymentState.NEEDS_ATTENTION
    with pytest.raises(InvalidRequest, match="taken nothing yet"):
        await settle(shop, flagged, SettledAs.REFUNDED)
    assert (await shop.booking(held)).state is State.PAYING


async def test_a_payment_with_a_refund_under_way_is_settled_afterwards(shop: Shop) -> None:
    """One refund was refused, and another is not decided: it may still move money."""
    booking, payment = await refused(shop, 1000)
    shop.gateway.refunds = GatewaySilent("no answer")
    await shop.refund(booking, 500)
    with pytest.raises(InvalidRequest, match="on its way"):
        await settle(shop, payment, SettledAs.KEPT)
    shop.gateway.refunds = DONE
    await shop.reconcile(seconds=600)
    assert (await settle(shop, payment, SettledAs.KEPT)).refunded == 500


async def test_control_a_write_past_the_rules_is_refused_by_every_store(shop: Shop) -> None:
    """The edge is open from `needs_attention` alone: the schema, or the memory store, refuses it from anywhere else."""
    paid = await shop.pay(await shop.hold("A1"))
    before = await shop.payment(paid.booking)
    forged = msgspec.structs.replace(before, state=PaymentState.SETTLED, version=before.version + 1)

    async def write(transaction: Transaction) -> None:
        await transaction.begin([])
        await transaction.lock_payments({before.id})
        await transaction.write(Changes(payments=[forged]))

    with pytest.raises(Exception, match=r"payment_moves_along_an_edge|captured to settled"):
        await shop.engine.transact(write)
    assert (await shop.payment(paid.booking)).state is PaymentState.CAPTURED


# -- what an operator is shown -------------------------------------------------------------------------------------


async def test_payments_that_need_attention_are_counted_by_gateway_and_open_ones_by_age(shop: Shop) -> None:
    """A refund's age counts from when it was owed: that its payment is a month old is no alarm."""
    nothing = await shop.store.watch_money(limit=100)
    assert (nothing.attention, nothing.open, nothing.open_since) == ({}, 0, None)
    sold = await shop.pay(await shop.hold("A1"))
    shop.clock.advance(30 * 86_400)
    shop.gateway.refunds = GatewaySilent("no answer")
    await shop.refund(sold.booking, 1000)
    one = await shop.store.watch_money(limit=100)
    assert (one.attention, one.open) == ({}, 1)
    assert one.open_since is not None
    assert (one.now - one.open_since).total_seconds() < 86_400
    shop.gateway.says["authorise"] = GatewaySilent("no answer")
    await shop.pay(await shop.hold("A2"))
    assert (await shop.store.watch_money(limit=100)).open == 2
    assert (await shop.store.watch_money(limit=1)).open == 1
    shop.gateway.says["authorise"] = AUTHORISED
    shop.gateway.refunds = REFUSED
    await shop.reconcile(seconds=600)
    after = await shop.store.watch_money(limit=100)
    assert (after.attention, after.open, after.open_since) == ({"scripted": 1}, 0, None)


async def test_a_failed_payment_is_not_open_though_it_is_queried_again(shop: Shop) -> None:
    """Every declined card would be an alarm a day long."""
    shop.gateway.says["authorise"] = Report(state=ReportedState.DECLINED, code="card_declined")
    await shop.pay(await shop.hold("A1"))
    assert await shop.store.seconds_to_next_payment() is not None
    assert (await shop.store.watch_money(limit=100)).open == 0
