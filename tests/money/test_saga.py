"""A payment from its first row to its last, on each of the stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.money.conftest import PRICE
from tests.money.scripted_gateway import AUTHORISED, CAPTURED, DECLINED, PROCESSING

from earmark.domain.bookable_event import OnDecline
from earmark.domain.booking_state_machine import State
from earmark.domain.default_limits_for_all_events import Policy
from earmark.domain.payment import PaymentState, ReportedState
from earmark.engine.commands_and_results import Confirm
from earmark.engine.ports.gateway import GatewayRefused, GatewaySilent, RefundReport, Report, ReportedRefundState
from earmark.errors import PaymentInProgress, RefundRefused

if TYPE_CHECKING:
    from tests.money.conftest import Shop

    from earmark.domain.booking import Booking

REQUIRES_ACTION = Report(state=ReportedState.REQUIRES_ACTION, gateway_id="pi_1", action={"url": "https://bank/act"})


async def test_a_payment_is_authorised_then_the_seat_is_sold_then_the_money_is_captured(shop: Shop) -> None:
    """In this order: no money is taken before the booking is certain."""
    paid = await shop.pay(await shop.hold("A1", "A2"))
    assert (paid.booking.state, paid.booking.payment_id) == (
        State.CONFIRMED,
        str(paid.payment.id if paid.payment else ""),
    )
    assert paid.payment is not None
    assert (paid.payment.state, paid.payment.captured) == (PaymentState.CAPTURED, 2 * PRICE)
    assert shop.gateway.calls == ["authorise", "capture"]
    assert await shop.store.seconds_to_next_payment() is None


async def test_automatic_capture_takes_the_money_at_once(shop: Shop) -> None:
    """One call, for gateways and methods that cannot set money aside."""
    shop.gateway.says["authorise"] = CAPTURED
    paid = await shop.pay(await shop.hold("A1"), automatic=True)
    assert paid.booking.state is State.CONFIRMED
    assert shop.gateway.calls == ["authorise"]


async def test_a_declined_payment_leaves_the_hold_and_another_may_pay_for_it(shop: Shop) -> None:
    """The buyer has time left to try another card."""
    held = await shop.hold("A1")
    shop.gateway.says["authorise"] = DECLINED
    declined = await shop.pay(held)
    assert (declined.booking.state, declined.booking.expires_at) == (State.HELD, held.expires_at)
    assert declined.payment is not None
    assert (declined.payment.state, declined.payment.code) == (PaymentState.FAILED, "card_declined")
    shop.gateway.says["authorise"] = AUTHORISED
    assert (await shop.pay(held)).booking.state is State.CONFIRMED


async def test_a_declined_payment_ends_the_hold_under_the_release_policy(shop: Shop) -> None:
    """The policy `release`: another buyer can take the seat at once."""
    await shop.open_another("strict", on_decline=OnDecline.RELEASE)
    held = await shop.hold("A1", event="strict")
    shop.gateway.says["authorise"] = DECLINED
    assert (await shop.pay(held)).booking.state is State.FAILED
    assert (await shop.hold("A1", event="strict", buyer="bob")).state is State.HELD


async def test_a_hold_that_ran_out_while_its_payment_was_declined_is_expired(shop: Shop) -> None:
    """The hold has no time left."""
    held = await shop.hold("A1", ttl=5)
    shop.gateway.says |= {"authorise": PROCESSING, "status": DECLINED}
    assert (await shop.pay(held)).booking.state is State.PAYING
    await shop.reconcile(seconds=600)
    assert (await shop.booking(held)).state is State.EXPIRED


async def test_silence_is_unknown_and_the_same_payment_is_sent_again(shop: Shop) -> None:
    """A timeout is never a no: the reconciler sends the same order again."""
    held = await shop.hold("A1")
    shop.gateway.says["authorise"] = GatewaySilent("no answer")
    pending = await shop.pay(held)
    assert pending.payment is not None
    assert (pending.booking.state, pending.payment.state) == (State.PAYING, PaymentState.UNKNOWN)
    shop.gateway.says["authorise"] = AUTHORISED
    await shop.reconcile(seconds=600)
    assert (await shop.booking(held)).state is State.CONFIRMED
    assert shop.gateway.calls == ["authorise", "authorise", "capture"]


async def test_paying_pins_a_hold_past_its_time_while_the_gateway_decides(shop: Shop) -> None:
    """The clock ends a hold, and none that is being paid for."""
    held = await shop.hold("A1", ttl=5)
    shop.gateway.says |= {"authorise": PROCESSING, "status": PROCESSING}
    await shop.pay(held)
    await shop.reconcile(seconds=800)
    assert await shop.engine.expire(limit=10) == []
    assert (await shop.booking(held)).state is State.PAYING
    shop.gateway.says["status"] = AUTHORISED
    await shop.reconcile(seconds=800)
    assert (await shop.booking(held)).state is State.CONFIRMED


async def test_a_gateway_that_never_decides_loses_the_booking_and_the_payment_is_voided(shop: Shop) -> None:
    """After an hour at most: the seat becomes free, and the money is never to be captured."""
    held = await shop.hold("A1")
    shop.gateway.says |= {"authorise": PROCESSING, "status": PROCESSING}
    await shop.pay(held)
    for _ in range(10):
        await shop.reconcile(seconds=600)
    assert (await shop.booking(held)).state is State.EXPIRED
    assert (await shop.payment(held)).state is PaymentState.VOIDED
    assert "void" in shop.gateway.calls
    assert "capture" not in shop.gateway.calls


async def test_an_automatic_payment_that_is_never_decided_needs_attention_and_stays_pinned(shop: Shop) -> None:
    """It may be captured at any moment, so the seat is sold to no other buyer."""
    held = await shop.hold("A1")
    shop.gateway.says |= {"authorise": PROCESSING, "status": PROCESSING, "void": PROCESSING}
    await shop.pay(held, automatic=True)
    for _ in range(10):
        await shop.reconcile(seconds=600)
    assert (await shop.booking(held)).state is State.PAYING
    assert [one.booking_id for one in await shop.store.list_attention(limit=9)] == [held.id]
    shop.gateway.says["void"] = CAPTURED
    await shop.reconcile(seconds=600)
    assert (await shop.booking(held)).state is State.CONFIRMED
    assert await shop.store.list_attention(limit=9) == []


async def test_an_automatic_payment_that_the_gateway_cancels_frees_the_seat(shop: Shop) -> None:
    """The gateway's answer ends the wait: nothing was captured, and nothing will be."""
    held = await shop.hold("A1", ttl=5)
    shop.gateway.says |= {"authorise": GatewaySilent("no answer"), "status": PROCESSING}
    await shop.pay(held, automatic=True)
    for _ in range(3):
        await shop.reconcile(seconds=600)
    assert shop.gateway.calls[-1] == "void"
    assert (await shop.booking(held)).state is State.EXPIRED
    assert (await shop.payment(held)).state is PaymentState.FAILED


