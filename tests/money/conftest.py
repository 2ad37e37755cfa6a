"""A shop with one concert, on each of the stores, and a gateway that takes its money."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.conftest import STORES_SAMPLED, store_of
from tests.journal_completeness import JournalComparison
from tests.money.scripted_gateway import ScriptedGateway

from earmark.domain.id_types import BookingId, EventId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor, Cancel, ChangeEvent, Decided, Pay, RefundPayment, SeatPatch
from earmark.engine.engine import Engine
from earmark.library import Earmark
from earmark.payments.drive_payment_to_its_end import PaymentDriver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.domain.payment import Payment
    from earmark.engine.commands_and_results import CancelResult, PayResult
    from earmark.engine.ports.store import SeatMap, Store
    from earmark.uuids import Uuid7Ids

PRICE = 4500


@pytest.fixture(params=STORES_SAMPLED)
def store(request: pytest.FixtureRequest, clock: MovableClock) -> Store:
    """Each of these stores in turn."""
    return store_of(request, clock=clock)


class Shop:
    """The verbs with short arguments."""

    def __init__(self, store: Store, *, ids: Uuid7Ids, clock: MovableClock) -> None:
        self.store = store
        self.clock = clock
        self.engine = Engine(store, ids=ids)
        self.gateway = ScriptedGateway()
        self.driver = PaymentDriver(self.engine, {"scripted": self.gateway})
        self.actor = Actor(name="test", mode=Mode.LIVE)

    async def open_another(self, event: str, *, seats: dict[str, int] | None = None, **policy: Any) -> None:
        """Four seats and three standing."""
        seats = seats or dict.fromkeys(("A1", "A2", "A3", "A4"), PRICE)
        library = Earmark(self.engine)
        await library.create_event(event, name="A show", currency="EUR", seats=seats, pools={"GA": (3, 2500)}, **policy)

    async def hold(
        self,
        *seats: str,
        event: str = "concert",
        buyer: str = "alice",
        ttl: int = 1700,
        pools: dict[str, int] | None = None,
    ) -> Booking:
        """Set aside."""
        library = Earmark(self.engine)
        held = await library.hold(event, buyer=buyer, seats=seats, pools=pools, ttl_seconds=ttl)
        _, booking = await self.store.read_booking(BookingId(UUID(held.id)))
        assert booking is not None
        return booking

    async def map(self) -> SeatMap:
        """The seats and their bookings."""
        return await self.store.read_map(EventId("concert"))

    async def change(self, *, blocked: str | None = None, **fields: Any) -> None:
        """What an operator does meanwhile."""
        seats = (SeatPatch(id=SeatId(blocked), blocked=True),) if blocked else ()
        entry_id = self.engine.ids.entry_id()
        ask = ChangeEvent(actor=self.actor, entry_id=entry_id, event_id=EventId("concert"), fields=fields, seats=seats)
        await self.engine.change_event(ask)

    async def pay(self, booking: Booking, **how: Any) -> PayResult:
        """Pay, and wait for what comes of it."""
        told: dict[str, Any] = {
            "payment_id": self.engine.ids.payment_id(),
            "gateway": "scripted",
            "method": "card",
        } | how
        ask = Pay(actor=self.actor, entry_id=self.engine.ids.entry_id(), booking_id=booking.id, **told)
        answer = await self.driver.open_and_drive(ask, within=30)
        assert isinstance(answer, Decided)
        paid: PayResult = answer.value
        return paid

    async def cancel(self, booking: Booking, **how: Any) -> Booking:
        """Cancel a sale; its refund is under way."""
        ask = Cancel(actor=self.actor, entry_id=self.engine.ids.entry_id(), booking_id=booking.id, **how)
        answer = await self.engine.cancel(ask)
        assert isinstance(answer, Decided)
        undone: CancelResult = answer.value
        self.undone = undone
        return undone.booking

    async def refund(self, booking: Booking, amount: int) -> PayResult:
        """Money back."""
        ask = RefundPayment(
            actor=self.actor,
            entry_id=self.engine.ids.entry_id(),
            booking_id=booking.id,
            refund_id=self.engine.ids.refund_id(),
            amount=amount,
        )
        answer = await self.driver.refund(ask, within=30)
        assert isinstance(answer, Decided)
        paid: PayResult = answer.value
        return paid

    def about(self, booking: Booking) -> dict[str, Any]:
        """The fields of every command about a booking."""
        return {"actor": self.actor, "entry_id": self.engine.ids.entry_id(), "booking_id": booking.id}

    async def booking(self, booking: Booking) -> Booking:
        """As it is now."""
        _, found = await self.store.read_booking(BookingId(booking.id))
        assert found is not None
        return found

    async def payment(self, booking: Booking) -> Payment:
        """The one payment of a booking, as it is now."""
        [(payment, _)] = await self.store.list_payments(booking.id)
        return payment

    async def reconcile(self, *, seconds: float = 0, rounds: int = 10) -> None:
        """Let time pass, and let the reconciler look at each payment that is due, until none is."""
        self.clock.advance(seconds)
        for _ in range(rounds):
            if not await self.driver.reconcile(limit=100):
                return


@pytest.fixture(autouse=True)
def the_journal_is_whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[JournalComparison]:
    """For every verb that a test runs on the memory store: the journal has each changed field, before and after."""
    watch = JournalComparison()
    watch.install(monkeypatch)
    yield watch
    assert watch.untold == []


@pytest.fixture
async def shop(store: Store, ids: Uuid7Ids, clock: MovableClock) -> AsyncIterator[Shop]:
    """Open for business."""
    shop = Shop(store, ids=ids, clock=clock)
    await shop.open_another("concert")
    yield shop
    assert await store.find_flaws(limit=10) == []
    await shop.driver.close()
