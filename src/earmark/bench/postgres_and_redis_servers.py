"""The servers of a bench: a private PostgreSQL and Redis, or those that the operator named, and new databases there.

Existing databases stay untouched: a run creates databases with new names, and drops them when it ends.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import asyncpg

from earmark.bench.prepare_and_count_rows import BenchDatabase, sibling
from earmark.bench.process_stats import DatabaseCpu
from earmark.errors import SetupError
from earmark.store.postgres.migrate import split_url
from earmark.testservers import ServerUnavailable, start_postgres, start_valkey
from earmark.wiring import open_and_maintain_databases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from earmark.testservers import Postgres, Valkey

SETTINGS: Mapping[str, str] = {
    # What is acknowledged is on the disk: the default, set here because every figure depends on it.
    "fsync": "on",
    "synchronous_commit": "on",
    # As an operator configures a database with many writes, so that no checkpoint slows a single contender.
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "min_wal_size": "2GB",
    "checkpoint_timeout": "30min",
    # Tables are vacuumed and analysed before every measurement, and not during one.
    "autovacuum": "off",
    "max_connections": "300",
}


class BenchServers:
    """The servers, and the databases that a run creates on them."""

    def __init__(
        self, url: str, *, server: Postgres | None, redis: BenchRedis, no_redis: str, stack: AsyncExitStack
    ) -> None:
        self._url = url
        self._server = server
        self._stack = stack
        self.redis = redis.urls
        self.valkey = redis.started
        """The first of them, if it was started here: only that one may be killed."""
        self.no_redis = no_redis
        """Why there is no Redis, if there is none."""
        self.database_cpu = DatabaseCpu(_postmaster_pid(server))

    async def database(self) -> BenchDatabase:
        """A new database, migrated and empty, dropped when the run ends."""
        database = await BenchDatabase.open(await self._stack.enter_async_context(new_database(self._url)))
        self.close_at_end(database.close)
        return database

    def close_at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call this before the databases are dropped."""
        self._stack.push_async_callback(close)

    async def prepare_log(self, bench_database: BenchDatabase, *, log_files: int) -> None:
        """Prepare a server that was started here as if it had run for a while; leave any other server as it is."""
        if self._server is not None:
            await bench_database.make_log_files(log_files)

    def flush_disk(self) -> None:
        """Wait until loaded rows are on the disk, so that writing them does not slow the first measurement."""
        if self._server is not None and hasattr(os, "sync"):
            os.sync()

    @property
    def pgbench(self) -> Path | None:
        """The program, from beside the server or from the PATH."""
        if self._server is not None and (own := self._server.binaries / "pgbench").is_file():
            return own
        found = shutil.which("pgbench")
        return Path(found) if found else None


class BenchRedis(NamedTuple):
    """URLs, and the server of the first one if it was started here."""

    urls: tuple[str, ...] = ()
    started: Valkey | None = None


@asynccontextmanager
async def prepared(
    database: str | None, redis: str | None, *, redis_servers: int = 0, settings: Mapping[str, str] = SETTINGS
) -> AsyncIterator[BenchServers]:
    """The named servers; those that were not named are started, and stopped when the run ends."""
    async with AsyncExitStack() as stack:
        try:
            server = None if database else stack.enter_context(start_postgres(settings=settings))
        except ServerUnavailable as reason:
            raise SetupError(
                problem=f"Nothing to measure on: {reason} Or name a server with --database URL."
            ) from reason
        url = database or (server.url() if server else "")
        if urlsplit(url).scheme not in open_and_maintain_databases.POSTGRES:
            raise SetupError(problem="Bookings are measured on PostgreSQL: its URL begins with postgresql://.")
        found, no_redis = BenchRedis(), ""
        if redis_servers and redis is not None:
            found = BenchRedis(redis_urls(redis))
        elif redis_servers:
            try:
                started = [stack.enter_context(start_valkey()) for _ in range(redis_servers)]
                found = BenchRedis(tuple(one.url for one in started), started[0] if started[0].is_ours else None)
            except ServerUnavailable as reason:
                no_redis = str(reason)
        yield BenchServers(url, server=server, redis=found, no_redis=no_redis, stack=stack)


@asynccontextmanager
async def new_database(url: str, *, prefix: str = "earmark_bench", without: Sequence[str] = ()) -> AsyncIterator[str]:
    """A database of our own beside the one that a URL names, migrated and empty, dropped at the end.

    `without` names the migrations that are left out.
    """
    name = f"{prefix}_{secrets.token_hex(4)}"
    await _on_server(url, f'CREATE DATABASE "{name}"')
    try:
        own = sibling(url, name)
        await open_and_maintain_databases.migrate(own, without=tuple(without))
        yield own
    finally:
        await _on_server(url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    """A connection to the server that was named."""
    dsn, _ = split_url(url)
    try:
        connection = await asyncpg.connect(dsn, timeout=10, command_timeout=120)
    except (OSError, asyncpg.PostgresError, ValueError) as refused:
        raise SetupError(problem=f"The PostgreSQL to measure on cannot be reached: {refused}") from refused
    try:
        yield connection
    finally:
        await connection.close()


async def _on_server(url: str, statement: str) -> None:
    """Databases are created and dropped outside of any transaction."""
    async with connected(url) as connection:
        try:
            await connection.execute(statement)
        except asyncpg.InsufficientPrivilegeError as refused:
            raise SetupError(problem=f"A run creates databases of its own on the server: {refused}.") from refused


def redis_urls(redis: str) -> tuple[str, ...]:
    """The addresses of an option that lists them with commas."""
    return tuple(url.strip() for url in redis.split(","))


def _postmaster_pid(server: Postgres | None) -> int | None:
    """The process id of the postmaster, if it was started here."""
    try:
        return server.pid if server else None
    except ServerUnavailable:
        return None
