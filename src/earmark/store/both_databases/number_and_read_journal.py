"""The outbox: entries of the journal, numbered per event, and how many have no number yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.domain.journal_entry import Entry
from earmark.engine.ports.number_and_read_journal import UNSENT_COUNTED_MAX, Lag, Numbered, total
from earmark.store.both_databases.named_statement_runner_protocols import from_row

if TYPE_CHECKING:
    from collections.abc import Collection

    from earmark.domain.id_types import EventId
    from earmark.engine.ports.number_and_read_journal import Numbering
    from earmark.store.both_databases.contacts_and_mails import StoredMails
    from earmark.store.both_databases.named_statement_runner_protocols import StatementStore
    from earmark.store.both_databases.webhooks_and_deliveries import StoredWebhooks

NUMBER_SECONDS = 10.0


class StoredOutbox(ABC):
    """The outbox of a store. Each database keeps relays apart in its own way."""

    def __init__(self, store: StatementStore, *, webhooks: StoredWebhooks, mails: StoredMails) -> None:
        self._store = store
        self._webhooks = webhooks
        self._mails = mails

    @abstractmethod
    async def number(self, *, after: EventId, limit: int, tell: bool = True, mail: bool = False) -> Numbering:
        """Number entries, and queue deliveries and mails about them, in one transaction."""

    async def read_numbered(self, event_id: EventId, *, after: int, limit: int) -> list[Numbered]:
        """By the index of numbers."""
        return [numbered(row) for row in await self._store.read_rows("read_numbered", event_id, after, limit)]

    async def lag(self, *, limit: int) -> Lag:
        """By the index of what has no number."""
        (row,) = await self._store.read_rows("read_lag", limit)
        return from_row(row, Lag)

    async def count(self, ids: Collection[EventId]) -> dict[EventId, int | None]:
        """How many entries each event has, with and without a number."""
        found = await self._store.read_rows("count_entries", list(ids), UNSENT_COUNTED_MAX + 1)
        return {row["id"]: total(numbered=row["numbered"], unsent=row["unsent"]) for row in found}


def numbered(row: Any) -> Numbered:
    """A row of `journal` with its number."""
    return Numbered(sequence=row["sequence"], entry=from_row(row, Entry, facts=msgspec.json.decode(row["facts"])))
