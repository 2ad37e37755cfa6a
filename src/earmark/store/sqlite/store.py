"""The SQLite store: one writer, so no transaction meets another one's rows half changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from earmark.engine.api_keys import Keys
from earmark.engine.ports.store import LOCK_SECONDS_MAX, MAP_HORIZON, BookingFilter, Flaw, SeatMap, Transaction
from earmark.engine.prepaid_accounts import Accounts
from earmark.store import load_named_sql
from earmark.store.both_databases.api_keys import StoredKeys
from earmark.store.both_databases.newest_entry_and_seats_by_id import StoredFollowedEvents
from earmark.store.both_databases.pending_migrations import check_current
from earmark.store.both_databases.prepaid_accounts import StoredAccounts
from earmark.store.sqlite import convert_rows_and_values
from earmark.store.sqlite.cleanup_backlog_recounts import SqliteUpkeep
from earmark.store.sqlite.heartbeats import SqliteBeats
from earmark.store.sqlite.migrate import read_applied
from earmark.store.sqlite.number_and_read_journal import SqliteOutbox
from earmark.store.sqlite.open_connection import file_of
from earmark.store.sqlite.read_and_claim_payments import SqlitePaymentReads
from earmark.store.sqlite.reader_and_writer_threads import READ_SECONDS, FileAccess
from earmark.store.sqlite.webhook_delivery_queue import SqliteWebhooks

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from datetime import datetime
    from pathlib import Path

    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking
    from earmark.domain.id_types import BookingId, EntryId, EventId, SeatId
    from earmark.domain.journal import Entry, IdempotencyKey
    from earmark.domain.live_or_test_mode import Mode
    from earmark.engine.ports.store import Clock
    from earmark.store.sqlite.reader_and_writer_threads import SqliteAccess

T = TypeVar("T")

VERIFY_SECONDS = 600.0
FIRST = str(UUID(int=0))


class SqliteStore(SqlitePaymentReads):
    """All that Earmark keeps, in one file. Other processes may write to it too; they wait for each other."""

    def __init__(self, access: SqliteAccess, *, clock: Clock) -> None:
        self.access = access
        self._clock = clock
        self._sql = load_named_sql.statements("sqlite")
        self.webhooks = SqliteWebhooks(self)
        self.outbox = SqliteOutbox(self, webhooks=self.webhooks)
        self.followed_events = StoredFollowedEvents(self, read_some_seats=self._read_some_seats)
        self.accounts = Accounts(StoredAccounts(self, digest=bytes.hex))
        self.keys = Keys(StoredKeys(self))
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

    async def read_event(self, event_id: EventId) -> Event | None:
        """An event by its id."""
        found = await self._read("read_events", convert_rows_and_values.to_json([event_id]))
        return convert_rows_and_values.event(found[0]) if found else None

    async def list_events(self, *, mode: Mode, after: EventId | None, limit: int) -> list[Event]:
        """A page of events, by id."""
        return [convert_rows_and_values.event(row) for row in await self._read("list_events", mode, after or "", limit)]

    async def read_map(self, event_id: EventId, *, seat_id: SeatId | None = None) -> SeatMap:
        """Seats and pools as one commit left them."""
        name, key = ("read_map", (event_id,)) if seat_id is None else ("read_map_of_one", (event_id, seat_id))
        return await self._read_seats(event_id, name, key)

    async def _read_some_seats(self, event_id: EventId, ids: Collection[SeatId]) -> SeatMap:
        return await self._read_seats(
            event_id, "read_some_seats", (event_id, convert_rows_and_values.to_json(list(ids)))
        )

    async def _read_seats(self, event_id: EventId, name: str, key: tuple[str, ...]) -> SeatMap:
        def look(connection: sqlite3.Connection) -> SeatMap:
            now = self._clock.now()
            seats = [convert_rows_and_values.seat_on_map(row) for row in connection.execute(self._sql[name], key)]
            found = connection.execute(self._sql["read_pools"], (event_id, convert_rows_and_values.to_moment(now)))
            span = (convert_rows_and_values.to_moment(now), convert_rows_and_values.to_moment(now + MAP_HORIZON))
            lapse = connection.execute(self._sql["next_lapse"], (event_id, *span)).fetchone()
            ends_at = convert_rows_and_values.moment(lapse[0]) if lapse else None
            return SeatMap(
                now=now, seats=seats, pools=[convert_rows_and_values.pool(row) for row in found], ends_at=ends_at
            )

        return await self.access.read(look, within=READ_SECONDS)

    async def read_booking(self, booking_id: BookingId) -> tuple[datetime, Booking | None]:
        """A booking by its id, and the moment of the read."""
        found = await self._read("read_booking", str(booking_id))
        return self._clock.now(), convert_rows_and_values.booking(found[0]) if found else None

    async def list_bookings(self, wanted: BookingFilter) -> tuple[datetime, list[Booking]]:
        """By id, which is by age, along the index that fits the filter."""
        now = self._clock.now()
        name = "list_bookings"
        if wanted.buyer is not None:
            name = "list_bookings_of_buyer"
        elif wanted.event_id is not None:
            name = "list_bookings_of_event"
        found = await self._read(
            name,
            wanted.mode,
            str(wanted.after) if wanted.after else FIRST,
            wanted.buyer,
            wanted.event_id,
            wanted.state.value if wanted.state else None,
            convert_rows_and_values.to_moment(now),
            wanted.limit,
        )
        return now, [convert_rows_and_values.booking(row) for row in found]

    async def read_history(self, booking_id: BookingId) -> list[Entry]:
        """The journal of a booking, by version."""
        return [convert_rows_and_values.entry(row) for row in await self._read("read_history", str(booking_id))]

    async def seconds_to_next_due(self) -> float | None:
        """By the sweeper's index."""
        due = (await self._read("next_due"))[0][0]
        return None if due is None else (convert_rows_and_values.moment(due) - self._clock.now()).total_seconds()

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
