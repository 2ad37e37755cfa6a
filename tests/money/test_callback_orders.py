"""Callbacks in every order, any number of times, before, between and after the API's own reply: one end."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.money.shop_and_bank import World

from earmark.clock import MovableClock
from earmark.domain.booking_state_machine import State
from earmark.domain.payment import PaymentState
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.store.sqlite.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.engine.ports.gateway import Gateway, Order, Report

PROOF = bool(os.environ.get("EARMARK_PROOF"))
CALLBACKS = 5 if PROOF else 3
EACH_LONGER = {2: 1, 3: 1} if PROOF else {2: 2, 3: 9}
"""Of the sequences with several callbacks a case takes each so many, and the next case begins at the next of them.

So all are gone through, by one case or another; those with one or none by every case, and in a proof each by each.
"""
SEQUENCES = {2: 321, 3: 2005} if PROOF else {2: 27, 3: 22}
"""How many sequences a case has, as a formula: of n callbacks kinds**n, times n + 1 places; of the longer, a part."""
CASES = 14
pytestmark = pytest.mark.timeout(900 if PROOF else 120)


class Tally:
    """What the tests of this file have gone through."""

    def __init__(self) -> None:
        self.sequences = 0
        self.heard = 0
        self.ends: list[int] = []


@pytest.fixture(scope="module")
def recorder() -> Iterator[Tally]:
    """Printed in one line when they are over."""
    counted = Tally()
    yield counted
    told = f"{counted.sequences} sequences with {counted.heard} callbacks in {len(counted.ends)} cases"
    print(f"\norders: {told}, {max(counted.ends, default=0)} end state per case")  # noqa: T201 (shown with -s)


class SlowReply:
    """A gateway whose first reply is delayed for as long as the test likes."""

    def __init__(self, inner: Gateway) -> None:
        self._inner = inner
        self.done = asyncio.Event()
        self.released = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def authorise(self, order: Order) -> Report:
        """It has happened; the caller learns of it later."""
        report = await self._inner.authorise(order)
        self.done.set()
        await self.released.wait()
        return report


def sequences(kinds: int, *, length: int = CALLBACKS) -> Iterator[tuple[int, ...]]:
    """Which event is called about, one after the other; -1 is the reply. Each order, with repeats and with gaps."""
    for count in range(length + 1):
        for events in itertools.product(range(kinds), repeat=count):
            for place in range(count + 1):
                yield (*events[:place], -1, *events[place:])


def chosen(kinds: int, *, case: int) -> list[tuple[int, ...]]:
    """The sequences that this case goes through."""
    short = list(sequences(kinds, length=1))
    longer = list(sequences(kinds))[len(short) :]
    each = EACH_LONGER[kinds]
    return [*short, *longer[case % each :: each]]


def case_number(method: str, *, automatic: bool, succeed: bool, elsewhere: bool) -> int:
    """Which of the cases this is, from 0."""
    places = [scenario.values[:3] for scenario in SCENARIOS]
    return 2 * places.index((method, automatic, succeed)) + elsewhere


async def run(
    method: str, order: tuple[int, ...], *, automatic: bool, elsewhere: bool, succeed: bool, heard: Counter[int]
) -> tuple[str, ...]:
    """One payment, what the bank decides of it, and the callbacks in this order; how everything ends."""
    clock = MovableClock()
    store = MemoryStore(clock=clock)
    world = World(store, clock=clock, ids=Uuid7Ids())
    await world.open(seats=["A1"])
    held = await world.hold("A1", ttl=1700)
    slow = SlowReply(world.gateway)
    world.start(store, slow)
    other = PaymentDriver(world.engine, {"sandbox": world.gateway}) if elsewhere else world.driver
    paying = asyncio.create_task(world.pay(world.ask_to_pay(held, method=method, automatic=automatic)))
    await slow.done.wait()
    [intent] = world.bank.intents()
    if method == "pm_card_processing":
        world.bank.decide(intent.id, succeed=succeed)
    elif method == "pm_card_authenticationRequired":
        world.bank.act(intent.id, succeed=succeed)
    for event in order:
        if event < 0:
            slow.released.set()
            await paying
        elif event < len(world.bank.events):
            callback = world.gateway.read_callback(*world.sandbox.callbacks.signed(world.bank.events[event]))
            assert await other.receive_callback("sandbox", callback)
            heard[event] += 1
    await world.settle()
    assert await world.disagreements() == [], order
    booking = await world.booking(held)
    [(payment, _)] = await store.list_payments(held.id)
    net = payment.captured - payment.refunded
    return booking.state.value, payment.state.value, str(net)


SOLD = (State.CONFIRMED.value, PaymentState.CAPTURED.value, "4500")
LOST = (State.EXPIRED.value, PaymentState.FAILED.value, "0")
SCENARIOS = [
    pytest.param("pm_card_visa", False, True, 3, SOLD, id="a good card"),
    pytest.param("pm_card_visa", True, True, 2, SOLD, id="a good card, taken at once"),
    pytest.param("pm_card_processing", False, True, 3, SOLD, id="decided later"),
    pytest.param("pm_card_processing", True, True, 3, SOLD, id="decided later and taken at once"),
    pytest.param("pm_card_processing", False, False, 3, LOST, id="declined later"),
    pytest.param("pm_card_authenticationRequired", False, True, 3, SOLD, id="after an action"),
    pytest.param("pm_card_authenticationRequired", True, False, 3, LOST, id="an action that was refused"),
]


@pytest.mark.parametrize("method,automatic,succeed,kinds,end", SCENARIOS)
@pytest.mark.parametrize("elsewhere", [True, False], ids=["another server", "the same server"])
async def test_any_order_and_any_number_of_callbacks_has_one_end(
    method: str, kinds: int, end: tuple[str, ...], *, automatic: bool, succeed: bool, elsewhere: bool, recorder: Tally
) -> None:
    """Also when a callback overtakes the reply to the call that it is about."""
    heard: Counter[int] = Counter()
    case = case_number(method, automatic=automatic, succeed=succeed, elsewhere=elsewhere)
    ends = [
        await run(method, order, automatic=automatic, elsewhere=elsewhere, succeed=succeed, heard=heard)
        for order in chosen(kinds, case=case)
    ]
    recorder.sequences += len(ends)
    recorder.heard += heard.total()
    recorder.ends.append(len(set(ends)))
    assert set(ends) == {end}
    assert len(ends) == SEQUENCES[kinds]
    assert set(heard) == set(range(kinds))


def test_no_order_is_lost() -> None:
    """A change that takes a case or a length out has to change this test; and no sequence comes twice."""
    assert 2 * len(SCENARIOS) >= CASES
    for kinds, count in SEQUENCES.items():
        every = list(sequences(kinds))
        assert len(set(every)) == len(every) == sum((n + 1) * kinds**n for n in range(CALLBACKS + 1))
        cases = [number for number in range(2 * len(SCENARIOS)) if SCENARIOS[number // 2].values[3] == kinds]
        taken = [chosen(kinds, case=case) for case in cases]
        assert {len(orders) for orders in taken} == {count}
        assert set().union(*taken) == set(every)
    longest = list(sequences(3))[-1]
    assert len(longest) == CALLBACKS + 1
