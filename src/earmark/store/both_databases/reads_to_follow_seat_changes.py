"""What the followers of an event are sent: the newest number of its journal, and seats that may have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from earmark.domain.id_types import EventId, SeatId
    from earmark.engine.ports.store import SeatMap
    from earmark.store.both_databases.named_statement_runner_protocols import StatementStore


class StoredFollowedEvents:
    """Reads of a store, for the seat map that is kept up to date."""

    def __init__(
        self, store: StatementStore, *, read_some_seats: Callable[[EventId, Collection[SeatId]], Awaitable[SeatMap]]
    ) -> None:
        self._store = store
        self._read_some_seats = read_some_seats

    async def newest(self, event_id: EventId) -> int:
        """By the index of numbers."""
        (row,) = await self._store.read_rows("newest_number", event_id)
        return int(row["newest"])

    async def read_seats(self, event_id: EventId, ids: Collection[SeatId]) -> SeatMap:
        """By key, in one snapshot."""
        return await self._read_some_seats(event_id, ids)
