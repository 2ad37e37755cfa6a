"""The SQLite store: one writer, so no transaction meets another one's rows half changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from earmark.engine.api_keys import Keys
from earmark.engine.ports.store import LOCK_SECONDS_MAX, Flaw, Transaction
from earmark.engine.prepaid_accounts import Accounts
from earmark.engine.tickets import Tickets
from earmark.store import load_named_sql
from earmark.store.both_databases.api_keys import StoredKeys
from earmark.store.both_databases.contacts_and_mails import StoredContacts, StoredMails
from earmark.store.both_databases.pending_migrations import check_current
from earmark.store.both_databases.prepaid_accounts import StoredAccounts
from earmark.store.both_databases.reads_to_follow_seat_changes import StoredFollowedEvents
from earmark.store.both_databases.tickets import CheckInReads, StoredTickets
from earmark.store.sqlite import convert_rows_and_values
from earmark.store.sqlite.clear_keys_count_backlog_recount_pools import SqliteUpkeep
from earmark.store.sqlite.event_and_booking_reads import SqliteBookingReads
from earmark.store.sqlite.heartbeats import SqliteBeats
from earmark.store.sqlite.migrate import read_applied
from earmark.store.sqlite.number_and_read_journal import SqliteOutbox
from earmark.store.sqlite.open_connection import file_of
from earmark.store.sqlite.read_and_claim_payments import SqlitePaymentReads
from earmark.store.sqlite.reader_and_writer_threads import READ_SECONDS, FileAccess
from earmark.store.sqlite.webhook_delivery_queue import SqliteWebhooks

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime
    from pathlib import Path

    from earmark.domain.id_types import EntryId
    from earmark.domain.idempotency_record import IdempotencyKey
    from earmark.engine.ports.store import Clock
    from earmark.store.sqlite.reader_and_writer_threads import SqliteAccess

T = TypeVar("T")

VERIFY_SECONDS = 600.0


class SqliteStore(SqlitePaymentReads, SqliteBookingReads, CheckInReads):
    """All that Earmark keeps, in one file. Other processes may write to it too; they wait for each other."""

    def __init__(self, access: SqliteAccess, *, clock: Clock) -> None:
        self.access = access
        self._clock = clock
        self._sql = load_named_sql.statements("sqlite")
        self.webhooks = SqliteWebhooks(self)
        self.contacts = StoredContacts(self)
        self.mails = StoredMails(self)
        self.outbox = SqliteOutbox(self, webhooks=self.webhooks, mails=self.mails)
        self.followed_events = StoredFollowedEvents(self, read_some_seats=self._read_some_seats)
        self.accounts = Accounts(StoredAccounts(self, digest=bytes.hex))
        self.keys = Keys(StoredKeys(self))
        self.tickets = Tickets(StoredTickets(self))
        self.heartbeats = SqliteBeats(self)
        self.upkeep = SqliteUpkeep(self)

    @classmethod
    async def open(cls, path: str | Path, *, clock: Clock) -> SqliteStore:
        """Open a file that `migrate` has made; a path, or a URL such as `sqlite:///shop.db`."""
        access = FileAccess(file_of(path), clock=clock, sql=load_named_sql.statements("sqlite"))
        try:
            await access.start()
        except BaseException:
            await access.close()
            raise
        return cls(access, clock=clock)

    async def transact(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        within: float,
        optimistic: bool = False,  # noqa: ARG002 (one writer: nothing moves under it)
        lock_seconds: float = LOCK_SECONDS_MAX,  # noqa: ARG002 (one writer: no row is locked)
    ) -> T:
        """One transaction of the one writer."""
        return await self.access.writer.run(work, within=within)

    async def has_entry(self, entry_id: EntryId) -> bool:
        """A commit that is still under way has ended before this is answered."""

        def look(connection: sqlite3.Connection) -> bool:
            return bool(connection.execute(self._sql["has_entry"], (str(entry_id),)).fetchone()[0])

        return await self.access.read_after_commit(look, within=READ_SECONDS)

    async def known_keys(self, keys: Sequence[IdempotencyKey]) -> frozenset[IdempotencyKey]:
        """By the index of keys."""
        found = await self._read("known_keys", convert_rows_and_values.to_json(keys))
        return frozenset(keys[row["place"]] for row in found)

    async def find_flaws(self, *, limit: int) -> list[Flaw]:
        """Every query of `find_broken_invariants.sql`, in one snapshot, so that traffic does not look like a flaw."""

        def look(connection: sqlite3.Connection) -> list[Flaw]:
            flaws: list[Flaw] = []
            for query in load_named_sql.load("sqlite", "find_broken_invariants.sql").values():
                promise, _, rule = query.why.partition(": ")
                found = connection.execute(query.sql, (limit,))
                flaws += [Flaw(promise=promise, rule=rule, row=row["row"]) for row in found]
            return flaws

        return await self.access.read(look, within=VERIFY_SECONDS)

    async def check(self) -> None:
        """The schema has what this program needs, and allows it."""
        check_current("sqlite", await self.access.read(read_applied, within=READ_SECONDS))

    def requests_at_once_max(self, *, batches: int) -> int | None:  # noqa: ARG002 (one writer)
        """No limit: one writer needs no lock table."""
        return None

    async def check_ready(self) -> None:
        """The file that answers is the one that is written to."""
        await self.check()

    async def close(self) -> None:
        """Begin nothing more; a transaction that runs is finished."""
        await self.access.close()

    async def now(self) -> datetime:
        """By this process's clock."""
        return self._clock.now()

    async def read_rows(self, name: str, *arguments: object) -> list[dict[str, Any]]:
        """The rows that a named statement finds, as Python's own values."""
        return [
            convert_rows_and_values.to_python(row)
            for row in await self._read(name, *map(convert_rows_and_values.to_column, arguments))
        ]

    async def _read(self, name: str, *arguments: object) -> list[Any]:
        return await self.access.read(
            lambda connection: connection.execute(self._sql[name], arguments).fetchall(), within=READ_SECONDS
        )
