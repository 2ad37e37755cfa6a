"""The connections to PostgreSQL: how they are opened, how long they are used, and how many there are.

A connection is ended when it is old, and all of them are when one shows that its server is gone or takes no writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

from earmark.errors import NotWritable, SetupError
from earmark.store import load_named_sql
from earmark.store.postgres import connect_to_writable_host
from earmark.store.postgres.count_abandoned_backends import (
    ANSWER_SECONDS_MAX,
    ASK_OFTEN_SECONDS,
    ASK_SECONDS,
    AbandonedBackends,
)
from earmark.store.postgres.driver_errors import SILENT, SILENT_OR_STOPPED, is_broken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

AGE_SECONDS_MAX = 600.0
RENEW_SECONDS = 1.0
RENEW_READ_ONLY_SECONDS = 0.1
"""Shorter, for such a server answers at once, and another one may take writes already."""
CANCEL_SECONDS = 1.0
"""How long a server has to say that it stopped what was given up; then the connection is closed."""
SPARE = 2
"""How many connections above the limit may exist while backends are left behind, so that reads go on."""
KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 5000}
"""On Linux an idle connection whose other end is gone breaks after about 13 s, one with unacknowledged data after 5 s:
the user timeout overrides the number of probes."""


class PostgresConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg ships no types
    """A connection that knows how long it may be used."""

    __slots__ = ("generation", "good_until", "server")

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        # Spread, since a server that has just started opened them all at once.
        spread = random.uniform(0.8, 1.0)  # noqa: S311 (nothing secret)
        self.good_until = asyncio.get_running_loop().time() + AGE_SECONDS_MAX * spread
        self.generation = 0
        self.server: object = None
        """When the server that answered was started: one server has one such time, at however many addresses."""


class PostgresConnections:
    """A pool of connections, which are renewed when they are old or their server is gone."""

    def __init__(self, dsn: str, *, connections_max: int, pgbouncer: bool = False, **options: Any) -> None:
        self._dsn = dsn
        self._hosts = connect_to_writable_host.hosts_of(dsn)
        self._pgbouncer = pgbouncer
        self._options = options
        self._generation = 0
        self._renewed_at = float("-inf")
        self._connecting = 0
        self._sql = load_named_sql.sql("postgres", "server_and_connection_checks.sql")
        self.abandoned = AbandonedBackends()
        self._checking = asyncio.Lock()
        self._checked_at = float("-inf")
        self.connections_max = connections_max
        self.locks_max = 0
        """How many locks PostgreSQL has room for, in all sessions together."""
        # No lower limit: asyncpg restores one in the background, and logs a traceback for each time that it cannot.
        self.pool: Any = asyncpg.create_pool(
            dsn,
            min_size=0,
            max_size=connections_max,
            reset=_reset,
            connect=self._connect,
            connection_class=PostgresConnection,
            command_timeout=30,
            **options,
        )

    async def open(self) -> None:
        """Make the first connection, so that what is wrong with the address is known at once."""
        await self.pool
        async with self.borrow() as connection:
            self.locks_max = await connection.fetchval(self._sql["lock_table"])

    async def acquire(self, *, within: float | None = None) -> Any:
        """A connection that is fit to be used; those that are not are ended on the way."""
        while not self.is_fit(connection := await self.pool.acquire(timeout=within)):
            connection.terminate()
        return connection

    async def release(self, connection: Any, *, within: float | None = None) -> None:
        """Back into the pool, if it is still fit. What was cancelled on it is waited for, `within` that time."""
        if is_open(connection) and not self.is_fit(connection):
            connection.terminate()
        # A connection that ends at this moment was not needed any more.
        with contextlib.suppress(*SILENT):
            await self.pool.release(connection, timeout=within)

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[Any]:
        """A connection for the length of a `with`."""
        connection = await self.acquire()
        try:
            yield connection
        except BaseException:
            await self.release(connection, within=CANCEL_SECONDS)
            raise
        await self.release(connection)

    def is_fit(self, connection: Any) -> bool:
        """Whether it is neither too old nor older than the last time when all were to be ended."""
        now = asyncio.get_running_loop().time()
        return bool(connection.generation == self._generation and now < connection.good_until)

    def renew_after(self, silence: BaseException) -> None:
        """End every connection before its next use, when one showed that its server is gone or takes no writes.

        At most once in a while, to spare a server that is slow or about to be promoted.
        """
        now = asyncio.get_running_loop().time()
        is_read_only = isinstance(silence, asyncpg.ReadOnlySQLTransactionError)
        is_gone = is_broken(silence) or isinstance(silence, TimeoutError)
        pause = RENEW_READ_ONLY_SECONDS if is_read_only else RENEW_SECONDS
        if (is_read_only or is_gone) and now - self._renewed_at >= pause:
            self._generation += 1
            self._renewed_at = now

    def abandon(self, connection: Any) -> None:
        """Close a connection in the middle of a call. Its backend may run on for long, and counts as in use."""
        if not is_open(connection):
            return
        if not self._pgbouncer:
            self.abandoned.add(connection.get_server_pid(), server=connection.server)
        connection.terminate()

    @property
    def hanging_max(self) -> int:
        """With this many commits that hang, no other is begun."""
        return max(1, self.connections_max // 2)

    async def check_commits(self, *, hanging_max: int | None = None) -> None:
        """Refuse to begin what commits while that many commits before it hang, or no backend is left for it."""
        most = self.hanging_max if hanging_max is None else hanging_max
        if len(self.abandoned) < most:
            return
        await self._recount_abandoned()
        if (hanging := self.abandoned.hanging) >= most:
            because = f"{hanging} commits of this process wait for a synchronous standby"
        elif len(self.abandoned) >= self.connections_max:
            because = f"{len(self.abandoned)} backends of this process still run a call"
        else:
            return
        raise NotWritable(why="commits_hang", because=because)

    async def _recount_abandoned(self) -> None:
        """Read them anew, unless that was done or tried just now.

        The lock is taken before a connection, so requests that wait for the answer hold none. It cannot be the lock of
        `abandoned`: a new connection may have to take that one before it can be used.
        """
        # A hung commit stays for long, so an answer of a second ago will do. Other calls end soon: while they fill all
        # connections, ask more often.
        crowded = len(self.abandoned) >= self.connections_max
        valid_seconds = ASK_OFTEN_SECONDS if crowded else ASK_SECONDS
        loop = asyncio.get_running_loop()
        came = loop.time()
        async with self._checking:
            asked_at = max(self._checked_at, self.abandoned.asked_at)
            if (left := asked_at + valid_seconds - loop.time()) > 0:
                if not crowded or asked_at >= came:
                    return
                # An answer from before this request came would refuse it for backends that may have ended since.
                await asyncio.sleep(left)
            with contextlib.suppress(*SILENT_OR_STOPPED):
                async with asyncio.timeout(ANSWER_SECONDS_MAX), self.borrow() as connection:
                    # A connection to a former server knows nothing of the backends on this one.
                    if connection.server == self.abandoned.server:
                        await self.abandoned.recount(connection.fetch, valid_seconds=valid_seconds)
            self._checked_at = loop.time()

    async def _connect(self, *_: object, **options: Any) -> Any:
        """What the pool calls for each new connection. Backends that were left behind count as connections."""
        loop = asyncio.get_running_loop()
        if self._is_crowded and loop.time() - self.abandoned.asked_at < ASK_SECONDS:
            raise _crowded(len(self.abandoned))
        self._connecting += 1
        try:
            connection = await connect_to_writable_host.connect(self._dsn, self._hosts, **options)
            try:
                await self._examine(connection)
            except BaseException:
                connection.terminate()
                raise
        finally:
            self._connecting -= 1
        return connection

    @property
    def _is_crowded(self) -> bool:
        left = len(self.abandoned)
        return left > 0 and self.pool.get_size() + self._connecting + left >= self.connections_max + SPARE

    async def _examine(self, connection: Any) -> None:
        _keep_alive(connection)
        connection.generation = self._generation
        if not self._pgbouncer:
            (said,) = await connection.fetch(self._sql["which_server"])
            check_isolation(said["isolation"])
            connection.server = said["started_at"]
        self.abandoned.note_server(connection.server)
        if self._is_crowded:
            self._connecting -= 1
            try:
                await self.abandoned.recount(connection.fetch)
                crowded = self._is_crowded
            finally:
                self._connecting += 1
            if crowded:
                raise _crowded(len(self.abandoned))


def check_isolation(isolation: str) -> None:
    """READ COMMITTED is what every guarded write was written for."""
    if isolation != "read committed":
        raise SetupError(
            problem=f"PostgreSQL runs transactions as {isolation}, though READ COMMITTED was asked for. "
            "If a pooler stands in between, add pgbouncer=true to the URL."
        )


def is_open(connection: Any) -> bool:
    """Whether anything can still be sent on it, as far as is known here."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        # It was closed, and has left the pool.
        return False


def _crowded(left: int) -> asyncpg.TooManyConnectionsError:
    return asyncpg.TooManyConnectionsError(f"{left} backends of this process still run a call, so no more are opened")


def _keep_alive(connection: Any) -> None:
    """Let the operating system find out that the other end is gone, where it can."""
    sock = connection._transport.get_extra_info("socket")  # noqa: SLF001 (asyncpg shows it in no other way)
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if option := getattr(socket, name, None):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


async def _reset(connection: Any) -> None:
    """Every statement of ours leaves the session as it found it: nothing to reset, and no round trip for it."""
