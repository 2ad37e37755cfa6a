"""Refunds that an operator made at the gateway's own page: noticed, counted and recorded once. On all stores."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.money.conftest import PRICE
from tests.money.shop_and_bank import World
from tests.money.test_needs_attention import NOTE
from tests.payments.gateways.conformance.gateways_under_test import served_sandbox
from tests.sandbox.payment_methods import Method

from earmark.clock import MovableClock
from earmark.domain.booking_state_machine import State
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import PaymentState, RefundState, ReportedState, SettledAs
from earmark.engine.ports.gateway import Callback, GatewaySilent, RefundRecord, Report
from earmark.errors import RefundRefused
from earmark.payments import apply_refund_report, change_payment_without_report
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.payments.find_payments_needing_review import cases
from earmark.payments.gateway_comparison_rules import differences
from earmark.payments.gateways.stripe.gateway import StripeGateway
from earmark.sandbox.faults import Fault, FaultRule
from earmark.sandbox.gateway import SandboxGateway
from earmark.sandbox.model import LedgerMove
from earmark.store.sqlite.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.money.conftest import Shop

    from earmark.domain.booking import Booking
    from earmark.domain.payment import Payment
    from earmark.engine.ports.gateway import Gateway
    from earmark.engine.ports.store import Store
    from earmark.sandbox.assemble_sandbox import Sandbox

REASON = "a refund was made at the gateway, and not by Earmark"
FAILED = "a refund that was made at the gateway, and not by Earmark, has failed since"


@pytest.fixture
async def world(store: Store, clock: MovableClock, ids: Uuid7Ids) -> AsyncIterator[World]:
    """A shop whose bank can refund without the shop."""
    world = World(store, clock=clock, ids=ids)
    await world.open()
    yield world
    assert await store.find_flaws(limit=9) == []


async def sold(world: World, *, method: str = Method.VISA) -> Booking:
    """A sale whose money was captured, and whose callbacks were delivered."""
    held = await world.hold("A1")
    await world.pay(world.ask_to_pay(held, method=method))
    await deliver_all(world)
    return held


async def deliver_all(world: World) -> None:
    """Everything that the bank has called about so far, once more."""
    for event in list(world.bank.events):
        told = world.gateway.read_callback(*world.sandbox.callbacks.signed(event))
        await world.driver.receive_callback("sandbox", told)


def refund_by_hand(world: World, amount: int | None = None) -> None:
    """As on the dashboard: the refund carries no id of ours."""
    [intent] = [one for one in world.bank.intents() if one.captured]
    world.bank.refund(intent.id, amount=amount)


async def payment_of(world: World, booking: Booking) -> Payment:
    [(payment, _)] = await world.store.list_payments(booking.id)
    return payment


async def settle(world: World, booking: Booking, how: SettledAs) -> Payment:
    """An operator has settled it."""
    about = await world.store.read_payment_snapshot((await payment_of(world, booking)).id)
    assert about is not None
    return await world.engine.transact(
        partial(change_payment_without_report.resolve_by_hand, how=how, note=NOTE, about=about, ids=world.ids)
    )


async def recorded_of(world: World, booking: Booking, reason: str = REASON) -> list[tuple[int, int]]:
    """How often the journal records it, with how much more and how much in all."""
    entries = [entry for entry in await world.store.read_history(booking.id) if entry.reason == reason]
    facts = [entry.facts["payment"] for entry in entries]
    return [(one["more"], one["refunded_elsewhere"]) for one in facts]


@pytest.mark.parametrize("amount", [PRICE, 1000], ids=["all of it", "a part"])
async def test_a_refund_made_at_the_gateways_page_needs_attention(
    world: World, amount: int, caplog: pytest.LogCaptureFixture
) -> None:
    """However often the gateway calls about it: one note, one line in the log, and the sale stays."""
    held = await sold(world)
    caplog.set_level(logging.ERROR, "earmark.money")
    refund_by_hand(world, amount)
    for _ in range(3):
        await deliver_all(world)
    payment = await payment_of(world, held)
    assert (payment.state, payment.code) == (PaymentState.NEEDS_ATTENTION, "refunded_elsewhere")
    assert (payment.captured, payment.refunded, payment.refunded_elsewhere) == (PRICE, 0, amount)
    assert (payment.left, payment.due_at) == (PRICE - amount, None)
    assert await recorded_of(world, held) == [(amount, amount)]
    assert len([line for line in caplog.records if "not by Earmark" in line.getMessage()]) == 1
    assert (await world.booking(held)).state is State.CONFIRMED
    assert (await world.store.watch_money(limit=9)).attention == {"sandbox": 1}
    [case] = await cases(world.store, limit=9)
    assert "not by Earmark" in case.what_to_do
    [record] = [one async for one in world.gateway.books(since=payment.created_at)]
    assert differences(payment, record) == []


@pytest.mark.parametrize("kind", ["charge.refunded", "refund.created", "refund.updated"])
async def test_each_of_the_events_about_it_is_enough(world: World, kind: str) -> None:
    """The others may be lost, or not subscribed to."""
    held = await sold(world)
    refund_by_hand(world, 1000)
    [event] = [event for event in world.bank.events if event.kind == kind]
    assert await world.driver.receive_callback(
        "sandbox", world.gateway.read_callback(*world.sandbox.callbacks.signed(event))
    )
    assert (await payment_of(world, held)).refunded_elsewhere == 1000


async def test_two_parts_add_up_and_each_is_recorded(world: World) -> None:
    """Also one that follows after an operator has settled the first; what they settled is not recorded again."""
    held = await sold(world)
    refund_by_hand(world, 1000)
    await deliver_all(world)
    refund_by_hand(world, 500)
    await deliver_all(world)
    assert await recorded_of(world, held) == [(1000, 1000), (500, 1500)]
    settled = await settle(world, held, SettledAs.REFUNDED)
    assert (settled.state, settled.code, settled.left) == (PaymentState.SETTLED, "refund_by_hand", PRICE - 1500)
    await world.driver.advance(settled.id, ask_gateway=True)
    assert (await payment_of(world, held)).state is PaymentState.SETTLED
    refund_by_hand(world)
    await deliver_all(world)
    assert (await payment_of(world, held)).state is PaymentState.NEEDS_ATTENTION
    assert await recorded_of(world, held) == [(1000, 1000), (500, 1500), (PRICE - 1500, PRICE)]


async def test_a_refund_of_ours_never_needs_attention(world: World) -> None:
    """Neither one that was answered nor one whose answer was lost, whenever its callbacks come."""
    held = await sold(world)
    await world.refund(world.ask_to_refund(held, 1000))
    await deliver_all(world)
    world.sandbox.script.append(FaultRule(name="refund", fault=Fault.REPLY_LOST))
    await world.refund(world.ask_to_refund(held, 700))
    assert world.bank.total(LedgerMove.REFUNDED) == 1700
    assert (await payment_of(world, held)).refunded == 1000, "the answer was lost"
    await deliver_all(world)
    await world.settle()
    payment = await payment_of(world, held)
    assert (payment.state, payment.refunded, payment.refunded_elsewhere) == (
        PaymentState.PARTIALLY_REFUNDED,
        1700,
        0,
    )
    assert await world.store.list_attention(limit=9) == []


async def test_ours_and_another_are_distinguished_while_ours_is_under_way(world: World) -> None:
    """The bank takes its time over ours; the one that an operator made is not taken for it."""
    held = await sold(world, method=Method.REFUND_PENDING)
    await world.refund(world.ask_to_refund(held, 1000))
    refund_by_hand(world, 1000)
    [by_hand, ours] = world.bank.refunds()
    world.bank.decide(by_hand.id, succeed=True)
    await deliver_all(world)
    payment = await payment_of(world, held)
    assert (payment.refunded, payment.refunded_elsewhere) == (0, 1000)
    world.bank.decide(ours.id, succeed=True)
    await world.settle()
    payment = await payment_of(world, held)
    assert (payment.refunded, payment.refunded_elsewhere, payment.left) == (1000, 1000, PRICE - 2000)
    assert await recorded_of(world, held) == [(1000, 1000)]


async def test_what_was_refunded_there_cannot_be_refunded_again_from_here(world: World) -> None:
    """A refund is refused by our own books; a cancellation refunds what is left."""
    held = await sold(world)
    refund_by_hand(world, 4000)
    await deliver_all(world)
    with pytest.raises(RefundRefused) as refused:
        await world.refund(world.ask_to_refund(held, 501))
    assert (refused.value.available, refused.value.asked) == (500, 501)
    await world.cancel(held)
    assert (await world.booking(held)).state is State.CANCELLED
    assert world.bank.total(LedgerMove.REFUNDED) == PRICE
    payment = await payment_of(world, held)
    assert (payment.refunded, payment.refunded_elsewhere, payment.due_at) == (500, 4000, None)


async def test_a_refund_of_ours_that_finds_nothing_left_is_refused_once(world: World) -> None:
    """It was owed before the other was noticed: it is refused, recorded, and not sent again."""
    held = await sold(world)
    refund_by_hand(world)
    await world.refund(world.ask_to_refund(held, PRICE))
    await deliver_all(world)
    await world.settle()
    [(payment, [ours])] = await world.store.list_payments(held.id)
    assert (ours.state, ours.code) == (RefundState.REFUSED, "charge_already_refunded")
    assert (payment.state, payment.refunded_elsewhere, payment.left) == (PaymentState.NEEDS_ATTENTION, PRICE, 0)
    assert payment.due_at is None
    asked = len(world.sandbox.pipeline.calls)
    await world.settle()
    assert len(world.sandbox.pipeline.calls) == asked
    settled = await settle(world, held, SettledAs.REFUNDED)
    assert settled.left == 0
    assert await world.store.list_attention(limit=9) == []


async def test_one_that_failed_since_is_recorded_too(world: World) -> None:
    """The buyer does not have the money, and the shop's books say otherwise."""
    held = await sold(world)
    refund_by_hand(world, 1000)
    await deliver_all(world)
    await settle(world, held, SettledAs.REFUNDED)
    world.bank.return_refund(world.bank.refunds()[0].id)
    await deliver_all(world)
    payment = await payment_of(world, held)
    assert (payment.state, payment.refunded_elsewhere, payment.left) == (PaymentState.NEEDS_ATTENTION, 0, PRICE)
    assert await recorded_of(world, held, FAILED) == [(-1000, 0)]


