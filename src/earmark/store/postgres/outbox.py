"""The outbox in PostgreSQL: numbers are given under a lock per event that ends with the transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.engine.ports.outbox import START, UNSENT_COUNTED_MAX, Lag, Numbered, Numbering, total
from earmark.store import queries
from earmark.store.postgres import rows
from earmark.store.postgres.webhooks import find_wanted, queue_entries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from earmark.domain.ids import EventId

LOCKS = 0x4541524D  # "EARM": the first half of the advisory locks that relays take, the event is the second
NUMBER_SECONDS = 10.0


class PostgresOutbox:
    """Numbering in transactions of the store, reading over its connections."""

    def __init__(self, transact: Callable[..., Awaitable[Any]], *, read: Callable[..., Awaitable[list[Any]]]) -> None:
        self._transact = transact
        self._read = read
        self._sql = queries.sql("postgres", "outbox.sql")

    async def number(self, *, after: EventId, limit: int, tell: bool = True) -> Numbering:
        """The second statement sees what the relay before us has committed; the third, who wants to be called."""

        async def work(transaction: Any) -> Numbering:
            fetch = transaction._connection.fetch  # noqa: SLF001 (the store's own transaction)
            found = await fetch(self._sql["claim_events"], after, limit, LOCKS)
            more = sum(row["entries"] for row in found) >= limit
            upto = found[-1]["event_id"] if more else START
            claimed = [row["event_id"] for row in found if row["claimed"]]
            if not claimed:
                return Numbering(after=upto, more=more)
            given = await fetch(self._sql["number_entries"], claimed, max(limit // len(claimed), 1))
            transaction.wrote = True
            wanted = await find_wanted(transaction._connection, claimed)  # noqa: SLF001 (as above)
            entries = sorted(map(_numbered, given), key=_place) if tell or wanted else ()
            if wanted:
                await queue_entries(transaction, entries, wanted)
            return Numbering(count=len(given), entries=entries if tell else (), after=upto, more=more)

        numbering: Numbering = await self._transact(work, within=NUMBER_SECONDS)
        return numbering

    async def read_numbered(self, event_id: EventId, *, after: int, limit: int) -> list[Numbered]:
        """By the index of numbers."""
        return [_numbered(row) for row in await self._read("read_numbered", event_id, after, limit)]

    async def lag(self, *, limit: int) -> Lag:
        """By the index of what is unsent."""
        (row,) = await self._read("read_lag", limit)
        return Lag(unsent=row["unsent"], oldest_at=row["oldest_at"])

    async def count(self, ids: Collection[EventId]) -> dict[EventId, int | None]:
        """By the two indexes."""
        found = await self._read("count_entries", list(ids), UNSENT_COUNTED_MAX + 1)
        return {row["id"]: total(numbered=row["numbered"], unsent=row["unsent"]) for row in found}


def _numbered(row: Any) -> Numbered:
    return Numbered(sequence=row["sequence"], entry=rows.entry(row))


def _place(numbered: Numbered) -> tuple[str, int]:
    return numbered.entry.event_id, numbered.sequence
