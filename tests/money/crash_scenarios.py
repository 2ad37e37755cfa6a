"""What happens to one booking and its money, act by act: told whole, or with a death in the middle of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from tests.money.crash_points import Died, Fate, Mortal
from tests.money.shop_and_bank import CARD, PRICE, World

from earmark.domain.booking import Booking
from earmark.domain.payment import PaymentState
from earmark.domain.state_machine import State
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


class Story(msgspec.Struct, frozen=True):
    """Acts, and how they end where nobody dies: the booking, its payment, and the money that is left of it."""

    name: str
    acts: tuple[Act, ...]
    booking: State
    payment: PaymentState
    net: int


def pays(method: str = CARD, *, automatic: bool = False) -> Act:
    """The buyer pays."""
    return lambda world, held: world.pay(world.ask_to_pay(held, method=method, automatic=automatic))


def cancels(*seats: str) -> Act:
    """The sale is undone, or a part of it."""
    return lambda world, held: world.cancel(held, *seats)


def gives_back(amount: int) -> Act:
    """Money goes back, and the sale stays."""
    return lambda world, held: world.refund(world.ask_to_refund(held, amount))


def goes_wrong(fault: Fault, call: str) -> Act:
    """The next such call does."""

    async def act(world: World, _: Booking) -> None:
        world.sandbox.script.add(fault, call)

    return act


def waits(seconds: float) -> Act:
    """Time passes, and whoever ends holds ends them."""

    async def act(world: World, _: Booking) -> None:
        world.clock.advance(seconds)
        await world.engine.expire(limit=100)

    return act


def decides(*, succeed: bool) -> Act:
    """Banks and buyers make up their minds about all that waits for it."""

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


async def lands(world: World, _: Booking) -> None:
    """The money comes that comes after the no."""
    world.bank.land()


async def looks(world: World, _: Booking) -> None:
    """The reconciler looks after what is due."""
    await world.driver.reconcile(limit=100)


async def calls(world: World, _: Booking) -> None:
    """The bank calls back about all that happened."""

    async def hear(headers: Mapping[str, str], body: bytes) -> None:
        await world.driver.hear("sandbox", world.gateway.read_callback(headers, body))

    world.sandbox.callbacks.deliver = hear
    await world.sandbox.callbacks.send_due(flush=True)


async def another_buys(world: World, _: Booking) -> None:
    """Somebody else buys a seat of it, at another server."""
    elsewhere = Earmark(Engine(world.store, ids=world.ids), live=False, gateways={"sandbox": world.gateway})
    bought = await elsewhere.hold(world.events["EUR"], buyer="bob", seats=["A1"], ttl_seconds=600)
    await elsewhere.pay(bought.id, method=CARD)


async def settles(world: World, _: Booking) -> None:
    """Nothing goes wrong any more, and the reconciler has a day."""
    await world.settle()


async def heals(world: World, held: Booking) -> None:
    """Nothing goes wrong any more, everybody decides, the bank calls, and the reconciler has a day."""
    await world.settle()
    await decides(succeed=True)(world, held)
    await world.settle()
    await calls(world, held)
    await world.settle()


_LATE: tuple[Act, ...] = (goes_wrong(Fault.LATE_SUCCESS, "authorise"), pays(automatic=True), waits(700))
_SOLD = (State.CONFIRMED, PaymentState.CAPTURED, TOTAL)
_UNDONE = (State.CANCELLED, PaymentState.REFUNDED, 0)
_LAPSED = (State.EXPIRED, PaymentState.VOIDED, 0)

STORIES = (
    Story("paid", (pays(),), *_SOLD),
    Story("paid at once", (pays(automatic=True),), *_SOLD),
    Story("a bad card", (pays("pm_card_declined"),), State.EXPIRED, PaymentState.FAILED, 0),
    Story("the reply is lost", (goes_wrong(Fault.REPLY_LOST, "authorise"), pays()), *_SOLD),
    Story(
        "paid at once, the reply is lost", (goes_wrong(Fault.ERROR_AFTER, "authorise"), pays(automatic=True)), *_SOLD
    ),
    Story("the answer to the capture is lost", (goes_wrong(Fault.ERROR_AFTER, "capture"), pays()), *_SOLD),
    Story("the capture is refused", (pays("pm_card_capture_fail"),), State.CANCELLED, PaymentState.FAILED, 0),
    Story(
        "the capture is refused, and comes", (goes_wrong(Fault.LATE_SUCCESS, "capture"), pays(), lands, calls), *_UNDONE
    ),
    Story("cancelled", (pays(), cancels()), *_UNDONE),
    Story(
        "cancelled, the refund's reply is lost", (goes_wrong(Fault.REPLY_LOST, "refund"), pays(), cancels()), *_UNDONE
    ),
    Story("a part is cancelled", (pays(), cancels("A1")), State.CONFIRMED, PaymentState.PARTIALLY_REFUNDED, PRICE),
    Story("cancelled in two parts", (pays(), cancels("A1"), cancels()), *_UNDONE),
    Story(
        "a refund by hand", (pays(), gives_back(1000)), State.CONFIRMED, PaymentState.PARTIALLY_REFUNDED, TOTAL - 1000
    ),
    Story("a refund by hand, then cancelled", (pays(), gives_back(1000), cancels()), *_UNDONE),
    Story(
        "the refund is refused",
        (pays("pm_card_refund_fail"), cancels()),
        State.CANCELLED,
        PaymentState.NEEDS_ATTENTION,
        TOTAL,
    ),
    Story(
        "the refund is decided later",
        (pays("pm_card_refund_pending"), cancels(), decides(succeed=True), calls),
        *_UNDONE,
    ),
    Story("nobody acts in time", (pays("pm_card_authenticationRequired"), waits(1.2 * HOUR), looks), *_LAPSED),
    Story(
        "nobody acts in time, the void's reply is lost",
        (goes_wrong(Fault.ERROR_AFTER, "void"), pays("pm_card_authenticationRequired"), waits(1.2 * HOUR), looks),
        *_LAPSED,
    ),
    Story(
        "decided too late",
        (pays("pm_card_processing"), waits(1.2 * HOUR), looks, decides(succeed=True), calls, looks),
        *_LAPSED,
    ),
    Story("a callback says yes", (pays("pm_card_processing"), decides(succeed=True), calls), *_SOLD),
    Story(
        "a callback says no",
        (pays("pm_card_processing"), decides(succeed=False), calls),
        State.EXPIRED,
        PaymentState.FAILED,
        0,
    ),
    Story("a callback in place of the reply", (goes_wrong(Fault.REPLY_LOST, "authorise"), pays(), calls), *_SOLD),
    Story("late money, and all is free", (*_LATE, lands, calls), *_SOLD),
    Story("late money without a callback", (*_LATE, lands, waits(HOUR), looks), *_SOLD),
    Story(
        "late money, and a seat is gone",
        (*_LATE, another_buys, lands, calls),
        State.EXPIRED,
        PaymentState.REFUNDED,
        0,
    ),
    Story(
        "late money that was only set aside",
        (goes_wrong(Fault.LATE_SUCCESS, "authorise"), pays(), waits(700), lands, calls),
        *_LAPSED,
    ),
)


class Stage:
    """Where stories are told, one after the other, each with a bank and an event of its own."""

    def __init__(self, store: Store, *, clock: MovableClock, ids: Uuid7Ids) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._told = 0

    async def tell(
        self, story: Story, *fates: Fate, reconciled: bool = True, then: Sequence[Act] = ()
    ) -> tuple[World, Booking]:
        """Each process has its fate, and the next one goes on where it died; the last is spared and ends the story.

        Without reconciliation the story is over with the first death.
        """
        self._told += 1
        world = World(self._store, clock=self._clock, ids=self._ids, seed=self._told)
        await world.open()
        held = await world.hold(*SEATS)
        left = list(fates)
        self._start(world, left)
        died = False
        acts = [*story.acts, *([settles] if len(fates) > 1 else [])]
        for act in acts:
            try:
                await act(world, held)
            except Died:
                died = True
                if not reconciled:
                    break
                self._start(world, left)
            except Refusal:
                # Whoever died has left something that this act does not fit any more.
                if not died:
                    raise
        self._start(world, [])
        for act in (*then, *([heals] if reconciled else [])):
            await act(world, held)
        return world, held

    def _start(self, world: World, left: list[Fate]) -> None:
        fate = left.pop(0) if left else None
        if fate is None:
            world.start(self._store, world.gateway)
        else:
            world.start(Mortal(self._store, fate), Mortal(world.gateway, fate))


async def end_of(world: World, held: Booking) -> tuple[State, PaymentState, int]:
    """How the booking and its one payment ended."""
    [(payment, _)] = await world.store.list_payments(held.id)
    return (await world.booking(held)).state, payment.state, payment.captured - payment.refunded
