"""The reconciler: a gateway that does not answer holds up its own payments, and those of no other gateway."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.money.scripted_gateway import CAPTURED, ScriptedGateway

from earmark.domain.id_types import BookingId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import PaymentState
from earmark.engine.commands_and_results import Actor, Pay
from earmark.engine.engine import Engine
from earmark.engine.ports.gateway import GatewaySilent
from earmark.library import Earmark
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.payments.due_payment_queues_by_gateway import SILENT_SECONDS
from earmark.payments.open_and_conclude_payment import open_payment
from earmark.store.sqlite.memory import MemoryStore
from earmark.workers.failed_rounds import RoundFailed
from earmark.workers.unfinished_payment_reconciler import Reconciler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.clock import MovableClock
    from earmark.domain.id_types import PaymentId
    from earmark.engine.ports.gateway import Order, Report
    from earmark.uuids import Uuid7Ids

MANY = 60
"""More payments than one round takes."""


class Hanging(ScriptedGateway):
    """Never answers, until the test lets it."""

    name = "hanging"

    def __init__(self) -> None:
        super().__init__(status=CAPTURED)
        self.may_answer = asyncio.Event()
        self.asked = 0
        self.at_once = 0
        self.most_at_once = 0
        self.voiding = 0

    async def void(self, order: Order) -> Report:
        """Hangs, and is counted apart."""
        self.voiding += 1
        await self.may_answer.wait()
        return await super().void(order)

    async def status(self, order: Order) -> Report:
        """Hangs."""
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            await self.may_answer.wait()
        finally:
            self.at_once -= 1
        return await super().status(order)

    async def authorise(self, order: Order) -> Report:
        """Hangs as well."""
        return await self.status(order)


class TwoGateways:
    """A shop with two gateways, and payments at each that the reconciler has to see through."""

    def __init__(self, store: MemoryStore, ids: Uuid7Ids, *, call_seconds_max: float = 30.0) -> None:
        self.store = store
        self.engine = Engine(store, ids=ids)
        self.hanging, self.prompt = Hanging(), ScriptedGateway(status=CAPTURED)
        gateways = {"hanging": self.hanging, "scripted": self.prompt}
        self.driver = PaymentDriver(self.engine, gateways, call_seconds_max=call_seconds_max)

    async def open_payments(self, gateway: str, count: int) -> list[PaymentId]:
        """Recorded, and never driven: the process that opened them was killed."""
        event = f"at-{gateway}"
        library = Earmark(self.engine)
        seats = [f"A{number}" for number in range(count)]
        await library.create_event(event, name="A show", currency="EUR", seats=dict.fromkeys([*seats, "B1"], 100))
        return await self._pay_for(seats, event=event, gateway=gateway)

    async def open_one_more(self, gateway: str) -> None:
        """Recorded, and never driven, as those of `open_payments`."""
        await self._pay_for(["B1"], event=f"at-{gateway}", gateway=gateway)

    async def _pay_for(self, seats: list[str], *, event: str, gateway: str) -> list[PaymentId]:
        library, opened = Earmark(self.engine), []
        for seat in seats:
            held = await library.hold(event, buyer=seat, seats=[seat], ttl_seconds=600)
            ask = Pay(
                actor=Actor(name="test", mode=Mode.LIVE),
                entry_id=self.engine.ids.entry_id(),
                booking_id=BookingId(UUID(held.id)),
                payment_id=self.engine.ids.payment_id(),
                gateway=gateway,
                method="card",
            )
            await open_payment(self.engine, ask)
            opened.append(ask.payment_id)
        return opened

    async def states(self, payments: list[PaymentId]) -> set[PaymentState]:
        """How they stand."""
        read = [await self.store.read_payment_snapshot(payment) for payment in payments]
        return {about.payment.state for about in read if about}


@pytest.fixture
async def shop(clock: MovableClock, ids: Uuid7Ids) -> AsyncIterator[TwoGateways]:
    """Open for business."""
    shop = TwoGateways(MemoryStore(clock=clock), ids)
    yield shop
    shop.hanging.may_answer.set()
    await shop.driver.close()


async def act(reconciler: Reconciler) -> None:
    """One round, however it went. That it ends is the point."""
    with contextlib.suppress(RoundFailed):
        await asyncio.wait_for(reconciler.act(), timeout=10)


async def test_a_gateway_that_hangs_holds_up_no_other(shop: TwoGateways, clock: MovableClock) -> None:
    """Its payments are older and more than a round takes; those of the other gateway are settled all the same."""
    await shop.open_payments("hanging", MANY)
    clock.advance(1)
    prompt = await shop.open_payments("scripted", 5)
    clock.advance(60)
    reconciler = Reconciler(shop.driver)
    for _ in range(3):
        await act(reconciler)
    assert await shop.states(prompt) == {PaymentState.CAPTURED}
    assert shop.hanging.at_once > 0, "the gateway does hang"
    assert shop.hanging.most_at_once <= 8


async def test_a_queue_that_gateways_share_is_held_up_by_the_one_that_hangs(
    shop: TwoGateways, clock: MovableClock
) -> None:
    """The control: the same payments, with one queue for both."""
    queues = shop.driver._queues._queues
    queues["scripted"] = queues["hanging"]
    await shop.open_payments("hanging", MANY)
    clock.advance(1)
    prompt = await shop.open_payments("scripted", 5)
    clock.advance(10)
    reconciler = Reconciler(shop.driver)
    for _ in range(3):
        await act(reconciler)
    assert PaymentState.CAPTURED not in await shop.states(prompt)


async def test_a_gateway_that_does_not_answer_is_tried_with_one_payment_at_a_time(
    shop: TwoGateways, clock: MovableClock
) -> None:
    """The round reports that it failed, and which gateway; one answer is enough to go on as before."""
    silent = await shop.open_payments("scripted", 30)
    clock.advance(60)
    shop.prompt.says["authorise"] = shop.prompt.says["status"] = GatewaySilent("no route")
    reconciler = Reconciler(shop.driver)
    with pytest.raises(RoundFailed, match="scripted") as failed:
        await reconciler.act()
    assert failed.value.code == "gateway_silent"
    assert len(shop.prompt.calls) < 30, "what was claimed and not begun is left"
    clock.advance(60)
    before = len(shop.prompt.calls)
    with pytest.raises(RoundFailed):
        await reconciler.act()
    await asyncio.sleep(0)
    assert len(shop.prompt.calls) - before <= 2
    shop.prompt.says["authorise"] = shop.prompt.says["status"] = CAPTURED
    for _ in range(10):
        clock.advance(60)
        await act(reconciler)
    assert await shop.states(silent) == {PaymentState.CAPTURED}
    assert shop.driver.silent_gateways == []


async def given_up_after_an_hour(shop: TwoGateways, clock: MovableClock) -> tuple[list[PaymentId], asyncio.Task[int]]:
    """Payments that `hanging` never decided, and a round that claims them for the queue of the other gateway."""
    undecided = await shop.open_payments("hanging", 8)
    clock.advance(3_601)
    # Their own queue takes none in this round, as one that is full does.
    own = shop.driver._queues._queues.pop("hanging")
    round_ = asyncio.create_task(shop.driver.reconcile(limit=50))
    async with asyncio.timeout(10):
        while not round_.done() and shop.hanging.voiding < len(undecided):  # noqa: ASYNC110 (whichever comes first)
            await asyncio.sleep(0.001)
    shop.driver._queues._queues["hanging"] = own
    return undecided, round_


async def test_a_queue_gives_up_payments_of_a_gateway_that_hangs_without_calling_it(
    shop: TwoGateways, clock: MovableClock
) -> None:
    """The round ends at once, so it keeps no turn of the other gateway's queue; then their own queue voids them."""
    undecided, round_ = await given_up_after_an_hour(shop, clock)
    assert shop.hanging.voiding == 0
    assert await round_ == len(undecided)
    assert await shop.states(undecided) == {PaymentState.VOIDING}
    shop.hanging.may_answer.set()
    # No time passes: the voids are due at once.
    await asyncio.wait_for(shop.driver.reconcile(limit=50), timeout=10)
    assert await shop.states(undecided) == {PaymentState.VOIDED}


