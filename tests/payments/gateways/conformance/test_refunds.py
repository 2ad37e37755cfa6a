"""Rules for refunds: each is made once, never above the captured amount, and found by our id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.payments.gateways.conftest import supporting

from earmark.engine.ports.gateway import GatewayRefused, ReportedRefundState

from .harness import PRICE, Group, Situation, Totals, authorised, captured, order_in, refund_of, without_gateway_id

if TYPE_CHECKING:
    from .harness import GatewayHarness

DAY = 86_400


async def test_a_whole_payment_is_refunded(harness: GatewayHarness) -> None:
    """The whole captured amount can be refunded."""
    order = await captured(harness)
    report = await harness.gateway.refund(refund_of(order))
    assert report.state is ReportedRefundState.DONE
    assert report.gateway_id
    assert (await harness.gateway.status(order)).refunded == PRICE
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE, refunded=PRICE)


async def test_a_repeated_refund_pays_nothing_more(harness: GatewayHarness) -> None:
    """A repeated refund, as after a lost reply, costs the shop nothing more."""
    order = await captured(harness)
    refund = refund_of(order, 1000)
    reports = [await harness.gateway.refund(refund) for _ in range(3)]
    assert {(report.state, report.gateway_id) for report in reports} == {
        (ReportedRefundState.DONE, reports[0].gateway_id)
    }
    assert (await harness.moved(order.payment_id)).refunded == 1000


async def test_parts_are_refunded_until_nothing_is_left(harness: GatewayHarness) -> None:
    """Each part has its own id; a part above the rest is refused by a report."""
    order = await captured(harness)
    parts = [await harness.gateway.refund(refund_of(order, amount)) for amount in (2000, 2000, 500)]
    assert {report.state for report in parts} == {ReportedRefundState.DONE}
    assert len({report.gateway_id for report in parts}) == 3
    too_many = await harness.gateway.refund(refund_of(order, 1))
    assert too_many.state is ReportedRefundState.REFUSED
    assert too_many.code
    assert (await harness.gateway.status(order)).refunded == PRICE
    assert (await harness.moved(order.payment_id)).refunded == PRICE


async def test_more_than_is_left_is_refused_whole(harness: GatewayHarness) -> None:
    """A refund is not reduced to what is left: it is made whole or not at all."""
    order = await captured(harness)
    await harness.gateway.refund(refund_of(order, 4000))
    report = await harness.gateway.refund(refund_of(order, 501))
    assert report.state is ReportedRefundState.REFUSED
    assert (await harness.moved(order.payment_id)).refunded == 4000


async def test_two_equal_parts_are_two_refunds(harness: GatewayHarness) -> None:
    """The refund id decides, and not the amount."""
    order = await captured(harness)
    for _ in range(2):
        await harness.gateway.refund(refund_of(order, 1000))
    assert (await harness.moved(order.payment_id)).refunded == 2000


async def test_the_same_refund_with_another_amount_moves_nothing(harness: GatewayHarness) -> None:
    """One id is one refund: the second call is refused, or reports the first refund."""
    order = await captured(harness)
    refund = refund_of(order, 1000)
    made = await harness.gateway.refund(refund)
    try:
        again = await harness.gateway.refund(msgspec.structs.replace(refund, amount=1500))
    except GatewayRefused:
        again = made
    assert again.gateway_id == made.gateway_id
    assert (await harness.moved(order.payment_id)).refunded == 1000


async def test_an_authorised_payment_is_not_refunded(harness: GatewayHarness) -> None:
    """An authorised payment is voided, and never refunded."""
    order = await authorised(harness)
    report = await harness.gateway.refund(refund_of(order))
    assert report.state is ReportedRefundState.REFUSED
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE)


async def test_a_payment_that_is_absent_is_not_refunded(harness: GatewayHarness) -> None:
    """The call is refused by an exception."""
    await captured(harness)
    order = order_in(harness)
    with pytest.raises(GatewayRefused):
        await harness.gateway.refund(refund_of(order))
    assert await harness.moved(order.payment_id) == Totals()


async def test_a_refund_is_found_by_our_id(harness: GatewayHarness) -> None:
    """A client that lost the answer finds the refund with and without the gateway's ids."""
    order = await captured(harness)
    refund = refund_of(order, 1000)
    await harness.gateway.refund(refund_of(order, 500))
    made = await harness.gateway.refund(refund)
    await harness.gateway.refund(refund_of(order, 700))
    known = msgspec.structs.replace(refund, gateway_id=made.gateway_id)
    lost = msgspec.structs.replace(refund, payment=without_gateway_id(order))
    for known_order in (refund, known, lost):
        report = await harness.gateway.refund_status(known_order)
        assert report is not None
        assert (report.state, report.gateway_id) == (ReportedRefundState.DONE, made.gateway_id)


async def test_a_refund_that_was_never_made_is_not_known(harness: GatewayHarness) -> None:
    """The answer is None."""
    order = await captured(harness)
    await harness.gateway.refund(refund_of(order, 500))
    assert await harness.gateway.refund_status(refund_of(order, 500)) is None
    assert await harness.gateway.refund_status(refund_of(order_in(harness))) is None


