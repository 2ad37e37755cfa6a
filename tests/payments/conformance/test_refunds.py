"""Refunds: once each, never more than was taken, and found again by our id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.payments.conftest import supporting

from earmark.engine.ports.gateway import GatewayRefused, RefundStanding

from .support import PRICE, Group, Situation, Totals, authorised, captured, order_in, refund_of, unlearnt

if TYPE_CHECKING:
    from .support import World

DAY = 86_400


async def test_a_refund_gives_all_of_it_back(world: World) -> None:
    """What was taken can be given back whole."""
    order = await captured(world)
    report = await world.gateway.refund(refund_of(order))
    assert report.standing is RefundStanding.DONE
    assert report.gateway_id
    assert (await world.gateway.status(order)).refunded == PRICE
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE, refunded=PRICE)


async def test_the_same_refund_again_gives_nothing_more(world: World) -> None:
    """A reply that was lost costs the shop nothing."""
    order = await captured(world)
    refund = refund_of(order, 1000)
    reports = [await world.gateway.refund(refund) for _ in range(3)]
    assert {(report.standing, report.gateway_id) for report in reports} == {
        (RefundStanding.DONE, reports[0].gateway_id)
    }
    assert (await world.moved(order.payment_id)).refunded == 1000


async def test_parts_are_refunded_until_nothing_is_left(world: World) -> None:
    """Each part has an id of its own; the one that is too many is refused, and says so in a report."""
    order = await captured(world)
    parts = [await world.gateway.refund(refund_of(order, amount)) for amount in (2000, 2000, 500)]
    assert {report.standing for report in parts} == {RefundStanding.DONE}
    assert len({report.gateway_id for report in parts}) == 3
    too_many = await world.gateway.refund(refund_of(order, 1))
    assert too_many.standing is RefundStanding.REFUSED
    assert too_many.code
    assert (await world.gateway.status(order)).refunded == PRICE
    assert (await world.moved(order.payment_id)).refunded == PRICE


async def test_more_than_is_left_is_refused_whole(world: World) -> None:
    """A refund is not cut to what is left: it is made as asked or not at all."""
    order = await captured(world)
    await world.gateway.refund(refund_of(order, 4000))
    report = await world.gateway.refund(refund_of(order, 501))
    assert report.standing is RefundStanding.REFUSED
    assert (await world.moved(order.payment_id)).refunded == 4000


async def test_two_equal_parts_are_two_refunds(world: World) -> None:
    """The id decides, and not the amount."""
    order = await captured(world)
    for _ in range(2):
        await world.gateway.refund(refund_of(order, 1000))
    assert (await world.moved(order.payment_id)).refunded == 2000


async def test_the_same_refund_with_another_amount_moves_nothing(world: World) -> None:
    """One id is one refund: it is refused, or told as it was made."""
    order = await captured(world)
    refund = refund_of(order, 1000)
    made = await world.gateway.refund(refund)
    try:
        again = await world.gateway.refund(msgspec.structs.replace(refund, amount=1500))
    except GatewayRefused:
        again = made
    assert again.gateway_id == made.gateway_id
    assert (await world.moved(order.payment_id)).refunded == 1000


async def test_what_was_not_taken_is_not_refunded(world: World) -> None:
    """Money that is set aside is voided, and never refunded."""
    order = await authorised(world)
    report = await world.gateway.refund(refund_of(order))
    assert report.standing is RefundStanding.REFUSED
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE)


async def test_a_payment_that_is_absent_is_not_refunded(world: World) -> None:
    """The call itself is wrong."""
    await captured(world)
    order = order_in(world)
    with pytest.raises(GatewayRefused):
        await world.gateway.refund(refund_of(order))
    assert await world.moved(order.payment_id) == Totals()


async def test_a_refund_is_found_by_our_id(world: World) -> None:
    """Whoever lost the answer asks for it, with or without the ids of the gateway."""
    order = await captured(world)
    refund = refund_of(order, 1000)
    await world.gateway.refund(refund_of(order, 500))
    made = await world.gateway.refund(refund)
    await world.gateway.refund(refund_of(order, 700))
    known = msgspec.structs.replace(refund, gateway_id=made.gateway_id)
    lost = msgspec.structs.replace(refund, payment=unlearnt(order))
    for asked in (refund, known, lost):
        report = await world.gateway.refund_status(asked)
        assert report is not None
        assert (report.standing, report.gateway_id) == (RefundStanding.DONE, made.gateway_id)


async def test_a_refund_that_was_never_made_is_not_known(world: World) -> None:
    """To know of nothing is an answer."""
    order = await captured(world)
    await world.gateway.refund(refund_of(order, 500))
    assert await world.gateway.refund_status(refund_of(order, 500)) is None
    assert await world.gateway.refund_status(refund_of(order_in(world))) is None


async def test_a_refund_works_without_the_gateways_id(world: World) -> None:
    """The payment is found by ours."""
    order = unlearnt(await captured(world))
    assert (await world.gateway.refund(refund_of(order))).standing is RefundStanding.DONE
    assert (await world.moved(order.payment_id)).refunded == PRICE


async def test_a_refund_asked_for_again_after_days_is_still_the_same(world: World) -> None:
    """Idempotency keys are forgotten after a day, and a refund may be asked for again later than that."""
    order = await captured(world)
    refund = refund_of(order, 1000)
    made = await world.gateway.refund(refund)
    world.clock.advance(2 * DAY)
    assert (await world.gateway.refund(refund)).gateway_id == made.gateway_id
    assert (await world.moved(order.payment_id)).refunded == 1000


@supporting(Group.REFUND_REFUSAL)
async def test_a_refund_that_fails_for_good_is_refused(world: World) -> None:
    """People have to look at it: the report says so, and asking again changes nothing."""
    order = await captured(world, Situation.REFUND_REFUSED)
    refund = refund_of(order)
    reports = [await world.gateway.refund(refund) for _ in range(2)]
    assert {report.standing for report in reports} == {RefundStanding.REFUSED}
    assert all(report.code for report in reports)
    assert (await world.gateway.status(order)).refunded == 0
    assert (await world.moved(order.payment_id)).refunded == 0


@supporting(Group.REFUND_REFUSAL)
@pytest.mark.parametrize("succeed", [True, False])
async def test_a_refund_that_takes_its_time_is_followed_to_its_end(world: World, *, succeed: bool) -> None:
    """Asked again, the gateway tells the end, and not what it said at first."""
    order = await captured(world, Situation.REFUND_PENDING)
    refund = refund_of(order)
    first = await world.gateway.refund(refund)
    assert first.standing is RefundStanding.PROCESSING
    assert first.gateway_id
    await world.decide(first.gateway_id, succeed=succeed)
    end = RefundStanding.DONE if succeed else RefundStanding.REFUSED
    assert (await world.gateway.refund(refund)).standing is end
    status = await world.gateway.refund_status(refund)
    assert status is not None
    assert status.standing is end
    assert (await world.moved(order.payment_id)).refunded == (PRICE if succeed else 0)


@supporting(Group.ELSEWHERE)
async def test_refunds_that_were_made_without_us_are_listed_beside_ours(world: World) -> None:
    """Told apart by our id, each with its amount; found with and without the gateway's id of the payment."""
    order = await captured(world)
    ours = refund_of(order, 700)
    made = await world.gateway.refund(ours)
    assert order.gateway_id
    await world.give_back(order.gateway_id, 1000)
    for asked in (order, unlearnt(order)):
        found = await world.gateway.list_refunds(asked)
        assert [(one.refund_id, one.amount, one.standing) for one in found] == [
            (None, 1000, RefundStanding.DONE),
            (ours.refund_id, 700, RefundStanding.DONE),
        ]
        assert found[1].gateway_id == made.gateway_id != found[0].gateway_id
    assert (await world.gateway.status(order)).refunded == 1700
    assert await world.gateway.refund_status(refund_of(order, 1000)) is None, "it is none of ours"


