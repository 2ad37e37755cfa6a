"""The SQLite store: one thread that writes, two that read, and a file between them."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from earmark.engine.accounts import Accounts
from earmark.engine.api_keys import Keys
from earmark.engine.ports.store import LOCK_SECONDS_MAX, MAP_HORIZON, BookingFilter, Flaw, SeatMap, Transaction
from earmark.errors import OutcomeUnknown, SetupError, StoreUnavailable
from earmark.store import queries
from earmark.store.migrations import check_current
from earmark.store.sqlite import rows
from earmark.store.sqlite.accounts import SqliteAccounts
from earmark.store.sqlite.connection import connect, file_of, is_busy, is_silence, unavailable, use_wal
from earmark.store.sqlite.keys import SqliteKeys
from earmark.store.sqlite.live import SqliteLive
from earmark.store.sqlite.migrate import read_applied
from earmark.store.sqlite.money import MoneyReads
from earmark.store.sqlite.outbox import SqliteOutbox
from earmark.store.sqlite.transaction import SqliteTransaction
from earmark.store.sqlite.upkeep import SqliteBeats, SqliteUpkeep
from earmark.store.sqlite.webhooks import SqliteWebhooks
from earmark.store.sqlite.writer import Ticket, Writer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
    from concurrent.futures import Executor
    from datetime import datetime
    from pathlib import Path

    from earmark.domain.booking import Booking
    from earmark.domain.event import Event
    from earmark.domain.ids import BookingId, EntryId, EventId, PaymentId, SeatId
    from earmark.domain.journal import Entry, IdempotencyKey
    from earmark.engine.ports.store import Clock

T = TypeVar("T")

READERS = 2
READ_SECONDS = 10.0
VERIFY_SECONDS = 600.0
FIRST = str(UUID(int=0))


class SqliteStore(MoneyReads):
    """The truth, in one file. Other processes may write to it too; they wait for each other."""

    def __init__(self, file: Path, *, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._sql = queries.steps("sqlite")
        self._writer = Writer(file, clock=clock, sql=self._sql)
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="earmark-writer")
        self._reading = ThreadPoolExecutor(READERS, thread_name_prefix="earmark-reader")
        self._local = threading.local()
        self._readers: list[sqlite3.Connection] = []
        self.outbox = SqliteOutbox(self.transact, look=self._look)
        self.live = SqliteLive(look=self._look, clock=clock)
        self.accounts = Accounts(SqliteAccounts(self.transact, look=self._look))
        self.keys = Keys(SqliteKeys(self.transact, look=self._look))
        self.heartbeats = SqliteBeats(self.transact, look=self._look, clock=clock)
        self.upkeep = SqliteUpkeep(self.transact, look=self._look, clock=clock)
        self.webhooks = SqliteWebhooks(self.transact, look=self._look, clock=clock)

    @classmethod
    async def open(cls, path: str | Path, *, clock: Clock) -> SqliteStore:
        """Open a file that `migrate` has made; a path, or a URL such as `sqlite:///shop.db`."""
        file = file_of(path)
        store = cls(file, clock=clock)
        try:
            await store._hop(store._writing, store._start, within=READ_SECONDS)
        except BaseException:
            await store.close()
            raise
        return store

    async def transact(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        within: float,
        optimistic: bool = False,  # noqa: ARG002 (one writer: nothing moves under it)
        lock_seconds: float = LOCK_SECONDS_MAX,  # noqa: ARG002 (one writer: no row is locked)
    ) -> T:
        """One hop to the writer's thread and back. Leaving early never leaves half a transaction behind."""
        ticket = Ticket(within=within)
        run = contextvars.copy_context().run
        job = self._submit(self._writing, lambda: run(self._writer.transact, work, ticket))
        try:
            await asyncio.wait({job}, timeout=within)
        except asyncio.CancelledError:
            ticket.give_up()
            raise
        if job.done():
            return _result(job)
        if ticket.give_up():
            raise StoreUnavailable(because=f"SQLite: no answer within {within:g} s; nothing was kept")
        raise OutcomeUnknown

    async def has_entry(self, entry_id: EntryId) -> bool:
        """Asked in the writer's thread: a commit that is still under way has ended before this is answered."""

        def look() -> bool:
            found = self._writer.connection().execute(self._sql["has_entry"], (str(entry_id),)).fetchone()
            return bool(found[0])

        return await self._hop(self._writing, look, within=READ_SECONDS)

    async def known_keys(self, keys: Sequence[IdempotencyKey]) -> frozenset[IdempotencyKey]:
        """By the index of keys."""
        found = await self._read("known_keys", rows.to_json(keys))
        return frozenset(keys[row["place"]] for row in found)

    async def read_event(self, event_id: EventId) -> Event | None:
        """By primary key."""
        found = await self._read("read_events", rows.to_json([event_id]))
        return rows.event(found[0]) if found else None

    async def list_events(self, *, live: bool, after: EventId | None, limit: int) -> list[Event]:
        """By id."""
        return [rows.event(row) for row in await self._read("list_events", live, after or "", limit)]

    async def read_map(self, event_id: EventId, *, seat_id: SeatId | None = None) -> SeatMap:
        """Seats and pools as one commit left them."""

        def look(connection: sqlite3.Connection) -> SeatMap:
            now = self._clock.now()
            name, key = ("read_map", (event_id,)) if seat_id is None else ("read_map_of_one", (event_id, seat_id))
            seats = [rows.seat_on_map(row) for row in connection.execute(self._sql[name], key)]
            found = connection.execute(self._sql["read_pools"], (event_id, rows.to_moment(now)))
            span = (rows.to_moment(now), rows.to_moment(now + MAP_HORIZON))
            lapse = connection.execute(self._sql["next_lapse"], (event_id, *span)).fetchone()
            ends_at = rows.moment(lapse[0]) if lapse else None
            return SeatMap(now=now, seats=seats, pools=[rows.pool(row) for row in found], ends_at=ends_at)

        return await self._look(look, within=READ_SECONDS)

    async def read_booking(self, booking_id: BookingId) -> tuple[datetime, Booking | None]:
        """By primary key."""
        found = await self._read("read_booking", str(booking_id))
        return self._clock.now(), rows.booking(found[0]) if found else None

    async def list_bookings(self, wanted: BookingFilter) -> tuple[datetime, list[Booking]]:
        """By id, which is by age, along the index that fits the question."""
        now = self._clock.now()
        name = "list_bookings"
        if wanted.buyer is not None:
            name = "list_bookings_of_buyer"
        elif wanted.event_id is not None:
            name = "list_bookings_of_event"
        found = await self._read(
            name,
            wanted.live,
            str(wanted.after) if wanted.after else FIRST,
            wanted.buyer,
            wanted.event_id,
            wanted.state.value if wanted.state else None,
            rows.to_moment(now),
            wanted.limit,
        )
        return now, [rows.booking(row) for row in found]

    async def read_history(self, booking_id: BookingId) -> list[Entry]:
        """By version."""
        return [rows.entry(row) for row in await self._read("read_history", str(booking_id))]

    async def seconds_to_next_due(self) -> float | None:
        """By the sweeper's index."""
        due = (await self._read("next_due"))[0][0]
        return None if due is None else (rows.moment(due) - self._clock.now()).total_seconds()

    async def claim_payments(
        self, *, limit: int, lease_seconds: float, gateways: Collection[str] | None = None
    ) -> list[PaymentId]:
        """By the writer, so that nobody else is given the same ones."""

        async def claim(transaction: Transaction) -> list[PaymentId]:
            assert isinstance(transaction, SqliteTransaction)
            return await transaction.claim_payments(
                limit=limit, lease_seconds=lease_seconds, gateways=gateways, now=self._moment()
            )

        return await self.transact(claim, within=READ_SECONDS)

    async def find_flaws(self, *, limit: int) -> list[Flaw]:
        """Every query of `verify.sql`, in one snapshot, so that running traffic does not look like a flaw."""

        def look(connection: sqlite3.Connection) -> list[Flaw]:
            flaws: list[Flaw] = []
            for query in queries.load("sqlite", "verify.sql").values():
                promise, _, rule = query.why.partition(": ")
                found = connection.execute(query.sql, (limit,))
                flaws += [Flaw(promise=promise, rule=rule, row=row["row"]) for row in found]
            return flaws

        return await self._look(look, within=VERIFY_SECONDS)

    async def check(self) -> None:
        """The schema has what this program needs, and allows it."""
        check_current("sqlite", await self._look(read_applied, within=READ_SECONDS))

    def requests_at_once_max(self, *, batches: int) -> int | None:  # noqa: ARG002 (one writer)
        """Nothing limits it."""
        return None

    async def check_ready(self) -> None:
        """The file that answers is the one that is written to."""
        await self.check()

    async def close(self) -> None:
        """Reads are cut short; a transaction that runs comes to its end, and those that wait are not begun."""
        for reader in self._readers:
            reader.interrupt()
        self._reading.shutdown(wait=False, cancel_futures=True)
        self._writing.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._end)

    def _moment(self) -> datetime:
        return self._clock.now()

    def _start(self) -> None:
        """In the writer's thread: the file is there, and it is in the mode that everything here rests on."""
        if not self._file.exists():
            raise SetupError(problem=f"There is no database at {self._file}. Run: earmark migrate --database …")
        try:
            use_wal(self._writer.connection())
        except sqlite3.DatabaseError as failure:
            if is_busy(failure):
                raise
            raise SetupError(problem=f"SQLite cannot use {self._file}: {failure}") from failure

    def _end(self) -> None:
        """The writer last: it tidies the log away once nobody reads."""
        self._reading.shutdown()
        self._writing.shutdown()
        while self._readers:
            self._readers.pop().close()
        self._writer.close()

    async def _read(self, name: str, *arguments: object) -> list[Any]:
        return await self._look(
            lambda connection: connection.execute(self._sql[name], arguments).fetchall(), within=READ_SECONDS
        )

    async def _look(self, look: Callable[[sqlite3.Connection], T], *, within: float) -> T:
        """In a reader's thread, on one snapshot."""

        def read() -> T:
            with _snapshot(self._reader()) as connection:
                return look(connection)

        return await self._hop(self._reading, read, within=within)

    def _reader(self) -> sqlite3.Connection:
        """The connection of the thread that asks."""
        reader: sqlite3.Connection | None = getattr(self._local, "reader", None)
        if reader is None:
            reader = self._local.reader = connect(self._file, mode="ro")
            self._readers.append(reader)
        return reader

    async def _hop(self, executor: Executor, read: Callable[[], T], *, within: float) -> T:
        job = self._submit(executor, read)
        try:
            await asyncio.wait({job}, timeout=within)
            if not job.done():
                raise StoreUnavailable(because=f"SQLite: no answer within {within:g} s")
            return _result(job)
        except sqlite3.Error as failure:
            if is_silence(failure):
                raise unavailable(failure) from failure
            raise
        finally:
            job.cancel()

    def _submit(self, executor: Executor, run: Callable[[], T]) -> asyncio.Future[T]:
        try:
            job = asyncio.wrap_future(executor.submit(run))
        except RuntimeError as closed:
            raise StoreUnavailable(because="SQLite: the store is closed") from closed
        # A caller that has left does not hear how it ended, and that is no error.
        job.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return job


def _result(job: asyncio.Future[T]) -> T:
    if job.cancelled():
        raise StoreUnavailable(because="SQLite: the store was closed")
    return job.result()


@contextmanager
def _snapshot(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All that is read here is as one commit left it."""
    connection.execute("BEGIN")
    try:
        yield connection
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
