"""The PostgreSQL store: a pool of connections, optimistic writes, short transactions with locks, plain reads."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg
import stamina

from earmark.engine.api_keys import Keys
from earmark.engine.ports.store import LOCK_SECONDS_MAX, Transaction
from earmark.engine.prepaid_accounts import Accounts
from earmark.engine.tickets import Tickets
from earmark.errors import OutcomeUnknown, RowBusy, SetupError, StoreUnavailable
from earmark.store import load_named_sql
from earmark.store.both_databases.api_keys import StoredKeys
from earmark.store.both_databases.contacts_and_mails import StoredContacts, StoredMails
from earmark.store.both_databases.prepaid_accounts import StoredAccounts
from earmark.store.both_databases.reads_to_follow_seat_changes import StoredFollowedEvents
from earmark.store.both_databases.tickets import CheckInReads, StoredTickets
from earmark.store.postgres import convert_rows_and_values
from earmark.store.postgres.clear_keys_count_backlog_recount_pools import PostgresUpkeep
from earmark.store.postgres.commit_or_abandon_connection import check_warnings, commit, roll_back
from earmark.store.postgres.connection_and_optimistic_write_counts import OptimisticWriteCounts, figures
from earmark.store.postgres.connections import PostgresConnections
from earmark.store.postgres.driver_errors import (
    SILENT,
    SILENT_OR_STOPPED,
    UNWRITTEN,
    ConnectionEnded,
    ConnectionLost,
    only_reads,
    reason,
    twice,
    unavailable,
    was_ended_by_server,
)
from earmark.store.postgres.event_and_booking_reads import BookingReads
from earmark.store.postgres.find_rows_that_blocked_requests import WantedLocks, find_locked
from earmark.store.postgres.heartbeats import PostgresBeats
from earmark.store.postgres.migrate import split_url
from earmark.store.postgres.number_and_read_journal import PostgresOutbox
from earmark.store.postgres.optimistic_transaction import NeedsLocks, OptimisticWrite, SeatCacheOutdated
from earmark.store.postgres.optimistic_transaction_connections import IdleConnections, PreparedConnection
from earmark.store.postgres.read_and_claim_payments import PostgresPaymentReads
from earmark.store.postgres.rows_cached_for_optimistic_write import SeatCache
from earmark.store.postgres.seat_map import read_map
from earmark.store.postgres.session_settings import SET_LOCAL, SETTINGS
from earmark.store.postgres.startup_and_invariant_checks import StartupChecks
from earmark.store.postgres.transaction_queries import PostgresTransaction, wait_for_standby
from earmark.store.postgres.webhook_delivery_queue import PostgresWebhooks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from datetime import datetime

    from earmark.domain.id_types import EntryId, EventId, SeatId
    from earmark.domain.idempotency_record import IdempotencyKey
    from earmark.engine.commands_and_results import Row
    from earmark.engine.ports.observer import StoreFigures
    from earmark.engine.ports.store import Clock, SeatMap

T = TypeVar("T")

READ_SECONDS = 10.0
FIND_BUSY_SECONDS = 1.0
STANDBY_SECONDS = 2.0
"""How long a commit that was found here is waited for at the standby."""


class RowsMoved(Exception):
    """A row was not as an optimistic write had seen it; nothing was kept."""


class PostgresStore(StartupChecks, PostgresPaymentReads, BookingReads, CheckInReads):
    """All that Earmark keeps, in PostgreSQL 15 or newer."""

    tries_again = 2
    """How often an optimistic write that found rows changed is tried again before locks are taken."""

    def __init__(self, connections: PostgresConnections, *, clock: Clock, pgbouncer: bool) -> None:
        self._connections = connections
        self.pool = connections.pool
        self._clock = clock
        self.pgbouncer = pgbouncer
        self.seat_cache = SeatCache(self._read_page)
        self._idle = IdleConnections(connections)
        self._counts = OptimisticWriteCounts()
        self._sql: Mapping[str, str] = load_named_sql.statements("postgres")
        self.webhooks = PostgresWebhooks(self)
        self.contacts = StoredContacts(self)
        self.mails = StoredMails(self)
        self.outbox = PostgresOutbox(self, webhooks=self.webhooks, mails=self.mails)
        self.followed_events = StoredFollowedEvents(self, read_some_seats=self._see)
        self.accounts = Accounts(StoredAccounts(self, retry_on=(asyncpg.UniqueViolationError,)))
        self.keys = Keys(StoredKeys(self))
        self.tickets = Tickets(StoredTickets(self))
        self.heartbeats = PostgresBeats(self, clock=clock)
        self.upkeep = PostgresUpkeep(self)

    @classmethod
    async def connect(cls, url: str, *, clock: Clock, connections_max: int = 12) -> PostgresStore:
        """Open a pool. `?pgbouncer=true` in the URL keeps to what a pooler in transaction mode allows."""
        dsn, pgbouncer = split_url(url)
        behind: dict[str, Any] = {"statement_cache_size": 0} if pgbouncer else {"server_settings": SETTINGS}
        connections = PostgresConnections(dsn, connections_max=connections_max, pgbouncer=pgbouncer, **behind)
        try:
            await connections.open()
        except asyncpg.ProtocolViolationError as refused:
            raise SetupError(problem=f"{refused}. If that is PgBouncer, add pgbouncer=true to the URL.") from refused
        except SILENT as silence:
            raise StoreUnavailable(because=reason(silence)) from silence
        except (asyncpg.PostgresError, ValueError) as refused:
            raise SetupError(problem=f"PostgreSQL refused the connection: {refused}") from refused
        return cls(connections, clock=clock, pgbouncer=pgbouncer)

    async def transact(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        within: float,
        optimistic: bool = False,
        lock_seconds: float = LOCK_SECONDS_MAX,
    ) -> T:
        """Deadlocks cannot happen between our own verbs; hand-written SQL may still cause one, so retry."""
        if self._connections.abandoned:
            await self._connections.check_commits()
        if optimistic and not self.pgbouncer:
            loop = asyncio.get_running_loop()
            until = loop.time() + within
            self._counts.begun += 1
            try:
                return await self._write_optimistically(work, until=until, lock_seconds=lock_seconds)
            except (RowsMoved, NeedsLocks):
                self._counts.locked += 1
                within = until - loop.time()
        async for attempt in stamina.retry_context(
            on=_decided_too_early, attempts=4, timeout=within, wait_initial=0.01, wait_max=0.1, wait_jitter=0.05
        ):
            with attempt:
                return await twice(partial(self._once, work, lock_seconds=lock_seconds), within=within)
        raise AssertionError("the last attempt returns or raises")

    async def _write_optimistically(
        self, work: Callable[[Transaction], Awaitable[T]], *, until: float, lock_seconds: float
    ) -> T:
        """From the seat cache if possible, else with a look: the cache only grants, and the write compares.

        The transaction that changed a row has committed by the time the write finds out, and the next look shows it. So
        the work is tried again before locks are taken, which cost several times as much.
        """
        from_cache = True
        attempt = partial(self._try, work, until=until, lock_seconds=lock_seconds)
        for _ in range(self.tries_again):
            try:
                return await attempt(from_cache=from_cache)
            except (RowsMoved, SeatCacheOutdated):
                from_cache = False
                self._counts.again += 1
        if from_cache:
            with contextlib.suppress(SeatCacheOutdated):
                return await attempt(from_cache=True)
        return await attempt(from_cache=False)

    async def _try(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        until: float,
        from_cache: bool,
        lock_seconds: float = LOCK_SECONDS_MAX,
    ) -> T:
        """On the next connection, while idle ones turn out to be closed by the server; once more if one broke."""
        lost = False
        while True:
            try:
                return await self._try_once(work, until=until, from_cache=from_cache, lock_seconds=lock_seconds)
            except ConnectionEnded:
                continue
            except ConnectionLost:
                if lost or asyncio.get_running_loop().time() >= until:
                    raise
                lost = True

    async def _try_once(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        until: float,
        from_cache: bool,
        lock_seconds: float = LOCK_SECONDS_MAX,
    ) -> T:
        """Without locks, and one guarded call that writes; `RowsMoved` where rows were not as seen."""
        attempt: OptimisticWrite | None = None
        connection: PreparedConnection | None = None
        try:
            async with self._idle.connection(until=until) as connection:
                connection.warnings.clear()
                attempt = OptimisticWrite(
                    connection,
                    offset=self._clock.offset,
                    sql=self._sql,
                    seat_cache=self.seat_cache,
                    from_cache=from_cache,
                    lock_seconds=lock_seconds,
                )
                result = await work(attempt)
                if attempt.written and not connection.is_open():
                    raise ConnectionResetError("the connection was cut before anything was sent")
                await attempt.commit()
                check_warnings(connection.warnings)
                self.seat_cache.follow_commit(attempt.written)
                return result
        except asyncpg.LockNotAvailableError as busy:
            raise await self._row_busy(busy, attempt.wanted if attempt else WantedLocks()) from busy
        except SILENT_OR_STOPPED as silence:
            if attempt and was_ended_by_server(silence):
                attempt.writing = False
                raise ConnectionEnded from silence
            if connection is not None:
                self._connections.renew_after(silence)
            writing = attempt is not None and attempt.writing
            if writing and not isinstance(silence, UNWRITTEN):
                raise OutcomeUnknown from silence
            retry = connection is not None and not connection.timed_out and not writing
            raise unavailable(silence, retry=retry) from silence
        except asyncpg.PostgresError as moved:
            if attempt:
                attempt.drop_outdated()
            raise RowsMoved from moved
        finally:
            if attempt and attempt.written and attempt.writing:
                self.seat_cache.remove_seats(attempt.written.seats)

    async def _once(
        self, work: Callable[[Transaction], Awaitable[T]], *, within: float, lock_seconds: float = LOCK_SECONDS_MAX
    ) -> T:
        committing = begun = False
        wanted = WantedLocks()
        try:
            async with asyncio.timeout(within), self._connections.borrow() as connection:
                begun = True
                scope = connection.transaction(isolation="read_committed")
                await scope.start()
                try:
                    if self.pgbouncer:
                        await connection.execute(SET_LOCAL)
                    transaction = PostgresTransaction(
                        connection, offset=self._clock.offset, sql=self._sql, lock_seconds=lock_seconds
                    )
                    wanted = transaction.wanted
                    result = await work(transaction)
                    if transaction.replays and not transaction.wrote:
                        await wait_for_standby(transaction)
                except BaseException:
                    await roll_back(scope, connection, connections=self._connections)
                    raise
                if not transaction.wrote:
                    await scope.rollback()
                    return result
                committing = True
                if transaction.written:
                    self.seat_cache.remove_seats(transaction.written.seats)
                await commit(scope, connection, connections=self._connections)
                self.seat_cache.follow_commit(transaction.written)
                return result
        except asyncpg.LockNotAvailableError as busy:
            raise await self._row_busy(busy, wanted) from busy
        except SILENT_OR_STOPPED as silence:
            if begun:
                self._connections.renew_after(silence)
            if committing:
                raise OutcomeUnknown from silence
            raise unavailable(silence, retry=begun) from silence

    async def _row_busy(self, busy: Exception, wanted: WantedLocks) -> RowBusy:
        """The error with the rows that are locked, if they can be found in a second."""
        rows_busy: dict[Row, Row] = {}
        with contextlib.suppress(Exception):
            async with asyncio.timeout(FIND_BUSY_SECONDS), self._connections.borrow() as connection:
                rows_busy = await find_locked(connection, wanted, sql=self._sql)
        return RowBusy(because=str(busy), rows=rows_busy)

    async def has_entry(self, entry_id: EntryId) -> bool:
        """By primary key; with a synchronous standby, only once that has the entry too."""
        (entry,) = await self.read_rows("has_entry", entry_id)
        if entry["found"] and entry["replicated"]:
            await self._connections.check_commits(hanging_max=1)
            await self._once(wait_for_standby, within=STANDBY_SECONDS)
        return bool(entry["found"])

    async def known_keys(self, keys: Sequence[IdempotencyKey]) -> frozenset[IdempotencyKey]:
        """By the index of keys, on an idle connection: in a rush this runs a thousand times in a second."""
        query, wanted = self._sql["known_keys"], convert_rows_and_values.to_json(keys)

        async def fetch(*, within: float) -> list[Any]:
            connection: PreparedConnection | None = None
            try:
                until = asyncio.get_running_loop().time() + within
                async with self._idle.connection(until=until) as connection:
                    return await connection.fetch(query, wanted)
            except asyncpg.LockNotAvailableError as busy:
                raise RowBusy(because=str(busy)) from busy
            except SILENT_OR_STOPPED as silence:
                if connection is not None:
                    self._connections.renew_after(silence)
                retry = connection is not None and not connection.timed_out
                raise unavailable(silence, retry=retry) from silence

        asked = self.read_rows("known_keys", wanted) if self.pgbouncer else twice(fetch, within=READ_SECONDS)
        return frozenset(keys[row["n"] - 1] for row in await asked)

    async def _see(self, event_id: EventId, ids: Collection[SeatId] | None = None) -> SeatMap:
        read = partial(
            read_map, event_id=event_id, offset=self._clock.offset, sql=self._sql, ids=ids, pooled=self.pgbouncer
        )
        return await self._borrowed(read, retry=True, within=READ_SECONDS)

    def requests_at_once_max(self, *, batches: int) -> int | None:
        """As many as keep the keys of all batches, which are locked meanwhile, within half of the lock table."""
        at_once = min(batches, self._connections.connections_max)
        return max(1, self._connections.locks_max // (2 * at_once))

    def figures(self) -> StoreFigures:
        """Connections and optimistic writes, for metrics."""
        return figures(self.pool, self._idle, self._counts)

    async def close(self) -> None:
        """At most a second for running statements, then the connections are cut."""
        await self.seat_cache.close()
        await self._idle.close()
        try:
            await asyncio.wait_for(self.pool.close(), timeout=1)
        except TimeoutError:
            self.pool.terminate()

    async def _read_page(self, event_id: EventId, after: str, limit: int) -> list[Any]:
        return await self.read_rows("read_free_seats", event_id, after, limit)

    async def now(self) -> datetime:
        """By the database's clock."""
        now: datetime = (await self.read_rows("begin", self._clock.offset))[0][0]
        return now

    async def _look(self, look: Callable[[Any], Awaitable[T]], *, bounded: bool = True) -> T:
        """Run a function that reads in one snapshot."""

        async def in_one_snapshot(connection: Any) -> T:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await look(connection)

        return await self._borrowed(in_one_snapshot, retry=True, within=READ_SECONDS if bounded else None)

    async def read_rows(self, name: str, *arguments: object) -> list[Any]:
        """The rows of one statement, outside of a transaction; it is tried again if it only reads."""
        query = self._sql[name]

        async def fetch(connection: Any) -> list[Any]:
            found: list[Any] = await connection.fetch(query, *arguments)
            return found

        return await self._borrowed(fetch, retry=only_reads(query), within=READ_SECONDS)

    async def _borrowed(self, ask: Callable[[Any], Awaitable[T]], *, retry: bool, within: float | None) -> T:
        """Run a function with a connection; with `retry`, with another one if the first turns out to be broken."""

        async def once(*, within: float | None) -> T:
            begun = False
            try:
                async with asyncio.timeout(within), self._connections.borrow() as connection:
                    begun = True
                    return await ask(connection)
            except asyncpg.LockNotAvailableError as busy:
                # A plain read waits only for a whole table: an operator rewrites or alters it.
                raise RowBusy(because=str(busy)) from busy
            except SILENT_OR_STOPPED as silence:
                if begun:
                    self._connections.renew_after(silence)
                raise unavailable(silence, retry=begun and retry) from silence

        return await twice(once, within=within)


def _decided_too_early(error: Exception) -> bool:
    """Whether the work should run again: a deadlock was ended, or an operator lowered a limit since it was read."""
    if isinstance(error, asyncpg.CheckViolationError):
        return bool(error.constraint_name == "buyer_stays_within_limit")
    return isinstance(error, asyncpg.DeadlockDetectedError | asyncpg.SerializationError)
