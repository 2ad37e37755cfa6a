"""Makes and closes pools of connections to Redis, and raises `LocksUnavailable` for the errors of redis-py."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from redis.asyncio import Sentinel
from redis.asyncio.connection import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

from earmark.locks.errors import LocksUnavailable
from earmark.locks.redis.script_connection import BROKEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def one_pool(url: str, *, timeout: float) -> ConnectionPool:
    """Connections to the server at a redis://, rediss:// or unix:// address."""
    return ConnectionPool.from_url(url, **connection_options(timeout))


def sentinel_pool(
    watchers: Sequence[tuple[str, int]], service: str, *, timeout: float, options: dict[str, Any]
) -> tuple[ConnectionPool, Sentinel]:
    """Connections to the primary of a service, and the Sentinels that name it."""
    # Each Sentinel may be silent; all of them together stay within the timeout of one call.
    patience = timeout / (len(watchers) + 1)
    ask = {"socket_timeout": patience, "socket_connect_timeout": patience, "retry": Retry(NoBackoff(), 0)}
    sentinel = Sentinel(list(watchers), sentinel_kwargs=ask, **connection_options(timeout), **options)
    return sentinel.master_for(service).connection_pool, sentinel


def connection_options(timeout: float) -> dict[str, Any]:
    """For redis-py: no retries and no timeouts of its own; `ServerConnection` keeps the deadline of a call."""
    return {
        "protocol": 2,
        "socket_timeout": None,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,
    }


async def close_pool(pool: ConnectionPool, sentinel: Any = None) -> None:
    """Close the connections to a server and to the Sentinels that named it."""
    await pool.disconnect()
    for watcher in sentinel.sentinels if sentinel else ():
        await watcher.aclose()


@contextlib.contextmanager
def outages() -> Iterator[None]:
    """Turn what redis-py raises into `LocksUnavailable`."""
    try:
        yield
    except (RedisError, RedisClusterException, *BROKEN) as error:
        raise LocksUnavailable(because=str(error) or type(error).__name__) from error
