"""Another card after a 3-D Secure page that the buyer left: the open payment is ended first. On all stores."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.money.shop_and_bank import CARD, PRICE, World
from tests.sandbox.payment_methods import Method

from earmark.domain.bookable_event import OnDecline
from earmark.domain.booking_state_machine import State
from earmark.domain.default_limits_for_all_events import Policy
from earmark.domain.payment import PaymentState
from earmark.engine.engine import Engine
from earmark.errors import TooManyDeclines
from earmark.payments import open_and_conclude_payment as pay_verb
from earmark.payments.build_gateway_orders import order_of
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.sandbox.faults import Fault, FaultRule
from earmark.sandbox.model import IntentStatus, LedgerMove

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.engine.ports.store import Store
    from earmark.sandbox.model import BankIntent
    from earmark.uuids import Uuid7Ids

ASKS = Method.AUTHENTICATION_REQUIRED
ALSO_ASKS = "pm_card_threeDSecureRequired"


@pytest.fixture
async def world(store: Store, clock: MovableClock, ids: Uuid7Ids) -> AsyncIterator[World]:
    """A shop that takes no second card for a hold whose first was declined: a change of card is no decline."""
    world = World(store, clock=clock, ids=ids)
    await world.open(on_decline=OnDecline.RELEASE)
    yield world
    await world.settle()
    assert await world.disagreements() == []


async def left(world: World) -> tuple[Booking, BankIntent]:
    """A hold whose buyer was sent to their bank's page, and has left it."""
    held = await world.hold("A1")
    paid = await world.pay(world.ask_to_pay(held, method=ASKS))
    assert paid.payment.state is PaymentState.REQUIRES_ACTION
    [intent] = world.bank.intents()
    return held, intent


async def ends(world: World, booking: Booking) -> list[tuple[str, str | None]]:
    """What became of the payments of a booking, the oldest first."""
    return [(one.state.value, one.code) for one, _ in await world.store.list_payments(booking.id)]


async def test_another_card_pays_and_the_first_is_void_before_it_is_charged(world: World) -> None:
    """One charge; the hold outlives the change of card, also where a decline would end it."""
    held, intent = await left(world)
    paid = await world.pay(world.ask_to_pay(held))
    assert (paid.booking.state, paid.payment.method) == (State.CONFIRMED, CARD)
    assert await ends(world, held) == [("failed", "replaced"), ("captured", None)]
    assert world.bank.intent(intent.id).status is IntentStatus.CANCELED
    kinds = [event.kind.removeprefix("payment_intent.") for event in world.bank.events]
    assert kinds == ["created", "requires_action", "canceled", "created", "amount_capturable_updated", "succeeded"]
    assert world.bank.total(LedgerMove.CAPTURED) == PRICE


async def test_control_without_ending_the_first_payment_its_page_is_all_there_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buyer with another card is sent to the page that they left."""
    monkeypatch.setattr(pay_verb, "gives_way", lambda *_, **__: False)
    held, intent = await left(world)
    paid = await world.pay(world.ask_to_pay(held))
    assert (paid.booking.state, paid.payment.gateway_id) == (State.PAYING, intent.id)


async def test_the_same_card_again_leads_to_the_same_page(world: World) -> None:
    """A buyer who has lost the page gets the same page again, and no second one."""
    held, intent = await left(world)
    paid = await world.pay(world.ask_to_pay(held, method=ASKS))
    assert paid.payment.gateway_id == intent.id
    assert world.bank.intent(intent.id).status is IntentStatus.REQUIRES_ACTION
    world.bank.act(intent.id, succeed=True)


async def test_a_first_card_that_was_paid_meanwhile_pays_the_booking(world: World) -> None:
    """The buyer has paid in another tab: the booking is sold for that, and the other card is never charged."""
    held, intent = await left(world)
    world.bank.act(intent.id, succeed=True)
    paid = await world.pay(world.ask_to_pay(held))
    assert (paid.booking.state, paid.payment.method) == (State.CONFIRMED, ASKS)
    assert len(world.bank.intents()) == 1
    assert world.bank.total(LedgerMove.CAPTURED) == PRICE


async def test_a_first_card_that_is_paid_while_it_is_voided_pays_or_is_void(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buyer acts between the query and the void: what was authorised is voided, and one charge is left."""
    held, intent = await left(world)
    status = world.gateway.status

    async def then_acts(order: object) -> object:
        report = await status(order)  # type: ignore[arg-type]
        monkeypatch.undo()
        world.bank.act(intent.id, succeed=True)
        return report

    monkeypatch.setattr(world.gateway, "status", then_acts)
    paid = await world.pay(world.ask_to_pay(held))
    assert (paid.booking.state, paid.payment.method) == (State.CONFIRMED, CARD)
    assert world.bank.total(LedgerMove.CAPTURED) == PRICE
    assert world.bank.total(LedgerMove.VOIDED) == PRICE


