"""The outbox in SQLite: one writer, so whoever numbers an event is alone with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.engine.ports.outbox import START, UNSENT_COUNTED_MAX, Lag, Numbered, Numbering, total
from earmark.store import queries
from earmark.store.sqlite import rows
from earmark.store.sqlite.webhooks import find_wanted, queue_entries

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable, Collection

    from earmark.domain.ids import EventId

NUMBER_SECONDS = 10.0
READ_SECONDS = 10.0


class SqliteOutbox:
    """Numbering in the writer's thread, reading in a reader's."""

    def __init__(self, transact: Callable[..., Awaitable[Any]], *, look: Callable[..., Awaitable[Any]]) -> None:
        self._transact = transact
        self._look = look
        self._sql = queries.sql("sqlite", "outbox.sql")

    async def number(self, *, after: EventId, limit: int, tell: bool = True) -> Numbering:
        """A reader looks first: with nothing to number, those who book are not kept from the writer."""
        if not await self._fetch("find_events", after, limit):
            return Numbering()

        async def work(transaction: Any) -> Numbering:
            execute = transaction._connection.execute  # noqa: SLF001 (the store's own transaction)
            found = execute(self._sql["find_events"], (after, limit)).fetchall()
            more = sum(row["entries"] for row in found) >= limit
            wanted = find_wanted(transaction._connection, [row["event_id"] for row in found])  # noqa: SLF001 (as above)
            count, entries = 0, list[Numbered]()
            for row in found:
                given = execute(self._sql["number_entries"], (row["event_id"], row["entries"])).fetchall()
                count += len(given)
                entries += sorted(map(_numbered, given), key=lambda one: one.sequence) if tell or wanted else ()
            transaction.wrote = bool(count)
            if wanted:
                await queue_entries(transaction, entries, wanted)
            after_this = found[-1]["event_id"] if more else START
            return Numbering(count=count, entries=entries if tell else (), after=after_this, more=more)

        numbering: Numbering = await self._transact(work, within=NUMBER_SECONDS)
        return numbering

    async def read_numbered(self, event_id: EventId, *, after: int, limit: int) -> list[Numbered]:
        """By the index of numbers."""
        return [_numbered(row) for row in await self._fetch("read_numbered", event_id, after, limit)]

    async def lag(self, *, limit: int) -> Lag:
        """By the index of what is unsent."""
        (row,) = await self._fetch("read_lag", limit)
        oldest = row["oldest_at"]
        return Lag(unsent=row["unsent"], oldest_at=None if oldest is None else rows.moment(oldest))

    async def count(self, ids: Collection[EventId]) -> dict[EventId, int | None]:
        """By the two indexes."""
        found = await self._fetch("count_entries", rows.to_json(list(ids)), UNSENT_COUNTED_MAX + 1)
        return {row["id"]: total(numbered=row["numbered"], unsent=row["unsent"]) for row in found}

    async def _fetch(self, name: str, *arguments: object) -> list[Any]:
        def look(connection: sqlite3.Connection) -> list[Any]:
            return connection.execute(self._sql[name], arguments).fetchall()

        found: list[Any] = await self._look(look, within=READ_SECONDS)
        return found


def _numbered(row: Any) -> Numbered:
    return Numbered(sequence=row["sequence"], entry=rows.entry(row))
