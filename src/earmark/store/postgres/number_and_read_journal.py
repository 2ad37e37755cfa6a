"""The outbox in PostgreSQL: numbers are given under a lock per event that ends with the transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.engine.ports.number_and_read_journal import START, Numbered, Numbering
from earmark.store.both_databases.number_and_read_journal import NUMBER_SECONDS, StoredOutbox, numbered

if TYPE_CHECKING:
    from earmark.domain.id_types import EventId

LOCKS = 0x4541524D  # "EARM": the first half of the advisory locks that relays take, the event is the second


class PostgresOutbox(StoredOutbox):
    """Relays run side by side, each with the events whose lock it has."""

    async def number(self, *, after: EventId, limit: int, tell: bool = True, mail: bool = False) -> Numbering:
        """The second statement sees what the relay before us has committed; the third, which webhooks want it."""

        async def work(transaction: Any) -> Numbering:
            found = await transaction.fetch("claim_events", after, limit, LOCKS)
            more = sum(row["entries"] for row in found) >= limit
            upto = found[-1]["event_id"] if more else START
            claimed = [row["event_id"] for row in found if row["claimed"]]
            if not claimed:
                return Numbering(after=upto, more=more)
            given = await transaction.fetch("number_entries", claimed, max(limit // len(claimed), 1))
            transaction.wrote = True
            wanted = await self._webhooks.find_wanted(transaction, claimed)
            entries = sorted(map(numbered, given), key=_place) if tell or wanted or mail else ()
            if wanted:
                await self._webhooks.queue_entries(transaction, entries, wanted)
            if mail:
                await self._mails.queue_entries(transaction, entries)
            return Numbering(count=len(given), entries=entries if tell else (), after=upto, more=more)

        return await self._store.transact(work, within=NUMBER_SECONDS)


def _place(one: Numbered) -> tuple[str, int]:
    return one.entry.event_id, one.sequence
