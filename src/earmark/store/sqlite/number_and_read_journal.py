"""The outbox in SQLite: one writer, so a relay that numbers an event is alone with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.engine.ports.number_and_read_journal import START, Numbered, Numbering
from earmark.store.both_databases.number_and_read_journal import NUMBER_SECONDS, StoredOutbox, numbered

if TYPE_CHECKING:
    from earmark.domain.id_types import EventId


class SqliteOutbox(StoredOutbox):
    """One event after the other."""

    async def number(self, *, after: EventId, limit: int, tell: bool = True, mail: bool = False) -> Numbering:
        """A reader looks first: where nothing is to be numbered, the writer is left to bookings."""
        if not await self._store.read_rows("find_events", after, limit):
            return Numbering()

        async def work(transaction: Any) -> Numbering:
            found = await transaction.fetch("find_events", after, limit)
            more = sum(row["entries"] for row in found) >= limit
            wanted = await self._webhooks.find_wanted(transaction, [row["event_id"] for row in found])
            count, entries = 0, list[Numbered]()
            for row in found:
                given = await transaction.fetch("number_entries", row["event_id"], row["entries"])
                count += len(given)
                entries += sorted(map(numbered, given), key=lambda one: one.sequence) if tell or wanted or mail else ()
            transaction.wrote = bool(count)
            if wanted:
                await self._webhooks.queue_entries(transaction, entries, wanted)
            if mail:
                await self._mails.queue_entries(transaction, entries)
            after_this = found[-1]["event_id"] if more else START
            return Numbering(count=count, entries=entries if tell else (), after=after_this, more=more)

        return await self._store.transact(work, within=NUMBER_SECONDS)
