"""The PostgreSQL store: a pool of connections, short transactions, plain reads."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg
import stamina

from earmark.engine.accounts import Accounts
from earmark.engine.api_keys import Keys
from earmark.engine.ports.store import LOCK_SECONDS_MAX, Transaction
from earmark.errors import OutcomeUnknown, RowBusy, SetupError, StoreUnavailable
from earmark.store import queries
from earmark.store.postgres import rows
from earmark.store.postgres.accounts import PostgresAccounts
from earmark.store.postgres.busy_rows import Wanted, find_busy
from earmark.store.postgres.checks import Checks
from earmark.store.postgres.connections import Connections
from earmark.store.postgres.draft import Misremembered, NeedsLocks, PostgresDraft
from earmark.store.postgres.ending import check_warnings, commit, roll_back
from earmark.store.postgres.figures import Drafted, figures
from earmark.store.postgres.idle import Idle, Prepared
from earmark.store.postgres.keys import PostgresKeys
from earmark.store.postgres.live import PostgresLive
from earmark.store.postgres.maps import read_map
from earmark.store.postgres.migrate import split_url
from earmark.store.postgres.money import MoneyReads
from earmark.store.postgres.outages import (
    SILENT,
    SILENT_OR_STOPPED,
    UNWRITTEN,
    ConnectionLost,
    Ended,
    has_said_goodbye,
    only_reads,
    reason,
    twice,
    unavailable,
)
from earmark.store.postgres.outbox import PostgresOutbox
from earmark.store.postgres.reads import Reads
from earmark.store.postgres.recall import Recall
from earmark.store.postgres.transaction import PostgresTransaction, wait_for_standby
from earmark.store.postgres.upkeep import RESTRAINED, PostgresBeats, PostgresUpkeep
from earmark.store.postgres.webhooks import PostgresWebhooks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from datetime import datetime

    from earmark.domain.ids import EntryId, EventId, SeatId
    from earmark.domain.journal import IdempotencyKey
    from earmark.engine.commands import Row
    from earmark.engine.ports.observer import StoreFigures
    from earmark.engine.ports.store import Clock, SeatMap

T = TypeVar("T")

READ_SECONDS = 10.0
FIND_BUSY_SECONDS = 1.0
STANDBY_SECONDS = 2.0
"""How long a commit that was found here is waited for at the standby."""

SETTINGS = {
    "application_name": "earmark",
    "default_transaction_isolation": "read committed",
    # Array statements were planned anew at each call; the generic plan is the right one for all of them.
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    # Every statement on the way of a booking finds its rows by key, one after the other: not as they lie, by a bitmap,
    # nor by reading tables whole for ever after, because they were small when the plan was made.
    **dict.fromkeys(RESTRAINED, "off"),
    # No parallel workers: above about 8 MB of seats, PostgreSQL would start up to two for each page it reads.
    "max_parallel_workers_per_gather": "0",
    # Every statement has a deadline here; a shorter one of the role would make an outage of a row that is locked.
    "statement_timeout": "0",
    # A paused client frees its row locks, and nobody waits for one for ever.
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "5s",
}


class Moved(Exception):
    """Something that a draft had seen was not as seen any more; nothing was kept."""


class PostgresStore(Checks, MoneyReads, Reads):
    """The truth, in PostgreSQL 15 or newer."""

    drafts_again = 2
    """How often a draft that met somebody is tried again before locks are taken."""

    def __init__(self, connections: Connections, *, clock: Clock, pgbouncer: bool) -> None:
        self._connections = connections
        self._pool = connections.pool
        self._clock = clock
        self.pgbouncer = pgbouncer
        self._recall = Recall(self._read_page)
        self._idle = Idle(connections)
        self._drafted = Drafted()
        self._sql = queries.steps("postgres") | queries.sql("postgres", "outbox.sql")
        for file in ("accounts.sql", "keys.sql", "live.sql", "upkeep.sql", "webhooks.sql"):
            self._sql |= queries.sql("postgres", file)
        self.outbox = PostgresOutbox(self.transact, read=self._read)
        self.live = PostgresLive(read=self._read, see=self._see)
        self.accounts = Accounts(PostgresAccounts(self.transact, read=self._read))
        self.keys = Keys(PostgresKeys(self.transact, read=self._read))
        self.heartbeats = PostgresBeats(self._read, clock=clock)
        self.upkeep = PostgresUpkeep(self.transact, read=self._read, clock=clock)
        self.webhooks = PostgresWebhooks(self.transact, read=self._read)

    @classmethod
    async def connect(cls, url: str, *, clock: Clock, connections_max: int = 12) -> PostgresStore:
        """Open a pool. `?pgbouncer=true` in the URL keeps to what a pooler in transaction mode allows."""
        dsn, pgbouncer = split_url(url)
        behind: dict[str, Any] = {"statement_cache_size": 0} if pgbouncer else {"server_settings": SETTINGS}
        connections = Connections(dsn, connections_max=connections_max, pgbouncer=pgbouncer, **behind)
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
            self._drafted.drafts += 1
            try:
                return await self._drafts(work, until=until, lock_seconds=lock_seconds)
            except (Moved, NeedsLocks):
                self._drafted.locked += 1
                within = until - loop.time()
        async for attempt in stamina.retry_context(
            on=_decided_too_early, attempts=4, timeout=within, wait_initial=0.01, wait_max=0.1, wait_jitter=0.05
        ):
            with attempt:
                return await twice(partial(self._once, work, lock_seconds=lock_seconds), within=within)
        raise AssertionError("the last attempt returns or raises")

    async def _drafts(self, work: Callable[[Transaction], Awaitable[T]], *, until: float, lock_seconds: float) -> T:
        """From memory if it can be, else with a look: memory grants what the write compares, and refuses nobody.

        Whoever moved something has committed by the time a draft finds out, and the next look shows it. So a draft is
        tried again before locks are taken, which cost several times as much.
        """
        from_memory = True
        draft = partial(self._draft, work, until=until, lock_seconds=lock_seconds)
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
        until: float,
        from_memory: bool,
        lock_seconds: float = LOCK_SECONDS_MAX,
    ) -> T:
        """On the next connection, for as long as those that waited turn out to have ended; once more if one broke."""
        lost = False
        while True:
            try:
                return await self._draft_once(work, until=until, from_memory=from_memory, lock_seconds=lock_seconds)
            except Ended:
                continue
            except ConnectionLost:
                if lost or asyncio.get_running_loop().time() >= until:
                    raise
                lost = True

    async def _draft_once(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        until: float,
        from_memory: bool,
        lock_seconds: float = LOCK_SECONDS_MAX,
    ) -> T:
        """Without locks, and one guarded call for what is to be written; `Moved` when locks are needed after all."""
        draft: PostgresDraft | None = None
        connection: Prepared | None = None
        try:
            async with self._idle.connection(until=until) as connection:
                connection.warnings.clear()
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
                    raise ConnectionResetError("the connection was cut before anything was sent")
                await draft.commit()
                check_warnings(connection.warnings)
                self._recall.wrote(draft.written)
                return result
        except asyncpg.LockNotAvailableError as busy:
            raise await self._row_busy(busy, draft.wanted if draft else Wanted()) from busy
        except SILENT_OR_STOPPED as silence:
            if draft and has_said_goodbye(silence):
                draft.writing = False
                raise Ended from silence
            if connection is not None:
                self._connections.renew_after(silence)
            writing = draft is not None and draft.writing
            if writing and not isinstance(silence, UNWRITTEN):
                raise OutcomeUnknown from silence
            retry = connection is not None and not connection.timed_out and not writing
            raise unavailable(silence, retry=retry) from silence
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
        committing = begun = False
        wanted = Wanted()
        try:
            async with asyncio.timeout(within), self._connections.borrow() as connection:
                begun = True
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
                    self._recall.gave(transaction.written.seats)
                await commit(scope, connection, connections=self._connections)
                self._recall.wrote(transaction.written)
                return result
        except asyncpg.LockNotAvailableError as busy:
            raise await self._row_busy(busy, wanted) from busy
        except SILENT_OR_STOPPED as silence:
            if begun:
                self._connections.renew_after(silence)
            if committing:
                raise OutcomeUnknown from silence
            raise unavailable(silence, retry=begun) from silence

    async def _row_busy(self, busy: Exception, wanted: Wanted) -> RowBusy:
        """With the rows that are locked, if that can be found out in a second."""
        rows_busy: dict[Row, Row] = {}
        with contextlib.suppress(Exception):
            async with asyncio.timeout(FIND_BUSY_SECONDS), self._connections.borrow() as connection:
                rows_busy = await find_busy(connection, wanted, sql=self._sql)
        return RowBusy(because=str(busy), rows=rows_busy)

    async def has_entry(self, entry_id: EntryId) -> bool:
        """By primary key; on a database with a synchronous standby, only once that has it, too."""
        (entry,) = await self._read("has_entry", entry_id)
        if entry["found"] and entry["replicated"]:
            await self._connections.check_commits(hanging_max=1)
            await self._once(wait_for_standby, within=STANDBY_SECONDS)
        return bool(entry["found"])

    async def known_keys(self, keys: Sequence[IdempotencyKey]) -> frozenset[IdempotencyKey]:
        """By the index of keys, on a connection of the drafts: in a rush this is asked a thousand times in a second."""
        query, wanted = self._sql["known_keys"], rows.to_json(keys)

        async def fetch(*, within: float) -> list[Any]:
            connection: Prepared | None = None
            try:
                until = asyncio.get_running_loop().time() + within
                async with self._idle.connection(until=until) as connection:
                    return await connection.fetch(query, wanted)
            except SILENT_OR_STOPPED as silence:
                if connection is not None:
                    self._connections.renew_after(silence)
                retry = connection is not None and not connection.timed_out
                raise unavailable(silence, retry=retry) from silence

        asked = self._read("known_keys", wanted) if self.pgbouncer else twice(fetch, within=READ_SECONDS)
        return frozenset(keys[row["n"] - 1] for row in await asked)

    async def _see(self, event_id: EventId, ids: Collection[SeatId] | None = None) -> SeatMap:
        read = partial(
            read_map, event_id=event_id, offset=self._clock.offset, sql=self._sql, ids=ids, pooled=self.pgbouncer
        )
        return await self._borrowed(read, retry=True, within=READ_SECONDS)

    def requests_at_once_max(self, *, batches: int) -> int | None:
        """So many that the keys of all batches, which are locked meanwhile, take half of the lock table at most."""
        at_once = min(batches, self._connections.connections_max)
        return max(1, self._connections.locks_max // (2 * at_once))

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

    async def _look(self, look: Callable[[Any], Awaitable[T]], *, bounded: bool = True) -> T:
        """All that is read here is as one commit left it."""

        async def in_one_snapshot(connection: Any) -> T:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await look(connection)

        return await self._borrowed(in_one_snapshot, retry=True, within=READ_SECONDS if bounded else None)

    async def _read(self, name: str, *arguments: object) -> list[Any]:
        """One statement, outside of a transaction; tried again if it only reads."""
        query = self._sql[name]

        async def fetch(connection: Any) -> list[Any]:
            found: list[Any] = await connection.fetch(query, *arguments)
            return found

        return await self._borrowed(fetch, retry=only_reads(query), within=READ_SECONDS)

    async def _borrowed(self, ask: Callable[[Any], Awaitable[T]], *, retry: bool, within: float | None) -> T:
        """Ask something over a connection; with `retry`, over another one if the first turns out to be broken."""

        async def once(*, within: float | None) -> T:
            begun = False
            try:
                async with asyncio.timeout(within), self._connections.borrow() as connection:
                    begun = True
                    return await ask(connection)
            except SILENT_OR_STOPPED as silence:
                if begun:
                    self._connections.renew_after(silence)
                raise unavailable(silence, retry=begun and retry) from silence

        return await twice(once, within=within)


_SET_LOCAL = "; ".join(
    f"SET LOCAL {name} = '{value}'" for name, value in SETTINGS.items() if name != "application_name"
)


def _decided_too_early(error: Exception) -> bool:
    """Whether the work should look again: a deadlock was cut, or an operator lowered a limit since it was read."""
    if isinstance(error, asyncpg.CheckViolationError):
        return bool(error.constraint_name == "buyer_stays_within_limit")
    return isinstance(error, asyncpg.DeadlockDetectedError | asyncpg.SerializationError)
