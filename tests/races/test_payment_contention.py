"""Many at one payment, without force: two processes, a bank that takes its time, and many rounds.

After each round nothing is under way, the store finds no flaw, and the bank's books are ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from earmark.domain.journal import IdempotencyKey
from earmark.domain.payment import PaymentState, Standing
from earmark.domain.state_machine import State
from earmark.engine.commands import KeyedRequest, PayResult
from earmark.engine.engine import Engine
from earmark.engine.ports.gateway import GatewaySilent
from earmark.errors import BookingExpired, Refusal
from earmark.payments.driver import PaymentDriver
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
    from earmark.domain.ids import PaymentId
    from earmark.domain.payment import Payment
    from earmark.engine.commands import Pay
    from earmark.engine.ports.store import Store

    Shared = tuple[Store, Callable[[], Awaitable[Store]]]

PROOF = bool(os.environ.get("EARMARK_PROOF"))
ROUNDS = 12 if PROOF else 4
BUYERS = 20
WITHIN = 60.0


class Process:
    """A server: a store, an engine and a teller of its own."""

    def __init__(self, store: Store, bank: Bank) -> None:
        self.store = store
        self.engine = Engine(store, ids=IDS)
        self.driver = PaymentDriver(self.engine, {bank.name: bank})

    async def pay(self, ask: Pay) -> Any:
        """Pay, and wait for what comes of it."""
        return await self.driver.pay(ask, within=WITHIN)

    async def close(self) -> None:
        """In order."""
        await self.driver.close()
        await self.engine.close()


class Town:
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
        """Ask again and again, from the other process."""

        async def undone() -> bool:
            try:
                return granted(await self.other.engine.cancel(a_cancel(booking))).state is State.CANCELLED
            except Refusal:
                return False

        await until(undone)

    async def at_once(self, *doing: Coroutine[Any, Any, Any]) -> list[Any]:
        """Everybody begins when all are there, in an order of chance. Refusals are answers."""
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
        """Make room for the next round, and let what that gives back go back."""
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
        url = request.getfixturevalue("bouncer").to(url)
    return store, lambda: PostgresStore.connect(url, clock=clock)


@pytest.fixture
async def town(shared: Shared, clock: MovableClock) -> AsyncIterator[Town]:
    """Open for business."""
    random = Random(20)  # noqa: S311 (to be the same each time)
    bank = Bank(random=random)
    first, another = shared
    town = Town(Process(first, bank), Process(await another(), bank), bank=bank, clock=clock, random=random)
    await town.one.engine.create(a_play())
    yield town
    await town.other.close()
    await town.one.driver.close()


def a_memo(key: str) -> KeyedRequest:
    """A caller's idempotency key; what it is told is the state of things."""

    def render(decided: object, _: datetime) -> tuple[int, bytes]:
        assert isinstance(decided, PayResult)
        assert decided.payment is not None
        return 200, f"{decided.booking.state} {decided.payment.id}".encode()

    return KeyedRequest(key=IdempotencyKey("shop", key), request_hash=b"same", write=render)


async def assert_one_charge(town: Town, held: Booking) -> None:
    """One payment, set aside once and taken once."""
    [payment] = await town.payments(held)
    assert payment.state is PaymentState.CAPTURED
    assert [town.bank.effects[f"{call} {payment.id}"] for call in ("authorise", "capture", "void")] == [1, 1, 0]
    assert (await town.booking(held)).state is State.CONFIRMED


