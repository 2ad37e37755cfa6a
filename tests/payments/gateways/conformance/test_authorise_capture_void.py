"""Rules for every gateway: a payment is authorised once, captured or voided once, and its state is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from earmark.domain.payment import ReportedState
from earmark.engine.ports.gateway import GatewayRefused

from .harness import PRICE, Situation, Totals, authorised, captured, order_in, refund_of, without_gateway_id

if TYPE_CHECKING:
    from .harness import GatewayHarness

GIVEN_UP = {ReportedState.VOIDED, ReportedState.ABSENT}


async def test_money_is_set_aside_and_not_taken(harness: GatewayHarness) -> None:
    """An authorisation captures nothing."""
    order = order_in(harness)
    report = await harness.gateway.authorise(order)
    assert report.state is ReportedState.AUTHORISED
    assert report.gateway_id
    assert (report.captured, report.refunded) == (0, 0)
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE)


async def test_the_same_order_again_is_the_same_payment(harness: GatewayHarness) -> None:
    """A repeated authorise, as after a lost reply, charges the buyer once."""
    order = order_in(harness)
    reports = [await harness.gateway.authorise(order) for _ in range(3)]
    assert len({report.gateway_id for report in reports}) == 1
    assert {report.state for report in reports} == {ReportedState.AUTHORISED}
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE)


async def test_a_known_payment_is_not_made_again(harness: GatewayHarness) -> None:
    """An authorise with a known gateway id only reports the state of that payment."""
    order = await authorised(harness)
    report = await harness.gateway.authorise(order)
    assert (report.state, report.gateway_id) == (ReportedState.AUTHORISED, order.gateway_id)
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE)


async def test_the_same_id_with_another_amount_is_refused(harness: GatewayHarness) -> None:
    """One id is one payment: the same id with another amount makes no second one."""
    order = order_in(harness)
    await harness.gateway.authorise(order)
    with pytest.raises(GatewayRefused):
        await harness.gateway.authorise(msgspec.structs.replace(order, amount=PRICE + 1))
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE)


async def test_two_orders_are_two_payments(harness: GatewayHarness) -> None:
    """The payment id decides: two buyers may pay the same amount with the same method."""
    first, second = await authorised(harness), await authorised(harness)
    assert first.gateway_id != second.gateway_id
    assert await harness.moved(first.payment_id) == await harness.moved(second.payment_id) == Totals(authorised=PRICE)


async def test_a_capture_takes_the_whole_authorised_amount(harness: GatewayHarness) -> None:
    """The captured amount is the authorised one."""
    order = await authorised(harness)
    report = await harness.gateway.capture(order)
    assert (report.state, report.captured, report.refunded) == (ReportedState.CAPTURED, PRICE, 0)
    assert report.gateway_id == order.gateway_id
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE)


async def test_a_repeated_capture_takes_nothing_more(harness: GatewayHarness) -> None:
    """A payment is captured once, however often the capture is requested."""
    order = await authorised(harness)
    reports = [await harness.gateway.capture(order) for _ in range(3)]
    assert {(report.state, report.captured) for report in reports} == {(ReportedState.CAPTURED, PRICE)}
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE)


async def test_a_void_releases_the_whole_amount(harness: GatewayHarness) -> None:
    """The authorised amount is voided."""
    order = await authorised(harness)
    assert (await harness.gateway.void(order)).state is ReportedState.VOIDED
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE, voided=PRICE)


async def test_a_repeated_void_is_the_same_void(harness: GatewayHarness) -> None:
    """A payment is voided once."""
    order = await authorised(harness)
    states = {(await harness.gateway.void(order)).state for _ in range(3)}
    assert states == {ReportedState.VOIDED}
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE, voided=PRICE)


async def test_a_void_after_the_capture_says_that_it_was_captured(harness: GatewayHarness) -> None:
    """A void never refunds a captured payment."""
    order = await captured(harness)
    report = await harness.gateway.void(order)
    assert (report.state, report.captured) == (ReportedState.CAPTURED, PRICE)
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE)


async def test_a_capture_after_the_void_says_that_it_was_voided(harness: GatewayHarness) -> None:
    """A voided payment is never captured."""
    order = await authorised(harness)
    await harness.gateway.void(order)
    report = await harness.gateway.capture(order)
    assert (report.state, report.captured) == (ReportedState.VOIDED, 0)
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE, voided=PRICE)


async def test_a_repeated_order_after_its_void_takes_nothing(harness: GatewayHarness) -> None:
    """A repeated authorise does not revive a voided payment."""
    order = await authorised(harness)
    await harness.gateway.void(order)
    await harness.gateway.authorise(without_gateway_id(order))
    assert (await harness.gateway.status(order)).state is ReportedState.VOIDED
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE, voided=PRICE)


async def test_the_status_follows_a_payment(harness: GatewayHarness) -> None:
    """The gateway reports each step of a payment."""
    order = await authorised(harness)
    seen = [(await harness.gateway.status(order)).state]
    await harness.gateway.capture(order)
    seen.append((await harness.gateway.status(order)).state)
    assert seen == [ReportedState.AUTHORISED, ReportedState.CAPTURED]
    await harness.gateway.refund(refund_of(order, 1000))
    report = await harness.gateway.status(order)
    assert (report.state, report.captured, report.refunded) == (ReportedState.CAPTURED, PRICE, 1000)


async def test_a_payment_is_found_by_our_id(harness: GatewayHarness) -> None:
    """The gateway id is unknown when the first answer was lost."""
    for _ in range(3):
        await authorised(harness)
    order = await authorised(harness)
    await authorised(harness)
    report = await harness.gateway.status(without_gateway_id(order))
    assert (report.state, report.gateway_id) == (ReportedState.AUTHORISED, order.gateway_id)


async def test_a_payment_is_captured_by_our_id(harness: GatewayHarness) -> None:
    """Every call works without the gateway's id."""
    order = without_gateway_id(await authorised(harness))
    assert (await harness.gateway.capture(order)).state is ReportedState.CAPTURED
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE)


