"""A shop over each store in turn: short words for the verbs, and a look at everything that can be read."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import STORES, STORES_SAMPLED, store_of
from tests.journal_completeness import JournalComparison

from earmark.domain.bookable_event import Event
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import Buyer, EventId, PoolId, SeatId
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.pool import Pool
from earmark.domain.seat import Seat, shown_state
from earmark.engine.commands_and_results import (
    Actor,
    Cancel,
    CancelResult,
    Change,
    ChangeEvent,
    Confirm,
    CreateEvent,
    Decided,
    Extend,
    Hold,
    KeyedRequest,
    PoolPatch,
    Release,
    SeatPatch,
)
from earmark.engine.engine import Engine
from earmark.engine.ports.store import BookingFilter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.domain.journal_entry import Entry
    from earmark.engine.commands_and_results import Result
    from earmark.engine.ports.store import Ids, SeatMap, Store

PROOF = bool(os.environ.get("EARMARK_PROOF"))
POOLED = [*STORES, "pooled"]
BEHIND_A_POOLER_TOO = pytest.mark.parametrize("store", POOLED, indirect=True)
"""For files that are asked of PostgreSQL behind PgBouncer as well."""
BEHIND_A_POOLER_IN_A_PROOF = pytest.mark.parametrize("store", POOLED if PROOF else STORES_SAMPLED, indirect=True)
"""For files that ask neither it nor the file of SQLite outside a proof."""
OF_EACH_DATABASE = pytest.mark.parametrize("store", POOLED if PROOF else STORES, indirect=True)
"""For a file that asks the file of SQLite always: the store in memory runs the same statements, in one thread."""
SHOP = Actor(name="shop", mode=Mode.LIVE)
SEATS = ("A1", "A2", "A3", "A4")


class Shop:
    """The verbs, over one store, with everything filled in that a test does not care about."""

    def __init__(self, store: Store, *, ids: Ids, **knobs: Any) -> None:
        self.store = store
        self.ids = ids
        self.engine = Engine(store, ids=ids, **knobs)

    async def create(self, event_id: str = "concert", **rest: Any) -> Event:
        """An event with four seats and ten units of GA, unless said otherwise."""
        answer = await self.engine.create_event(self.ask_create(event_id, **rest))
        assert isinstance(answer, Decided)
        event: Event = answer.value
        return event

    def ask_create(
        self,
        event_id: str = "concert",
        *,
        seats: Iterable[str] = SEATS,
        pools: Mapping[str, int] | None = None,
        price: int = 4500,
        mode: Mode = Mode.LIVE,
        idempotency: KeyedRequest | None = None,
        **fields: Any,
    ) -> CreateEvent:
        """What `create` asks."""
        event = Event(
            id=EventId(event_id), name="Concert", currency="EUR", mode=mode, created_at=datetime.now(UTC), **fields
        )
        offered = {"GA": 10} if pools is None else pools
        return CreateEvent(
            actor=Actor(name="manager", mode=mode),
            entry_id=self.ids.entry_id(),
            event=event,
            seats=tuple(Seat(event_id=event.id, id=SeatId(seat), price=price) for seat in seats),
            pools=tuple(
                Pool(event_id=event.id, id=PoolId(pool), capacity=units, price=2500) for pool, units in offered.items()
            ),
            idempotency=idempotency,
        )

    def ask_hold(
        self,
        buyer: str,
        *seats: str,
        pools: Mapping[str, int] | None = None,
        ttl: int | None = None,
        event_id: str = "concert",
        actor: Actor = SHOP,
        idempotency: KeyedRequest | None = None,
    ) -> Hold:
        """What `hold` asks."""
        return Hold(
            actor=actor,
            entry_id=self.ids.entry_id(),
            booking_id=self.ids.booking_id(),
            event_id=EventId(event_id),
            buyer=Buyer(buyer),
            seats=tuple(map(SeatId, seats)),
            pools={PoolId(pool): units for pool, units in (pools or {}).items()},
            ttl_seconds=ttl,
            idempotency=idempotency,
        )

    async def hold(self, buyer: str, *seats: str, **rest: Any) -> Booking:
        """Seats, and units with `pools=`."""
        return _booking(await self.engine.hold(self.ask_hold(buyer, *seats, **rest)))

    def ask_extend(
        self, booking: Booking, seconds: int = 60, *, actor: Actor = SHOP, idempotency: KeyedRequest | None = None
    ) -> Extend:
        """What `extend` asks."""
        entry_id = self.ids.entry_id()
        return Extend(actor=actor, entry_id=entry_id, booking_id=booking.id, seconds=seconds, idempotency=idempotency)

    async def extend(self, booking: Booking, seconds: int = 60, *, actor: Actor = SHOP) -> Booking:
        """Extend a hold by some seconds."""
        return _booking(await self.engine.extend(self.ask_extend(booking, seconds, actor=actor)))

    def ask_change_lines(
        self,
        booking: Booking,
        *,
        add: Iterable[str] = (),
        drop: Iterable[str] = (),
        pools: Mapping[str, int] | None = None,
        actor: Actor = SHOP,
        idempotency: KeyedRequest | None = None,
    ) -> Change:
        """What `change_lines` asks."""
        return Change(
            actor=actor,
            entry_id=self.ids.entry_id(),
            booking_id=booking.id,
            add_seats=tuple(map(SeatId, add)),
            drop_seats=tuple(map(SeatId, drop)),
            pools={PoolId(pool): units for pool, units in (pools or {}).items()},
            idempotency=idempotency,
        )

    async def change_lines(self, booking: Booking, **rest: Any) -> Booking:
        """Give a hold other seats and units."""
        return _booking(await self.engine.change(self.ask_change_lines(booking, **rest)))

    def ask_confirm(
        self,
        booking: Booking,
        payment: str | None = None,
        *,
        actor: Actor = SHOP,
        idempotency: KeyedRequest | None = None,
    ) -> Confirm:
        """What `confirm` asks; by default with a payment of the booking's own."""
        return Confirm(
            actor=actor,
            entry_id=self.ids.entry_id(),
            booking_id=booking.id,
            payment_id=payment or f"pay-{booking.id}",
            payment_method="card",
            idempotency=idempotency,
        )

    async def confirm(self, booking: Booking, payment: str | None = None, *, actor: Actor = SHOP) -> Booking:
        """Confirm a hold, with money taken elsewhere."""
        return _booking(await self.engine.confirm(self.ask_confirm(booking, payment, actor=actor)))

    def ask_release(self, booking: Booking, *, actor: Actor = SHOP, idempotency: KeyedRequest | None = None) -> Release:
        """What `release` asks."""
        return Release(actor=actor, entry_id=self.ids.entry_id(), booking_id=booking.id, idempotency=idempotency)

    async def release(self, booking: Booking, *, actor: Actor = SHOP) -> Booking:
        """The buyer gives a hold back."""
        return _booking(await self.engine.release(self.ask_release(booking, actor=actor)))

    def ask_cancel(
        self,
        booking: Booking,
        *seats: str,
        pools: Mapping[str, int] | None = None,
        reason: str | None = None,
        actor: Actor = SHOP,
        idempotency: KeyedRequest | None = None,
    ) -> Cancel:
        """What `cancel` asks."""
        return Cancel(
            actor=actor,
            entry_id=self.ids.entry_id(),
            booking_id=booking.id,
            seats=frozenset(map(SeatId, seats)),
            pools={PoolId(pool): units for pool, units in (pools or {}).items()},
            reason=reason,
            idempotency=idempotency,
        )

    async def cancel(self, booking: Booking, *seats: str, **rest: Any) -> Booking:
        """Undo a sale; with seats or units, only those."""
        answer = await self.engine.cancel(self.ask_cancel(booking, *seats, **rest))
        assert isinstance(answer, Decided)
        undone: CancelResult = answer.value
        return undone.booking

    def ask_change(
        self,
        event_id: str = "concert",
        *,
        seats: Iterable[SeatPatch] = (),
        pools: Iterable[PoolPatch] = (),
        mode: Mode = Mode.LIVE,
        idempotency: KeyedRequest | None = None,
        **fields: Any,
    ) -> ChangeEvent:
        """What `change` asks."""
        return ChangeEvent(
            actor=Actor(name="manager", mode=mode),
            entry_id=self.ids.entry_id(),
            event_id=EventId(event_id),
            fields=fields,
            seats=tuple(seats),
            pools=tuple(pools),
            idempotency=idempotency,
        )

    async def change(self, event_id: str = "concert", **rest: Any) -> Event:
        """An operator's change."""
        answer = await self.engine.change_event(self.ask_change(event_id, **rest))
        assert isinstance(answer, Decided)
        event: Event = answer.value
        return event

    async def block(self, *seats: str, blocked: bool = True) -> Event:
        """Take seats off sale, or put them back."""
        return await self.change(seats=[SeatPatch(id=SeatId(seat), blocked=blocked) for seat in seats])

    async def read(self, booking: Booking) -> Booking:
        """The booking as it stands in the store."""
        _, found = await self.store.read_booking(booking.id)
        assert found is not None
        return found

    async def history(self, booking: Booking) -> list[Entry]:
        """The journal of a booking."""
        return await self.store.read_history(booking.id)

    async def seats(self, event_id: str = "concert") -> dict[str, str]:
        """What the map shows of each seat."""
        return seats_on(await self.store.read_map(EventId(event_id)))

    async def pool(self, pool_id: str = "GA", *, event_id: str = "concert") -> tuple[int, int, int]:
        """Free, held and sold units, as the map shows them."""
        seen = await self.store.read_map(EventId(event_id))
        (pool,) = [pool for pool in seen.pools if pool.id == pool_id]
        return pool.free, pool.held, pool.sold

    async def bookings(self, **wanted: Any) -> list[Booking]:
        """Live ones and ended ones, live events and test events unless asked for one kind."""
        kinds = [wanted.pop("mode")] if "mode" in wanted else list(Mode)
        found: list[Booking] = []
        for mode in kinds:
            found += (await self.store.list_bookings(BookingFilter(mode=mode, limit=1000, **wanted)))[1]
        return found

    async def picture(self) -> dict[str, Any]:
        """Everything that can be read, but for the time of reading."""
        events = [event for mode in Mode for event in await self.store.list_events(mode=mode, after=None, limit=1000)]
        maps = {event.id: await self.store.read_map(event.id) for event in events}
        bookings = await self.bookings()
        return {
            "events": events,
            "seats": {event_id: list(seen.seats) for event_id, seen in maps.items()},
            "pools": {event_id: list(seen.pools) for event_id, seen in maps.items()},
            "bookings": bookings,
            "histories": {booking.id: await self.history(booking) for booking in bookings},
        }


