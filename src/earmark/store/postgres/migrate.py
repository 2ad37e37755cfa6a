"""Bring a PostgreSQL database up to date, one process at a time, while servers sell from it.

A statement that waits for a lock on a table makes every later statement on that table wait behind it. So a migration
waits for a lock only briefly, gives up its other locks, and tries again after a pause in which those statements run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from earmark.errors import NotWritable, SetupError, StoreUnavailable
from earmark.store.both_databases.pending_migrations import Applied, LockPatience, pending, tell_newer
from earmark.store.postgres import connect_to_writable_host
from earmark.store.postgres.driver_errors import reason
from earmark.store.postgres.grant_and_check_application_role import grant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

    from earmark.store.both_databases.pending_migrations import Migration, Tell

T = TypeVar("T")
logger = logging.getLogger("earmark.migrate")

LOCK = 0x4541524D41524B  # "EARMARK", the advisory lock that migrating processes share
LOOKS_PER_WAIT = 4
"""How often, while a try may be waiting for a lock, the runner looks which session holds it."""
LOOK_SECONDS_MAX = 1.0
BUSY = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)
SILENT = (OSError, asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, asyncpg.InterfaceError)

_LEDGER = """
CREATE TABLE IF NOT EXISTS earmark_migrations (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    -- The migration that code must have to run on this one.
    oldest_code integer
)
"""
# As JSON, because the first development versions had no such column, and their databases are refused with a sentence.
_READ_APPLIED = """
SELECT number, name, checksum, (to_jsonb(m) ->> 'oldest_code')::integer AS oldest_code
  FROM earmark_migrations m LIMIT 10000
"""
_BLOCKERS = """
SELECT b.pid, a.application_name, a.state, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds,
       left(regexp_replace(a.query, '\\s+', ' ', 'g'), 60) AS query
  FROM unnest(pg_blocking_pids($1)) AS b (pid) LEFT JOIN pg_stat_activity a USING (pid) LIMIT 3