async def test_a_refund_works_without_the_gateways_id(harness: GatewayHarness) -> None:
    """The gateway finds the payment by our id."""
    order = without_gateway_id(await captured(harness))
    assert (await harness.gateway.refund(refund_of(order))).state is ReportedRefundState.DONE
    assert (await harness.moved(order.payment_id)).refunded == PRICE


async def test_a_refund_requested_again_after_days_is_the_same_refund(harness: GatewayHarness) -> None:
    """Gateways delete idempotency keys after a day, and a refund may be requested again later than that."""
    order = await captured(harness)
    refund = refund_of(order, 1000)
    made = await harness.gateway.refund(refund)
    harness.clock.advance(2 * DAY)
    assert (await harness.gateway.refund(refund)).gateway_id == made.gateway_id
    assert (await harness.moved(order.payment_id)).refunded == 1000


@supporting(Group.REFUND_REFUSAL)
async def test_a_refund_that_fails_is_reported_as_refused(harness: GatewayHarness) -> None:
    """An operator must act: the report says refused, also when the refund is requested again."""
    order = await captured(harness, Situation.REFUND_REFUSED)
    refund = refund_of(order)
    reports = [await harness.gateway.refund(refund) for _ in range(2)]
    assert {report.state for report in reports} == {ReportedRefundState.REFUSED}
    assert all(report.code for report in reports)
    assert (await harness.gateway.status(order)).refunded == 0
    assert (await harness.moved(order.payment_id)).refunded == 0


@supporting(Group.REFUND_REFUSAL)
@pytest.mark.parametrize("succeed", [True, False])
async def test_a_pending_refund_is_reported_until_it_is_decided(harness: GatewayHarness, *, succeed: bool) -> None:
    """A repeated call reports the decision, and not the first answer."""
    order = await captured(harness, Situation.REFUND_PENDING)
    refund = refund_of(order)
    first = await harness.gateway.refund(refund)
    assert first.state is ReportedRefundState.PROCESSING
    assert first.gateway_id
    await harness.decide(first.gateway_id, succeed=succeed)
    end = ReportedRefundState.DONE if succeed else ReportedRefundState.REFUSED
    assert (await harness.gateway.refund(refund)).state is end
    status = await harness.gateway.refund_status(refund)
    assert status is not None
    assert status.state is end
    assert (await harness.moved(order.payment_id)).refunded == (PRICE if succeed else 0)


@supporting(Group.ELSEWHERE)
async def test_refunds_made_on_the_dashboard_are_listed_beside_ours(harness: GatewayHarness) -> None:
    """Only ours have a refund id; the list is found with and without the gateway's id of the payment."""
    order = await captured(harness)
    ours = refund_of(order, 700)
    made = await harness.gateway.refund(ours)
    assert order.gateway_id
    await harness.give_back(order.gateway_id, 1000)
    for known_order in (order, without_gateway_id(order)):
        found = await harness.gateway.list_refunds(known_order)
        assert [(one.refund_id, one.amount, one.state) for one in found] == [
            (None, 1000, ReportedRefundState.DONE),
            (ours.refund_id, 700, ReportedRefundState.DONE),
        ]
        assert found[1].gateway_id == made.gateway_id != found[0].gateway_id
    assert (await harness.gateway.status(order)).refunded == 1700
    assert await harness.gateway.refund_status(refund_of(order, 1000)) is None, "it was made on the dashboard"


@supporting(Group.ELSEWHERE)
async def test_a_refund_of_more_than_the_dashboard_left_is_refused(harness: GatewayHarness) -> None:
    """An operator refunded before: our refund is refused, however often it is requested, and nothing more is paid."""
    order = await captured(harness)
    assert order.gateway_id
    await harness.give_back(order.gateway_id, PRICE - 1)
    refund = refund_of(order, 2)
    reports = [await harness.gateway.refund(refund) for _ in range(2)]
    assert {report.state for report in reports} == {ReportedRefundState.REFUSED}
    assert (await harness.moved(order.payment_id)).refunded == PRICE - 1


@supporting(Group.ELSEWHERE)
async def test_a_callback_about_a_dashboard_refund_leads_to_its_payment(harness: GatewayHarness) -> None:
    """By our id in the callback, or by the gateway's answer to which payment it belongs."""
    order = await captured(harness)
    assert order.gateway_id
    before = len(await harness.callbacks())
    await harness.give_back(order.gateway_id, 1000)
    received = [harness.gateway.read_callback(one.headers, one.body) for one in (await harness.callbacks())[before:]]
    assert {one.kind for one in received} == {"refund.created", "charge.refunded", "refund.updated"}
    for callback in received:
        assert callback.refund == callback.kind.startswith("refund.")
        assert callback.gateway_id == order.gateway_id
        assert (callback.payment_id or await harness.gateway.whose(order.gateway_id)) == order.payment_id


async def test_a_payment_without_refunds_lists_none(harness: GatewayHarness) -> None:
    """A payment that the gateway does not have lists none either."""
    assert list(await harness.gateway.list_refunds(await captured(harness))) == []
    assert list(await harness.gateway.list_refunds(order_in(harness))) == []
