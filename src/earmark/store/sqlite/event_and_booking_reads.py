"""What is read of events and bookings outside of a transaction, in SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from earmark.engine.ports.store import MAP_HORIZON, BookingFilter, SeatMap
from earmark.store.sqlite import convert_rows_and_values
from earmark.store.sqlite.reader_and_writer_threads import READ_SECONDS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from datetime import datetime

    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking
    from earmark.domain.id_types import BookingId, EventId, SeatId
    from earmark.domain.journal_entry import Entry
    from earmark.domain.live_or_test_mode import Mode
    from earmark.engine.ports.store import Clock
    from earmark.store.sqlite.reader_and_writer_threads import SqliteAccess

FIRST = str(UUID(int=0))


class SqliteBookingReads:
    """The reads of the SQLite store."""

    access: SqliteAccess
    _clock: Clock
    _sql: Mapping[str, str]
    _read: Callable[..., Awaitable[list[Any]]]

    async def read_event(self, event_id: EventId) -> Event | None:
        """An event by its id."""
        return (await self.read_events([event_id])).get(event_id)

    async def read_events(self, ids: Collection[EventId]) -> dict[EventId, Event]:
        """Events by their ids."""
        found = await self._read("read_events", convert_rows_and_values.to_json(sorted(ids))) if ids else []
        return {event.id: event for event in map(convert_rows_and_values.event, found)}

    async def list_events(self, *, mode: Mode, after: EventId | None, limit: int) -> list[Event]:
        """A page of events, by id."""
        return [convert_rows_and_values.event(row) for row in await self._read("list_events", mode, after or "", limit)]

    async def read_map(self, event_id: EventId, *, seat_id: SeatId | None = None) -> SeatMap:
        """Seats and pools as one commit left them."""
        name, key = ("read_map", (event_id,)) if seat_id is None else ("read_map_of_one", (event_id, seat_id))
        return await self._read_seats(event_id, name, key)

    async def read_booking(self, booking_id: BookingId) -> tuple[datetime, Booking | None]:
        """A booking by its id, and the moment of the read."""
        found = await self._read("read_booking", str(booking_id))
        return self._clock.now(), convert_rows_and_values.booking(found[0]) if found else None

    async def list_bookings(self, wanted: BookingFilter) -> tuple[datetime, list[Booking]]:
        """By id, which is by age, along the index that fits the filter."""
        now = self._clock.now()
        name = "list_bookings"
        if wanted.buyer is not None:
            name = "list_bookings_of_buyer"
        elif wanted.event_id is not None:
            name = "list_bookings_of_event"
        found = await self._read(
            name,
            wanted.mode,
            str(wanted.after) if wanted.after else FIRST,
            wanted.buyer,
            wanted.event_id,
            wanted.state.value if wanted.state else None,
            convert_rows_and_values.to_moment(now),
            wanted.limit,
        )
        return now, [convert_rows_and_values.booking(row) for row in found]

    async def read_history(self, booking_id: BookingId) -> list[Entry]:
        """The journal of a booking, by version."""
        return [convert_rows_and_values.entry(row) for row in await self._read("read_history", str(booking_id))]

    async def seconds_to_next_due(self) -> float | None:
        """By the sweeper's index."""
        due = (await self._read("next_due"))[0][0]
        return None if due is None else (convert_rows_and_values.moment(due) - self._clock.now()).total_seconds()

    async def _read_some_seats(self, event_id: EventId, ids: Collection[SeatId]) -> SeatMap:
        return await self._read_seats(
            event_id, "read_some_seats", (event_id, convert_rows_and_values.to_json(list(ids)))
        )

    async def _read_seats(self, event_id: EventId, name: str, key: tuple[str, ...]) -> SeatMap:
        def look(connection: sqlite3.Connection) -> SeatMap:
            now = self._clock.now()
            seats = [convert_rows_and_values.seat_on_map(row) for row in connection.execute(self._sql[name], key)]
            found = connection.execute(self._sql["read_pools"], (event_id, convert_rows_and_values.to_moment(now)))
            span = (convert_rows_and_values.to_moment(now), convert_rows_and_values.to_moment(now + MAP_HORIZON))
            lapse = connection.execute(self._sql["next_lapse"], (event_id, *span)).fetchone()
            ends_at = convert_rows_and_values.moment(lapse[0]) if lapse else None
            return SeatMap(
                now=now, seats=seats, pools=[convert_rows_and_values.pool(row) for row in found], ends_at=ends_at
            )

        return await self.access.read(look, within=READ_SECONDS)