async def test_a_queue_that_voids_what_it_gives_up_hangs_with_the_other_gateway(
    shop: TwoGateways, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with the whole drive, the calls to the gateway that hangs take the turns of the other's queue."""

    async def whole(_: str, payment_id: PaymentId) -> None:
        await shop.driver.advance(payment_id, ask_gateway=True)

    monkeypatch.setattr(shop.driver, "_advance_claimed", whole)
    _, round_ = await given_up_after_an_hour(shop, clock)
    assert not round_.done()
    assert shop.driver._queues._queues["scripted"]._turns.locked(), "no payment of its own has a turn"
    shop.hanging.may_answer.set()
    await round_


async def silent_and_settled_elsewhere(shop: TwoGateways, clock: MovableClock) -> Reconciler:
    """A reconciler that had no answer from a gateway, whose payments another process has settled since."""
    payments = await shop.open_payments("scripted", 5)
    clock.advance(60)
    shop.prompt.says["authorise"] = shop.prompt.says["status"] = GatewaySilent("no route")
    reconciler = Reconciler(shop.driver)
    with pytest.raises(RoundFailed):
        await reconciler.act()
    # Calls that end after the round would be newer than the moment that tests read.
    while shop.driver._driving:
        await asyncio.wait(shop.driver._driving.values())
    elsewhere = PaymentDriver(shop.engine, {"scripted": ScriptedGateway(status=CAPTURED, authorise=CAPTURED)})
    for payment in payments:
        await elsewhere.advance(payment, ask_gateway=True)
    assert await shop.states(payments) == {PaymentState.CAPTURED}
    return reconciler


async def test_a_gateway_whose_payments_were_settled_elsewhere_is_not_called_silent_for_long(
    shop: TwoGateways, clock: MovableClock
) -> None:
    """This process has nothing to query there any more, so no answer could show that it is back."""
    reconciler = await silent_and_settled_elsewhere(shop, clock)
    queue = shop.driver._queues._queues["scripted"]
    moment = queue._unanswered_at
    queue._clock = lambda: moment + SILENT_SECONDS - 1
    with pytest.raises(RoundFailed, match="scripted"):
        await reconciler.act()
    queue._clock = lambda: moment + SILENT_SECONDS + 1
    await reconciler.act()
    assert shop.driver.silent_gateways == []


async def test_one_more_call_without_an_answer_and_the_gateway_is_silent_again(
    shop: TwoGateways, clock: MovableClock
) -> None:
    """That it was not called for a while is no answer."""
    reconciler = await silent_and_settled_elsewhere(shop, clock)
    queue = shop.driver._queues._queues["scripted"]
    moment = queue._unanswered_at
    queue._clock = lambda: moment + SILENT_SECONDS + 1
    await shop.open_one_more("scripted")
    clock.advance(60)
    with pytest.raises(RoundFailed, match="scripted"):
        await reconciler.act()
