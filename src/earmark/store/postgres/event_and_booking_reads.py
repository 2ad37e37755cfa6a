"""What is read of events and bookings outside of a transaction, in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from earmark.engine.ports.store import BookingFilter, SeatMap
from earmark.store.postgres import convert_rows_and_values

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from datetime import datetime

    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking
    from earmark.domain.id_types import BookingId, EventId, SeatId
    from earmark.domain.journal_entry import Entry
    from earmark.domain.live_or_test_mode import Mode
    from earmark.engine.ports.store import Clock

FIRST = UUID(int=0)


class BookingReads:
    """The reads of the PostgreSQL store."""

    _clock: Clock
    read_rows: Callable[..., Awaitable[list[Any]]]
    _see: Callable[..., Awaitable[SeatMap]]
    now: Callable[[], Awaitable[datetime]]

    async def read_event(self, event_id: EventId) -> Event | None:
        """An event by its id."""
        return (await self.read_events([event_id])).get(event_id)

    async def read_events(self, ids: Collection[EventId]) -> dict[EventId, Event]:
        """Events by their ids."""
        found = await self.read_rows("read_events", sorted(ids)) if ids else []
        return {event.id: event for event in map(convert_rows_and_values.event, found)}

    async def list_events(self, *, mode: Mode, after: EventId | None, limit: int) -> list[Event]:
        """A page of events, by id."""
        return [
            convert_rows_and_values.event(row) for row in await self.read_rows("list_events", mode, after or "", limit)
        ]

    async def read_map(self, event_id: EventId, *, seat_id: SeatId | None = None) -> SeatMap:
        """For showing only. One seat by its key; a whole event in one snapshot."""
        if seat_id is not None:
            (seat,) = await self.read_rows("read_seat", event_id, seat_id, self._clock.offset)
            pools = [
                convert_rows_and_values.pool(row) for row in await self.read_rows("read_pools", event_id, seat["now"])
            ]
            return SeatMap(
                now=seat["now"], seats=[convert_rows_and_values.seat_on_map(seat)] if seat["id"] else [], pools=pools
            )
        return await self._see(event_id)

    async def read_booking(self, booking_id: BookingId) -> tuple[datetime, Booking | None]:
        """A booking by its id, and the moment of the read."""
        (read,) = await self.read_rows("read_booking", booking_id, self._clock.offset)
        return read["now"], convert_rows_and_values.booking(read) if read["id"] else None

    async def list_bookings(self, wanted: BookingFilter) -> tuple[datetime, list[Booking]]:
        """By id, which is by age."""
        now = await self.now()
        state = wanted.state.value if wanted.state else None
        page = (wanted.mode, wanted.after or FIRST, state, now, wanted.limit)
        if wanted.buyer is not None:
            found = await self.read_rows("list_bookings_of_buyer", *page, wanted.buyer, wanted.event_id)
        elif wanted.event_id is not None:
            found = await self.read_rows("list_bookings_of_event", *page, wanted.event_id)
        else:
            found = await self.read_rows("list_bookings", *page)
        return now, [convert_rows_and_values.booking(row) for row in found]

    async def read_history(self, booking_id: BookingId) -> list[Entry]:
        """The journal of a booking, by version."""
        return [convert_rows_and_values.entry(row) for row in await self.read_rows("read_history", booking_id)]

    async def seconds_to_next_due(self) -> float | None:
        """By the sweeper's index."""
        seconds: float | None = (await self.read_rows("seconds_to_next_due", self._clock.offset))[0][0]
        return seconds
