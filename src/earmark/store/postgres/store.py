"""The PostgreSQL store: a pool of connections, short transactions, plain reads."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import asyncpg
import stamina

from earmark.engine.accounts import Accounts
from earmark.engine.keys import Keys
from earmark.engine.ports import LOCK_SECONDS_MAX, BookingFilter, Flaw, SeatMap, Transaction
from earmark.errors import OutcomeUnknown, RowBusy, SetupError, StoreUnavailable
from earmark.store import queries
from earmark.store.migrations import check_current
from earmark.store.postgres import rows
from earmark.store.postgres.accounts import PostgresAccounts
from earmark.store.postgres.busy_rows import Wanted, find_busy
from earmark.store.postgres.draft import Misremembered, NeedsLocks, PostgresDraft
from earmark.store.postgres.figures import Drafted, figures
from earmark.store.postgres.idle import Ended, Idle, has_said_goodbye, reason
from earmark.store.postgres.keys import PostgresKeys
from earmark.store.postgres.live import PostgresLive
from earmark.store.postgres.maps import read_map, read_map_pooled
from earmark.store.postgres.migrate import read_applied, split_url
from earmark.store.postgres.money import MoneyReads
from earmark.store.postgres.outbox import PostgresOutbox
from earmark.store.postgres.recall import Recall
from earmark.store.postgres.transaction import PostgresTransaction
from earmark.store.postgres.upkeep import ANY_PLAN, RESTRAINED, PostgresBeats, PostgresUpkeep
from earmark.store.postgres.webhooks import PostgresWebhooks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from datetime import datetime

    from earmark.domain.booking import Booking
    from earmark.domain.event import Event
    from earmark.domain.ids import BookingId, EntryId, EventId, SeatId
    from earmark.domain.journal import Entry
    from earmark.engine.observer import StoreFigures
    from earmark.engine.ports import Clock

T = TypeVar("T")

SILENT = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
)
STOPPED = (
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
SILENT_OR_STOPPED = (*SILENT, *STOPPED)
# The server itself said that it stopped the statement, and so kept nothing of it.
UNWRITTEN = (asyncpg.InsufficientResourcesError, asyncpg.ReadOnlySQLTransactionError, asyncpg.QueryCanceledError)
ROLLBACK_SECONDS = 1.0
READ_SECONDS = 10.0
FIND_BUSY_SECONDS = 1.0
FIRST = UUID(int=0)

SETTINGS = {
    "application_name": "earmark",
    "default_transaction_isolation": "read committed",
    # Array statements were planned anew at each call; the generic plan is the right one for all of them.
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    # Every statement on the way of a booking finds its rows by key, one after the other: not as they lie, by a bitmap,
    # nor by reading tables whole for ever after, because they were small when the plan was made.
    **dict.fromkeys(RESTRAINED, "off"),
    # A paused client frees its row locks, and nobody waits for one for ever.
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "5s",
}


class Moved(Exception):
    """Something that a draft had seen was not as seen any more; nothing was kept."""


class PostgresStore(MoneyReads):
    """The truth, in PostgreSQL 15 or newer."""

    drafts_again = 2
    """How often a draft that met somebody is tried again before locks are taken."""

    def __init__(self, pool: Any, *, clock: Clock, pgbouncer: bool) -> None:
        self._pool = pool
        self._clock = clock
        self.pgbouncer = pgbouncer
        self._recall = Recall(self._read_page)
        self._idle = Idle(pool)
        self._drafted = Drafted()
        self._sql = queries.steps("postgres") | queries.sql("postgres", "outbox.sql")
        for file in ("accounts.sql", "keys.sql", "live.sql", "upkeep.sql", "webhooks.sql"):
            self._sql |= queries.sql("postgres", file)
        self.outbox = PostgresOutbox(self.transact, read=self._read)
        self.live = PostgresLive(read=self._read, see=self._see)
        self.accounts = Accounts(PostgresAccounts(self.transact, read=self._read))
        self.keys = Keys(PostgresKeys(self.transact, read=self._read))
        self.beats = PostgresBeats(self._read, clock=clock)
        self.upkeep = PostgresUpkeep(self.transact, read=self._read, clock=clock)
        self.webhooks = PostgresWebhooks(self.transact, read=self._read)

    @classmethod
    async def connect(cls, url: str, *, clock: Clock, connections_max: int = 12) -> PostgresStore:
        """Open a pool. `?pgbouncer=true` in the URL keeps to what a pooler in transaction mode allows."""
        dsn, pgbouncer = split_url(url)
        behind: dict[str, Any] = {"statement_cache_size": 0} if pgbouncer else {"server_settings": SETTINGS}
        try:
            pool = await asyncpg.create_pool(
                dsn, min_size=1, max_size=connections_max, reset=_reset, command_timeout=30, timeout=10, **behind
            )
        except asyncpg.ProtocolViolationError as refused:
            raise SetupError(problem=f"{refused}. If that is PgBouncer, add pgbouncer=true to the URL.") from refused
        except SILENT as silence:
            raise StoreUnavailable(because=reason(silence)) from silence
        except (asyncpg.PostgresError, ValueError) as refused:
            raise SetupError(problem=f"PostgreSQL refused the connection: {refused}") from refused
        return cls(pool, clock=clock, pgbouncer=pgbouncer)

    async def transact(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        within: float,
        draft: bool = False,
        lock_seconds: float = LOCK_SECONDS_MAX,
    ) -> T:
        """Deadlocks cannot happen between our own verbs; hand-written SQL may still cause one, so retry."""
        if draft and not self.pgbouncer:
            began = asyncio.get_running_loop().time()
            self._drafted.drafts += 1
            with contextlib.suppress(Moved, NeedsLocks):
                return await self._drafts(work, within=within, lock_seconds=lock_seconds)
            self._drafted.locked += 1
            within -= asyncio.get_running_loop().time() - began
        async for attempt in stamina.retry_context(
            on=_decided_too_early, attempts=4, timeout=within, wait_initial=0.01, wait_max=0.1, wait_jitter=0.05
        ):
            with attempt:
                return await self._once(work, within=within, lock_seconds=lock_seconds)
        raise AssertionError("the last attempt returns or raises")

    async def _drafts(self, work: Callable[[Transaction], Awaitable[T]], *, within: float, lock_seconds: float) -> T:
        """From memory if it can be, else with a look: memory grants what the write compares, and refuses nobody.

        Whoever moved something has committed by the time a draft finds out, and the next look shows it. So a draft is
        tried again before locks are taken, which cost several times as much.
        """
        from_memory = True
        draft = partial(self._draft, work, within=within, lock_seconds=lock_seconds)
        for _ in range(self.drafts_again):
            try:
                return await draft(from_memory=from_memory)
            except (Moved, Misremembered):
                from_memory = False
                self._drafted.again += 1
        if from_memory:
            with contextlib.suppress(Misremembered):
                return await draft(from_memory=True)
        return await draft(from_memory=False)

    async def _draft(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        within: float,
        from_memory: bool,
        lock_seconds: float = LOCK_SECONDS_MAX,
    ) -> T:
        """On the next connection, for as long as those that waited turn out to have ended."""
        while True:
            with contextlib.suppress(Ended):
                return await self._draft_once(work, within=within, from_memory=from_memory, lock_seconds=lock_seconds)

    async def _draft_once(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        within: float,
        from_memory: bool,
        lock_seconds: float = LOCK_SECONDS_MAX,
    ) -> T:
        """Without locks, and one guarded call for what is to be written; `Moved` when locks are needed after all."""
        draft: PostgresDraft | None = None
        try:
            async with self._idle.connection(within=within) as connection:
                draft = PostgresDraft(
                    connection,
                    offset=self._clock.offset,
                    sql=self._sql,
                    recall=self._recall,
                    from_memory=from_memory,
                    lock_seconds=lock_seconds,
                )
                result = await work(draft)
                if draft.written and not connection.is_open():
                    raise StoreUnavailable(because="the connection was cut before anything was sent")
                await draft.commit()
                self._recall.wrote(draft.written)
                return result
        except asyncpg.LockNotAvailableError as busy:
            raise await self._row_busy(busy, draft.wanted if draft else Wanted()) from busy
        except SILENT_OR_STOPPED as silence:
            if draft and has_said_goodbye(silence):
                draft.writing = False
                raise Ended from silence
            if draft and draft.writing and not isinstance(silence, UNWRITTEN):
                raise OutcomeUnknown from silence
            raise StoreUnavailable(because=reason(silence)) from silence
        except asyncpg.PostgresError as moved:
            if draft:
                draft.doubt()
            raise Moved from moved
        finally:
            if draft and draft.written and draft.writing:
                self._recall.gave(draft.written.seats)

    async def _once(
        self, work: Callable[[Transaction], Awaitable[T]], *, within: float, lock_seconds: float = LOCK_SECONDS_MAX
    ) -> T:
        committing = False
        wanted = Wanted()
        try:
            async with asyncio.timeout(within), self._pool.acquire() as connection:
                scope = connection.transaction(isolation="read_committed")
                await scope.start()
                try:
                    if self.pgbouncer:
                        await connection.execute(_SET_LOCAL)
                    transaction = PostgresTransaction(
                        connection, offset=self._clock.offset, sql=self._sql, lock_seconds=lock_seconds
                    )
                    wanted = transaction.wanted
                    result = await work(transaction)
                except BaseException:
                    await _rollback(scope, connection)
                    raise
                if not transaction.wrote:
                    await scope.rollback()
                    return result
                committing = True
                if transaction.written:
                    self._recall.gave(transaction.written.seats)
                await _commit(scope, connection)
                self._recall.wrote(transaction.written)
                return result
        except asyncpg.LockNotAvailableError as busy:
            raise await self._row_busy(busy, wanted) from busy
        except SILENT_OR_STOPPED as silence:
            if committing:
                raise OutcomeUnknown from silence
            raise StoreUnavailable(because=reason(silence)) from silence

    async def _row_busy(self, busy: Exception, wanted: Wanted) -> RowBusy:
        """With the rows that are locked, if that can be found out in a second."""
        rows_busy: frozenset[tuple[str, object]] = frozenset()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(FIND_BUSY_SECONDS), self._pool.acquire() as connection:
                rows_busy = await find_busy(connection, wanted, sql=self._sql)
        return RowBusy(because=str(busy), rows=rows_busy)

    async def has_entry(self, entry_id: EntryId) -> bool:
        """By primary key."""
        return bool((await self._read("has_entry", entry_id))[0][0])

    async def read_event(self, event_id: EventId) -> Event | None:
        """By primary key."""
        found = await self._read("read_events", [event_id])
        return rows.event(found[0]) if found else None

    async def list_events(self, *, live: bool, after: EventId | None, limit: int) -> list[Event]:
        """By id."""
        return [rows.event(row) for row in await self._read("list_events", live, after or "", limit)]

    async def read_map(self, event_id: EventId, *, seat_id: SeatId | None = None) -> SeatMap:
        """For showing only. One seat by its key; a whole house in one snapshot."""
        if seat_id is not None:
            seats, now = await self._read("read_seat", event_id, seat_id), await self._now()
            pools = [rows.pool(row) for row in await self._read("read_pools", event_id, now)]
            return SeatMap(now=now, seats=[rows.seat_on_map(row) for row in seats], pools=pools)
        return await self._see(event_id)

    async def _see(self, event_id: EventId, ids: Collection[SeatId] | None = None) -> SeatMap:
        try:
            async with asyncio.timeout(READ_SECONDS), self._pool.acquire() as connection:
                read = read_map_pooled if self.pgbouncer else read_map
                return await read(connection, event_id, offset=self._clock.offset, sql=self._sql, ids=ids)
        except SILENT_OR_STOPPED as silence:
            raise StoreUnavailable(because=reason(silence)) from silence

    async def read_booking(self, booking_id: BookingId) -> tuple[datetime, Booking | None]:
        """By primary key."""
        found = await self._read("read_booking", booking_id)
        return await self._now(), rows.booking(found[0]) if found else None

    async def list_bookings(self, wanted: BookingFilter) -> tuple[datetime, list[Booking]]:
        """By id, which is by age."""
        now = await self._now()
        state = wanted.state.value if wanted.state else None
        page = (wanted.live, wanted.after or FIRST, state, now, wanted.limit)
        if wanted.buyer is not None:
            found = await self._read("list_bookings_of_buyer", *page, wanted.buyer, wanted.event_id)
        elif wanted.event_id is not None:
            found = await self._read("list_bookings_of_event", *page, wanted.event_id)
        else:
            found = await self._read("list_bookings", *page)
        return now, [rows.booking(row) for row in found]

    async def read_history(self, booking_id: BookingId) -> list[Entry]:
        """By version."""
        return [rows.entry(row) for row in await self._read("read_history", booking_id)]

    async def seconds_to_next_due(self) -> float | None:
        """By the sweeper's index."""
        seconds: float | None = (await self._read("seconds_to_next_due", self._clock.offset))[0][0]
        return seconds

    async def find_flaws(self, *, limit: int) -> list[Flaw]:
        """Every query of `verify.sql`, in one snapshot, so that running traffic does not look like a flaw."""
        flaws: list[Flaw] = []
        try:
            async with (
                self._pool.acquire() as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                await connection.execute(ANY_PLAN)
                for query in queries.load("postgres", "verify.sql").values():
                    promise, _, rule = query.why.partition(": ")
                    found = await connection.fetch(query.sql, limit, timeout=600)
                    flaws += [Flaw(promise=promise, rule=rule, row=row["row"]) for row in found]
        except SILENT_OR_STOPPED as silence:
            raise StoreUnavailable(because=reason(silence)) from silence
        return flaws

    async def check(self) -> None:
        """Schema, version and isolation: what every promise stands on."""
        try:
            async with self._pool.acquire() as connection:
                applied = await read_applied(connection)
                version = int(await connection.fetchval("SHOW server_version_num"))
                async with connection.transaction(isolation="read_committed"):
                    isolation = await connection.fetchval("SHOW transaction_isolation")
        except SILENT_OR_STOPPED as silence:
            raise StoreUnavailable(because=reason(silence)) from silence
        check_current("postgres", applied)
        if version < OLDEST:
            raise SetupError(problem=f"Earmark needs PostgreSQL 15 or newer; this is {version // 10000}.")
        assert isolation == "read committed", isolation

    def figures(self) -> StoreFigures:
        """Connections and drafts, for whoever watches."""
        return figures(self._pool, self._idle, self._drafted)

    async def close(self) -> None:
        """At most a second for running statements, then the connections are cut."""
        await self._recall.close()
        await self._idle.close()
        try:
            await asyncio.wait_for(self._pool.close(), timeout=1)
        except TimeoutError:
            self._pool.terminate()

    async def _read_page(self, event_id: EventId, after: str, limit: int) -> list[Any]:
        return await self._read("recall_seats", event_id, after, limit)

    async def _now(self) -> datetime:
        now: datetime = (await self._read("begin", self._clock.offset))[0][0]
        return now

    async def _look(self, look: Callable[[Any], Awaitable[T]]) -> T:
        """All that is read here is as one commit left it."""
        try:
            async with (
                asyncio.timeout(READ_SECONDS),
                self._pool.acquire() as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                return await look(connection)
        except SILENT_OR_STOPPED as silence:
            raise StoreUnavailable(because=reason(silence)) from silence

    async def _read(self, name: str, *arguments: object) -> list[Any]:
        try:
            async with asyncio.timeout(READ_SECONDS):
                found: list[Any] = await self._pool.fetch(self._sql[name], *arguments)
                return found
        except SILENT_OR_STOPPED as silence:
            raise StoreUnavailable(because=reason(silence)) from silence


OLDEST = 15_00_00
_SET_LOCAL = "; ".join(
    f"SET LOCAL {name} = '{value}'" for name, value in SETTINGS.items() if name != "application_name"
)


def _decided_too_early(error: Exception) -> bool:
    """Whether the work should look again: a deadlock was cut, or an operator lowered a limit since it was read."""
    if isinstance(error, asyncpg.CheckViolationError):
        return bool(error.constraint_name == "buyer_stays_within_limit")
    return isinstance(error, asyncpg.DeadlockDetectedError | asyncpg.SerializationError)


async def _reset(connection: Any) -> None:
    """Every statement of ours leaves the session as it found it: nothing to reset, and no round trip for it."""


async def _commit(scope: Any, connection: Any) -> None:
    """A connection whose commit was not answered is never used again."""
    try:
        await scope.commit()
    except BaseException:
        connection.terminate()
        raise


async def _rollback(scope: Any, connection: Any) -> None:
    """Within a second, or the connection is cut, which rolls back too: it may be the very thing that broke.

    Waited for as a task: Python before 3.11.3 confuses a deadline inside a deadline that has just passed.
    """
    rolling = asyncio.ensure_future(scope.rollback())
    rolling.add_done_callback(lambda rolled: rolled.cancelled() or rolled.exception())
    try:
        await asyncio.wait({rolling}, timeout=ROLLBACK_SECONDS)
    finally:
        if not rolling.done() or rolling.cancelled() or rolling.exception():
            connection.terminate()
            rolling.cancel()
