"""Random buyers at a shop whose bank misbehaves and whose clock jumps: what happens is drawn from one seed."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.money.balance_check import account_of
from tests.money.shop_and_bank import PRICES, SEATS, World

from earmark.domain.booking_state_machine import State
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import EarmarkError
from earmark.library import Earmark
from earmark.payments.apply_payment_report import LATE
from earmark.payments.drive_payment_to_its_end import CallbackMismatch
from earmark.sandbox.faults import Fault
from earmark.sandbox.model import IntentStatus, RefundStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.engine.ports.store import Store
    from earmark.sandbox.model import BankIntent, BankRefund
    from earmark.uuids import Uuid7Ids

METHODS = (
    *["pm_card_visa"] * 6,
    "pm_card_declined",
    "pm_card_insufficient_funds",
    "pm_card_processing",
    "pm_card_authenticationRequired",
    "pm_card_capture_fail",
    "pm_card_refund_pending",
    "pm_card_refund_fail",
)
OF_CALLS = (
    Fault.ERROR_BEFORE,
    Fault.ERROR_AFTER,
    Fault.REPLY_LOST,
    Fault.RATE_LIMIT,
    Fault.HANG,
    Fault.HANG_AFTER,
    Fault.LATE_SUCCESS,
    Fault.SLOW,
    Fault.SLOW_AFTER,
)
OF_CALLBACKS = (Fault.DUPLICATE, Fault.REORDER, Fault.DELAY, Fault.LOSE)
SLOW_SECONDS = 0.08
"""By the loop's time: longer than the shop is patient, so that what it gave up happens all the same."""
STEPS = 40
RULES: tuple[dict[str, int], ...] = (
    {},
    {"refund_fee_percent": 7, "refund_fee_fixed": 99},
    {"refund_fee_percent": 10, "refund_until_seconds": 3600},
)
"""How the events of the seeds give money back, in turn."""
STARTS_IN = timedelta(hours=2)
RECLAIMED = "late money, and everything was still free"


