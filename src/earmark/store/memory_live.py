"""What is followed live, in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from earmark.domain.ids import EventId, SeatId
    from earmark.engine.ports.store import SeatMap
    from earmark.store.memory_outbox import MemoryOutbox


class MemoryLive:
    """Over the tables of the store."""

    def __init__(self, outbox: MemoryOutbox, *, read_map: Callable[[EventId], Awaitable[SeatMap]]) -> None:
        self._outbox = outbox
        self._read_map = read_map

    async def newest(self, event_id: EventId) -> int:
        """Of all numbers there are."""
        return self._outbox.newest(event_id)

    async def read_seats(self, event_id: EventId, ids: Collection[SeatId]) -> SeatMap:
        """Out of the whole map."""
        seen, wanted = await self._read_map(event_id), set(ids)
        return msgspec.structs.replace(seen, seats=[one for one in seen.seats if one.seat.id in wanted])