async def test_a_decline_that_turns_out_to_be_a_capture_is_found_without_a_callback(shop: Shop) -> None:
    """The gateway is queried again within a day of a decline, and the money is refunded."""
    held = await shop.hold("A1", ttl=5)
    shop.gateway.says |= {"authorise": DECLINED, "status": CAPTURED}
    assert (await shop.pay(held)).booking.state is State.HELD
    shop.clock.advance(10)
    theirs = await shop.hold("A1", buyer="bob")
    await shop.engine.confirm(Confirm(**shop.about(theirs), payment_id="till-1"))
    await shop.reconcile(seconds=3600)
    payment = await shop.payment(held)
    assert (payment.captured, payment.refunded) == (PRICE, PRICE)
    assert (await shop.booking(held)).state is State.EXPIRED


async def test_an_order_that_the_gateway_cannot_read_is_declined(shop: Shop) -> None:
    """A token that is no token: nothing was charged."""
    shop.gateway.says["authorise"] = GatewayRefused("resource_missing", "No such token")
    paid = await shop.pay(await shop.hold("A1"))
    assert paid.payment is not None
    assert (paid.booking.state, paid.payment.code) == (State.HELD, "resource_missing")


async def test_a_capture_that_is_refused_for_good_cancels_the_sale(shop: Shop) -> None:
    """There is no money, so there is no booking; the seat is free again."""
    shop.gateway.says["capture"] = Report(state=ReportedState.DECLINED, gateway_id="pi_1", code="expired_card")
    held = await shop.hold("A1")
    paid = await shop.pay(held)
    assert paid.booking.state is State.CANCELLED
    assert (await shop.payment(held)).state is PaymentState.FAILED
    assert (await shop.hold("A1", buyer="bob")).state is State.HELD


