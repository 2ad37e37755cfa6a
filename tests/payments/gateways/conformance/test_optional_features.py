"""Rules for some gateways: automatic capture, declined cards, buyer actions, and decisions that take time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.payments.gateways.conftest import supporting

from earmark.domain.payment import ReportedState
from earmark.engine.ports.gateway import GatewayDenied, GatewayInvalid

from .harness import PRICE, Group, Situation, Totals, authorised, order_in, refund_of, without_gateway_id

if TYPE_CHECKING:
    from .harness import GatewayHarness

GIVEN_UP = {ReportedState.VOIDED, ReportedState.DECLINED}


@supporting(Group.AUTOMATIC)
async def test_automatic_capture_takes_the_money_at_once(harness: GatewayHarness) -> None:
    """One call authorises and captures, once."""
    order = order_in(harness, automatic=True)
    reports = [await harness.gateway.authorise(order) for _ in range(2)]
    assert {(report.state, report.captured) for report in reports} == {(ReportedState.CAPTURED, PRICE)}
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE)


@supporting(Group.AUTOMATIC)
async def test_a_capture_after_automatic_capture_takes_nothing_more(harness: GatewayHarness) -> None:
    """Capture and void report captured, and a refund pays it back."""
    order = await authorised(harness, automatic=True)
    assert (await harness.gateway.capture(order)).state is ReportedState.CAPTURED
    assert (await harness.gateway.void(order)).state is ReportedState.CAPTURED
    await harness.gateway.refund(refund_of(order))
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE, refunded=PRICE)


@supporting(Group.CARDS)
async def test_a_declined_card_is_reported_with_a_code(harness: GatewayHarness) -> None:
    """The report has a code and a message; nothing is authorised."""
    order = order_in(harness, Situation.DECLINED)
    report = await harness.gateway.authorise(order)
    assert report.state is ReportedState.DECLINED
    assert report.code == "card_declined"
    assert report.message
    assert await harness.moved(order.payment_id) == Totals()


@supporting(Group.ACTION)
async def test_a_required_action_has_its_url(harness: GatewayHarness) -> None:
    """The report has the action's data, and nothing is authorised before the action."""
    order = order_in(harness, Situation.ACTION)
    report = await harness.gateway.authorise(order)
    assert report.state is ReportedState.REQUIRES_ACTION
    assert report.action
    assert set(report.action) <= {"url", "client_secret"}
    assert await harness.moved(order.payment_id) == Totals()


@supporting(Group.ACTION)
async def test_a_payment_is_authorised_after_the_action(harness: GatewayHarness) -> None:
    """It can then be captured."""
    order = await authorised(harness, Situation.ACTION)
    assert order.gateway_id
    await harness.act(order.gateway_id, succeed=True)
    assert (await harness.gateway.status(order)).state is ReportedState.AUTHORISED
    assert (await harness.gateway.status(without_gateway_id(order))).state is ReportedState.AUTHORISED
    assert (await harness.gateway.capture(order)).state is ReportedState.CAPTURED
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE)


@supporting(Group.ACTION)
async def test_a_repeated_order_reports_the_current_state(harness: GatewayHarness) -> None:
    """The gateway's idempotency key repeats the first answer; the report has the current state."""
    order = await authorised(harness, Situation.ACTION)
    assert order.gateway_id
    await harness.act(order.gateway_id, succeed=True)
    assert (await harness.gateway.authorise(without_gateway_id(order))).state is ReportedState.AUTHORISED
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE)


@supporting(Group.ACTION)
async def test_an_action_that_fails_is_a_decline(harness: GatewayHarness) -> None:
    """The buyer did not authenticate."""
    order = await authorised(harness, Situation.ACTION)
    assert order.gateway_id
    await harness.act(order.gateway_id, succeed=False)
    report = await harness.gateway.status(order)
    assert report.state is ReportedState.DECLINED
    assert report.code
    assert await harness.moved(order.payment_id) == Totals()


