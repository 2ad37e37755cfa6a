"""The outbox in memory: nobody else is about, so numbers are given at once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from earmark.engine.ports.outbox import START, Lag, Numbered, Numbering, total

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from earmark.domain.ids import EntryId, EventId
    from earmark.domain.journal import Entry

Journal = tuple["Mapping[EntryId, Entry]", "dict[EntryId, int]"]


class MemoryOutbox:
    """Numbers beside the entries."""

    def __init__(self, journal: Callable[[], Journal], *, queue: Callable[[Sequence[Numbered]], None]) -> None:
        self._journal = journal
        self._queue = queue

    async def number(self, *, after: EventId, limit: int, tell: bool = True) -> Numbering:
        """The first entries without a number, by event, and the older ones of their bookings."""
        entries, numbers = self._journal()
        unsent = [entry for entry in entries.values() if entry.id not in numbers]
        found = sorted((entry for entry in unsent if entry.event_id > after), key=lambda entry: entry.event_id)[:limit]
        reached = {entry.booking_id: entry.version for entry in sorted(found, key=lambda entry: entry.version)}
        taken = {entry.id: entry for entry in found}
        for entry in unsent:
            if entry.booking_id is not None and entry.version < reached.get(entry.booking_id, 0):
                taken[entry.id] = entry
        given = []
        for entry in _in_order(taken.values()):
            numbers[entry.id] = 1 + self.newest(entry.event_id)
            given.append(Numbered(sequence=numbers[entry.id], entry=entry))
        self._queue(given)
        more = len(found) == limit
        return Numbering(
            count=len(given), entries=given if tell else (), after=found[-1].event_id if more else START, more=more
        )

    async def read_numbered(self, event_id: EventId, *, after: int, limit: int) -> list[Numbered]:
        """In order."""
        entries, numbers = self._journal()
        told = [
            Numbered(sequence=number, entry=entries[entry_id])
            for entry_id, number in numbers.items()
            if entries[entry_id].event_id == event_id and number > after
        ]
        return sorted(told, key=lambda one: one.sequence)[:limit]

    async def lag(self, *, limit: int) -> Lag:
        """Over all entries."""
        entries, numbers = self._journal()
        unsent = [entry.at for entry in entries.values() if entry.id not in numbers]
        return Lag(unsent=min(len(unsent), limit), oldest_at=min(unsent, default=None))

    async def count(self, ids: Collection[EventId]) -> dict[EventId, int | None]:
        """From all entries there are."""
        entries, numbers = self._journal()
        unsent = Counter(entry.event_id for entry in entries.values() if entry.id not in numbers)
        return {event_id: total(numbered=self.newest(event_id), unsent=unsent[event_id]) for event_id in ids}

    def newest(self, event_id: EventId) -> int:
        """The newest number of an event; zero when it has none."""
        entries, numbers = self._journal()
        own = (number for entry_id, number in numbers.items() if entries[entry_id].event_id == event_id)
        return max(own, default=0)


def _in_order(entries: Collection[Entry]) -> list[Entry]:
    """By event and moment; a booking's version no earlier than the one before it, whatever the clock said."""
    latest: dict[UUID, datetime] = {}
    places: dict[EntryId, tuple[EventId, datetime, int, EntryId]] = {}
    for entry in sorted(entries, key=lambda entry: entry.version):
        whose = entry.booking_id or entry.id
        latest[whose] = max(latest.get(whose, entry.at), entry.at)
        places[entry.id] = (entry.event_id, latest[whose], entry.version, entry.id)
    return sorted(entries, key=lambda entry: places[entry.id])
