"""A shop and a sandbox bank: two books about the same money, and whether they agree."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from earmark.domain.ids import BookingId, EventId
from earmark.domain.machine import State
from earmark.domain.payment import UNDECIDED, PaymentState
from earmark.engine.asks import Actor, Cancel, Decided, GiveBack, Pay
from earmark.engine.cancel import cancel
from earmark.engine.engine import Engine
from earmark.engine.ports import BookingFilter
from earmark.engine.teller import Teller
from earmark.library import Earmark
from earmark.payments.sandbox.gateway import SandboxGateway
from earmark.payments.sandbox.house import Sandbox
from earmark.payments.sandbox.model import Move, Status

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.engine.gateway import Gateway
    from earmark.engine.ports import Store
    from earmark.uuids import Uuid7Ids

PRICE = 4500
SEATS = tuple(f"{row}{number}" for row in "AB" for number in range(1, 5))
OPEN = UNDECIDED | {PaymentState.AUTHORISED, PaymentState.VOIDING}
CARD = "pm_card_visa"


class World:
    """The bank outlives every process of the shop, as banks do."""

    def __init__(self, store: Store, *, clock: MovableClock, ids: Uuid7Ids, seed: int = 0) -> None:
        self.event = EventId(f"concert-{seed}")
        self.store = store
        self.clock = clock
        self.ids = ids
        self.sandbox = Sandbox(clock, seed=seed)
        self.bank = self.sandbox.bank
        self.gateway: Gateway = SandboxGateway(self.sandbox, patience_seconds=0.05)
        self.actor = Actor(name="test", live=False)
        self.start(store, self.gateway)

    def start(self, store: Store, gateway: Gateway) -> None:
        """A new process of the shop, which knows nothing but what is stored."""
        self.engine = Engine(store, ids=self.ids)
        self.teller = Teller(self.engine, {"sandbox": gateway}, call_seconds_max=1)

    async def open(self, **policy: Any) -> None:
        """Eight seats."""
        seats = dict.fromkeys(SEATS, PRICE)
        library = Earmark(self.engine, live=False)
        await library.create(self.event, name="A concert", currency="EUR", seats=seats, **policy)

    async def hold(self, *seats: str, buyer: str = "alice", ttl: int = 600) -> Booking:
        """Set aside."""
        library = Earmark(self.engine, live=False)
        held = await library.hold(self.event, buyer=buyer, seats=seats, ttl_seconds=ttl)
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

    def ask_to_refund(self, booking: Booking, amount: int) -> GiveBack:
        """A request, which may be sent again."""
        return GiveBack(**self._about(booking), refund_id=self.ids.refund_id(), amount=amount)

    async def pay(self, ask: Pay) -> Any:
        """Pay, and wait for what comes of it."""
        answer = await self.teller.pay(ask, within=30)
        assert isinstance(answer, Decided)
        return answer.value

    async def refund(self, ask: GiveBack) -> Any:
        """Money back."""
        answer = await self.teller.refund(ask, within=30)
        assert isinstance(answer, Decided)
        return answer.value

    async def cancel(self, booking: Booking, *seats: str) -> None:
        """Undo a sale or a part of it, past the line of requests, in which a death would be somebody else's."""
        ask = Cancel(**self._about(booking), seats=frozenset(seats))  # type: ignore[arg-type]
        await self.engine.run(partial(cancel, ids=self.ids), [ask])
        for payment, _ in await self.store.list_payments(booking.id):
            await self.teller.advance(payment.id)

    async def booking(self, booking: Booking) -> Booking:
        """As it is now."""
        _, found = await self.store.read_booking(BookingId(booking.id))
        assert found is not None
        return found

    async def settle(self, *, rounds: int = 40, seconds: float = 310) -> None:
        """Everything heals, time passes, and whoever looks after payments does."""
        self.sandbox.script.clear()
        self.bank.land()
        for _ in range(rounds):
            if (due_in := await self.store.seconds_to_next_payment()) is None:
                break
            self.clock.advance(max(due_in, seconds))
            await self.teller.reconcile(limit=100)
        await self.engine.expire(limit=100)

    async def disagreements(self, *, refunded_by_hand: int = 0) -> list[str]:
        """Where our books, the bookings and the bank's ledger tell different stories. None is right."""
        wrong: list[str] = []
        _, bookings = await self.store.list_bookings(BookingFilter(live=False, limit=10_000, event_id=self.event))
        worth = sum(booking.total for booking in bookings if booking.state is State.CONFIRMED)
        fees = 0
        for booking in bookings:
            fees += await self.fees(booking)
            wrong += await self._wrong_with(booking)
        net = self.bank.total(Move.CAPTURED) - self.bank.total(Move.REFUNDED)
        if net != worth + fees - refunded_by_hand:
            wrong.append(f"the bank took {net}, {worth} is sold, {fees} are fees, {refunded_by_hand} was given back")
        wrong += [
            f"{one.id} is set aside for ever" for one in self.bank.intents() if one.status is Status.REQUIRES_CAPTURE
        ]
        return wrong + [f"{flaw.rule}: {flaw.row}" for flaw in await self.store.find_flaws(limit=10)]

    async def fees(self, booking: Booking) -> int:
        """What its cancellations kept, as the journal tells it."""
        told = [entry.facts.get("payment", {}) for entry in await self.store.read_history(booking.id)]
        return sum(money.get("fee", 0) for money in told)

    async def _wrong_with(self, booking: Booking) -> list[str]:
        wrong: list[str] = []
        payments = await self.store.list_payments(booking.id)
        for payment, _ in payments:
            said = {move: self.bank.total(move, payment_id=str(payment.id)) for move in (Move.CAPTURED, Move.REFUNDED)}
            if said != {Move.CAPTURED: payment.captured, Move.REFUNDED: payment.refunded}:
                wrong.append(f"{payment.id}: the bank says {said}, we say {payment.captured}, {payment.refunded}")
            if payment.state in OPEN or payment.due_at is not None:
                wrong.append(f"{payment.id} is {payment.state} for ever")
        if booking.state is State.PAYING:
            wrong.append(f"{booking.id} is paying for ever")
        kept = sum(payment.captured - payment.refunding for payment, _ in payments)
        if kept > await self.fees(booking) and booking.state is not State.CONFIRMED:
            wrong.append(f"{booking.id} is {booking.state}, and {kept} of its money was kept")
        if booking.state is State.CONFIRMED and not any(payment.captured for payment, _ in payments):
            wrong.append(f"{booking.id} is sold, and nobody paid")
        return wrong

    def _about(self, booking: Booking) -> dict[str, Any]:
        return {"actor": self.actor, "entry_id": self.ids.entry_id(), "booking_id": booking.id}