async def test_a_capture_that_is_not_answered_is_repeated_until_it_is(shop: Shop) -> None:
    """The booking is sold; the money follows."""
    shop.gateway.says["capture"] = GatewaySilent("no answer")
    held = await shop.hold("A1")
    assert (await shop.pay(held)).booking.state is State.CONFIRMED
    shop.gateway.says["capture"] = CAPTURED
    await shop.reconcile(seconds=600)
    assert (await shop.payment(held)).captured == PRICE


async def test_a_buyer_who_has_to_act_gets_the_action(shop: Shop) -> None:
    """3-D Secure and the like: the hold waits, and the answer says where to go."""
    held = await shop.hold("A1")
    shop.gateway.says |= {"authorise": REQUIRES_ACTION, "status": REQUIRES_ACTION}
    waiting = await shop.pay(held)
    assert waiting.payment is not None
    assert waiting.payment.action == {"url": "https://bank/act"}
    shop.gateway.says["status"] = AUTHORISED
    await shop.reconcile(seconds=600)
    assert (await shop.booking(held)).state is State.CONFIRMED
    assert (await shop.payment(held)).action is None


async def test_a_buyer_who_leaves_the_action_pins_the_seats_no_longer(shop: Shop) -> None:
    """Only a gateway that is deciding gets more time: a quarter of an hour is enough for a buyer."""
    held = await shop.hold("A1", ttl=5)
    shop.gateway.says |= {"authorise": REQUIRES_ACTION, "status": REQUIRES_ACTION}
    await shop.pay(held)
    pinned = (await shop.booking(held)).paying_until
    for _ in range(2):
        await shop.reconcile(seconds=420)
    assert ((await shop.booking(held)).state, (await shop.booking(held)).paying_until) == (State.PAYING, pinned)
    await shop.reconcile(seconds=120)
    assert (await shop.booking(held)).state is State.EXPIRED
    assert (await shop.payment(held)).state is PaymentState.VOIDED


async def test_a_bank_that_decides_after_the_action_gets_its_time(shop: Shop) -> None:
    """The buyer has acted, and the gateway says that it is deciding."""
    held = await shop.hold("A1", ttl=5)
    shop.gateway.says |= {"authorise": REQUIRES_ACTION, "status": PROCESSING}
    await shop.pay(held)
    for _ in range(2):
        await shop.reconcile(seconds=800)
    assert (await shop.booking(held)).state is State.PAYING


async def test_nothing_to_pay_needs_no_gateway(shop: Shop) -> None:
    """A booking of total 0 is confirmed by paying it."""
    await shop.open_another("free", seats={"A1": 0})
    paid = await shop.pay(await shop.hold("A1", event="free"))
    assert (paid.booking.state, paid.payment) == (State.CONFIRMED, None)
    assert shop.gateway.calls == []


async def test_a_second_pay_of_a_booking_gets_the_open_payment(shop: Shop) -> None:
    """Another attempt, with another key: no second charge."""
    held = await shop.hold("A1")
    shop.gateway.says |= {"authorise": PROCESSING, "status": PROCESSING}
    first, second = await shop.pay(held), await shop.pay(held)
    assert first.payment is not None
    assert second.payment is not None
    assert second.payment.id == first.payment.id
    assert len(await shop.store.list_payments(held.id)) == 1


async def test_late_money_finds_everything_free_and_the_booking_is_sold_after_all(shop: Shop) -> None:
    """The payment was given up, and the gateway took the money all the same."""
    held = await _given_up(shop, "A1", pools={"GA": 2})
    shop.gateway.says["void"] = CAPTURED
    await shop.reconcile(seconds=600)
    sold = await shop.booking(held)
    assert (sold.state, sold.ended_at) == (State.CONFIRMED, None)
    assert (await shop.payment(held)).refunding == 0
    assert [seat.owner_id for seat in (await shop.map()).seats][:1] == [held.id]


