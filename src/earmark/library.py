"""Earmark in your own process: the verbs as plain calls.

    async with Earmark.open("sqlite:///shop.sqlite3") as earmark:
        await earmark.create("concert", name="A concert", currency="EUR", seats={"A1": 4500})
        booking = await earmark.hold("concert", buyer="alice", seats=["A1"])
        booking = await earmark.confirm(booking.id, payment_id="till-1")

Each call returns the booking as it then is, or raises a `Refusal` (the rules say no, nothing was changed) or an
`Outage` (a dependency stayed silent).
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from earmark import wiring
from earmark.domain.event import Event
from earmark.domain.ids import BookingId, Buyer, EventId, PoolId, SeatId
from earmark.domain.money import AMOUNT_MAX, is_currency
from earmark.domain.pool import Pool
from earmark.domain.refunds import check_rules
from earmark.domain.seat import Seat
from earmark.engine.asks import Actor, Cancel, Confirm, Create, Decided, Extend, Hold, Release
from earmark.errors import BookingUnknown, EventUnknown, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from earmark.domain.booking import Booking
    from earmark.domain.journal import Entry
    from earmark.engine.asks import Answer, Undone
    from earmark.engine.engine import Engine
    from earmark.engine.ports import Clock, SeatMap


class Earmark:
    """A shop's own booking engine."""

    def __init__(self, engine: Engine, *, live: bool = True) -> None:
        self.engine = engine
        self._actor = Actor(name="library", live=live)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        database_url: str,
        *,
        redis_url: str | None = None,
        migrate: bool = True,
        live: bool = True,
        clock: Clock | None = None,
    ) -> AsyncIterator[Earmark]:
        """Open a database (`postgresql://…`, `sqlite:///…`, `memory:`), bringing its schema up to date first.

        With a Redis, hopeless holds are refused in front of the database; it decides nothing, and may be gone.
        """
        if migrate:
            await wiring.migrate(database_url)
        engine = await wiring.open_engine(database_url, redis_url=redis_url, clock=clock)
        try:
            yield cls(engine, live=live)
        finally:
            await engine.close()

    async def create(
        self,
        event_id: str,
        *,
        name: str,
        currency: str,
        seats: Mapping[str, int] | None = None,
        pools: Mapping[str, tuple[int, int]] | None = None,
        **policy: Any,
    ) -> Event:
        """An event that sells seats (their prices by name) and pools (capacity and price by name)."""
        if not is_currency(currency):
            raise InvalidRequest.at("currency", "is not an ISO 4217 currency")
        if not seats and not pools:
            raise InvalidRequest.at("seats", "an event sells seats, pools, or both")
        numbers = [*(seats or {}).values(), *(number for pool in (pools or {}).values() for number in pool)]
        if any(not 0 <= number <= AMOUNT_MAX for number in numbers):
            raise InvalidRequest.at("seats", f"prices and capacities are from 0 to {AMOUNT_MAX}")
        own = EventId(event_id)
        now = (await self.engine.store.read_map(own)).now
        event = Event(id=own, name=name, currency=currency, live=self._actor.live, created_at=now, **policy)
        check_rules(event)
        ask = Create(
            actor=self._actor,
            entry_id=self.engine.ids.entry_id(),
            event=event,
            seats=tuple(Seat(event_id=own, id=SeatId(seat), price=price) for seat, price in (seats or {}).items()),
            pools=tuple(
                Pool(event_id=own, id=PoolId(pool), capacity=capacity, price=price)
                for pool, (capacity, price) in (pools or {}).items()
            ),
        )
        created: Event = _value(await self.engine.create(ask))
        return created

    async def hold(
        self,
        event_id: str,
        *,
        buyer: str,
        seats: Sequence[str] = (),
        pools: Mapping[str, int] | None = None,
        ttl_seconds: int | None = None,
    ) -> Booking:
        """Set seats and pool units aside for a few minutes, all or nothing."""
        if not seats and not pools:
            raise InvalidRequest.at("seats", "a hold names seats, pools, or both")
        if len(set(seats)) != len(seats):
            raise InvalidRequest.at("seats", "names a seat twice")
        if any(units < 1 for units in (pools or {}).values()):
            raise InvalidRequest.at("pools", "units must be at least 1")
        ask = Hold(
            actor=self._actor,
            entry_id=self.engine.ids.entry_id(),
            booking_id=self.engine.ids.booking_id(),
            event_id=EventId(event_id),
            buyer=Buyer(buyer),
            seats=tuple(SeatId(seat) for seat in seats),
            pools={PoolId(pool): units for pool, units in (pools or {}).items()},
            ttl_seconds=ttl_seconds,
        )
        return _booking(await self.engine.hold(ask))

    async def extend(self, booking_id: BookingId | str, *, seconds: int) -> Booking:
        """More time, within the longest life of a hold."""
        return _booking(await self.engine.extend(Extend(**self._about(booking_id), seconds=seconds)))

    async def confirm(
        self, booking_id: BookingId | str, *, payment_id: str, payment_method: str | None = None
    ) -> Booking:
        """The money was taken: the hold becomes a sale."""
        ask = Confirm(**self._about(booking_id), payment_id=payment_id, payment_method=payment_method)
        return _booking(await self.engine.confirm(ask))

    async def release(self, booking_id: BookingId | str) -> Booking:
        """Let go of a hold."""
        return _booking(await self.engine.release(Release(**self._about(booking_id))))

    async def cancel(
        self,
        booking_id: BookingId | str,
        *,
        seats: Sequence[str] = (),
        pools: Mapping[str, int] | None = None,
        reason: str | None = None,
    ) -> Booking:
        """Undo a sale, or some seats and units of it."""
        ask = Cancel(
            **self._about(booking_id),
            seats=frozenset(SeatId(seat) for seat in seats),
            pools={PoolId(pool): units for pool, units in (pools or {}).items()},
            reason=reason,
        )
        undone: Undone = _value(await self.engine.cancel(ask))
        return undone.booking

    async def booking(self, booking_id: BookingId | str) -> Booking:
        """A booking as it is. A hold whose time is over may still read `held` here until somebody meets it."""
        _, booking = await self.engine.store.read_booking(_id(booking_id))
        if booking is None or not self._actor.may_see(booking):
            raise BookingUnknown(booking_id=str(booking_id))
        return booking

    async def history(self, booking_id: BookingId | str) -> list[Entry]:
        """All that happened to a booking."""
        return await self.engine.store.read_history((await self.booking(booking_id)).id)

    async def map(self, event_id: str) -> SeatMap:
        """The seats and pools of an event, for showing."""
        event = await self.engine.store.read_event(EventId(event_id))
        if event is None or event.live != self._actor.live:
            raise EventUnknown(event_id=event_id)
        return await self.engine.store.read_map(event.id)

    async def sweep(self, *, limit: int = 200) -> int:
        """End up to `limit` holds whose time is over. Nothing depends on it; counts and lists look tidier."""
        return len(await self.engine.expire(limit=limit))

    def _about(self, booking_id: BookingId | str) -> dict[str, Any]:
        return {"actor": self._actor, "entry_id": self.engine.ids.entry_id(), "booking_id": _id(booking_id)}


def _id(booking_id: BookingId | str) -> BookingId:
    """A booking's id, also as the text that a page or a log carries."""
    if not isinstance(booking_id, str):
        return booking_id
    try:
        return BookingId(UUID(booking_id))
    except ValueError:
        raise BookingUnknown(booking_id=booking_id) from None


def _value(answer: Answer) -> Any:
    assert isinstance(answer, Decided), "only a key replays, and the library uses none"
    return answer.value


def _booking(answer: Answer) -> Booking:
    booking: Booking = _value(answer)
    return booking