@supporting(Group.ELSEWHERE)
async def test_a_refund_of_ours_that_finds_too_little_left_is_refused(world: World) -> None:
    """An operator was quicker: the report says no, however often it is asked for, and nothing more goes back."""
    order = await captured(world)
    assert order.gateway_id
    await world.give_back(order.gateway_id, PRICE - 1)
    refund = refund_of(order, 2)
    reports = [await world.gateway.refund(refund) for _ in range(2)]
    assert {report.standing for report in reports} == {RefundStanding.REFUSED}
    assert (await world.moved(order.payment_id)).refunded == PRICE - 1


@supporting(Group.ELSEWHERE)
async def test_a_callback_about_such_a_refund_leads_to_its_payment(world: World) -> None:
    """By an id of ours that it carries, or by the gateway's word whose it is."""
    order = await captured(world)
    assert order.gateway_id
    before = len(await world.letters())
    await world.give_back(order.gateway_id, 1000)
    told = [world.gateway.read_callback(one.headers, one.body) for one in (await world.letters())[before:]]
    assert {one.kind for one in told} == {"refund.created", "charge.refunded", "refund.updated"}
    for callback in told:
        assert callback.refund == callback.kind.startswith("refund.")
        assert callback.gateway_id == order.gateway_id
        assert (callback.payment_id or await world.gateway.whose(order.gateway_id)) == order.payment_id


async def test_what_was_never_refunded_has_no_refunds(world: World) -> None:
    """Nor has a payment that the gateway does not know."""
    assert list(await world.gateway.list_refunds(await captured(world))) == []
    assert list(await world.gateway.list_refunds(order_in(world))) == []
