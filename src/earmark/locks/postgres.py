"""Leases in PostgreSQL: one row for each key, and no transaction, session setting or advisory lock while one is held.

That is why it works behind PgBouncer in transaction mode (`?pgbouncer=true` in the URL), and why a holder that dies
leaves nothing but a row that runs out. The database's clock decides; a client only counts the seconds of its lease from
the moment before its call.

A caller that waits tries again at random moments that grow further apart: a notification would need a session of its
own, which a pooler does not give. Waiters therefore do not get the lock in order of arrival.

The number of a grant is `greatest(last + 1, microseconds since 1970)`, kept in the row when the lease is gone. It
would go back only if the row was pruned or lost *and* the clock went back.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import parse_qsl, urlencode

import asyncpg

from earmark.locks.backend_protocol import Grant, Group, Holding
from earmark.locks.errors import LockBusy, LocksUnavailable, TimeRefused
from earmark.locks.glob_to_regex import literal, regex_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from earmark.locks.backend_protocol import Claim

T = TypeVar("T")

CONNECTIONS_MAX = 4
TRIES_MAX = 3
"""How often a call is made when the database broke a deadlock, or had no table yet."""
PAUSE_SECONDS_MIN = 0.01
PAUSE_SECONDS_MAX = 0.25
"""The mean hand-over takes half of it at most, and a hundred waiters make eight hundred calls in a second."""
GIVE_BACK_PAUSES_SECONDS = (0.1, 1.0, 5.0)
PRUNE_ROWS_MAX = 1000

TOO_EARLY = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
CREATED_BY_ANOTHER = (asyncpg.UniqueViolationError, asyncpg.DuplicateTableError, asyncpg.DuplicateObjectError)
FAILED = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

logger = logging.getLogger("earmark.locks")

_NAMED = re.compile(r"^-- name: (\w+)\n(?:--.*\n)+", re.MULTILINE)


class _Missing(Exception):
    """Not every key was free; raised inside a transaction, it rolls the others back."""

    def __init__(self, keys: list[str]) -> None:
        super().__init__(keys)
        self.keys = keys


class PostgresLeases:
    """A backend on PostgreSQL 15 or newer. It connects and makes its table when it is first used."""

    name = "postgresql"
    groups = frozenset({Group.FENCE, Group.MANY})

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        timeout: float = 1.0,
        connections_max: int = CONNECTIONS_MAX,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._dsn, self._pgbouncer = _split_url(url)
        self._prefix = f"{prefix}:" if prefix else ""
        self._timeout = timeout
        self._connections_max = connections_max
        self._jitter = jitter
        self._pool: Any = None
        self._running: set[asyncio.Task[Any]] = set()
        self._returning: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    async def acquire(self, claim: Claim) -> Grant:
        """All of the keys or none; while they are taken it tries again, until `claim.wait` seconds have passed."""
        began = time.monotonic()
        if (returning := self._returning.get(claim.token)) is not None:
            # The same token again, while what its first try may have left behind is still being given back.
            await asyncio.wait({returning}, timeout=self._timeout)
        pause = PAUSE_SECONDS_MIN
        while True:
            sent = time.monotonic()
            try:
                fence = await self._try(claim)
            except _Missing as missing:
                left = began + claim.wait - time.monotonic()
                if left <= 0:
                    waited = time.monotonic() - began if claim.wait else None
                    raise LockBusy(keys=missing.keys, waited_seconds=waited) from None
            else:
                return Grant(claim=claim, backend=self, fence=fence, until=sent + claim.ttl)
            # Full jitter spreads the tries of the waiters; the last try is at the deadline itself.
            await asyncio.sleep(min(left, self._jitter() * pause))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def release(self, grant: Grant) -> bool:
        """Give every key back that still belongs to this token."""
        return await self._ask(lambda connection: self._release(connection, grant.claim))

    async def extend(self, grant: Grant, *, ttl: float) -> bool:
        """Let the lease live longer, all of it or nothing."""
        names = self._names(grant.claim.keys)

        async def work(connection: Any) -> None:
            async with self._scope(connection, names):
                await self._every(connection, "extend", names, grant.claim.token, ttl)

        sent = time.monotonic()
        try:
            await self._ask(work)
        except _Missing:
            return False
        grant.until = max(grant.until, sent + ttl)
        return True

    async def holdings(self, *, match: str = "*", limit: int = 1000) -> list[Holding]:
        """The leases that match, without waiters: these are not known to the database."""
        pattern = f"^{literal(self._prefix)}{regex_of(match)}$"
        return [self._holding(row) for row in await self._fetch("holdings", pattern, limit)]

    async def find(self, key: str) -> Holding | None:
        """The lease of this key, if there is one."""
        rows = await self._fetch("find", self._prefix + key)
        return self._holding(rows[0]) if rows else None

    async def evict(self, key: str) -> bool:
        """Take a key from its holder."""
        return bool(await self._fetch("evict", self._prefix + key))

    async def ping(self) -> None:
        """Run the shortest statement."""
        await self._fetch("ping")

    async def next_fence(self, keys: Sequence[str]) -> int:
        """A number greater than every number that was given for any of these keys."""
        names = self._names(keys)

        async def work(connection: Any) -> int:
            async with self._scope(connection, names):
                return await self._numbered(connection, "next_fence", names, token=None)

        return await self._ask(work)

    async def last_fences(self, keys: Sequence[str]) -> dict[str, int]:
        """The number that was given last for each of those keys that have one."""
        rows = await self._fetch("last_fences", self._names(keys))
        return {row["key"].removeprefix(self._prefix): row["fence"] for row in rows}

    async def prune(self, older_than_seconds: float) -> int:
        """Delete the rows of keys that are free, and were not granted for so long. Returns how many there were."""
        if not older_than_seconds >= 0:
            raise TimeRefused(name="older_than_seconds", seconds=older_than_seconds, problem="It must not be negative.")
        pruned, batch = 0, PRUNE_ROWS_MAX
        while batch == PRUNE_ROWS_MAX:
            batch = len(await self._fetch("prune", self._prefix, older_than_seconds, PRUNE_ROWS_MAX))
            pruned += batch
        return pruned

    async def close(self) -> None:
        """Finish releasing what cancelled callers may have taken, then cancel what still runs."""
        self._closed = True
        if self._returning:
            await asyncio.wait(set(self._returning.values()), timeout=self._timeout)
        left = {*self._returning.values(), *self._running}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=self._timeout)
        pool, self._pool = self._pool, None
        if pool is None:
            return
        closing = asyncio.ensure_future(pool.close())
        closing.add_done_callback(_heard)
        await asyncio.wait({closing}, timeout=self._timeout)
        if not closing.done():
            pool.terminate()

    async def _try(self, claim: Claim) -> int:
        """One try, which leaves no lease behind when it is cancelled or not answered."""
        names = self._names(claim.keys)
        begun = False

        async def work(connection: Any) -> int:
            nonlocal begun
            begun = True
            async with self._scope(connection, names):
                asked = (names, claim.token, claim.holder, claim.ttl)
                return await self._numbered(connection, "acquire", *asked, token=claim.token)

        call = self._begin(work)
        try:
            return await self._answer(call)
        except _Missing:
            raise
        except BaseException:
            if begun:
                self._give_back(claim, after=call)
            raise

    async def _numbered(
        self, connection: Any, query: str, names: list[str], *arguments: object, token: str | None
    ) -> int:
        """Take or number all keys, under one number that is greater than the last of each."""
        rows = await self._every(connection, query, names, *arguments)
        fences = {int(row["lease_fence"]) for row in rows}
        if len(fences) == 1:
            return fences.pop()
        fence = max(int(row["fence"]) for row in rows) + 1
        await connection.execute(_queries()["level_fences"], names, fence, token)
        return fence

    async def _every(self, connection: Any, query: str, names: list[str], *arguments: object) -> list[Any]:
        rows: list[Any] = await connection.fetch(_queries()[query], names, *arguments)
        if len(rows) < len(names):
            came = {row["key"] for row in rows}
            raise _Missing([name.removeprefix(self._prefix) for name in names if name not in came])
        return rows

    @asynccontextmanager
    async def _scope(self, connection: Any, names: Sequence[str]) -> AsyncIterator[None]:
        """One key needs one statement and no transaction; several need a short one, to be rolled back as a whole."""
        if len(names) == 1:
            yield
            return
        async with connection.transaction(isolation="read_committed"):
            if self._pgbouncer:
                await connection.execute("; ".join(f"SET LOCAL {name} = '{value}'" for name, value in self._limits()))
            yield

    async def _release(self, connection: Any, claim: Claim) -> bool:
        rows = await connection.fetch(_queries()["release"], self._names(claim.keys), claim.token)
        return len(rows) == len(claim.keys) and all(row["good"] for row in rows)

    def _give_back(self, claim: Claim, *, after: asyncio.Task[Any]) -> None:
        """Release by token in the background what a call without an answer may have taken."""
        task = asyncio.create_task(self._return(claim, after=after))
        self._returning[claim.token] = task
        task.add_done_callback(lambda _: self._returning.pop(claim.token, None))

    async def _return(self, claim: Claim, *, after: asyncio.Task[Any]) -> None:
        # The statement is being cancelled on the server: it must have ended before its effect can be undone.
        await asyncio.wait({after}, timeout=2 * self._timeout)
        for pause in GIVE_BACK_PAUSES_SECONDS:
            try:
                await self._answer(self._begin(lambda connection: self._release(connection, claim)))
            except LocksUnavailable:
                await asyncio.sleep(self._jitter() * pause)
            else:
                return
        logger.warning("a lock on %s may be left behind; it runs out in %s s", ", ".join(claim.keys), claim.ttl)

    def _holding(self, row: Any) -> Holding:
        return Holding(
            key=row["key"].removeprefix(self._prefix),
            holder=row["holder"],
            token=row["token"],
            fence=row["lease_fence"],
            age_seconds=row["age_seconds"],
            ttl_seconds=row["ttl_seconds"],
        )

    async def _fetch(self, query: str, *arguments: object) -> list[Any]:
        return await self._ask(lambda connection: connection.fetch(_queries()[query], *arguments))

    async def _ask(self, work: Callable[[Any], Awaitable[T]]) -> T:
        return await self._answer(self._begin(work))

    def _begin(self, work: Callable[[Any], Awaitable[T]]) -> asyncio.Task[T]:
        call = asyncio.create_task(self._on_connection(work))
        self._running.add(call)
        call.add_done_callback(self._running.discard)
        call.add_done_callback(_heard)
        return call

    async def _answer(self, call: asyncio.Task[T]) -> T:
        """What the call answers within the deadline. After it, the call is cancelled and ends in the background.

        Waited for as a task, for the driver uses deadlines of its own: Python before 3.11.3 confuses nested ones.
        """
        try:
            await asyncio.wait({call}, timeout=self._timeout)
        finally:
            in_time = call.done()
            call.cancel()
        if call.cancelled():
            raise LocksUnavailable(because="the locks were closed")
        if not in_time:
            raise LocksUnavailable(because=f"PostgreSQL did not answer within {self._timeout:g} seconds")
        try:
            return call.result()
        except FAILED as failure:
            _unavailable(failure)

    async def _on_connection(self, work: Callable[[Any], Awaitable[T]]) -> T:
        for tries_left in reversed(range(TRIES_MAX)):
            try:
                async with (await self._open()).acquire() as connection:
                    return await work(connection)
            except asyncpg.UndefinedTableError:
                if not tries_left:
                    raise
                await self._create_table()
            except TOO_EARLY:
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _create_table(self) -> None:
        async with (await self._open()).acquire() as connection:
            try:
                await connection.execute(_queries()["create_table"])
            except CREATED_BY_ANOTHER:
                # IF NOT EXISTS does not see a table that another session is creating at this moment.
                return

    async def _open(self) -> Any:
        if self._closed and not self._returning:
            raise asyncpg.InterfaceError("the locks were closed")
        if self._pool is None:
            behind = {"statement_cache_size": 0} if self._pgbouncer else {"server_settings": dict(self._settings())}
            # This does not connect, so that no other task runs between the check and the assignment.
            self._pool = asyncpg.create_pool(
                self._dsn,
                min_size=0,
                max_size=self._connections_max,
                timeout=self._timeout,
                command_timeout=self._timeout,
                reset=_reset,
                **behind,
            )
            await self._pool
        return self._pool

    def _settings(self) -> Iterable[tuple[str, str]]:
        yield "application_name", "earmark locks"
        yield "default_transaction_isolation", "read committed"
        yield "plan_cache_mode", "force_generic_plan"
        yield "jit", "off"
        yield from self._limits()

    def _limits(self) -> Iterable[tuple[str, str]]:
        """What the server ends by itself: a statement whose client has given up, a transaction whose client froze."""
        milliseconds = max(1, round(self._timeout * 1000))
        yield "statement_timeout", f"{milliseconds}ms"
        yield "idle_in_transaction_session_timeout", f"{milliseconds}ms"

    def _names(self, keys: Iterable[str]) -> list[str]:
        return [self._prefix + key for key in keys]


@cache
def _queries() -> dict[str, str]:
    """The statements of the `.sql` file, by name."""
    text = (resources.files("earmark.locks") / "sql" / "postgres.sql").read_text(encoding="utf-8")
    starts = list(_NAMED.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return {
        start[1]: text[start.end() : end].strip().removesuffix(";") for start, end in zip(starts, ends, strict=True)
    }


def _split_url(url: str) -> tuple[str, bool]:
    """The URL as the driver takes it, and whether `?pgbouncer=true` stood in it."""
    address, _, query = url.partition("?")
    asked = parse_qsl(query)
    rest = urlencode([(name, value) for name, value in asked if name != "pgbouncer"], safe="/")
    return f"{address}?{rest}" if rest else address, ("pgbouncer", "true") in asked


async def _reset(connection: Any) -> None:
    """Every statement here leaves the session as it found it: nothing to reset, and no round trip for it."""


def _heard(done: asyncio.Future[Any]) -> None:
    """Mark a failure as read, so that the event loop does not log it when no caller waits for it any more."""
    if not done.cancelled():
        done.exception()


def _unavailable(failure: BaseException) -> NoReturn:
    raise LocksUnavailable(because=str(failure) or type(failure).__name__) from failure