def seats_on(seen: SeatMap) -> dict[str, str]:
    """What a map shows of each seat."""
    return {
        on.seat.id: shown_state(
            blocked=on.seat.blocked,
            owner_state=on.owner_state,
            due=on.owner_expires_at is not None and seen.now >= on.owner_expires_at,
        ).value
        for on in seen.seats
    }


def _booking(answer: Result) -> Booking:
    assert isinstance(answer, Decided)
    booking: Booking = answer.value
    return booking


@pytest.fixture(autouse=True)
def the_journal_is_whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[JournalComparison]:
    """For every verb of a test on SQLite: the journal has every field that changed, before and after."""
    watch = JournalComparison()
    watch.install(monkeypatch)
    yield watch
    assert watch.untold == []


@pytest.fixture(params=STORES_SAMPLED)
def store(request: pytest.FixtureRequest, clock: MovableClock) -> Store:
    """Each of the stores in turn; outside a proof, the file of SQLite is asked by files that name it."""
    return store_of(request, clock=clock)


@pytest.fixture
def shop(store: Store, ids: Ids) -> Shop:
    """The verbs over this test's store."""
    return Shop(store, ids=ids)


@pytest.fixture
def rivals(store: Store, ids: Ids) -> list[Shop]:
    """Three engines over one store, as three processes would be: their batches meet only in the database."""
    return [Shop(store, ids=ids) for _ in range(3)]


