"""What is followed live, in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from earmark.domain.ids import EventId, SeatId
    from earmark.engine.ports.store import SeatMap


class PostgresLive:
    """Over the connections of the store."""

    def __init__(self, *, read: Callable[..., Awaitable[list[Any]]], see: Callable[..., Awaitable[SeatMap]]) -> None:
        self._read = read
        self._see = see

    async def newest(self, event_id: EventId) -> int:
        """By the index of numbers."""
        newest: int = (await self._read("newest_number", event_id))[0][0]
        return newest

    async def read_seats(self, event_id: EventId, ids: Collection[SeatId]) -> SeatMap:
        """By key, in one snapshot."""
        return await self._see(event_id, ids)