@pytest.mark.parametrize("fault", [Fault.REPLY_LOST, Fault.ERROR_AFTER])
async def test_a_void_whose_answer_was_lost_is_looked_up(world: World, fault: Fault) -> None:
    """It was voided, and the gateway says so when it is queried."""
    held, intent = await left(world)
    world.sandbox.script.append(FaultRule(name="void", fault=fault))
    paid = await world.pay(world.ask_to_pay(held))
    assert (paid.booking.state, paid.payment.method) == (State.CONFIRMED, CARD)
    assert world.bank.intent(intent.id).status is IntentStatus.CANCELED
    assert world.bank.total(LedgerMove.CAPTURED) == PRICE


async def test_while_the_first_is_not_known_to_be_over_no_other_card_is_charged(world: World) -> None:
    """The open payment stays the answer, and can still be paid; the same request again is served when it is over."""
    held, intent = await left(world)
    world.sandbox.script.append(FaultRule(name="void", fault=Fault.ERROR_BEFORE, times=3))
    ask = world.ask_to_pay(held)
    paid = await world.pay(ask)
    assert (paid.booking.state, paid.payment.gateway_id) == (State.PAYING, intent.id)
    assert len(world.bank.intents()) == 1
    again = await world.pay(ask)
    assert (again.booking.state, again.payment.method) == (State.CONFIRMED, CARD)
    assert world.bank.total(LedgerMove.CAPTURED) == PRICE


async def test_a_first_card_that_is_being_voided_does_not_sell_by_an_authorisation(world: World) -> None:
    """The void may still be under way: the buyer's authorisation is voided, and the hold can be paid."""
    held, intent = await left(world)
    world.sandbox.script.append(FaultRule(name="void", fault=Fault.ERROR_BEFORE, times=3))
    await world.pay(world.ask_to_pay(held))
    world.bank.act(intent.id, succeed=True)
    [(payment, _)] = await world.store.list_payments(held.id)
    about = await world.store.read_payment_snapshot(payment.id)
    assert about is not None
    await world.driver._apply_report(await world.gateway.status(order_of(payment)), about)
    assert (await world.booking(held)).state is State.HELD
    assert (await world.pay(world.ask_to_pay(held))).booking.state is State.CONFIRMED
    await world.settle()
    assert await ends(world, held) == [("voided", "replaced"), ("captured", None)]