"""


async def migrate(
    url: str,
    *,
    dry_run: bool = False,
    without: Collection[str] = (),
    patience: LockPatience | None = None,
    tell: Tell = logger.warning,
    application_role: str | None = None,
) -> Sequence[Migration]:
    """Apply what is pending, step by step, each whole or not at all; with `dry_run`, only say what that would be.

    Then the `application_role`, if there is one, is granted what servers and workers need.
    """
    dsn, _ = split_url(url)
    connection = await _connect(dsn)
    try:
        if dry_run:
            return pending("postgres", await read_applied(connection), without=without)
        runner = _Runner(connection, dsn=dsn, without=without, patience=patience or LockPatience(), tell=tell)
        applied = await runner.run()
        if application_role is not None:
            await grant(connection, application_role)
    except asyncpg.ReadOnlySQLTransactionError as refused:
        raise NotWritable(why="read_only", because=str(refused)) from refused
    except SILENT as silence:
        raise StoreUnavailable(because=str(silence) or type(silence).__name__) from silence
    else:
        return applied
    finally:
        await connection.close()


def split_url(url: str) -> tuple[str, bool]:
    """The URL as the driver takes it, and whether `?pgbouncer=true` stood in it."""
    parts = urlsplit(url)
    options = parse_qsl(parts.query)
    pgbouncer = any(name == "pgbouncer" and value == "true" for name, value in options)
    rest = urlencode([(name, value) for name, value in options if name != "pgbouncer"], safe="/")
    return urlunsplit(parts._replace(query=rest)), pgbouncer


async def read_applied(connection: Any) -> dict[int, Applied]:
    """What was applied, by number; empty on a new database."""
    if await connection.fetchval("SELECT to_regclass('earmark_migrations')") is None:
        return {}
    return {
        row["number"]: Applied(name=row["name"], checksum=row["checksum"], oldest_code=row["oldest_code"])
        for row in await connection.fetch(_READ_APPLIED)
    }


async def _connect(dsn: str) -> Any:
    try:
        named = {"application_name": "earmark migrate"}
        return await connect_to_writable_host.connect(
            dsn, connect_to_writable_host.hosts_of(dsn), statement_cache_size=0, server_settings=named
        )
    except (OSError, asyncpg.TargetServerAttributeNotMatched) as silence:
        raise StoreUnavailable(because=reason(silence)) from silence
    except (asyncpg.PostgresError, ValueError) as refused:
        raise SetupError(problem=f"PostgreSQL refused the connection: {refused}") from refused


class _Runner:
    """Takes one transaction per step, so that what a step has locked is free again before the next."""

    def __init__(
        self, connection: Any, *, dsn: str, without: Collection[str], patience: LockPatience, tell: Tell
    ) -> None:
        self._connection = connection
        self._dsn = dsn
        self._without = without
        self._patience = patience
        self._tell = tell
        self._at = "the list of migrations"
        """What is being applied, for the sentence about what it waits for."""
        self._pid = 0
        self._blockers = ""

    async def run(self) -> Sequence[Migration]:
        """Everything that is pending."""
        done: list[Migration] = []
        async with self._watch():
            await self._patiently(self._prepare)
            while step := await self._patiently(self._apply_next):
                done.append(step)
        return done

    async def _prepare(self) -> None:
        """The list of migrations, in a transaction of its own: readiness reads it, and must not wait for a step."""
        if await self._connection.fetchval("SELECT to_regclass('earmark_migrations')") is None:
            await self._connection.execute(_LEDGER)

    async def _apply_next(self) -> Migration | None:
        """The next step, read anew each time: another process may have applied the one that was next."""
        applied = await read_applied(self._connection)
        steps = pending("postgres", applied, without=self._without)
        if not steps:
            tell_newer("postgres", applied, self._tell)
            return None
        step = steps[0]
        self._at = str(step)
        try:
            await self._connection.execute(step.sql)
        except (*BUSY, *SILENT, asyncpg.ReadOnlySQLTransactionError):
            raise
        except asyncpg.PostgresError as refused:
            raise SetupError(problem=f"Migration {step} failed, and nothing of it was kept: {refused}") from refused
        await self._connection.execute(
            "INSERT INTO earmark_migrations (number, name, checksum, oldest_code) VALUES ($1, $2, $3, $4)",
            step.number,
            step.name,
            step.checksum,
            step.oldest_code,
        )
        return step

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Try until no lock is in the way, or until the time for it is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience.seconds_max
        tries = 0
        while True:
            self._blockers = ""
            try:
                async with self._connection.transaction():
                    await self._lock()
                    return await work()
            except BUSY as busy:
                pause = self._patience.pause(tries)
                waits = f"{self._at} waits for a lock{self._blockers}"
                if loop.time() + pause > deadline:
                    gave_up = f"{waits}; gave up after {self._patience.seconds_max:g} s and kept nothing of it"
                    raise StoreUnavailable(because=gave_up) from busy
                self._tell(f"{waits}; trying again in {pause:.1f} s")
            await asyncio.sleep(pause)
            tries += 1

    async def _lock(self) -> None:
        """One process at a time. The timeout holds for this lock, too, and for every one that a migration takes."""
        # A role's own limit for statements is meant for those of a shop, and not for an index that takes its time.
        await self._connection.execute("SET LOCAL statement_timeout = 0")
        await self._connection.execute(f"SET LOCAL lock_timeout = {max(1, round(self._patience.lock_seconds * 1000))}")
        self._pid = await self._connection.fetchval("SELECT pg_backend_pid()")
        await self._connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)

    @contextlib.asynccontextmanager
    async def _watch(self) -> AsyncIterator[None]:
        """Beside the tries, find out which session blocks them: once a try has failed, the database no longer knows."""
        watching = asyncio.create_task(self._look_for_blockers())
        try:
            yield
        finally:
            watching.cancel()
            # Without the name of the session that blocks, the migration can still be applied.
            await asyncio.gather(watching, return_exceptions=True)

    async def _look_for_blockers(self) -> None:
        pause = min(self._patience.lock_seconds / LOOKS_PER_WAIT, LOOK_SECONDS_MAX)
        await asyncio.sleep(pause)
        looker = await _connect(self._dsn)
        try:
            while True:
                if found := await looker.fetch(_BLOCKERS, self._pid):
                    self._blockers = f" that {' and '.join(_describe(row) for row in found)} holds"
                await asyncio.sleep(pause)
        finally:
            looker.terminate()


def _describe(row: Any) -> str:
    """One session, by the process id that an operator can look up."""
    if not row["pid"]:
        return "a prepared transaction"
    program, state = row["application_name"] or "unnamed", row["state"] or "state unknown"
    age = "" if row["seconds"] is None else f" for {row['seconds']:.0f} s"
    return f"pid {row['pid']} ({program}, {state}{age}: {row['query']})"
