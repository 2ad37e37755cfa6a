"""What is followed live, in SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.engine.ports.store import MAP_HORIZON, SeatMap
from earmark.store import queries
from earmark.store.sqlite import rows

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable, Collection

    from earmark.domain.ids import EventId, SeatId
    from earmark.engine.ports.store import Clock

READ_SECONDS = 10.0


class SqliteLive:
    """In a reader's thread."""

    def __init__(self, *, look: Callable[..., Awaitable[object]], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._sql = queries.sql("sqlite") | queries.sql("sqlite", "live.sql")

    async def newest(self, event_id: EventId) -> int:
        """By the index of numbers."""

        def look(connection: sqlite3.Connection) -> int:
            return int(connection.execute(self._sql["newest_number"], (event_id,)).fetchone()[0])

        newest = await self._look(look, within=READ_SECONDS)
        assert isinstance(newest, int)
        return newest

    async def read_seats(self, event_id: EventId, ids: Collection[SeatId]) -> SeatMap:
        """By key, as one commit left them."""

        def look(connection: sqlite3.Connection) -> SeatMap:
            execute = connection.execute
            found = execute(self._sql["read_some_seats"], (event_id, rows.to_json(list(ids))))
            seats = [rows.seat_on_map(row) for row in found]
            now = self._clock.now()
            pools = [rows.pool(row) for row in execute(self._sql["read_pools"], (event_id, rows.to_moment(now)))]
            span = (rows.to_moment(now), rows.to_moment(now + MAP_HORIZON))
            lapse = execute(self._sql["next_lapse"], (event_id, *span)).fetchone()
            return SeatMap(now=now, seats=seats, pools=pools, ends_at=rows.moment(lapse[0]) if lapse else None)

        seen = await self._look(look, within=READ_SECONDS)
        assert isinstance(seen, SeatMap)
        return seen
