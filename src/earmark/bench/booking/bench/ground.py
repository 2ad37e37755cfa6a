"""Where it is measured: a private PostgreSQL and a private Redis, or those that were named; and databases of our own.

Nothing that was there before is touched: a run makes databases with names of its own, and drops them when it ends.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import asyncpg

from earmark.bench.booking.bench.house import House, sibling
from earmark.bench.booking.bench.meter import Meter
from earmark.errors import SetupError
from earmark.store.postgres.migrate import split_url
from earmark.testservers import ServerUnavailable, start_postgres, start_valkey
from earmark.wiring import databases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from earmark.testservers import Postgres, Valkey

SETTINGS: Mapping[str, str] = {
    # What is acknowledged is on the disk: said, though it is the default, because everything rests on it.
    "fsync": "on",
    "synchronous_commit": "on",
    # As an operator sets up a database that is written to, so that no checkpoint falls on one contender.
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "min_wal_size": "2GB",
    "checkpoint_timeout": "30min",
    # Tables are vacuumed and analysed before every cell, and not in the middle of one.
    "autovacuum": "off",
    "max_connections": "300",
}


class Ground:
    """Servers, the database that most cells share, and how to make another."""

    def __init__(
        self, url: str, *, server: Postgres | None, redis: Redis, no_redis: str, stack: AsyncExitStack
    ) -> None:
        self._url = url
        self._server = server
        self._stack = stack
        self.redis = redis.urls
        self.valkey = redis.started
        """The first of them, where it was started here: only that may be broken."""
        self.no_redis = no_redis
        """Why there is none, if there is none."""
        self.meter = Meter(_pid(server))

    async def database(self) -> House:
        """A database of our own, migrated and empty, gone when the run ends."""
        return await self._stack.enter_async_context(_database(self._url))

    def close_at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Before the databases go."""
        self._stack.push_async_callback(close)

    async def settle(self, house: House, *, log_files: int) -> None:
        """Bring a server of our own to where one is that has run for a while. Another's is left as it is."""
        if self._server is not None:
            await house.make_log_files(log_files)

    def rest(self) -> None:
        """Wait until what was loaded is on the disk, or its writing falls on whoever is measured first."""
        if self._server is not None and hasattr(os, "sync"):
            os.sync()

    @property
    def pgbench(self) -> Path | None:
        """The program, from beside the server or from the PATH."""
        if self._server is not None and (own := self._server.binaries / "pgbench").is_file():
            return own
        found = shutil.which("pgbench")
        return Path(found) if found else None


class Redis(NamedTuple):
    """Addresses, and the server behind the first if it was started here."""

    urls: tuple[str, ...] = ()
    started: Valkey | None = None


@asynccontextmanager
async def prepared(
    database: str | None, redis: str | None, *, redis_servers: int = 0, settings: Mapping[str, str] = SETTINGS
) -> AsyncIterator[Ground]:
    """The servers; those that were not named are started, and gone when the run ends."""
    async with AsyncExitStack() as stack:
        try:
            server = None if database else stack.enter_context(start_postgres(settings=settings))
        except ServerUnavailable as reason:
            raise SetupError(
                problem=f"Nothing to measure on: {reason} Or name a server with --database URL."
            ) from reason
        url = database or (server.url() if server else "")
        if urlsplit(url).scheme not in databases.POSTGRES:
            raise SetupError(problem="Bookings are measured on PostgreSQL: its URL begins with postgresql://.")
        found, no_redis = Redis(), ""
        if redis_servers and redis is not None:
            found = Redis(tuple(address.strip() for address in redis.split(",")))
        elif redis_servers:
            try:
                started = [stack.enter_context(start_valkey()) for _ in range(redis_servers)]
                found = Redis(tuple(one.url for one in started), started[0] if started[0].is_ours else None)
            except ServerUnavailable as reason:
                no_redis = str(reason)
        yield Ground(url, server=server, redis=found, no_redis=no_redis, stack=stack)


@asynccontextmanager
async def _database(url: str) -> AsyncIterator[House]:
    name = f"earmark_bench_{secrets.token_hex(4)}"
    await _on_server(url, f'CREATE DATABASE "{name}"')
    try:
        own = sibling(url, name)
        await databases.migrate(own)
        house = await House.open(own)
        try:
            yield house
        finally:
            await house.close()
    finally:
        await _on_server(url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


async def _on_server(url: str, statement: str) -> None:
    dsn, _ = split_url(url)
    try:
        connection = await asyncpg.connect(dsn, timeout=10, command_timeout=120)
    except (OSError, asyncpg.PostgresError, ValueError) as refused:
        raise SetupError(problem=f"The database to measure on does not answer: {refused}") from refused
    try:
        await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError as refused:
        raise SetupError(problem=f"A run makes databases of its own, and may not there: {refused}") from refused
    finally:
        await connection.close()


def _pid(server: Postgres | None) -> int | None:
    """The postmaster's, if it was started here."""
    try:
        return server.pid if server else None
    except ServerUnavailable:
        return None
