"""A bank that keeps books of its own, and the processes that drive payments at it, for the tests of races.

A `Bank` carries each id out once, however often it is called, and counts what it did. Its calls can be stopped
at a barrier before or after they take effect, so that what happens and when we learn of it are two moments. Its books
are compared with ours at the end: what was captured and not refunded is the price of what is sold.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import PaymentId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import Payment, PaymentState, Refund, ReportedState
from earmark.engine.commands_and_results import Decided, Pay, RefundPayment
from earmark.engine.ports.gateway import (
    Callback,
    CallbackRefused,
    Record,
    RefundRecord,
    RefundReport,
    Report,
    ReportedRefundState,
)
from earmark.payments import change_payment_without_report
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.payments.open_and_conclude_payment import open_payment

from .commands import IDS, SHOP
from .support import AS_BUILT, PATIENCE_SECONDS, Server, Shortcut, in_time, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from datetime import datetime
    from random import Random

    from earmark.domain.booking import Booking
    from earmark.engine.commands_and_results import KeyedRequest
    from earmark.engine.engine import Engine
    from earmark.engine.ports.gateway import Order, RefundOrder
    from earmark.engine.ports.store import Store

    from .support import RaceDatabase

WITHIN = PATIENCE_SECONDS
PAYING_IS_OVER = 901.0
ROUNDS_MAX = 40

# Payments outlive the bookings that the shops begin without.
_NO_MONEY = """
    SET session_replication_role = replica;
    DELETE FROM callbacks; DELETE FROM refunds; DELETE FROM payments;
    RESET session_replication_role"""


@dataclass
class Account:
    """One payment, as the bank knows it."""

    amount: int
    state: ReportedState = ReportedState.PROCESSING
    refunds: dict[UUID, int] = field(default_factory=dict)

    @property
    def captured(self) -> int:
        """What was taken."""
        return self.amount if self.state is ReportedState.CAPTURED else 0

    @property
    def kept(self) -> int:
        """What was captured and not refunded."""
        return self.captured - sum(self.refunds.values())


class Barrier:
    """Where calls of one kind stop until the test releases them."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def pass_through(self) -> None:
        """Report that a call waits here, and wait."""
        self.reached.set()
        await in_time(self.opened.wait())