@pytest.fixture
def idempotency() -> Callable[..., KeyedRequest]:
    """Makes idempotency keys whose remembered answers tell when they were made."""

    def make(key: str, *, caller: str = "shop", request: bytes = b"request") -> KeyedRequest:
        return KeyedRequest(key=IdempotencyKey(caller, key), request_hash=request, write=_render)

    return make


def _render(decided: Any, now: datetime) -> tuple[int, bytes]:
    known = decided.booking if isinstance(decided, CancelResult) else decided
    return 201, f"{known.id} v{known.version} at {now.isoformat()}".encode()


@pytest.fixture
async def the_books_balance(store: Store) -> AsyncIterator[None]:
    """After a test: no promise is broken, and the pools say what the bookings say."""
    yield
    assert await store.find_flaws(limit=10) == []
    for mode in Mode:
        for event in await store.list_events(mode=mode, after=None, limit=1000):
            await _check_pools(store, event)


async def _check_pools(store: Store, event: Event) -> None:
    wanted = BookingFilter(mode=event.mode, event_id=event.id, limit=100_000)
    _, bookings = await store.list_bookings(wanted)
    seen = await store.read_map(event.id)
    for pool in seen.pools:
        units = [(booking, line.units) for booking in bookings for line in booking.lines.pools if line.id == pool.id]
        waiting = {State.HELD, State.PAYING}
        assert pool.held == sum(n for booking, n in units if booking.state in waiting and not booking.is_due(seen.now))
        assert pool.sold == sum(n for booking, n in units if booking.state is State.CONFIRMED)