async def test_twenty_payments_of_one_booking_are_one_charge(town: Town) -> None:
    """Twenty keys, in two processes: one opens the payment, and the others are shown it, or that it is sold."""
    for _ in range(ROUNDS // 3):
        held = await town.held("A1")
        asks = [a_pay(held, idempotency=a_memo(f"{held.id}-{number}")) for number in range(BUYERS)]
        await town.at_once(*(process.pay(ask) for ask, process in _dealt(town, asks)))
        await town.settle_down()
        await assert_one_charge(town, held)
        await town.clear(held)


async def test_twenty_requests_with_one_key_are_one_charge_and_one_answer(town: Town) -> None:
    """The same payment each time, whoever drives it, and all are told the same."""
    for _ in range(ROUNDS // 3):
        held = await town.held("A1")
        payment_id, idempotency = IDS.payment_id(), a_memo(str(held.id))
        asks = [a_pay(held, payment_id=payment_id, idempotency=idempotency) for _ in range(BUYERS)]
        answers = await town.at_once(*(process.pay(ask) for ask, process in _dealt(town, asks)))
        assert {answer.record.body for answer in answers} == {f"confirmed {payment_id}".encode()}
        await town.settle_down()
        await assert_one_charge(town, held)
        await town.clear(held)


def _dealt(town: Town, asks: list[Pay]) -> list[tuple[Pay, Process]]:
    return [(ask, town.other if number % 2 else town.one) for number, ask in enumerate(asks)]


async def test_a_payment_and_the_end_of_its_hold(town: Town) -> None:
    """Whoever is first: it is sold and paid, or expired and nobody was charged."""
    ends = set()
    for number in range(ROUNDS):
        held = await town.held("A1")
        town.clock.advance(TTL_SECONDS - (0.02 if number % 2 else -0.02))
        ask = a_pay(held)
        await town.at_once(town.one.pay(ask), town.other.engine.expire(limit=10), town.other.engine.expire(limit=10))
        await town.settle_down()
        ended = (await town.booking(held)).state
        assert ended in {State.CONFIRMED, State.EXPIRED}
        assert (ask.payment_id in town.bank.accounts) == (ended is State.CONFIRMED)
        ends.add(ended)
        await town.clear(held)
    assert State.EXPIRED in ends


async def test_a_payment_and_a_release(town: Town) -> None:
    """Released and nobody was charged, or paid."""
    for _ in range(ROUNDS):
        held = await town.held("A1")
        ask = a_pay(held)
        await town.at_once(town.one.pay(ask), town.other.engine.release(a_release(held)))
        await town.settle_down()
        ended = (await town.booking(held)).state
        assert ended in {State.CONFIRMED, State.RELEASED}
        assert (ask.payment_id in town.bank.accounts) == (ended is State.CONFIRMED)
        await town.clear(held)


async def test_refunds_and_a_cancel(town: Town) -> None:
    """All of it goes back, in whatever parts, and not a cent more."""
    for _ in range(ROUNDS):
        held, payment_id = await town.paid("A1", "A2")
        await town.at_once(
            town.one.driver.refund(a_refund(held, 300), within=WITHIN),
            town.other.driver.refund(a_refund(held, 1900), within=WITHIN),
            town.other.engine.cancel(a_cancel(held)),
            town.one.engine.cancel(a_cancel(held)),
        )
        await town.settle_down()
        assert (await town.booking(held)).state is State.CANCELLED
        assert town.bank.accounts[payment_id].kept == 0


async def test_cancels_of_every_seat_of_a_sale(town: Town) -> None:
    """Each gives back its own price; the last of them ends the booking."""
    for _ in range(ROUNDS):
        held, payment_id = await town.paid("A1", "A2", "A3", "A4")
        seats = ("A1", "A2", "A3", "A4")
        processes = (town.one, town.one, town.other, town.one)
        undoing = zip(processes, seats, strict=True)
        await town.at_once(*(process.engine.cancel(a_cancel(held, seat)) for process, seat in undoing))
        await town.settle_down()
        assert (await town.booking(held)).state is State.CANCELLED
        assert sorted(town.bank.accounts[payment_id].refunds.values()) == [1000] * 4


async def test_a_cancel_and_a_capture(town: Town) -> None:
    """A sale is undone as soon as it is one: nothing is kept, whether the money had been taken or not."""
    ends = set()
    for _ in range(ROUNDS):
        held = await town.held("A1")
        ask = a_pay(held)

        await town.at_once(town.one.pay(ask), town.undo_as_soon_as_it_is_sold(held))
        await town.settle_down()
        assert (await town.booking(held)).state is State.CANCELLED
        account = town.bank.accounts[ask.payment_id]
        assert account.kept == 0
        ends.add(account.standing)
    assert ends <= {Standing.CAPTURED, Standing.VOIDED}


@pytest.mark.parametrize("decides", [Standing.AUTHORISED, Standing.DECLINED])
async def test_a_callback_and_the_answer_of_the_call(town: Town, decides: Standing) -> None:
    """The bank calls the one process while it answers the other: both bring the same news."""
    town.bank.decides = decides
    for number in range(ROUNDS):
        held = await town.held("A1")
        ask = a_pay(held)
        payment = await opened(town.one.engine, ask)
        again = a_pay(held, payment_id=ask.payment_id)
        calls = [town.other.driver.hear("bank", a_callback(payment, id=f"{number}-{one % 2}")) for one in range(4)]
        await town.at_once(town.one.pay(again), *calls)
        await town.settle_down()
        [payment] = await town.payments(held)
        assert town.bank.effects[f"authorise {payment.id}"] == 1
        sold = decides is Standing.AUTHORISED
        assert (await town.booking(held)).state in ({State.CONFIRMED} if sold else {State.HELD, State.EXPIRED})
        await town.clear(held)


@pytest.mark.parametrize("capture", ["by hand", "automatic"])
async def test_two_tellers_drive_one_payment(town: Town, capture: str) -> None:
    """As two reconcilers whose leases ran out would, while the bank is silent now and then."""
    automatic = capture == "automatic"
    for number in range(ROUNDS):
        held = await town.held("A1")
        ask = a_pay(held, automatic=automatic)
        payment = await opened(town.one.engine, ask)
        silent = ("authorise", "capture", "status", "refund")[number % 4]
        town.bank.fails[silent] = GatewaySilent("no answer")
        await town.at_once(*(process.driver.advance(payment.id) for process in (town.one, town.other) * 2))
        town.bank.fails.clear()
        await town.settle_down()
        await town.settle_down()
        [payment] = await town.payments(held)
        assert town.bank.effects[f"authorise {payment.id}"] == 1
        assert town.bank.effects[f"capture {payment.id}"] == (0 if automatic else 1)
        assert (await town.booking(held)).state is State.CONFIRMED
        await town.clear(held)


async def test_two_tellers_give_one_late_payment_back_or_sell_it_once(town: Town) -> None:
    """Given up, taken all the same, and wanted by somebody else at that moment: one of the two has the seat."""
    ends = set()
    for _ in range(ROUNDS):
        held = await town.held("A1")
        ask = a_pay(held)
        payment = await opened(town.one.engine, ask)
        town.bank.decides = Standing.PROCESSING
        await town.one.driver.advance(payment.id)
        town.bank.refuses["void"] = GatewaySilent("no answer")
        town.clock.advance(4000)
        await town.one.driver.advance(payment.id)
        assert (await town.booking(held)).state is State.EXPIRED
        town.bank.refuses.clear()
        town.bank.accounts[ask.payment_id].standing = Standing.CAPTURED
        rival = a_hold("A1", buyer="cid")
        driving = (process.driver.advance(payment.id) for process in (town.one, town.other))
        await town.at_once(*driving, town.other.engine.hold(rival))
        ended = (await town.booking(held)).state
        ends.add(ended)
        _, other = await town.one.store.read_booking(rival.booking_id)
        assert (other is None) == (ended is State.CONFIRMED)
        await town.settle_down()
        assert len(town.bank.accounts[ask.payment_id].refunds) == (0 if ended is State.CONFIRMED else 1)
        town.bank.decides = Standing.AUTHORISED
        await town.clear(other or held)
        await town.clear(held)
    assert ends <= {State.CONFIRMED, State.EXPIRED}