async def test_a_payment_is_voided_by_our_id(harness: GatewayHarness) -> None:
    """Every call works without the gateway's id."""
    order = without_gateway_id(await authorised(harness))
    assert (await harness.gateway.void(order)).state is ReportedState.VOIDED
    assert await harness.moved(order.payment_id) == Totals(authorised=PRICE, voided=PRICE)


async def test_an_absent_payment_is_reported_as_absent(harness: GatewayHarness) -> None:
    """Absent is an answer, also when there are other payments."""
    await authorised(harness)
    report = await harness.gateway.status(order_in(harness))
    assert (report.state, report.gateway_id) == (ReportedState.ABSENT, None)


async def test_an_absent_payment_is_not_captured(harness: GatewayHarness) -> None:
    """A capture of an absent payment takes nothing."""
    await authorised(harness)
    order = order_in(harness)
    assert (await harness.gateway.capture(order)).state is ReportedState.ABSENT
    assert await harness.moved(order.payment_id) == Totals()


async def test_an_absent_payment_can_be_voided(harness: GatewayHarness) -> None:
    """A void of a payment that never arrived charges nothing; a second void reports the same."""
    await authorised(harness)
    order = order_in(harness)
    states = {(await harness.gateway.void(order)).state for _ in range(2)}
    assert states <= GIVEN_UP
    assert await harness.moved(order.payment_id) == Totals()


async def test_a_lack_of_funds_is_a_decline_and_no_error(harness: GatewayHarness) -> None:
    """A decline is a report with a code and a message, and not an exception."""
    order = order_in(harness, Situation.NO_FUNDS)
    report = await harness.gateway.authorise(order)
    assert (report.state, report.code) == (ReportedState.DECLINED, harness.no_funds)
    assert report.message
    assert await harness.moved(order.payment_id) == Totals()


async def test_a_declined_payment_stays_declined(harness: GatewayHarness) -> None:
    """A repeated order and the status report the same decline."""
    order = order_in(harness, Situation.NO_FUNDS)
    first = await harness.gateway.authorise(order)
    again = await harness.gateway.authorise(order)
    assert (again.state, again.code, again.gateway_id) == (first.state, first.code, first.gateway_id)
    status = await harness.gateway.status(msgspec.structs.replace(order, gateway_id=first.gateway_id))
    assert status.state in {ReportedState.DECLINED, ReportedState.ABSENT}
    assert await harness.moved(order.payment_id) == Totals()


async def test_a_declined_payment_is_not_captured(harness: GatewayHarness) -> None:
    """A capture of a declined payment takes nothing."""
    order = await authorised(harness, Situation.NO_FUNDS)
    report = await harness.gateway.capture(order)
    assert report.state in {ReportedState.DECLINED, ReportedState.ABSENT}
    assert report.captured == 0
    assert await harness.moved(order.payment_id) == Totals()


async def test_a_declined_payment_can_be_voided(harness: GatewayHarness) -> None:
    """A void of a declined payment moves no money."""
    order = await authorised(harness, Situation.NO_FUNDS)
    assert (await harness.gateway.void(order)).state in GIVEN_UP | {ReportedState.DECLINED}
    assert await harness.moved(order.payment_id) == Totals()


async def test_a_void_of_one_payment_leaves_another_authorised(harness: GatewayHarness) -> None:
    """A void releases only its own payment."""
    kept, lost = await authorised(harness), await authorised(harness)
    await harness.gateway.void(lost)
    assert (await harness.gateway.capture(kept)).state is ReportedState.CAPTURED
    assert await harness.moved(lost.payment_id) == Totals(authorised=PRICE, voided=PRICE)


async def test_listed_payments_agree_with_their_status(harness: GatewayHarness) -> None:
    """The gateway lists each payment once, with the amounts that its status reports."""
    since = harness.clock.now()
    orders = [await authorised(harness), await captured(harness), await captured(harness), await authorised(harness)]
    await harness.gateway.refund(refund_of(orders[2], 1500))
    await harness.gateway.void(orders[3])
    records = [record async for record in harness.gateway.books(since=since)]
    listed = {record.payment_id: (record.state, record.captured, record.refunded) for record in records}
    assert len(listed) == len(records) == len(orders)
    assert [listed[order.payment_id] for order in orders] == [
        (ReportedState.AUTHORISED, 0, 0),
        (ReportedState.CAPTURED, PRICE, 0),
        (ReportedState.CAPTURED, PRICE, 1500),
        (ReportedState.VOIDED, 0, 0),
    ]
    assert {record.currency for record in records} == {"EUR"}
    assert {record.gateway_id for record in records} == {order.gateway_id for order in orders}


async def test_books_begin_where_they_are_asked_to(harness: GatewayHarness) -> None:
    """What is older is left out."""
    await captured(harness)
    harness.clock.advance(3600)
    since = harness.clock.now()
    harness.clock.advance(60)
    later = await captured(harness)
    assert [record.payment_id async for record in harness.gateway.books(since=since)] == [later.payment_id]