class Chaos:
    """One seed's worth of it."""

    def __init__(self, store: Store, *, clock: MovableClock, ids: Uuid7Ids, seed: int) -> None:
        self.seen: Counter[str] = Counter()
        self._random = random.Random(seed)  # noqa: S311 (a seed that tells the same story again)
        self.world = World(store, clock=clock, ids=ids, seed=seed)
        self.world.sandbox.callbacks.deliver = self._take
        self._bookings: list[Booking] = []
        self._rules: dict[str, Any] = dict(RULES[seed % len(RULES)])
        if "refund_until_seconds" in self._rules:
            self._rules["starts_at"] = clock.now() + STARTS_IN

    async def run(self) -> list[str]:
        """Everything at once, then no more faults; what does not agree in the end."""
        await self.world.open(*PRICES, **self._rules)
        self._disturb()
        acts = (
            *[self._buy] * 4,
            self._pass_time,
            self._look_after,
            self._undo,
            self._undo,
            self._give_back,
            self._decide,
            self._call,
        )
        for _ in range(STEPS):
            self.seen["acts"] += 1
            try:
                await self._random.choice(acts)()
            except EarmarkError as refused:
                self.seen[refused.code] += 1
        await self._end_all_faults()
        await self._count()
        return await self.world.disagreements()

    def _disturb(self) -> None:
        """Everything that the bank can do wrong, now and then."""
        script = self.world.sandbox.script
        for fault in OF_CALLS:
            slow = fault in {Fault.SLOW, Fault.SLOW_AFTER}
            seconds = SLOW_SECONDS if slow else self._random.choice([None, 30, 2000])
            script.add(fault, probability=0.04, times=None, seconds=seconds)
        script.add(Fault.LATE_SUCCESS, "authorise", probability=0.06, times=None, seconds=2000)
        script.add(Fault.DECLINE, probability=0.05, times=None)
        for fault in OF_CALLBACKS:
            script.add(fault, probability=0.15, times=None, seconds=self._random.choice([1, 600]))

    async def _buy(self) -> None:
        seats = self._random.sample(SEATS, self._random.randint(0, 3))
        held = await self.world.hold(
            *seats,
            units=self._random.randint(0 if seats else 1, 2),
            currency=self._random.choice(list(PRICES)),
            buyer=f"buyer {self._random.randint(1, 4)}",
            ttl=self._random.choice([5, 600, 1700]),
        )
        self._bookings.append(held)
        await self._pay(held)

    async def _pay(self, booking: Booking) -> None:
        method = self._random.choice(METHODS)
        ask = self.world.ask_to_pay(booking, method=method, automatic=self._random.random() < 0.5)
        paid = await self.world.pay(ask)
        self.seen[f"first {paid.payment.state}"] += 1
        if self._random.random() < 0.3:
            await self.world.pay(ask)

    async def _undo(self) -> None:
        if not self._bookings:
            return
        booking = await self.world.booking(self._random.choice(self._bookings))
        if booking.state is State.CONFIRMED:
            await self._cancel(booking)
        elif booking.state is State.HELD and self._random.random() < 0.5:
            await self._pay(booking)
        else:
            await Earmark(self.world.engine, mode=Mode.TEST).release(booking.id)

    async def _cancel(self, booking: Booking) -> None:
        """All of it, a seat, or a unit."""
        lines = booking.lines
        if self._random.random() < 0.5 or lines.units == 1:
            await self.world.cancel(booking)
        elif lines.pools and self._random.random() < 0.5:
            await self.world.cancel(booking, units=1)
            self.seen["cancelled a unit"] += 1
        elif lines.seats:
            await self.world.cancel(booking, self._random.choice(lines.seats).id)
            self.seen["cancelled a seat"] += 1

    async def _give_back(self) -> None:
        """A refund by an operator of some money of a sale: at times more than there is."""
        sold = [booking for booking in self._bookings if await self._is_sold(booking)]
        if sold:
            booking = self._random.choice(sold)
            amount = self._random.randint(1, booking.total)
            await self.world.refund(self.world.ask_to_refund(booking, amount))
            self.seen["given back by hand"] += 1

    async def _is_sold(self, booking: Booking) -> bool:
        return (await self.world.booking(booking)).state is State.CONFIRMED

    async def _pass_time(self) -> None:
        """Mostly forward, and now and then back."""
        self.world.clock.advance(self._random.choice([1, 10, 300, 1000, 4000, -60]))

    async def _look_after(self) -> None:
        await self.world.driver.reconcile(limit=10)
        await self.world.engine.expire(limit=10)

    async def _call(self) -> None:
        await self.world.sandbox.callbacks.send_due(flush=self._random.random() < 0.3)

    async def _take(self, headers: Mapping[str, str], body: bytes) -> None:
        callback = self.world.gateway.read_callback(headers, body)
        try:
            taken = await self.world.driver.receive_callback("sandbox", callback)
        except CallbackMismatch:
            self.seen["mismatch"] += 1
            raise
        self.seen["callback" if taken else "callback refused"] += 1

    async def _decide(self) -> None:
        """Banks and buyers decide about some payments; some of what was refused is captured after all."""
        for one in self._waiting():
            if self._random.random() < 0.5:
                self._end(one)
        if self._random.random() < 0.3:
            self.world.bank.land()

    def _waiting(self) -> list[BankIntent | BankRefund]:
        """What the bank or its buyers may have to decide."""
        return [*self.world.bank.intents(), *self.world.bank.refunds()]

    def _end(self, one: BankIntent | BankRefund) -> None:
        succeed = self._random.random() < 0.7
        if one.status in {IntentStatus.PROCESSING, RefundStatus.PENDING}:
            self.world.bank.decide(one.id, succeed=succeed)
        elif one.status is IntentStatus.REQUIRES_ACTION:
            self.world.bank.act(one.id, succeed=succeed)

    async def _end_all_faults(self) -> None:
        """Nothing goes wrong any more, every bank and buyer decides, and the reconciler has a day."""
        self.world.sandbox.script.clear()
        await self.world.quiet()
        for _ in range(3):
            self.world.bank.land()
            for one in self._waiting():
                self._end(one)
            await self.world.settle()
            await self.world.sandbox.callbacks.send_due(flush=True)
        await self.world.settle()

    async def _count(self) -> None:
        self.seen["seeds"] += 1
        for call in self.world.sandbox.pipeline.calls:
            self.seen[f"fault {call.fault}"] += call.fault is not None
        for letter in self.world.sandbox.callbacks.deliveries:
            self.seen[f"fault {letter.fault}"] += letter.fault is not None
        for held in self._bookings:
            account = await account_of(self.world, await self.world.booking(held))
            self.seen[f"booking {account.booking.state}"] += 1
            self.seen[f"sold in {account.booking.currency}"] += account.worth > 0
            for entry in await self.world.store.read_history(held.id):
                self.seen["re-claims"] += entry.reason == RECLAIMED
                if "fee" in (money := entry.facts.get("payment", {})):
                    self.seen[f"cancelled {money['reason']}{' with a fee' if money['fee'] else ''}"] += 1
            for payment, refunds in account.payments:
                self.seen[f"payment {payment.state}"] += 1
                for refund in refunds:
                    self.seen["refunds"] += 1
                    self.seen[f"refund {refund.state}"] += 1
                    self.seen["late refunds"] += refund.reason == LATE
