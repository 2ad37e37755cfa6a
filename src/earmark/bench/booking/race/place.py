"""Where a race is run: servers that were named or are started for it, and databases of its own.

A server in use is safe to race on: the databases have new names and are dropped afterwards, and what Redis is told is
gone by itself within seconds.
"""

from __future__ import annotations

import platform
import secrets
from contextlib import ExitStack, asynccontextmanager, contextmanager
from importlib import metadata
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
import msgspec

from earmark.errors import SetupError
from earmark.store.postgres.migrate import split_url
from earmark.version import __version__
from earmark.wiring import databases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

REDLOCK_SERVERS = 3
CONNECT_SECONDS = 10.0


class Servers(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses: of one PostgreSQL, and of as many Redis as there are."""

    database: str
    redis: tuple[str, ...]


class Databases(msgspec.Struct, frozen=True, kw_only=True):
    """Two that are alike but for the law in the schema."""

    bare: str
    """Without the guards: whoever writes is believed."""
    guarded: str


@contextmanager
def servers(database: str | None, redis: str | None, *, with_redis: bool) -> Iterator[Servers]:
    """Those that were named; what was not is started, and gone afterwards."""
    from earmark.testservers import ServerUnavailable, start_postgres, start_valkey

    if database is not None and urlsplit(database).scheme not in databases.POSTGRES:
        raise SetupError(problem="A race is run on PostgreSQL: its URL begins with postgresql://.")
    with ExitStack() as started:
        try:
            where = database or started.enter_context(start_postgres()).url()
            caches = tuple(url.strip() for url in redis.split(",")) if redis else ()
            if with_redis and not caches:
                caches = tuple(started.enter_context(start_valkey()).url for _ in range(REDLOCK_SERVERS))
        except ServerUnavailable as reason:
            raise SetupError(
                problem=f"Nothing to race on: {reason} Or name servers with --database URL and --redis URL."
            ) from reason
        yield Servers(database=where, redis=caches)


@asynccontextmanager
async def race_databases(url: str) -> AsyncIterator[Databases]:
    """Two new ones beside the one that was named, dropped afterwards."""
    mark = secrets.token_hex(4)
    bare, guarded = (f"earmark_race_{mark}_{kind}" for kind in ("bare", "guarded"))
    made = Databases(bare=_named(url, bare), guarded=_named(url, guarded))
    await _administer(url, f'CREATE DATABASE "{bare}"', f'CREATE DATABASE "{guarded}"')
    try:
        await databases.migrate(made.bare, without=("guards",))
        await databases.migrate(made.guarded)
        yield made
    finally:
        drop = (f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)' for name in (bare, guarded))
        await _administer(url, *drop)


async def versions(where: Servers) -> dict[str, str]:
    """Of everything that took part."""
    found = {"earmark": __version__, "python": platform.python_version(), "asyncpg": metadata.version("asyncpg")}
    connection = await _connect(where.database)
    try:
        found["postgresql"] = str(await connection.fetchval("SHOW server_version")).split()[0]
    finally:
        await connection.close()
    if where.redis:
        found["redis-py"] = metadata.version("redis")
        found["redis"] = await _product(where.redis[0])
    return found


async def _product(url: str) -> str:
    from redis import asyncio as redis

    try:
        async with redis.Redis.from_url(url, socket_timeout=CONNECT_SECONDS) as client:
            about = await client.info("server")
    except (redis.RedisError, ValueError) as error:
        raise SetupError(problem=f"The Redis to race on does not answer: {error}") from error
    return f"Valkey {about['valkey_version']}" if "valkey_version" in about else f"Redis {about['redis_version']}"


async def _administer(url: str, *statements: str) -> None:
    """Databases are made and dropped outside of any transaction."""
    connection = await _connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError as refused:
        raise SetupError(problem=f"A race makes databases of its own on the server: {refused}.") from refused
    finally:
        await connection.close()


async def _connect(url: str) -> asyncpg.Connection:
    try:
        return await asyncpg.connect(split_url(url)[0], timeout=CONNECT_SECONDS)
    except (OSError, asyncpg.PostgresError, ValueError) as refused:
        raise SetupError(problem=f"The PostgreSQL to race on cannot be reached: {refused}") from refused


def _named(url: str, database: str) -> str:
    """The same server, another database. `urlunsplit` would drop the slashes of an address without a host."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/{database}" + (f"?{parts.query}" if parts.query else "")
