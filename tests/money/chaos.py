"""Random buyers at a shop whose bank misbehaves and whose clock jumps: what happens is drawn from one seed."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.money.world import SEATS, World

from earmark.domain.machine import State
from earmark.domain.payment import PaymentState
from earmark.engine.teller import CallbackMismatch
from earmark.errors import EarmarkError
from earmark.library import Earmark
from earmark.payments.sandbox.faults import Fault
from earmark.payments.sandbox.model import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.engine.ports import Store
    from earmark.uuids import Uuid7Ids

METHODS = (
    *["pm_card_visa"] * 6,
    "pm_card_declined",
    "pm_card_insufficient_funds",
    "pm_card_processing",
    "pm_card_authenticationRequired",
    "pm_card_capture_fail",
)
OF_CALLS = (
    Fault.ERROR_BEFORE,
    Fault.ERROR_AFTER,
    Fault.REPLY_LOST,
    Fault.RATE_LIMIT,
    Fault.HANG,
    Fault.HANG_AFTER,
    Fault.LATE_SUCCESS,
)
OF_CALLBACKS = (Fault.DUPLICATE, Fault.REORDER, Fault.DELAY, Fault.LOSE)
STEPS = 40
RULES: tuple[dict[str, int], ...] = (
    {},
    {"refund_fee_percent": 7, "refund_fee_fixed": 99},
    {"refund_fee_percent": 10, "refund_until_seconds": 3600},
)
"""How the events of the seeds give money back, in turn."""
STARTS_IN = timedelta(hours=2)


class Chaos:
    """One seed's worth of it."""

    def __init__(self, store: Store, *, clock: MovableClock, ids: Uuid7Ids, seed: int) -> None:
        self.seen: Counter[str] = Counter()
        self._random = random.Random(seed)  # noqa: S311 (a seed that tells the same story again)
        self.world = World(store, clock=clock, ids=ids, seed=seed)
        self.world.sandbox.courier.deliver = self._take
        self._bookings: list[Booking] = []
        self._rules: dict[str, Any] = dict(RULES[seed % len(RULES)])
        if "refund_until_seconds" in self._rules:
            self._rules["starts_at"] = clock.now() + STARTS_IN

    async def run(self) -> list[str]:
        """Everything at once, then peace; what does not agree in the end."""
        await self.world.open(**self._rules)
        script = self.world.sandbox.script
        for fault in OF_CALLS:
            script.add(fault, probability=0.04, times=None, seconds=self._random.choice([None, 30, 2000]))
        for call in ("authorise", "capture"):
            # A refund that is refused for good is a human's to settle, and has a test of its own.
            script.add(Fault.DECLINE, call, probability=0.05, times=None)
        for fault in OF_CALLBACKS:
            script.add(fault, probability=0.15, times=None, seconds=self._random.choice([1, 600]))
        acts = (
            self._buy,
            self._buy,
            self._buy,
            self._pass_time,
            self._look_after,
            self._undo,
            self._decide,
            self._call,
        )
        for _ in range(STEPS):
            try:
                await self._random.choice(acts)()
            except EarmarkError as refused:
                self.seen[refused.code] += 1
        await self._make_peace()
        await self._count()
        return await self.world.disagreements()

    async def _buy(self) -> None:
        seats = self._random.sample(SEATS, self._random.randint(1, 3))
        buyer = f"buyer {self._random.randint(1, 4)}"
        held = await self.world.hold(*seats, buyer=buyer, ttl=self._random.choice([5, 600, 1700]))
        self._bookings.append(held)
        await self._pay(held)

    async def _pay(self, booking: Booking) -> None:
        method = self._random.choice(METHODS)
        ask = self.world.ask_to_pay(booking, method=method, automatic=self._random.random() < 0.3)
        paid = await self.world.pay(ask)
        self.seen[f"first {paid.payment.state}"] += 1
        if self._random.random() < 0.3:
            await self.world.pay(ask)

    async def _undo(self) -> None:
        if not self._bookings:
            return
        booking = await self.world.booking(self._random.choice(self._bookings))
        if booking.state is State.CONFIRMED:
            whole = self._random.random() < 0.6
            seats = [] if whole else [self._random.choice(booking.lines.seats).id]
            await self.world.cancel(booking, *seats)
        elif booking.state is State.HELD and self._random.random() < 0.5:
            await self._pay(booking)
        else:
            await Earmark(self.world.engine, live=False).release(booking.id)

    async def _pass_time(self) -> None:
        """Mostly forward, and now and then back."""
        self.world.clock.advance(self._random.choice([1, 10, 300, 1000, 4000, -60]))

    async def _look_after(self) -> None:
        await self.world.teller.reconcile(limit=10)
        await self.world.engine.expire(limit=10)

    async def _call(self) -> None:
        await self.world.sandbox.courier.send_due(flush=self._random.random() < 0.3)

    async def _take(self, headers: Mapping[str, str], body: bytes) -> None:
        callback = self.world.gateway.read_callback(headers, body)
        try:
            taken = await self.world.teller.hear("sandbox", callback)
        except CallbackMismatch:
            self.seen["mismatch"] += 1
            raise
        self.seen["callback" if taken else "callback of nobody"] += 1

    async def _decide(self) -> None:
        """Banks and buyers make up their minds, about some."""
        for intent in self.world.bank.intents():
            if self._random.random() < 0.5:
                self._end(intent.id, intent.status)

    def _end(self, intent_id: str, status: Status) -> None:
        succeed = self._random.random() < 0.7
        if status is Status.PROCESSING:
            self.world.bank.decide(intent_id, succeed=succeed)
        elif status is Status.REQUIRES_ACTION:
            self.world.bank.act(intent_id, succeed=succeed)

    async def _make_peace(self) -> None:
        """Nothing goes wrong any more, everybody decides, and the reconciler has a day."""
        self.world.sandbox.script.clear()
        for _ in range(3):
            self.world.bank.land()
            for intent in self.world.bank.intents():
                self._end(intent.id, intent.status)
            await self.world.settle()
            await self.world.sandbox.courier.send_due(flush=True)
        await self.world.settle()

    async def _count(self) -> None:
        for booking in self._bookings:
            self.seen[f"booking {(await self.world.booking(booking)).state}"] += 1
            for entry in await self.world.store.read_history(booking.id):
                if "fee" in (money := entry.facts.get("payment", {})):
                    self.seen[f"cancelled {money['reason']}{' with a fee' if money['fee'] else ''}"] += 1
            for payment, refunds in await self.world.store.list_payments(booking.id):
                self.seen[f"payment {payment.state}"] += 1
                self.seen["refunds"] += len(refunds)
                late = payment.state in {PaymentState.CAPTURED, PaymentState.REFUNDED} and not payment.due_at
                self.seen["money settled"] += late
