"""The Redis servers behind one set of leases: where their connections come from and who listens to them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from redis.asyncio import Sentinel
from redis.asyncio.connection import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

from earmark.locks.errors import LocksUnavailable
from earmark.locks.globs import compiled
from earmark.locks.ports import Holding
from earmark.locks.redis.inbox import Inbox, Post
from earmark.locks.redis.script import LeaseScript, Names
from earmark.locks.redis.wire import BROKEN, ServerWire, Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

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

    def ears(self, names: tuple[str, ...]) -> object:
        """The subscription by which a hand-over of these is heard now."""
        ...

    async def stop_listening(self, names: tuple[str, ...], ears: object) -> None:
        """Hang up, unless somebody has done so already; the next who listens makes a new connection."""
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
        self.wire = ServerWire(pool, script=LeaseScript(self.names, self.post), timeout=timeout)
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

    def ears(self, names: tuple[str, ...]) -> object:  # noqa: ARG002
        """The subscription by which a hand-over is heard now."""
        return self._inbox.reader if self._inbox else None

    async def stop_listening(self, names: tuple[str, ...], ears: object) -> None:  # noqa: ARG002
        """Hang up, unless somebody has done so already."""
        if self._inbox is not None and self._inbox.reader is ears:
            await self._inbox.close()

    async def holdings(self, *, match: str, limit: int) -> list[Holding]:
        """Walk over the leases."""
        wanted = compiled(match)
        # A scan comes in no order and may show a key twice.
        keys = {key async for lease in self._scan() if wanted.fullmatch(key := self.names.key_of(lease.decode()))}
        found = [await self.find(key) for key in sorted(keys)[:limit]]
        return [holding for holding in found if holding]

    async def find(self, key: str) -> Holding | None:
        """Look at one lease."""
        return await read_holding(self.wire.command, self.names, key)

    async def _scan(self) -> AsyncIterator[bytes]:
        cursor: Any = 0
        while True:
            cursor, leases = await self.wire.command(
                "SCAN", cursor, "MATCH", f"{self.names.lease_start}*", "COUNT", SCAN_COUNT
            )
            for lease in leases:
                yield lease
            if int(cursor) == 0:
                break

    async def ping(self) -> None:
        """Ask for a sign of life."""
        await self.wire.command("PING")

    async def close(self) -> None:
        """Disconnect."""
        if self._inbox is not None:
            await self._inbox.close()
        await self.wire.close()
        await close_pool(self._pool, self._sentinel)


def one_server(url: str, *, prefix: str, timeout: float) -> OneServer:
    """The server at a redis://, rediss:// or unix:// address."""
    return OneServer(name="redis", pool=one_pool(url, timeout=timeout), prefix=prefix, timeout=timeout)


def one_pool(url: str, *, timeout: float) -> ConnectionPool:
    """Connections to the server at a redis://, rediss:// or unix:// address."""
    return ConnectionPool.from_url(url, **connection_options(timeout))


def by_sentinel(
    watchers: Sequence[tuple[str, int]], service: str, *, prefix: str, timeout: float, options: dict[str, Any]
) -> OneServer:
    """The primary of a service, asked for anew whenever a connection is made."""
    pool, sentinel = sentinel_pool(watchers, service, timeout=timeout, options=options)
    return OneServer(name="sentinel", pool=pool, prefix=prefix, timeout=timeout, sentinel=sentinel)


def sentinel_pool(
    watchers: Sequence[tuple[str, int]], service: str, *, timeout: float, options: dict[str, Any]
) -> tuple[ConnectionPool, Sentinel]:
    """Connections to the primary of a service, and those who name it."""
    # Each watcher may be silent; all of them together stay within the deadline of one call.
    patience = timeout / (len(watchers) + 1)
    ask = {"socket_timeout": patience, "socket_connect_timeout": patience, "retry": Retry(NoBackoff(), 0)}
    sentinel = Sentinel(list(watchers), sentinel_kwargs=ask, **connection_options(timeout), **options)
    return sentinel.master_for(service).connection_pool, sentinel


async def close_pool(pool: ConnectionPool, sentinel: Any = None) -> None:
    """Let go of a server's connections and of those to the sentinels that named it."""
    await pool.disconnect()
    for watcher in sentinel.sentinels if sentinel else ():
        await watcher.aclose()


@contextlib.contextmanager
def outages() -> Iterator[None]:
    """What redis-py raises, in our words."""
    try:
        yield
    except (RedisError, RedisClusterException, *BROKEN) as error:
        raise LocksUnavailable(because=str(error) or type(error).__name__) from error


async def read_holding(ask: Callable[..., Awaitable[Any]], names: Names, key: str) -> Holding | None:
    """Who holds a key; None if nobody does. `ask` sends a command to the server that has it."""
    lease, queue = names.pair(key)
    value = await ask("GET", lease)
    if value is None:
        return None
    ttl_ms = await ask("PTTL", lease)
    line = await ask("LRANGE", queue, 0, -1)
    seconds, micros = await ask("TIME")
    now = int(seconds) + int(micros) / 1e6
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