async def test_late_money_for_a_taken_seat_is_refunded(shop: Shop) -> None:
    """All of it, by itself, and the booking does not move."""
    held = await _given_up(shop, "A1")
    await shop.hold("A1", buyer="bob")
    shop.gateway.says["void"] = CAPTURED
    await shop.reconcile(seconds=600)
    assert (await shop.booking(held)).state is State.EXPIRED
    payment = await shop.payment(held)
    assert (payment.state, payment.refunded) == (PaymentState.REFUNDED, PRICE)
    assert shop.gateway.calls[-1] == f"refund {PRICE}"


@pytest.mark.parametrize("why", ["pool", "limit", "default limit", "blocked", "begun"])
async def test_late_money_is_refunded_whatever_is_no_longer_free(shop: Shop, why: str) -> None:
    """Units, the buyer's limit, a blocked seat, an event that has begun: all of them count."""
    held = await _given_up(shop, "A1", pools={"GA": 2})
    if why == "pool":
        await shop.hold(buyer="bob", pools={"GA": 2})
    elif why == "blocked":
        await shop.change(blocked="A1")
    elif why == "begun":
        await shop.change(starts_at=shop.clock.now())
    elif why == "default limit":
        shop.engine.policy = Policy(per_buyer_max=3)
        await shop.hold("A2", buyer="alice")
    else:
        await shop.change(per_buyer_max=3)
        await shop.hold("A2", buyer="alice")
    shop.gateway.says["void"] = CAPTURED
    await shop.reconcile(seconds=600)
    assert (await shop.booking(held)).state is State.EXPIRED
    assert (await shop.payment(held)).state is PaymentState.REFUNDED


async def test_late_money_takes_over_a_hold_that_has_lapsed(shop: Shop) -> None:
    """A lapsed hold is free, for late money as for any other buyer."""
    held = await _given_up(shop, "A1", pools={"GA": 2})
    lapsed = await shop.hold("A1", buyer="bob", ttl=5)
    shop.gateway.says["void"] = CAPTURED
    await shop.reconcile(seconds=600)
    assert (await shop.booking(held)).state is State.CONFIRMED
    assert (await shop.booking(lapsed)).state is State.EXPIRED


async def test_a_refund_that_is_refused_needs_attention(shop: Shop) -> None:
    """Nothing more happens by itself, and it is listed."""
    held = await _given_up(shop, "A1")
    await shop.hold("A1", buyer="bob")
    shop.gateway.says["void"] = CAPTURED
    shop.gateway.refunds = RefundReport(state=ReportedRefundState.REFUSED, code="charge_disputed")
    await shop.reconcile(seconds=600)
    assert [(one.booking_id, one.code) for one in await shop.store.list_attention(limit=9)] == [
        (held.id, "charge_disputed")
    ]


async def test_a_cancelled_sale_refunds_all_of_its_money(shop: Shop) -> None:
    """In the transaction that frees the seats, the refund is recorded; the gateway makes it afterwards."""
    paid = await shop.pay(await shop.hold("A1", "A2"))
    undone = await shop.cancel(paid.booking)
    assert undone.state is State.CANCELLED
    assert (await shop.payment(undone)).refunding == 2 * PRICE
    assert (await shop.hold("A1", buyer="bob")).state is State.HELD
    await shop.reconcile(seconds=600)
    assert (await shop.payment(undone)).state is PaymentState.REFUNDED
    assert shop.gateway.calls[-2:] == [f"refund {2 * PRICE}", "status"], "then whether more was refunded than that"


async def test_one_cancelled_seat_of_four_is_refunded_with_its_share(shop: Shop) -> None:
    """The others stay sold."""
    paid = await shop.pay(await shop.hold("A1", "A2", "A3", "A4"))
    kept = await shop.cancel(paid.booking, seats=frozenset({"A2"}))
    assert (kept.state, kept.total) == (State.CONFIRMED, 3 * PRICE)
    await shop.reconcile(seconds=600)
    payment = await shop.payment(kept)
    assert (payment.state, payment.refunded) == (PaymentState.PARTIALLY_REFUNDED, PRICE)


