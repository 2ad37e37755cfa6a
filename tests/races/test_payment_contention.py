"""Many requests for one payment: two processes, a slow bank, and many rounds.

After each round nothing is under way, the store finds no flaw, and the bank's books are ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from earmark.domain.booking_state_machine import State
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.domain.payment import PaymentState, ReportedState
from earmark.engine.commands_and_results import KeyedRequest, PayResult
from earmark.engine.engine import Engine
from earmark.engine.ports.gateway import GatewaySilent
from earmark.errors import BookingExpired, Refusal
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.store.postgres import PostgresStore
from earmark.store.sqlite import SqliteStore

from .bank import Bank, a_callback, a_pay, a_refund, assert_books_agree, opened, reconcile
from .commands import IDS, TTL_SECONDS, a_cancel, a_hold, a_play, a_release
from .support import granted, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from datetime import datetime
    from pathlib import Path

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.domain.id_types import PaymentId
    from earmark.domain.payment import Payment
    from earmark.engine.commands_and_results import Pay
    from earmark.engine.ports.store import Store

    Shared = tuple[Store, Callable[[], Awaitable[Store]]]

PROOF = bool(os.environ.get("EARMARK_PROOF"))
ROUNDS = 12 if PROOF else 2
ROUNDS_OF_MANY = 4 if PROOF else 1
ROUNDS_PER_CALL = 3 if PROOF else 1
BUYERS = 20
WITHIN = 60.0


class Process:
    """A server: a store, an engine and a payment driver of its own."""

    def __init__(self, store: Store, bank: Bank) -> None:
        self.store = store
        self.engine = Engine(store, ids=IDS)
        self.driver = PaymentDriver(self.engine, {bank.name: bank})

    async def pay(self, ask: Pay) -> Any:
        """Pay, and wait for what comes of it."""
        return await self.driver.open_and_drive(ask, within=WITHIN)

    async def close(self) -> None:
        """In order."""
        await self.driver.close()
        await self.engine.close()


class TwoProcesses:
    """Two processes on one database, one bank, and one clock."""

    def __init__(self, one: Process, other: Process, *, bank: Bank, clock: MovableClock, random: Random) -> None:
        self.one = one
        self.other = other
        self.bank = bank
        self.clock = clock
        self.random = random

    async def held(self, *seats: str) -> Booking:
        """A hold that is simply there."""
        return granted(await self.one.engine.hold(a_hold(*seats)))

    async def paid(self, *seats: str) -> tuple[Booking, PaymentId]:
        """A sale."""
        held = await self.held(*seats)
        ask = a_pay(held)
        await self.one.pay(ask)
        assert (await self.booking(held)).state is State.CONFIRMED
        return held, ask.payment_id

    async def booking(self, booking: Booking) -> Booking:
        """As it is now."""
        _, found = await self.one.store.read_booking(booking.id)
        assert found is not None
        return found

    async def payments(self, booking: Booking) -> list[Payment]:
        """All of a booking's."""
        return [payment for payment, _ in await self.one.store.list_payments(booking.id)]

    async def undo_as_soon_as_it_is_sold(self, booking: Booking) -> None:
        """Repeat the call, from the other process."""

        async def undone() -> bool:
            try:
                return granted(await self.other.engine.cancel(a_cancel(booking))).state is State.CANCELLED
            except Refusal:
                return False

        await until(undone)

    async def at_once(self, *doing: Coroutine[Any, Any, Any]) -> list[Any]:
        """All begin together, in random order. Refusals are results."""
        barrier = asyncio.Barrier(len(doing))

        async def one(work: Awaitable[Any]) -> Any:
            await barrier.wait()
            await asyncio.sleep(self.random.uniform(0, 0.01))
            try:
                return await work
            except Refusal as refused:
                return refused

        return await asyncio.gather(*map(one, doing))

    async def settle_down(self) -> None:
        """Nothing is left to do, and everything adds up."""
        await reconcile(self.one.store, self.clock, self.one.driver, self.other.driver)
        await assert_books_agree(self.one.store, self.bank)

    async def clear(self, booking: Booking) -> None:
        """Free the seats for the next round, and let the refunds finish."""
        match (await self.booking(booking)).state:
            case State.CONFIRMED:
                await self.one.engine.cancel(a_cancel(booking))
            case State.HELD:
                with contextlib.suppress(BookingExpired):
                    await self.one.engine.release(a_release(booking))
            case ended:
                assert ended is not State.PAYING
        await self.settle_down()


@pytest.fixture(params=["sqlite", "postgres", *(["pooled"] if PROOF else [])])
def shared(request: pytest.FixtureRequest, clock: MovableClock, tmp_path: Path) -> Shared:
    """The stores that two processes can share: one that is open, and how to open another."""
    store: Store = request.getfixturevalue(f"{request.param}_store")
    if request.param == "sqlite":
        return store, lambda: SqliteStore.open(tmp_path / "earmark.sqlite3", clock=clock)
    url: str = request.getfixturevalue("postgres_url")
    if request.param == "pooled":
        url = request.getfixturevalue("pgbouncer").to(url)
    return store, lambda: PostgresStore.connect(url, clock=clock)