async def test_control_without_the_mark_a_sale_is_undone_by_the_void(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker learns of the authorisation and sells; then the void arrives at the gateway."""
    monkeypatch.setattr("earmark.domain.payment.is_replaced", lambda _: False)
    held, intent = await left(world)
    [(payment, _)] = await world.store.list_payments(held.id)
    about = await world.store.read_payment_snapshot(payment.id)
    assert about is not None
    world.bank.act(intent.id, succeed=True)
    await world.driver._apply_report(await world.gateway.status(order_of(payment)), about)
    assert (await world.booking(held)).state is State.CONFIRMED
    ended = await world.gateway.void(order_of(payment))
    await world.driver._apply_report(ended, about)
    assert (await world.booking(held)).state is State.CANCELLED


async def test_a_process_killed_after_the_void_leaves_the_hold(world: World) -> None:
    """It was voided, and the calling process was killed: the worker learns it, and the hold has its own time left."""
    held, _ = await left(world)
    world.sandbox.script.append(FaultRule(name="void", fault=Fault.REPLY_LOST))
    world.sandbox.script.append(FaultRule(name="void", fault=Fault.ERROR_BEFORE, times=2))
    paid = await world.pay(world.ask_to_pay(held))
    assert paid.booking.state is State.PAYING
    world.sandbox.script.clear()
    world.clock.advance(300)
    await world.driver.reconcile(limit=9)
    after = await world.booking(held)
    assert (after.state, after.expires_at) == (State.HELD, held.expires_at)
    assert await ends(world, held) == [("failed", "replaced")]
    assert (await world.pay(world.ask_to_pay(held))).booking.state is State.CONFIRMED


async def test_money_of_the_first_that_comes_after_its_void_is_refunded(world: World) -> None:
    """The gateway reported it voided, and it was not: it is late money."""
    held, _ = await left(world)
    world.sandbox.script.append(FaultRule(name="void", fault=Fault.LATE_SUCCESS))
    paid = await world.pay(world.ask_to_pay(held))
    assert paid.booking.state is State.CONFIRMED
    world.bank.land()
    for event in list(world.bank.events):
        await world.driver.receive_callback(
            "sandbox", world.gateway.read_callback(*world.sandbox.callbacks.signed(event))
        )
    assert await ends(world, held) == [("voided", "replaced"), ("captured", None)]


async def test_a_late_callback_about_the_first_changes_nothing(world: World) -> None:
    """Neither about its page nor about its end."""
    held, _ = await left(world)
    await world.pay(world.ask_to_pay(held))
    before = await world.store.read_history(held.id)
    for event in list(world.bank.events):
        await world.driver.receive_callback(
            "sandbox", world.gateway.read_callback(*world.sandbox.callbacks.signed(event))
        )
    assert [entry.verb for entry in await world.store.read_history(held.id)] == [entry.verb for entry in before]
    assert await ends(world, held) == [("failed", "replaced"), ("captured", None)]


async def test_two_servers_and_a_worker_at_once_make_one_charge(world: World) -> None:
    """Each has another card, and the worker looks at the first payment meanwhile."""
    held, _ = await left(world)
    drivers = [PaymentDriver(Engine(world.store, ids=world.ids), {"sandbox": world.gateway}) for _ in range(3)]
    world.clock.advance(600 - 300)
    asks = [world.ask_to_pay(held, method=method) for method in (CARD, "pm_card_mastercard")]
    answers = await asyncio.gather(
        *(driver.open_and_drive(ask, within=30) for driver, ask in zip(drivers, asks, strict=False)),
        drivers[2].reconcile(limit=10),
        return_exceptions=True,
    )
    await world.settle()
    assert (await world.booking(held)).state is State.CONFIRMED, answers
    assert world.bank.total(LedgerMove.CAPTURED) == PRICE
    assert [state for state, _ in await ends(world, held)].count("captured") == 1


async def test_one_request_ends_one_payment(world: World) -> None:
    """The next card may require authentication too: then the buyer is sent to its page, and the first is over."""
    held, first = await left(world)
    paid = await world.pay(world.ask_to_pay(held, method=ALSO_ASKS))
    assert (paid.payment.state, paid.payment.method) == (PaymentState.REQUIRES_ACTION, ALSO_ASKS)
    assert world.bank.intent(first.id).status is IntentStatus.CANCELED
    world.bank.act(paid.payment.gateway_id, succeed=True)


async def test_when_the_holds_own_time_is_over_the_open_payment_stays(world: World) -> None:
    """Without it the seats would be lost: the buyer can still act."""
    held, intent = await left(world)
    world.clock.advance(601)
    paid = await world.pay(world.ask_to_pay(held))
    assert (paid.booking.state, paid.payment.gateway_id) == (State.PAYING, intent.id)
    assert world.bank.intent(intent.id).status is IntentStatus.REQUIRES_ACTION
    world.bank.act(intent.id, succeed=True)


async def test_a_card_that_would_be_one_too_many_ends_nothing(world: World) -> None:
    """A payment that is ended for another counts as a try; the buyer who has none left can still pay the first."""
    world.engine.policy = Policy(declines_per_hold_max=2)
    held, _ = await left(world)
    paid = await world.pay(world.ask_to_pay(held, method=ALSO_ASKS))
    with pytest.raises(TooManyDeclines):
        await world.pay(world.ask_to_pay(held))
    assert world.bank.intent(paid.payment.gateway_id).status is IntentStatus.REQUIRES_ACTION
    world.bank.act(paid.payment.gateway_id, succeed=True)
