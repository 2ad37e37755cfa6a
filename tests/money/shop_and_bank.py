"""A shop and a sandbox bank, which outlives every process of the shop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.money import balance_check

from earmark.domain.id_types import BookingId, EventId, PoolId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor, Cancel, Decided, Pay, RefundPayment
from earmark.engine.engine import Engine
from earmark.engine.verbs.cancel import cancel
from earmark.errors import EarmarkError
from earmark.library import Earmark
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.sandbox.assemble_sandbox import Sandbox
from earmark.sandbox.gateway import SandboxGateway

if TYPE_CHECKING:
    from collections.abc import Iterable

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.engine.ports.gateway import Gateway
    from earmark.engine.ports.store import Store
    from earmark.uuids import Uuid7Ids

PRICE = 4500
SEATS = tuple(f"{row}{number}" for row in "AB" for number in range(1, 5))
POOL = "GA"
PRICES = {"EUR": PRICE, "JPY": 1203}
"""Of a seat, in each currency. Yen have no smaller unit, and this price has fees that are rounded."""
CARD = "pm_card_visa"


class World:
    """The bank outlives every process of the shop, as banks do."""

    def __init__(self, store: Store, *, clock: MovableClock, ids: Uuid7Ids, seed: int = 0) -> None:
        self.seed = seed
        self.events: dict[str, EventId] = {}
        """What is sold in which currency."""
        self.store = store
        self.clock = clock
        self.ids = ids
        self.sandbox = Sandbox(clock, seed=seed)
        self.bank = self.sandbox.bank
        self.gateway = SandboxGateway(self.sandbox, timeout_seconds=0.05)
        self.actor = Actor(name="test", mode=Mode.TEST)
        self.start(store, self.gateway)

    def start(self, store: Store, gateway: Gateway) -> None:
        """A new process of the shop, which knows nothing but what is stored."""
        self.engine = Engine(store, ids=self.ids)
        self.driver = PaymentDriver(self.engine, {"sandbox": gateway}, call_seconds_max=1)

    async def open(self, *currencies: str, seats: Iterable[str] = SEATS, **policy: Any) -> None:
        """These seats and six standing, for each of the currencies."""
        library = Earmark(self.engine, mode=Mode.TEST)
        for currency in currencies or ("EUR",):
            price = PRICES[currency]
            event = EventId(f"concert-{self.seed}-{currency.lower()}")
            prices, pools = dict.fromkeys(seats, price), {POOL: (6, price - price // 3)}
            await library.create_event(event, name="A concert", currency=currency, seats=prices, pools=pools, **policy)
            self.events[currency] = event

    async def hold(
        self,
        *seats: str,
        currency: str = "EUR",
        buyer: str = "alice",
        ttl: int = 600,
        units: int = 0,
    ) -> Booking:
        """Set aside."""
        library = Earmark(self.engine, mode=Mode.TEST)
        event, pools = self.events[currency], {POOL: units} if units else {}
        held = await library.hold(event, buyer=buyer, seats=seats, pools=pools, ttl_seconds=ttl)
        _, booking = await self.engine.store.read_booking(BookingId(UUID(held.id)))
        assert booking is not None
        return booking

    def ask_to_pay(self, booking: Booking, *, method: str = CARD, automatic: bool = False) -> Pay:
        """A request, which may be sent again."""
        return Pay(
            **self._about(booking),
            payment_id=self.ids.payment_id(),
            gateway="sandbox",
            method=method,
            automatic=automatic,
        )

    def ask_to_refund(self, booking: Booking, amount: int) -> RefundPayment:
        """A request, which may be sent again."""
        return RefundPayment(
            **self._about(booking), refund_id=self.ids.refund_id(), amount=amount, reason=balance_check.BY_HAND
        )

    async def pay(self, ask: Pay) -> Any:
        """Pay, and wait for what comes of it."""
        answer = await self.driver.open_and_drive(ask, within=30)
        assert isinstance(answer, Decided)
        return answer.value

    async def refund(self, ask: RefundPayment) -> Any:
        """Money back."""
        answer = await self.driver.refund(ask, within=30)
        assert isinstance(answer, Decided)
        return answer.value

    async def cancel(self, booking: Booking, *seats: str, units: int = 0) -> None:
        """Cancel a sale or a part of it, past the queue of requests, where a kill would hit another request."""
        pools = {PoolId(POOL): units} if units else {}
        ask = Cancel(**self._about(booking), seats=frozenset(map(SeatId, seats)), pools=pools)
        [outcome] = await self.engine.run(cancel, lambda: [ask])
        if isinstance(outcome, EarmarkError):
            raise outcome
        for payment, _ in await self.store.list_payments(booking.id):
            await self.driver.advance(payment.id)

    async def booking(self, booking: Booking) -> Booking:
        """As it is now."""
        _, found = await self.store.read_booking(BookingId(booking.id))
        assert found is not None
        return found

    async def settle(self, *, rounds: int = 40, seconds: float = 310) -> None:
        """All faults end, time passes, and the reconciler looks at every payment."""
        self.sandbox.script.clear()
        self.bank.land()
        for _ in range(rounds):
            if (due_in := await self.store.seconds_to_next_payment()) is None:
                break
            self.clock.advance(max(due_in, seconds))
            await self.driver.reconcile(limit=100)
        await self.engine.expire(limit=100)

    async def quiet(self) -> None:
        """The bank has ended the calls whose caller waits no longer."""
        while calls := self.gateway._running:
            await asyncio.wait(calls)

    async def disagreements(self) -> list[str]:
        """Where our books, the bookings and the bank's ledger differ; none if all is right."""
        return await balance_check.disagreements(self)

    def _about(self, booking: Booking) -> dict[str, Any]:
        return {"actor": self.actor, "entry_id": self.ids.entry_id(), "booking_id": booking.id}
