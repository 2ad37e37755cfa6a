"""The servers of a race: those that the operator named, or new ones, with databases of their own.

A race is safe on a server in use: the databases have new names and are dropped afterwards, and keys in Redis expire
within seconds.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, asynccontextmanager, contextmanager
from importlib import metadata
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from earmark.bench.postgres_and_redis_servers import connected, new_database, redis_urls
from earmark.bench.redis_version import redis_product
from earmark.bench.report.machine import installed_versions
from earmark.errors import SetupError
from earmark.wiring import open_and_maintain_databases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

REDLOCK_SERVERS = 3


class RaceServers(msgspec.Struct, frozen=True, kw_only=True):
    """The URLs of one PostgreSQL and of one or more Redis servers."""

    database: str
    redis: tuple[str, ...]


class RaceDatabases(msgspec.Struct, frozen=True, kw_only=True):
    """Two databases that differ only in the guards of the schema."""

    bare: str
    """Without the guards: every write is accepted."""
    guarded: str


@contextmanager
def servers(database: str | None, redis: str | None, *, with_redis: bool) -> Iterator[RaceServers]:
    """The named servers; those that were not named are started, and stopped at the end."""
    from earmark.testservers import ServerUnavailable, start_postgres, start_valkey

    if database is not None and urlsplit(database).scheme not in open_and_maintain_databases.POSTGRES:
        raise SetupError(problem="A race is run on PostgreSQL: its URL begins with postgresql://.")
    with ExitStack() as started:
        try:
            where = database or started.enter_context(start_postgres()).url()
            caches = redis_urls(redis) if redis else ()
            if with_redis and not caches:
                caches = tuple(started.enter_context(start_valkey()).url for _ in range(REDLOCK_SERVERS))
        except ServerUnavailable as reason:
            raise SetupError(
                problem=f"Nothing to race on: {reason} Or name servers with --database URL and --redis URL."
            ) from reason
        yield RaceServers(database=where, redis=caches)


@asynccontextmanager
async def race_databases(url: str) -> AsyncIterator[RaceDatabases]:
    """Two new databases beside the one that was named, dropped at the end."""
    async with (
        new_database(url, prefix="earmark_race_bare", without=("guards",)) as bare,
        new_database(url, prefix="earmark_race_guarded") as guarded,
    ):
        yield RaceDatabases(bare=bare, guarded=guarded)


async def versions(where: RaceServers) -> dict[str, str]:
    """The versions of the servers and libraries that took part."""
    found = installed_versions("asyncpg")
    async with connected(where.database) as connection:
        found["postgresql"] = str(await connection.fetchval("SHOW server_version")).split()[0]
    if where.redis:
        found["redis-py"] = metadata.version("redis")
        found["redis"] = await asyncio.to_thread(redis_product, where.redis[0])
    return found
