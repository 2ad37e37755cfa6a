"""What happens to one booking and its money, step by step: run whole, or with a kill in the middle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from tests.money.crash_points import Crashing, CrashPoints, Killed
from tests.money.shop_and_bank import CARD, PRICE, World

from earmark.domain.booking import Booking
from earmark.domain.booking_state_machine import State
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import PaymentState
from earmark.engine.engine import Engine
from earmark.errors import Refusal
from earmark.library import Earmark
from earmark.sandbox.faults import Fault
from earmark.sandbox.model import IntentStatus, RefundStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store
    from earmark.uuids import Uuid7Ids

Act = Callable[[World, Booking], Awaitable[object]]
SEATS = ("A1", "A2")
TOTAL = 2 * PRICE
HOUR = 3600


class Scenario(msgspec.Struct, frozen=True):
    """Steps, and how they end without a kill: the booking, its payment, and the money that is left of it."""

    name: str
    acts: tuple[Act, ...]
    booking: State
    payment: PaymentState
    net: int


def pays(method: str = CARD, *, automatic: bool = False) -> Act:
    """The buyer pays."""
    return lambda world, held: world.pay(world.ask_to_pay(held, method=method, automatic=automatic))


def cancels(*seats: str) -> Act:
    """The sale is cancelled, or a part of it."""
    return lambda world, held: world.cancel(held, *seats)


def refunds(amount: int) -> Act:
    """A refund, and the sale stays."""
    return lambda world, held: world.refund(world.ask_to_refund(held, amount))


def next_call_fails(fault: Fault, call: str) -> Act:
    """The next such call fails."""

    async def act(world: World, _: Booking) -> None:
        world.sandbox.script.add(fault, call)

    return act


def waits(seconds: float) -> Act:
    """Time passes, and the sweeper ends due holds."""

    async def act(world: World, _: Booking) -> None:
        world.clock.advance(seconds)
        await world.engine.expire(limit=100)

    return act


def decides(*, succeed: bool) -> Act:
    """Banks and buyers decide about all that waits for it."""

    async def act(world: World, _: Booking) -> None:
        for refund in world.bank.refunds():
            if refund.status is RefundStatus.PENDING:
                world.bank.decide(refund.id, succeed=succeed)
        for intent in world.bank.intents():
            if intent.status is IntentStatus.PROCESSING:
                world.bank.decide(intent.id, succeed=succeed)
            elif intent.status is IntentStatus.REQUIRES_ACTION:
                world.bank.act(intent.id, succeed=succeed)

    return act


async def late_money_arrives(world: World, _: Booking) -> None:
    """The money is captured after the decline."""
    world.bank.land()


async def reconciles(world: World, _: Booking) -> None:
    """The reconciler looks after what is due."""
    await world.driver.reconcile(limit=100)


async def calls(world: World, _: Booking) -> None:
    """The bank calls back about all that happened."""

    async def deliver_all(headers: Mapping[str, str], body: bytes) -> None:
        await world.driver.receive_callback("sandbox", world.gateway.read_callback(headers, body))

    world.sandbox.callbacks.deliver = deliver_all
    await world.sandbox.callbacks.send_due(flush=True)


async def another_buys(world: World, _: Booking) -> None:
    """Another buyer buys a seat of it, at another server."""
    elsewhere = Earmark(Engine(world.store, ids=world.ids), mode=Mode.TEST, gateways={"sandbox": world.gateway})
    bought = await elsewhere.hold(world.events["EUR"], buyer="bob", seats=["A1"], ttl_seconds=600)
    await elsewhere.pay(bought.id, method=CARD)


async def settles(world: World, _: Booking) -> None:
    """No more faults, and the reconciler has a day."""
    await world.settle()


async def all_faults_end(world: World, held: Booking) -> None:
    """No more faults, every bank and buyer decides, the bank calls, and the reconciler has a day."""
    await world.settle()
    await decides(succeed=True)(world, held)
    await world.settle()
    await calls(world, held)
    await world.settle()


_LATE: tuple[Act, ...] = (next_call_fails(Fault.LATE_SUCCESS, "authorise"), pays(automatic=True), waits(700))
_SOLD = (State.CONFIRMED, PaymentState.CAPTURED, TOTAL)
_UNDONE = (State.CANCELLED, PaymentState.REFUNDED, 0)
_LAPSED = (State.EXPIRED, PaymentState.VOIDED, 0)

SCENARIOS = (
    Scenario("paid", (pays(),), *_SOLD),
    Scenario("paid at once", (pays(automatic=True),), *_SOLD),
    Scenario("a bad card", (pays("pm_card_declined"),), State.EXPIRED, PaymentState.FAILED, 0),
    Scenario("the reply is lost", (next_call_fails(Fault.REPLY_LOST, "authorise"), pays()), *_SOLD),
    Scenario(
        "paid at once, the reply is lost",
        (next_call_fails(Fault.ERROR_AFTER, "authorise"), pays(automatic=True)),
        *_SOLD,
    ),
    Scenario("the answer to the capture is lost", (next_call_fails(Fault.ERROR_AFTER, "capture"), pays()), *_SOLD),
    Scenario("the capture is refused", (pays("pm_card_capture_fail"),), State.CANCELLED, PaymentState.FAILED, 0),
    Scenario(
        "the capture is refused, and comes",
        (next_call_fails(Fault.LATE_SUCCESS, "capture"), pays(), late_money_arrives, calls),
        *_UNDONE,
    ),
    Scenario("cancelled", (pays(), cancels()), *_UNDONE),
    Scenario(
        "cancelled, the refund's reply is lost",
        (next_call_fails(Fault.REPLY_LOST, "refund"), pays(), cancels()),
        *_UNDONE,
    ),
    Scenario("a part is cancelled", (pays(), cancels("A1")), State.CONFIRMED, PaymentState.PARTIALLY_REFUNDED, PRICE),
    Scenario("cancelled in two parts", (pays(), cancels("A1"), cancels()), *_UNDONE),
    Scenario(
        "a refund by hand", (pays(), refunds(1000)), State.CONFIRMED, PaymentState.PARTIALLY_REFUNDED, TOTAL - 1000
    ),
    Scenario("a refund by hand, then cancelled", (pays(), refunds(1000), cancels()), *_UNDONE),
    Scenario(
        "the refund is refused",
        (pays("pm_card_refund_fail"), cancels()),
        State.CANCELLED,
        PaymentState.NEEDS_ATTENTION,
        TOTAL,
    ),
    Scenario(
        "the refund is decided later",
        (pays("pm_card_refund_pending"), cancels(), decides(succeed=True), calls),
        *_UNDONE,
    ),
    Scenario(
        "the buyer does not act in time",
        (pays("pm_card_authenticationRequired"), waits(1.2 * HOUR), reconciles),
        *_LAPSED,
    ),
    Scenario(
        "the buyer does not act in time, the void's reply is lost",
        (
            next_call_fails(Fault.ERROR_AFTER, "void"),
            pays("pm_card_authenticationRequired"),
            waits(1.2 * HOUR),
            reconciles,
        ),
        *_LAPSED,
    ),
    Scenario(
        "decided too late",
        (pays("pm_card_processing"), waits(1.2 * HOUR), reconciles, decides(succeed=True), calls, reconciles),
        *_LAPSED,
    ),
    Scenario("a callback says yes", (pays("pm_card_processing"), decides(succeed=True), calls), *_SOLD),
    Scenario(
        "a callback says no",
        (pays("pm_card_processing"), decides(succeed=False), calls),
        State.EXPIRED,
        PaymentState.FAILED,
        0,
    ),
    Scenario(
        "a callback in place of the reply", (next_call_fails(Fault.REPLY_LOST, "authorise"), pays(), calls), *_SOLD
    ),
    Scenario("late money, and all is free", (*_LATE, late_money_arrives, calls), *_SOLD),
    Scenario("late money without a callback", (*_LATE, late_money_arrives, waits(HOUR), reconciles), *_SOLD),
    Scenario(
        "late money, and a seat is gone",
        (*_LATE, another_buys, late_money_arrives, calls),
        State.EXPIRED,
        PaymentState.REFUNDED,
        0,
    ),
    Scenario(
        "late money that was only set aside",
        (next_call_fails(Fault.LATE_SUCCESS, "authorise"), pays(), waits(700), late_money_arrives, calls),
        *_LAPSED,
    ),
)


class ScenarioRunner:
    """Runs scenarios one after the other, each with a bank and an event of its own."""

    def __init__(self, store: Store, *, clock: MovableClock, ids: Uuid7Ids) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._told = 0

    async def play(
        self, scenario: Scenario, *crash_points_of_each: CrashPoints, reconciled: bool = True, then: Sequence[Act] = ()
    ) -> tuple[World, Booking]:
        """Each process has its crash point, and the next one goes on from there; the last is not killed and ends it.

        Without reconciliation the scenario is over with the first kill.
        """
        self._told += 1
        world = World(self._store, clock=self._clock, ids=self._ids, seed=self._told)
        await world.open(seats=SEATS)
        held = await world.hold(*SEATS)
        left = list(crash_points_of_each)
        self._start(world, left)
        died = False
        acts = [*scenario.acts, *([settles] if len(crash_points_of_each) > 1 else [])]
        for act in acts:
            try:
                await act(world, held)
            except Killed:
                died = True
                if not reconciled:
                    break
                self._start(world, left)
            except Refusal:
                # The killed process has left a state that this step does not fit any more.
                if not died:
                    raise
        self._start(world, [])
        for act in (*then, *([all_faults_end] if reconciled else [])):
            await act(world, held)
        return world, held

    def _start(self, world: World, left: list[CrashPoints]) -> None:
        crash_points = left.pop(0) if left else None
        if crash_points is None:
            world.start(self._store, world.gateway)
        else:
            world.start(Crashing(self._store, crash_points), Crashing(world.gateway, crash_points))


async def end_of(world: World, held: Booking) -> tuple[State, PaymentState, int]:
    """How the booking and its one payment ended."""
    [(payment, _)] = await world.store.list_payments(held.id)
    return (await world.booking(held)).state, payment.state, payment.captured - payment.refunded
