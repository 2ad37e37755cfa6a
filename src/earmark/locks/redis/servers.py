"""The Redis servers behind one set of leases: where their connections come from and who listens to them."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Protocol

from redis.asyncio import Redis, Sentinel
from redis.asyncio.connection import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from earmark.locks.errors import LocksUnavailable
from earmark.locks.globs import regex_of
from earmark.locks.ports import Holding
from earmark.locks.redis.inbox import Inbox, Post
from earmark.locks.redis.script import Names
from earmark.locks.redis.wire import ServerWire, Wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCAN_COUNT = 500


class Servers(Protocol):
    """What `RedisLeases` needs to know of a topology."""

    name: str
    names: Names
    post: Post

    @property
    def wire(self) -> Wire:
        """What carries calls to them."""
        ...

    def check_together(self, keys: tuple[str, ...], names: tuple[str, ...]) -> None:
        """Raise `KeysApart` for keys that no one script can touch."""
        ...

    def listening(self, names: tuple[str, ...]) -> bool:
        """Whether a hand-over of these would be heard now."""
        ...

    async def listen(self, names: tuple[str, ...]) -> None:
        """Return once a hand-over of these would be heard."""
        ...

    async def holdings(self, *, match: str, limit: int) -> list[Holding]:
        """Who holds what."""
        ...

    async def find(self, key: str) -> Holding | None:
        """Who holds this key."""
        ...

    async def ping(self) -> None:
        """Return if the servers answer."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


def connection_options(timeout: float) -> dict[str, Any]:
    """For redis-py: no retries and no timeouts of its own, for a call's deadline is kept by the wire."""
    return {
        "protocol": 2,
        "socket_timeout": None,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,
    }


class OneServer:
    """One Redis, or the primary that Sentinels name."""

    def __init__(self, *, name: str, pool: ConnectionPool, prefix: str, timeout: float, sentinel: Any = None) -> None:
        self.name = name
        self.names = Names(prefix)
        self.post = Post(prefix=prefix)
        self.wire = ServerWire(pool, fence=self.names.fence, post=self.post, timeout=timeout)
        self._pool = pool
        self._timeout = timeout
        self._sentinel = sentinel
        self._inbox: Inbox | None = None

    def check_together(self, keys: tuple[str, ...], names: tuple[str, ...]) -> None:
        """One server has them all."""

    def listening(self, names: tuple[str, ...]) -> bool:  # noqa: ARG002
        """Whether a hand-over would be heard now."""
        return self._inbox is not None and self._inbox.open

    async def listen(self, names: tuple[str, ...]) -> None:  # noqa: ARG002
        """Subscribe, once for all waiters."""
        if self._inbox is None:
            self._inbox = Inbox(self._pool, self.post, timeout=self._timeout)
        if not self._inbox.open:
            await self._inbox.listen()

    async def holdings(self, *, match: str, limit: int) -> list[Holding]:
        """Walk over the leases."""
        with outages():
            return await read_holdings(Redis(connection_pool=self._pool), self.names, match=match, limit=limit)

    async def find(self, key: str) -> Holding | None:
        """Look at one lease."""
        with outages():
            client = Redis(connection_pool=self._pool)
            return await read_holding(client, self.names, key, now=await read_time(client))

    async def ping(self) -> None:
        """Ask for a sign of life."""
        await self.wire.command("PING")

    async def close(self) -> None:
        """Disconnect."""
        if self._inbox is not None:
            await self._inbox.close()
        await self.wire.close()
        await self._pool.disconnect()
        for watcher in self._sentinel.sentinels if self._sentinel else ():
            await watcher.aclose()


def one_server(url: str, *, prefix: str, timeout: float) -> OneServer:
    """The server at a redis://, rediss:// or unix:// address."""
    pool = ConnectionPool.from_url(url, **connection_options(timeout))
    return OneServer(name="redis", pool=pool, prefix=prefix, timeout=timeout)


def by_sentinel(
    watchers: Sequence[tuple[str, int]], service: str, *, prefix: str, timeout: float, options: dict[str, Any]
) -> OneServer:
    """The primary of a service, asked for anew whenever a connection is made."""
    # Each watcher may be silent; all of them together stay within the deadline of one call.
    patience = timeout / (len(watchers) + 1)
    ask = {"socket_timeout": patience, "socket_connect_timeout": patience, "retry": Retry(NoBackoff(), 0)}
    sentinel = Sentinel(list(watchers), sentinel_kwargs=ask, **connection_options(timeout), **options)
    pool = sentinel.master_for(service).connection_pool
    return OneServer(name="sentinel", pool=pool, prefix=prefix, timeout=timeout, sentinel=sentinel)


@contextlib.contextmanager
def outages() -> Iterator[None]:
    """What redis-py raises, in our words."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise LocksUnavailable(because=str(error) or type(error).__name__) from error


async def read_holdings(client: Any, names: Names, *, match: str, limit: int) -> list[Holding]:
    """Who holds what, on a client that can SCAN."""
    wanted = re.compile(regex_of(match), re.DOTALL)
    leases = client.scan_iter(match=f"{names.lease_start}*", count=SCAN_COUNT)
    # A scan comes in no order and may show a key twice.
    seen = {key async for lease in leases if wanted.fullmatch(key := names.key_of(lease.decode()))}
    now = await read_time(client)
    found = [await read_holding(client, names, key, now=now) for key in sorted(seen)[:limit]]
    return [holding for holding in found if holding]


async def read_holding(client: Any, names: Names, key: str, *, now: float) -> Holding | None:
    """Who holds a key; None if the lease has just ended."""
    lease, queue = names.pair(key)
    async with client.pipeline(transaction=False) as pipeline:
        pipeline.get(lease)
        pipeline.pttl(lease)
        pipeline.lrange(queue, 0, -1)
        value, ttl_ms, line = await pipeline.execute()
    if value is None:
        return None
    owner, fence, *ends = value.decode().split("|")
    # While somebody waits, a lease says itself when it ends.
    left = int(ends[0]) / 1e6 - now if ends else ttl_ms / 1000
    if left < 0:
        return None
    token, _, holder = owner.partition("@")
    return Holding(
        key=key,
        holder=holder,
        token=token,
        fence=int(fence),
        # A fence is the time of its grant, or a little more.
        age_seconds=max(0.0, now - int(fence) / 1e6),
        ttl_seconds=left,
        waiters=[entry.decode().rsplit("|", 2)[0].partition("@")[2] for entry in line],
    )


async def read_time(client: Any) -> float:
    """The server's clock, in seconds."""
    seconds, micros = await client.time()
    return float(seconds) + float(micros) / 1e6