@pytest.fixture
async def processes(shared: Shared, clock: MovableClock) -> AsyncIterator[TwoProcesses]:
    """Open for business."""
    random = Random(20)  # noqa: S311 (to be the same each time)
    bank = Bank(random=random)
    first, another = shared
    processes = TwoProcesses(
        Process(first, bank), Process(await another(), bank), bank=bank, clock=clock, random=random
    )
    await processes.one.engine.create_event(a_play())
    yield processes
    await processes.other.close()
    await processes.one.driver.close()


def a_memo(key: str) -> KeyedRequest:
    """A caller's idempotency key; the answer is the current state."""

    def render(decided: object, _: datetime) -> tuple[int, bytes]:
        assert isinstance(decided, PayResult)
        assert decided.payment is not None
        return 200, f"{decided.booking.state} {decided.payment.id}".encode()

    return KeyedRequest(key=IdempotencyKey("shop", key), request_hash=b"same", write=render)


async def assert_one_charge(processes: TwoProcesses, held: Booking) -> None:
    """One payment, set aside once and taken once."""
    [payment] = await processes.payments(held)
    assert payment.state is PaymentState.CAPTURED
    assert [processes.bank.effects[f"{call} {payment.id}"] for call in ("authorise", "capture", "void")] == [1, 1, 0]
    assert (await processes.booking(held)).state is State.CONFIRMED


async def test_twenty_payments_of_one_booking_are_one_charge(processes: TwoProcesses) -> None:
    """Twenty keys, in two processes: one opens the payment, and the others are shown it, or that it is sold."""
    for _ in range(ROUNDS_OF_MANY):
        held = await processes.held("A1")
        asks = [a_pay(held, idempotency=a_memo(f"{held.id}-{number}")) for number in range(BUYERS)]
        await processes.at_once(*(process.pay(ask) for ask, process in _dealt(processes, asks)))
        await processes.settle_down()
        await assert_one_charge(processes, held)
        await processes.clear(held)


async def test_twenty_requests_with_one_key_are_one_charge_and_one_answer(processes: TwoProcesses) -> None:
    """The same payment each time, whichever process drives it, and all get the same answer."""
    for _ in range(ROUNDS_OF_MANY):
        held = await processes.held("A1")
        payment_id, idempotency = IDS.payment_id(), a_memo(str(held.id))
        asks = [a_pay(held, payment_id=payment_id, idempotency=idempotency) for _ in range(BUYERS)]
        answers = await processes.at_once(*(process.pay(ask) for ask, process in _dealt(processes, asks)))
        assert {answer.record.body for answer in answers} == {f"confirmed {payment_id}".encode()}
        await processes.settle_down()
        await assert_one_charge(processes, held)
        await processes.clear(held)


def _dealt(processes: TwoProcesses, asks: list[Pay]) -> list[tuple[Pay, Process]]:
    return [(ask, processes.other if number % 2 else processes.one) for number, ask in enumerate(asks)]


async def test_a_payment_and_the_end_of_its_hold(processes: TwoProcesses) -> None:
    """One of the two is first: it is sold and paid, or expired and the buyer was not charged."""
    ends = set()
    for number in range(ROUNDS):
        held = await processes.held("A1")
        processes.clock.advance(TTL_SECONDS - (0.02 if number % 2 else -0.02))
        ask = a_pay(held)
        await processes.at_once(
            processes.one.pay(ask), processes.other.engine.expire(limit=10), processes.other.engine.expire(limit=10)
        )
        await processes.settle_down()
        ended = (await processes.booking(held)).state
        assert ended in {State.CONFIRMED, State.EXPIRED}
        assert (ask.payment_id in processes.bank.accounts) == (ended is State.CONFIRMED)
        ends.add(ended)
        await processes.clear(held)
    assert State.EXPIRED in ends


async def test_a_payment_and_a_release(processes: TwoProcesses) -> None:
    """Released and the buyer was not charged, or paid."""
    for _ in range(ROUNDS):
        held = await processes.held("A1")
        ask = a_pay(held)
        await processes.at_once(processes.one.pay(ask), processes.other.engine.release(a_release(held)))
        await processes.settle_down()
        ended = (await processes.booking(held)).state
        assert ended in {State.CONFIRMED, State.RELEASED}
        assert (ask.payment_id in processes.bank.accounts) == (ended is State.CONFIRMED)
        await processes.clear(held)


async def test_refunds_and_a_cancel(processes: TwoProcesses) -> None:
    """All of it is refunded, in whatever parts, and not a cent more."""
    for _ in range(ROUNDS):
        held, payment_id = await processes.paid("A1", "A2")
        await processes.at_once(
            processes.one.driver.refund(a_refund(held, 300), within=WITHIN),
            processes.other.driver.refund(a_refund(held, 1900), within=WITHIN),
            processes.other.engine.cancel(a_cancel(held)),
            processes.one.engine.cancel(a_cancel(held)),
        )
        await processes.settle_down()
        assert (await processes.booking(held)).state is State.CANCELLED
        assert processes.bank.accounts[payment_id].kept == 0