@supporting(Group.ACTION)
async def test_a_payment_that_waits_for_its_buyer_is_not_captured(harness: GatewayHarness) -> None:
    """The report says requires_action, and the payment can still be authorised."""
    order = await authorised(harness, Situation.ACTION)
    assert order.gateway_id
    assert (await harness.gateway.capture(order)).state is ReportedState.REQUIRES_ACTION
    await harness.act(order.gateway_id, succeed=True)
    assert (await harness.gateway.capture(order)).state is ReportedState.CAPTURED
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE)


@supporting(Group.ACTION)
async def test_a_payment_that_waits_for_its_buyer_can_be_voided(harness: GatewayHarness) -> None:
    """The seats of a buyer who does not act can be sold again."""
    order = await authorised(harness, Situation.ACTION)
    assert (await harness.gateway.void(order)).state is ReportedState.VOIDED
    assert (await harness.gateway.status(order)).state is ReportedState.VOIDED
    assert await harness.moved(order.payment_id) == Totals()


@supporting(Group.PROCESSING)
@pytest.mark.parametrize("succeed", [True, False])
async def test_a_processing_payment_is_reported_until_it_is_decided(harness: GatewayHarness, *, succeed: bool) -> None:
    """The status reports the bank's decision once it is made."""
    order = order_in(harness, Situation.PROCESSING)
    report = await harness.gateway.authorise(order)
    assert report.state is ReportedState.PROCESSING
    assert report.gateway_id
    await harness.decide(report.gateway_id, succeed=succeed)
    end = ReportedState.AUTHORISED if succeed else ReportedState.DECLINED
    assert (await harness.gateway.status(order)).state is end
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE if succeed else 0)


@supporting(Group.PROCESSING)
async def test_a_processing_payment_is_voided_at_the_latest_after_its_decision(harness: GatewayHarness) -> None:
    """A void before the decision may report processing; a void after it succeeds."""
    order = await authorised(harness, Situation.PROCESSING)
    assert order.gateway_id
    report = await harness.gateway.void(order)
    if report.state is ReportedState.PROCESSING:
        await harness.decide(order.gateway_id, succeed=True)
        report = await harness.gateway.void(order)
    assert report.state is ReportedState.VOIDED
    moved = await harness.moved(order.payment_id)
    assert moved.authorised == moved.voided
    assert moved.captured == 0


@supporting(Group.CAPTURE_REFUSAL)
async def test_a_refused_capture_is_a_decline(harness: GatewayHarness) -> None:
    """Nothing was captured, nothing stays authorised, and later calls report the same."""
    order = await authorised(harness, Situation.CAPTURE_REFUSED)
    report = await harness.gateway.capture(order)
    assert report.state is ReportedState.DECLINED
    assert report.code
    assert (await harness.gateway.capture(order)).state in GIVEN_UP
    assert (await harness.gateway.status(order)).state in GIVEN_UP
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE, voided=PRICE)


@supporting(Group.CARDS)
async def test_an_unknown_method_is_a_wrong_request_and_no_decline(harness: GatewayHarness) -> None:
    """The error names the field, and no payment exists; the control is a declined card."""
    order = order_in(harness, Situation.UNKNOWN)
    with pytest.raises(GatewayInvalid) as refused:
        await harness.gateway.authorise(order)
    assert (refused.value.field, refused.value.code) == ("method", "resource_missing")
    assert "pm_card_nonsense" in str(refused.value)
    assert (await harness.gateway.status(order)).state is ReportedState.ABSENT
    assert (await harness.gateway.authorise(order_in(harness, Situation.DECLINED))).state is ReportedState.DECLINED


@supporting(Group.CARDS)
async def test_an_amount_that_cannot_be_charged_is_denied(harness: GatewayHarness) -> None:
    """No buyer can correct an amount: the error is the shop's."""
    with pytest.raises(GatewayDenied):
        await harness.gateway.authorise(order_in(harness, amount=10**15))