class Bank:
    """A gateway with books. By itself it says yes to everything, at once or after a moment of its own choosing."""

    name = "bank"
    mode = Mode.LIVE

    def __init__(self, *, random: Random | None = None) -> None:
        self.accounts: dict[UUID, Account] = {}
        self.effects: Counter[str] = Counter()
        """How often money was moved, by what was done to whom."""
        self.calls: Counter[str] = Counter()
        self.fails: dict[str, Exception] = {}
        """What a call raises after it has taken effect, by its name, until it is taken out again."""
        self.refuses: dict[str, Exception] = {}
        """What a call raises without an effect."""
        self.decides = ReportedState.AUTHORISED
        """What becomes of a new payment."""
        self.refund_trouble: str | None = None
        """Why no refund is made, now or later."""
        self.forgets = False
        """Whether each order is a new one to it, as with gateways that know no idempotency."""
        self._random = random
        self._doors: dict[str, Barrier] = {}

    def barrier(self, place: str) -> Barrier:
        """Calls stop at this place from now on, such as `before void` or `after status`."""
        return self._doors.setdefault(place, Barrier())

    def open_all(self) -> None:
        """Release all calls, from now on."""
        for barrier in self._doors.values():
            barrier.opened.set()
        self._doors.clear()

    async def authorise(self, order: Order) -> Report:
        """The same order again is the same payment."""
        await self._begin("authorise", order)
        if self.forgets or order.payment_id not in self.accounts:
            decided = (
                ReportedState.CAPTURED if order.automatic and self.decides is ReportedState.AUTHORISED else self.decides
            )
            self.accounts[order.payment_id] = Account(amount=order.amount, state=decided)
            self.effects[f"authorise {order.payment_id}"] += 1
        return await self._end("authorise", order)

    async def capture(self, order: Order) -> Report:
        """Once."""
        await self._begin("capture", order)
        self._move(order, ReportedState.CAPTURED, "capture", only_from={ReportedState.AUTHORISED})
        return await self._end("capture", order)

    async def void(self, order: Order) -> Report:
        """What is captured stays captured, and the report shows that."""
        await self._begin("void", order)
        self._move(order, ReportedState.VOIDED, "void", only_from={ReportedState.AUTHORISED, ReportedState.PROCESSING})
        return await self._end("void", order)

    async def status(self, order: Order) -> Report:
        """As it stands."""
        await self._begin("status", order)
        return await self._end("status", order)

    async def refund(self, refund: RefundOrder) -> RefundReport:
        """The same refund again is the same refund; more than is left is refused."""
        await self._begin("refund", refund.payment)
        account = self.accounts[refund.payment.payment_id]
        if refund.refund_id not in account.refunds:
            if self.refund_trouble or refund.amount > account.kept:
                return RefundReport(state=ReportedRefundState.REFUSED, code=self.refund_trouble or "too_much")
            account.refunds[refund.refund_id] = refund.amount
            self.effects[f"refund {refund.refund_id}"] += 1
        await self._pause("refund")
        return RefundReport(state=ReportedRefundState.DONE, gateway_id=f"re-{refund.refund_id}")

    async def refund_status(self, refund: RefundOrder) -> RefundReport | None:
        """By our id."""
        made = refund.refund_id in self.accounts[refund.payment.payment_id].refunds
        return RefundReport(state=ReportedRefundState.DONE) if made else None

    async def list_refunds(self, order: Order) -> list[RefundRecord]:
        """No refund is made elsewhere."""
        return [
            RefundRecord(
                refund_id=refund_id, gateway_id=f"re-{refund_id}", amount=amount, state=ReportedRefundState.DONE
            )
            for refund_id, amount in self.accounts[order.payment_id].refunds.items()
        ]

    async def whose(self, gateway_id: str) -> UUID | None:
        """By the ids that it gives."""
        return UUID(gateway_id.removeprefix("pi-"))

    def read_callback(self, headers: Mapping[str, str], body: bytes) -> Callback:
        """Callbacks are made by the tests."""
        raise CallbackRefused(f"{len(headers)} headers, {len(body)} bytes")

    async def books(self, *, since: datetime) -> AsyncIterator[Record]:  # noqa: ARG002 (it was opened this morning)
        """All of them."""
        for payment_id, account in self.accounts.items():
            yield Record(
                payment_id=payment_id,
                gateway_id=f"pi-{payment_id}",
                state=account.state,
                currency="EUR",
                captured=account.captured,
                refunded=account.captured - account.kept,
            )

    async def close(self) -> None:
        """It has nothing to close."""

    def _move(self, order: Order, to: ReportedState, name: str, *, only_from: set[ReportedState]) -> None:
        account = self.accounts.get(order.payment_id)
        if account is not None and account.state in only_from:
            account.state = to
            self.effects[f"{name} {order.payment_id}"] += 1

    async def _begin(self, call: str, order: Order) -> None:
        self.calls[f"{call} {order.payment_id}"] += 1
        if barrier := self._doors.get(f"before {call}"):
            await barrier.pass_through()
        await self._delay()
        if refused := self.refuses.get(call):
            raise refused

    async def _end(self, call: str, order: Order) -> Report:
        report = self._report(order.payment_id)
        await self._pause(call)
        return report

    async def _pause(self, call: str) -> None:
        """The effect is done; the answer is delayed."""
        failed = self.fails.get(call)
        if barrier := self._doors.get(f"after {call}"):
            await barrier.pass_through()
        await self._delay()
        if failed:
            raise failed

    async def _delay(self) -> None:
        if self._random is not None:
            await asyncio.sleep(self._random.uniform(0, 0.004))

    def _report(self, payment_id: UUID) -> Report:
        account = self.accounts.get(payment_id)
        if account is None:
            return Report(state=ReportedState.ABSENT)
        code = "card_declined" if account.state is ReportedState.DECLINED else None
        return Report(state=account.state, gateway_id=f"pi-{payment_id}", captured=account.captured, code=code)


class PaymentProcess:
    """One process that drives payments: an engine over a store of its own, and its payment driver."""

    def __init__(self, server: Server, bank: Bank) -> None:
        self.server = server
        self.driver = PaymentDriver(server.engine, {bank.name: bank})

    def drive(self, payment: Payment) -> Server:
        """Start to drive a payment as far as it goes."""
        return self.server._begin(self.driver.advance(payment.id))

    def deliver_callback(self, payment: Payment, *, callback_id: str = "evt-1") -> Server:
        """Start to handle a callback."""
        return self.server._begin(self.driver.receive_callback("bank", a_callback(payment, id=callback_id)))

    def give_up(self, about: Any) -> Server:
        """Start to give a payment up."""
        work = partial(change_payment_without_report.give_up, about=about, ids=IDS)
        return self.server._begin(self.server.store.transact(work, within=WITHIN))


