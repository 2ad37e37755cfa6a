"""The core: money is set aside once, taken once or let go, and the gateway says how it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from earmark.domain.payment import Standing
from earmark.engine.ports.gateway import GatewayRefused

from .support import PRICE, Situation, Totals, authorised, captured, order_in, refund_of, unlearnt

if TYPE_CHECKING:
    from .support import World

GIVEN_UP = {Standing.VOIDED, Standing.ABSENT}


async def test_money_is_set_aside_and_not_taken(world: World) -> None:
    """An authorisation is a promise: nothing has been captured yet."""
    order = order_in(world)
    report = await world.gateway.authorise(order)
    assert report.standing is Standing.AUTHORISED
    assert report.gateway_id
    assert (report.captured, report.refunded) == (0, 0)
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE)


async def test_the_same_order_again_is_the_same_payment(world: World) -> None:
    """A reply that was lost costs the buyer nothing."""
    order = order_in(world)
    reports = [await world.gateway.authorise(order) for _ in range(3)]
    assert len({report.gateway_id for report in reports}) == 1
    assert {report.standing for report in reports} == {Standing.AUTHORISED}
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE)


async def test_a_known_payment_is_not_made_again(world: World) -> None:
    """Once the gateway's id is learnt, authorising again only tells how that payment stands."""
    order = await authorised(world)
    report = await world.gateway.authorise(order)
    assert (report.standing, report.gateway_id) == (Standing.AUTHORISED, order.gateway_id)
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE)


async def test_the_same_id_with_another_amount_is_refused(world: World) -> None:
    """One id is one payment: it never becomes a second one by being asked for differently."""
    order = order_in(world)
    await world.gateway.authorise(order)
    with pytest.raises(GatewayRefused):
        await world.gateway.authorise(msgspec.structs.replace(order, amount=PRICE + 1))
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE)


async def test_two_orders_are_two_payments(world: World) -> None:
    """The id decides, and not what is bought: two buyers may pay the same."""
    first, second = await authorised(world), await authorised(world)
    assert first.gateway_id != second.gateway_id
    assert await world.moved(first.payment_id) == await world.moved(second.payment_id) == Totals(authorised=PRICE)


async def test_a_capture_takes_all_of_it(world: World) -> None:
    """What was set aside is what is taken."""
    order = await authorised(world)
    report = await world.gateway.capture(order)
    assert (report.standing, report.captured, report.refunded) == (Standing.CAPTURED, PRICE, 0)
    assert report.gateway_id == order.gateway_id
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE)


async def test_a_capture_again_takes_nothing_more(world: World) -> None:
    """Money is taken once, however often that is asked for."""
    order = await authorised(world)
    reports = [await world.gateway.capture(order) for _ in range(3)]
    assert {(report.standing, report.captured) for report in reports} == {(Standing.CAPTURED, PRICE)}
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE)


async def test_a_void_lets_the_money_go(world: World) -> None:
    """The buyer has it back at once."""
    order = await authorised(world)
    assert (await world.gateway.void(order)).standing is Standing.VOIDED
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE, voided=PRICE)


async def test_a_void_again_is_the_same_void(world: World) -> None:
    """Money is let go once."""
    order = await authorised(world)
    standings = {(await world.gateway.void(order)).standing for _ in range(3)}
    assert standings == {Standing.VOIDED}
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE, voided=PRICE)


async def test_a_void_after_the_capture_says_that_it_was_captured(world: World) -> None:
    """A void never gives back what was taken; that is a refund."""
    order = await captured(world)
    report = await world.gateway.void(order)
    assert (report.standing, report.captured) == (Standing.CAPTURED, PRICE)
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE)


async def test_a_capture_after_the_void_says_that_it_was_voided(world: World) -> None:
    """What was let go is never taken."""
    order = await authorised(world)
    await world.gateway.void(order)
    report = await world.gateway.capture(order)
    assert (report.standing, report.captured) == (Standing.VOIDED, 0)
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE, voided=PRICE)


async def test_an_order_again_after_its_void_takes_nothing(world: World) -> None:
    """A request that arrives a second time does not bring a payment back to life."""
    order = await authorised(world)
    await world.gateway.void(order)
    await world.gateway.authorise(unlearnt(order))
    assert (await world.gateway.status(order)).standing is Standing.VOIDED
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE, voided=PRICE)


async def test_the_status_follows_a_payment(world: World) -> None:
    """Asked at each step, the gateway tells that step."""
    order = await authorised(world)
    seen = [(await world.gateway.status(order)).standing]
    await world.gateway.capture(order)
    seen.append((await world.gateway.status(order)).standing)
    assert seen == [Standing.AUTHORISED, Standing.CAPTURED]
    await world.gateway.refund(refund_of(order, 1000))
    report = await world.gateway.status(order)
    assert (report.standing, report.captured, report.refunded) == (Standing.CAPTURED, PRICE, 1000)