async def test_cancels_of_every_seat_of_a_sale(processes: TwoProcesses) -> None:
    """Each refunds its own price; the last of them ends the booking."""
    for _ in range(ROUNDS):
        held, payment_id = await processes.paid("A1", "A2", "A3", "A4")
        seats = ("A1", "A2", "A3", "A4")
        by = (processes.one, processes.one, processes.other, processes.one)
        undoing = zip(by, seats, strict=True)
        await processes.at_once(*(process.engine.cancel(a_cancel(held, seat)) for process, seat in undoing))
        await processes.settle_down()
        assert (await processes.booking(held)).state is State.CANCELLED
        assert sorted(processes.bank.accounts[payment_id].refunds.values()) == [1000] * 4


async def test_a_cancel_and_a_capture(processes: TwoProcesses) -> None:
    """A sale is cancelled at once: nothing is kept, whether the money had been captured or not."""
    ends = set()
    for _ in range(ROUNDS):
        held = await processes.held("A1")
        ask = a_pay(held)

        await processes.at_once(processes.one.pay(ask), processes.undo_as_soon_as_it_is_sold(held))
        await processes.settle_down()
        assert (await processes.booking(held)).state is State.CANCELLED
        account = processes.bank.accounts[ask.payment_id]
        assert account.kept == 0
        ends.add(account.state)
    assert ends <= {ReportedState.CAPTURED, ReportedState.VOIDED}


@pytest.mark.parametrize("decides", [ReportedState.AUTHORISED, ReportedState.DECLINED])
async def test_a_callback_and_the_answer_of_the_call(processes: TwoProcesses, decides: ReportedState) -> None:
    """The bank calls back to one process while it answers the other: both have the same outcome."""
    processes.bank.decides = decides
    for number in range(ROUNDS):
        held = await processes.held("A1")
        ask = a_pay(held)
        payment = await opened(processes.one.engine, ask)
        again = a_pay(held, payment_id=ask.payment_id)
        calls = [
            processes.other.driver.receive_callback("bank", a_callback(payment, id=f"{number}-{one % 2}"))
            for one in range(4)
        ]
        await processes.at_once(processes.one.pay(again), *calls)
        await processes.settle_down()
        [payment] = await processes.payments(held)
        assert processes.bank.effects[f"authorise {payment.id}"] == 1
        sold = decides is ReportedState.AUTHORISED
        assert (await processes.booking(held)).state in ({State.CONFIRMED} if sold else {State.HELD, State.EXPIRED})
        await processes.clear(held)


@pytest.mark.parametrize("capture", ["by hand", "automatic"])
async def test_two_drivers_drive_one_payment(processes: TwoProcesses, capture: str) -> None:
    """As two reconcilers whose leases ran out would, while the bank at times does not answer."""
    automatic = capture == "automatic"
    for silent in ("authorise", "capture", "status", "refund") * ROUNDS_PER_CALL:
        held = await processes.held("A1")
        ask = a_pay(held, automatic=automatic)
        payment = await opened(processes.one.engine, ask)
        processes.bank.fails[silent] = GatewaySilent("no answer")
        await processes.at_once(
            *(process.driver.advance(payment.id) for process in (processes.one, processes.other) * 2)
        )
        processes.bank.fails.clear()
        await processes.settle_down()
        await processes.settle_down()
        [payment] = await processes.payments(held)
        assert processes.bank.effects[f"authorise {payment.id}"] == 1
        assert processes.bank.effects[f"capture {payment.id}"] == (0 if automatic else 1)
        assert (await processes.booking(held)).state is State.CONFIRMED
        await processes.clear(held)


async def test_two_drivers_refund_one_late_payment_or_sell_it_once(processes: TwoProcesses) -> None:
    """Given up, captured all the same, and wanted by another buyer at that moment: one of the two has the seat."""
    ends = set()
    for _ in range(ROUNDS):
        held = await processes.held("A1")
        ask = a_pay(held)
        payment = await opened(processes.one.engine, ask)
        processes.bank.decides = ReportedState.PROCESSING
        await processes.one.driver.advance(payment.id)
        processes.bank.refuses["void"] = GatewaySilent("no answer")
        processes.clock.advance(4000)
        await processes.one.driver.advance(payment.id)
        assert (await processes.booking(held)).state is State.EXPIRED
        processes.bank.refuses.clear()
        processes.bank.accounts[ask.payment_id].state = ReportedState.CAPTURED
        rival = a_hold("A1", buyer="cid")
        driving = (process.driver.advance(payment.id) for process in (processes.one, processes.other))
        await processes.at_once(*driving, processes.other.engine.hold(rival))
        ended = (await processes.booking(held)).state
        ends.add(ended)
        _, other = await processes.one.store.read_booking(rival.booking_id)
        assert (other is None) == (ended is State.CONFIRMED)
        await processes.settle_down()
        assert len(processes.bank.accounts[ask.payment_id].refunds) == (0 if ended is State.CONFIRMED else 1)
        processes.bank.decides = ReportedState.AUTHORISED
        await processes.clear(other or held)
        await processes.clear(held)
    assert ends <= {State.CONFIRMED, State.EXPIRED}