class Shop:
    """A shop together with a bank."""

    def __init__(self, database: RaceDatabase) -> None:
        self.database = database
        self.bank = Bank()
        self.first: PaymentProcess

    @classmethod
    async def open(cls, database: RaceDatabase) -> Shop:
        """Remove the payments of earlier tests."""
        await database.observer.execute(_NO_MONEY)
        opened = cls(database)
        opened.first = await opened.payment_process()
        return opened

    async def close(self) -> None:
        """Leave no payment behind, and no call that waits at a barrier."""
        self.bank.open_all()
        await self.first.driver.close()
        await self.database.observer.execute(_NO_MONEY)

    async def payment_process(self, *stops: str, shortcut: Shortcut = AS_BUILT) -> PaymentProcess:
        """A new process, which stops at these places."""
        return PaymentProcess(await self.database.server(*stops, shortcut=shortcut), self.bank)

    async def opened(self, booking: Booking, *, automatic: bool = False) -> Payment:
        """A payment that was recorded; the bank was not called yet."""
        return await opened(self.first.server.engine, a_pay(booking, automatic=automatic))

    async def lost(self, *seats: str, buyer: str = "ann", units: int = 0) -> tuple[Booking, Payment]:
        """A booking whose payment was not decided in time: expired, and the payment is to be voided."""
        held = await self.database.held(*seats, buyer=buyer, units=units)
        payment = await self.opened(held)
        self.database.clock.advance(PAYING_IS_OVER)
        given_up = await self.first.give_up(await self.payment_with_refunds(payment)).outcome()
        assert given_up.state is PaymentState.VOIDING, repr(given_up)
        assert await self.database.state(held) == "expired"
        return held, given_up

    async def taken_late(self, *seats: str, buyer: str = "ann", units: int = 0) -> tuple[Booking, Payment]:
        """A lost booking whose money the bank has taken all the same; no process knows of it yet."""
        booking, payment = await self.lost(*seats, buyer=buyer, units=units)
        self.bank.accounts[payment.id] = Account(amount=payment.amount, state=ReportedState.CAPTURED)
        return booking, payment

    async def sold(self, *seats: str, buyer: str = "ann") -> tuple[Booking, Payment]:
        """Paid and sold."""
        held = await self.database.held(*seats, buyer=buyer)
        payment = await self.opened(held)
        done = await self.first.drive(payment).outcome()
        assert done.state is PaymentState.CAPTURED, repr(done)
        return held, done

    async def payment_with_refunds(self, payment: Payment) -> Any:
        """A payment and what belongs to it."""
        about = await self.first.server.store.read_payment_snapshot(payment.id)
        assert about is not None
        return about

    async def payment(self, payment: Payment) -> Payment:
        """As it is now."""
        found: Payment = (await self.payment_with_refunds(payment)).payment
        return found

    async def refunds(self, payment: Payment) -> list[Refund]:
        """Its refunds."""
        return list((await self.payment_with_refunds(payment)).refunds)

    async def until_called(self, call: str, payment: Payment, *, times: int) -> None:
        """Return once the bank was called so often."""
        await until(lambda: self.bank.calls[f"{call} {payment.id}"] >= times)

    async def settle_down(self) -> None:
        """Let time pass and the reconciler look, until nothing is left to do."""
        await reconcile(self.first.server.store, self.database.clock, self.first.driver)

    async def assert_books_agree(self) -> None:
        """The bank has the price of what is sold, and of nothing else."""
        await assert_books_agree(self.first.server.store, self.bank)


async def opened(engine: Engine, ask: Pay) -> Payment:
    """Record a payment; the bank is not called yet."""
    answer = await open_payment(engine, ask)
    assert isinstance(answer, Decided), repr(answer)
    payment: Payment = answer.value.payment
    return payment


async def reconcile(store: Store, clock: Any, *drivers: PaymentDriver) -> None:
    """Let time pass and the reconcilers look, all at once, until no payment is under way."""
    for _ in range(ROUNDS_MAX):
        seconds = await store.seconds_to_next_payment()
        if seconds is None:
            return
        clock.advance(max(seconds, 0) + 1)
        await asyncio.gather(*(driver.reconcile(limit=100) for driver in drivers))
    raise AssertionError("a payment is under way for ever")


async def assert_books_agree(store: Store, bank: Bank) -> None:
    """For each payment: what the bank has is what its booking costs, if that is sold for it, and else nothing."""
    for payment_id, account in bank.accounts.items():
        about = await store.read_payment_snapshot(PaymentId(payment_id))
        assert about is not None, f"the bank has {payment_id}, which the store does not know"
        payment, booking = about.payment, about.booking
        assert (payment.captured, payment.refunded) == (account.captured, account.captured - account.kept)
        is_sold = booking.state is State.CONFIRMED and booking.payment_id == str(payment_id)
        assert account.kept == (booking.total if is_sold else 0), f"{booking.state} and {payment.state}: {account}"
        assert account.state in {ReportedState.CAPTURED, ReportedState.VOIDED, ReportedState.DECLINED}
    assert not await store.find_flaws(limit=20)


def a_pay(
    booking: Booking,
    *,
    payment_id: PaymentId | None = None,
    automatic: bool = False,
    idempotency: KeyedRequest | None = None,
) -> Pay:
    """A payment for a hold."""
    return Pay(
        actor=SHOP,
        entry_id=IDS.entry_id(),
        booking_id=booking.id,
        payment_id=payment_id or IDS.payment_id(),
        gateway="bank",
        method="card",
        automatic=automatic,
        idempotency=idempotency,
    )


def a_refund(booking: Booking, amount: int) -> RefundPayment:
    """A refund."""
    return RefundPayment(
        actor=SHOP, entry_id=IDS.entry_id(), booking_id=booking.id, refund_id=IDS.refund_id(), amount=amount
    )


def a_callback(payment: Payment, *, id: str) -> Callback:  # noqa: A002 (the gateway's word)
    """The bank's callback about a payment."""
    return Callback(id=id, kind="changed", mode=Mode.LIVE, payment_id=payment.id)