async def test_a_payment_is_found_by_our_id(world: World) -> None:
    """When the first answer was lost, the gateway's id was never learnt."""
    for _ in range(3):
        await authorised(world)
    order = await authorised(world)
    await authorised(world)
    report = await world.gateway.status(unlearnt(order))
    assert (report.standing, report.gateway_id) == (Standing.AUTHORISED, order.gateway_id)


async def test_a_payment_is_captured_by_our_id(world: World) -> None:
    """Every call works without the gateway's id."""
    order = unlearnt(await authorised(world))
    assert (await world.gateway.capture(order)).standing is Standing.CAPTURED
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE)


async def test_a_payment_is_voided_by_our_id(world: World) -> None:
    """Every call works without the gateway's id."""
    order = unlearnt(await authorised(world))
    assert (await world.gateway.void(order)).standing is Standing.VOIDED
    assert await world.moved(order.payment_id) == Totals(authorised=PRICE, voided=PRICE)


async def test_an_absent_payment_is_said_to_be_absent(world: World) -> None:
    """To know of nothing is an answer; others' payments do not change it."""
    await authorised(world)
    report = await world.gateway.status(order_in(world))
    assert (report.standing, report.gateway_id) == (Standing.ABSENT, None)


async def test_an_absent_payment_is_not_captured(world: World) -> None:
    """There is nothing to take."""
    await authorised(world)
    order = order_in(world)
    assert (await world.gateway.capture(order)).standing is Standing.ABSENT
    assert await world.moved(order.payment_id) == Totals()


async def test_an_absent_payment_is_given_up(world: World) -> None:
    """A void of what never arrived is an answer too, and charges nobody; a second one says the same."""
    await authorised(world)
    order = order_in(world)
    standings = {(await world.gateway.void(order)).standing for _ in range(2)}
    assert standings <= GIVEN_UP
    assert await world.moved(order.payment_id) == Totals()


async def test_a_lack_of_funds_is_a_decline_and_no_error(world: World) -> None:
    """The buyer's side says no: that is a report, with a word for why and a sentence."""
    order = order_in(world, Situation.NO_FUNDS)
    report = await world.gateway.authorise(order)
    assert (report.standing, report.code) == (Standing.DECLINED, world.no_funds)
    assert report.message
    assert await world.moved(order.payment_id) == Totals()


async def test_a_declined_payment_stays_declined(world: World) -> None:
    """The same order again is the same no, and by its status too."""
    order = order_in(world, Situation.NO_FUNDS)
    first = await world.gateway.authorise(order)
    again = await world.gateway.authorise(order)
    assert (again.standing, again.code, again.gateway_id) == (first.standing, first.code, first.gateway_id)
    status = await world.gateway.status(msgspec.structs.replace(order, gateway_id=first.gateway_id))
    assert status.standing in {Standing.DECLINED, Standing.ABSENT}
    assert await world.moved(order.payment_id) == Totals()


async def test_a_declined_payment_is_not_captured(world: World) -> None:
    """A no is no promise."""
    order = await authorised(world, Situation.NO_FUNDS)
    report = await world.gateway.capture(order)
    assert report.standing in {Standing.DECLINED, Standing.ABSENT}
    assert report.captured == 0
    assert await world.moved(order.payment_id) == Totals()


async def test_a_declined_payment_can_be_given_up(world: World) -> None:
    """To give up what there is none of harms nobody."""
    order = await authorised(world, Situation.NO_FUNDS)
    assert (await world.gateway.void(order)).standing in GIVEN_UP | {Standing.DECLINED}
    assert await world.moved(order.payment_id) == Totals()


async def test_the_money_of_one_payment_is_not_touched_by_another(world: World) -> None:
    """A void of one lets go of that one alone."""
    kept, lost = await authorised(world), await authorised(world)
    await world.gateway.void(lost)
    assert (await world.gateway.capture(kept)).standing is Standing.CAPTURED
    assert await world.moved(lost.payment_id) == Totals(authorised=PRICE, voided=PRICE)


async def test_books_add_up(world: World) -> None:
    """The gateway's own books say of each payment what its status says, once."""
    since = world.clock.now()
    orders = [await authorised(world), await captured(world), await captured(world), await authorised(world)]
    await world.gateway.refund(refund_of(orders[2], 1500))
    await world.gateway.void(orders[3])
    records = [record async for record in world.gateway.books(since=since)]
    told = {record.payment_id: (record.standing, record.captured, record.refunded) for record in records}
    assert len(told) == len(records) == len(orders)
    assert [told[order.payment_id] for order in orders] == [
        (Standing.AUTHORISED, 0, 0),
        (Standing.CAPTURED, PRICE, 0),
        (Standing.CAPTURED, PRICE, 1500),
        (Standing.VOIDED, 0, 0),
    ]
    assert {record.currency for record in records} == {"EUR"}
    assert {record.gateway_id for record in records} == {order.gateway_id for order in orders}


async def test_books_begin_where_they_are_asked_to(world: World) -> None:
    """What is older is left out."""
    await captured(world)
    world.clock.advance(3600)
    since = world.clock.now()
    world.clock.advance(60)
    later = await captured(world)
    assert [record.payment_id async for record in world.gateway.books(since=since)] == [later.payment_id]