async def test_refunds_in_parts_never_exceed_the_charge(shop: Shop) -> None:
    """Several, and then one too many."""
    paid = await shop.pay(await shop.hold("A1"))
    for amount in (1000, 2000):
        await shop.refund(paid.booking, amount)
    with pytest.raises(RefundRefused) as refused:
        await shop.refund(paid.booking, PRICE - 2999)
    assert refused.value.available == PRICE - 3000
    await shop.refund(paid.booking, PRICE - 3000)
    payment = await shop.payment(paid.booking)
    assert (payment.state, payment.refunded) == (PaymentState.REFUNDED, PRICE)
    with pytest.raises(RefundRefused):
        await shop.refund(paid.booking, 1)
    assert (await shop.booking(paid.booking)).state is State.CONFIRMED


async def test_a_refund_that_takes_days_holds_up_none_behind_it(shop: Shop) -> None:
    """The bank is slow with the first; the second is sent all the same, and both are done in the end."""
    paid = await shop.pay(await shop.hold("A1"))
    done, shop.gateway.refunds = shop.gateway.refunds, RefundReport(state=ReportedRefundState.PROCESSING)
    await shop.refund(paid.booking, 1000)
    await shop.refund(paid.booking, 2000)
    assert {"refund 1000", "refund 2000"} <= {*shop.gateway.calls}
    assert (await shop.payment(paid.booking)).refunded == 0
    shop.gateway.refunds = done
    await shop.reconcile(seconds=600)
    payment = await shop.payment(paid.booking)
    assert (payment.state, payment.refunded) == (PaymentState.PARTIALLY_REFUNDED, 3000)


async def test_a_sale_that_is_cancelled_before_its_capture_is_voided(shop: Shop) -> None:
    """What was only authorised is voided; nothing is captured, and nothing has to be refunded."""
    shop.gateway.says["capture"] = GatewaySilent("no answer")
    paid = await shop.pay(await shop.hold("A1", "A2"))
    with pytest.raises(PaymentInProgress):
        await shop.cancel(paid.booking, seats=frozenset({"A1"}))
    await shop.cancel(paid.booking)
    await shop.reconcile(seconds=600)
    assert (await shop.payment(paid.booking)).state is PaymentState.VOIDED
    assert shop.gateway.calls[-1] == "void"


async def test_a_void_that_finds_the_money_captured_refunds_it(shop: Shop) -> None:
    """The capture had gone through, and its answer was lost."""
    shop.gateway.says["capture"] = GatewaySilent("no answer")
    paid = await shop.pay(await shop.hold("A1"))
    await shop.cancel(paid.booking)
    shop.gateway.says["void"] = CAPTURED
    await shop.reconcile(seconds=600)
    payment = await shop.payment(paid.booking)
    assert (payment.state, payment.refunded) == (PaymentState.REFUNDED, PRICE)


async def test_the_journal_has_every_step_of_the_payment(shop: Shop) -> None:
    """Gap-free, each step with what the payment was and became."""
    paid = await shop.pay(await shop.hold("A1"))
    await shop.cancel(paid.booking, reason="rain")
    await shop.reconcile(seconds=600)
    told = await shop.store.read_history(paid.booking.id)
    assert [entry.version for entry in told] == list(range(1, len(told) + 1))
    assert [entry.verb for entry in told] == ["hold", "pay", "confirm", "payment", "cancel", "payment"]
    steps = [(said.get("from"), said.get("to")) for entry in told if (said := entry.facts.get("payment"))]
    assert steps[:2] == [("pending", "authorised"), ("authorised", "captured")]
    assert steps[-1] == ("captured", "refunded")


async def _given_up(shop: Shop, *seats: str, pools: dict[str, int] | None = None) -> Booking:
    """A lost booking whose payment the gateway did not decide; its void is still to be sent."""
    held = await shop.hold(*seats, pools=pools)
    shop.gateway.says |= {"authorise": PROCESSING, "status": PROCESSING, "void": GatewaySilent("no answer")}
    await shop.pay(held)
    for _ in range(10):
        await shop.reconcile(seconds=600)
    assert (await shop.booking(held)).state is State.EXPIRED
    assert (await shop.payment(held)).state is PaymentState.VOIDING
    return held
