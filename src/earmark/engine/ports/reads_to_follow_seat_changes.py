"""What following an event needs from a store: how some of its seats are now, and the number of its newest entry.

A notification says which seats may have changed; only the store says how they are. So a notification that comes late,
twice or in another order can never show a seat as it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection

    from earmark.domain.id_types import EventId, SeatId
    from earmark.engine.ports.store import SeatMap


class Live(Protocol):
    """For showing: nothing is ever decided by it."""

    async def newest(self, event_id: EventId) -> int:
        """The newest number that an entry of this event has; zero when none has one."""
        ...

    async def read_seats(self, event_id: EventId, ids: Collection[SeatId]) -> SeatMap:
        """These seats, as far as there are such, and all pools of the event, as one commit left them."""
        ...


class Followed(Protocol):
    """A store whose events can be followed."""

    @property
    def followed_events(self) -> Live:
        """Reads for clients that follow an event."""
        ...