async def test_a_gateway_that_forgot_the_payment_reports_no_failure(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absent is not refunded nothing."""
    held = await sold(world)
    refund_by_hand(world, 1000)
    await deliver_all(world)

    async def absent(*_: object) -> Report:
        return Report(state=ReportedState.ABSENT)

    async def none(*_: object) -> list[RefundRecord]:
        return []

    monkeypatch.setattr(SandboxGateway, "status", absent)
    monkeypatch.setattr(SandboxGateway, "list_refunds", none)
    await world.driver.advance((await payment_of(world, held)).id, ask_gateway=True)
    assert (await payment_of(world, held)).refunded_elsewhere == 1000
    assert await recorded_of(world, held, FAILED) == []


async def test_one_that_overtakes_the_answer_to_our_capture_is_noticed(world: World) -> None:
    """The operator was quicker than the reply: the money is found captured first, then refunded."""
    held = await world.hold("A1")
    world.sandbox.script.append(FaultRule(name="capture", fault=Fault.REPLY_LOST))
    await world.pay(world.ask_to_pay(held))
    assert (await payment_of(world, held)).state is PaymentState.AUTHORISED
    refund_by_hand(world, 1000)
    await deliver_all(world)
    payment = await payment_of(world, held)
    assert (payment.state, payment.refunded_elsewhere) == (PaymentState.NEEDS_ATTENTION, 1000)


async def test_a_gateway_that_does_not_list_them_is_queried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The callback came, and the answer did not: it is due until it does."""
    held = await sold(world)
    refund_by_hand(world, 1000)
    listed = SandboxGateway.list_refunds

    async def silent(*_: object) -> list[RefundRecord]:
        raise GatewaySilent("no answer")

    monkeypatch.setattr(SandboxGateway, "list_refunds", silent)
    await deliver_all(world)
    payment = await payment_of(world, held)
    assert (payment.state, payment.due_at is not None) == (PaymentState.CAPTURED, True)
    monkeypatch.setattr(SandboxGateway, "list_refunds", listed)
    await world.settle()
    assert (await payment_of(world, held)).refunded_elsewhere == 1000


async def test_an_old_list_does_not_undo_what_a_newer_one_recorded(world: World) -> None:
    """Two processes look at once: the one with the older list writes nothing, and looks again."""
    held = await sold(world)
    payment = await payment_of(world, held)
    before = await world.store.read_payment_snapshot(payment.id)
    assert before is not None
    refund_by_hand(world, 1000)
    await deliver_all(world)
    await world.engine.transact(
        lambda transaction: apply_refund_report.apply_refunds_elsewhere(
            transaction, found=[], about=before, ids=world.ids
        )
    )
    payment = await payment_of(world, held)
    assert (payment.refunded_elsewhere, payment.due_at is not None) == (1000, True)
    await world.settle()
    assert await recorded_of(world, held) == [(1000, 1000)]


async def test_control_without_the_query_nothing_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refunded amount of a payment shows nothing unless the refunds are compared with ours."""

    async def none(*_: object) -> list[RefundRecord]:
        return []

    monkeypatch.setattr(SandboxGateway, "list_refunds", none)
    held = await sold(world)
    refund_by_hand(world, 1000)
    await deliver_all(world)
    payment = await payment_of(world, held)
    assert (payment.state, payment.refunded_elsewhere) == (PaymentState.CAPTURED, 0)
    [record] = [one async for one in world.gateway.books(since=payment.created_at)]
    assert differences(payment, record), "only a comparison of the books finds it"


async def test_control_without_the_version_an_old_list_undoes_it(world: World) -> None:
    """What the comparison of versions is for: the same list, said to be as new as the payment."""
    held = await sold(world)
    refund_by_hand(world, 1000)
    await deliver_all(world)
    now = await world.store.read_payment_snapshot((await payment_of(world, held)).id)
    assert now is not None
    await world.engine.transact(
        lambda transaction: apply_refund_report.apply_refunds_elsewhere(transaction, found=[], about=now, ids=world.ids)
    )
    assert (await payment_of(world, held)).refunded_elsewhere == 0


def _last(kind: str, sandbox: Sandbox) -> tuple[dict[str, str], bytes]:
    return sandbox.callbacks.signed([one for one in sandbox.bank.events if one.kind == kind][-1])


async def test_it_is_noticed_at_stripe_too() -> None:
    """Through the official SDK, over a socket: a refund carries no id of ours, and its payment is looked up."""
    with served_sandbox() as (sandbox, do):
        clock = sandbox.clock
        assert isinstance(clock, MovableClock)
        world = World(MemoryStore(clock=clock), clock=clock, ids=Uuid7Ids())
        gateway: Gateway = StripeGateway(
            sandbox.key, webhook_secret=sandbox.secret, url=sandbox.base_url, clock=clock, seconds_max=20
        )
        world.driver = PaymentDriver(world.engine, {"sandbox": gateway})
        await world.open()
        held = await world.hold("A1")
        await world.pay(world.ask_to_pay(held))
        await world.refund(world.ask_to_refund(held, 700))
        intent_id = do(lambda box: box.bank.intents()[0].id)
        do(lambda box: box.bank.refund(intent_id, amount=1000))
        for kind in ("refund.created", "charge.refunded", "refund.updated"):
            letter = do(partial(_last, kind))
            told = gateway.read_callback(*letter)
            assert (told.payment_id is None) == kind.startswith("refund.")
            assert await world.driver.receive_callback("sandbox", told)
        payment = await payment_of(world, held)
        assert (payment.state, payment.refunded, payment.refunded_elsewhere) == (
            PaymentState.NEEDS_ATTENTION,
            700,
            1000,
        )
        assert await recorded_of(world, held) == [(1000, 1000)]
        await world.driver.close()


async def test_a_refund_of_another_businesss_charge_is_not_ours(shop: Shop) -> None:
    """The account may be another business's too: the gateway tells us which payment it belongs to."""
    foreign = Callback(
        id="evt_1", kind="refund.created", mode=Mode.LIVE, payment_id=None, gateway_id="pi_9", refund=True
    )
    assert not await shop.driver.receive_callback("scripted", foreign)
    assert shop.gateway.calls == ["whose pi_9"]
