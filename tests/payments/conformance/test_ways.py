"""What happens only at some gateways: automatic capture, cards that say no, buyers who must act, banks that think."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.payments.conftest import supporting

from earmark.domain.payment import Standing
from earmark.engine.ports.gateway import GatewayDenied, GatewayInvalid

from .support import PRICE, Group, Situation, Totals, authorised, order_in, refund_of, unlearnt

if TYPE_CHECKING:
    from .support import World

GIVEN_UP = {Standing.VOIDED, Standing.DECLINED}


@supporting(Group.AUTOMATIC)
async def test_automatic_capture_takes_the_money_at_once(world: World) -> None:
    """One call, once."""
    order = order_in(world, automatic=True)
    reports = [await world.gateway.authorise(order) for _ in range(2)]
    assert {(report.standing, report.captured) for report in reports} == {(Standing.CAPTURED, PRICE)}
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE)


@supporting(Group.AUTOMATIC)
async def test_a_capture_of_what_was_taken_at_once_takes_nothing_more(world: World) -> None:
    """It says that it is captured; a void says the same, and a refund gives it back."""
    order = await authorised(world, automatic=True)
    assert (await world.gateway.capture(order)).standing is Standing.CAPTURED
    assert (await world.gateway.void(order)).standing is Standing.CAPTURED
    await world.gateway.refund(refund_of(order))
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE, refunded=PRICE)


@supporting(Group.CARDS)
async def test_a_card_that_is_declined_says_so(world: World) -> None:
    """A word for programs and a sentence for people; nothing is set aside."""
    order = order_in(world, Situation.DECLINED)
    report = await world.gateway.authorise(order)
    assert report.standing is Standing.DECLINED
    assert report.code == "card_declined"
    assert report.message
    assert await world.moved(order.payment_id) == Totals()


@supporting(Group.ACTION)
async def test_a_buyer_who_has_to_act_is_told_where(world: World) -> None:
    """Nothing is set aside before, and the report says what the buyer needs."""
    order = order_in(world, Situation.ACTION)
    report = await world.gateway.authorise(order)
    assert report.standing is Standing.REQUIRES_ACTION
    assert report.action
    assert set(report.action) <= {"url", "client_secret"}
    assert await world.moved(order.payment_id) == Totals()


@supporting(Group.ACTION)
async def test_after_the_action_the_money_is_set_aside(world: World) -> None:
    """And can be taken."""
    order = await authorised(world, Situation.ACTION)
    assert order.gateway_id
    await world.act(order.gateway_id, succeed=True)
    assert (await world.gateway.status(order)).standing is Standing.AUTHORISED
    assert (await world.gateway.status(unlearnt(order))).standing is Standing.AUTHORISED
    assert (await world.gateway.capture(order)).standing is Standing.CAPTURED
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE)


@supporting(Group.ACTION)
async def test_the_same_order_again_is_told_as_it_stands_now(world: World) -> None:
    """An idempotency key repeats the first answer; a report tells what is true."""
    order = await authorised(world, Situation.ACTION)
    assert order.gateway_id
    await world.act(order.gateway_id, succeed=True)
    assert (await world.gateway.authorise(unlearnt(order))).standing is Standing.AUTHORISED
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE)


@supporting(Group.ACTION)
async def test_an_action_that_fails_is_a_decline(world: World) -> None:
    """The buyer did not prove to be who they say."""
    order = await authorised(world, Situation.ACTION)
    assert order.gateway_id
    await world.act(order.gateway_id, succeed=False)
    report = await world.gateway.status(order)
    assert report.standing is Standing.DECLINED
    assert report.code
    assert await world.moved(order.payment_id) == Totals()


@supporting(Group.ACTION)
async def test_what_waits_for_the_buyer_is_not_captured_yet(world: World) -> None:
    """The report says what it waits for, and it can still come about."""
    order = await authorised(world, Situation.ACTION)
    assert order.gateway_id
    assert (await world.gateway.capture(order)).standing is Standing.REQUIRES_ACTION
    await world.act(order.gateway_id, succeed=True)
    assert (await world.gateway.capture(order)).standing is Standing.CAPTURED
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE)


@supporting(Group.ACTION)
async def test_what_waits_for_the_buyer_can_be_given_up(world: World) -> None:
    """Nobody waits for ever."""
    order = await authorised(world, Situation.ACTION)
    assert (await world.gateway.void(order)).standing is Standing.VOIDED
    assert (await world.gateway.status(order)).standing is Standing.VOIDED
    assert await world.moved(order.payment_id) == Totals()


@supporting(Group.PROCESSING)
@pytest.mark.parametrize("succeed", [True, False])
async def test_what_is_being_decided_is_followed_to_its_end(world: World, *, succeed: bool) -> None:
    """Nobody here can hurry it; asked again, the gateway tells the end."""
    order = order_in(world, Situation.PROCESSING)
    report = await world.gateway.authorise(order)
    assert report.standing is Standing.PROCESSING
    assert report.gateway_id
    await world.decide(report.gateway_id, succeed=succeed)
    end = Standing.AUTHORISED if succeed else Standing.DECLINED
    assert (await world.gateway.status(order)).standing is end
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE if succeed else 0)


@supporting(Group.PROCESSING)
async def test_what_is_being_decided_may_be_impossible_to_give_up(world: World) -> None:
    """A void that comes too early says that it is being decided; a later one finds an end."""
    order = await authorised(world, Situation.PROCESSING)
    assert order.gateway_id
    report = await world.gateway.void(order)
    if report.standing is Standing.PROCESSING:
        await world.decide(order.gateway_id, succeed=True)
        report = await world.gateway.void(order)
    assert report.standing is Standing.VOIDED
    moved = await world.moved(order.payment_id)
    assert moved.authorised == moved.voided
    assert moved.captured == 0


@supporting(Group.CAPTURE_REFUSAL)
async def test_a_capture_that_is_refused_for_good_is_a_decline(world: World) -> None:
    """The booking can be undone: nothing was taken, nothing stays set aside, and it stays so."""
    order = await authorised(world, Situation.CAPTURE_REFUSED)
    report = await world.gateway.capture(order)
    assert report.standing is Standing.DECLINED
    assert report.code
    assert (await world.gateway.capture(order)).standing in GIVEN_UP
    assert (await world.gateway.status(order)).standing in GIVEN_UP
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE, voided=PRICE)


@supporting(Group.CARDS)
async def test_a_method_that_is_not_known_is_a_wrong_request_and_no_decline(world: World) -> None:
    """It names the field, says why, and nothing was begun; the control is a card that is declined."""
    order = order_in(world, Situation.UNKNOWN)
    with pytest.raises(GatewayInvalid) as refused:
        await world.gateway.authorise(order)
    assert (refused.value.field, refused.value.code) == ("method", "resource_missing")
    assert "pm_card_nonsense" in str(refused.value)
    assert (await world.gateway.status(order)).standing is Standing.ABSENT
    assert (await world.gateway.authorise(order_in(world, Situation.DECLINED))).standing is Standing.DECLINED


@supporting(Group.CARDS)
async def test_what_the_shop_asks_for_and_cannot_be_paid_is_denied(world: World) -> None:
    """No buyer can mend an amount: that is the shop's own fault."""
    with pytest.raises(GatewayDenied):
        await world.gateway.authorise(order_in(world, amount=10**15))
