"""Reads the leases of one Redis server, or of the primary that Sentinels name, and subscribes to their hand-overs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.locks.backend_protocol import Holding
from earmark.locks.glob_to_regex import compiled
from earmark.locks.redis.connection_pools import close_pool, one_pool, sentinel_pool
from earmark.locks.redis.encode_and_decode_script_calls import LeaseScript, RedisKeys
from earmark.locks.redis.handover_subscription import HandoverSubscription, HandoverWaiters
from earmark.locks.redis.script_connection import ServerConnection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from redis.asyncio.connection import ConnectionPool

SCAN_COUNT = 500


class SingleServer:
    """One Redis, or the primary that Sentinels name."""

    def __init__(self, *, name: str, pool: ConnectionPool, prefix: str, timeout: float, sentinel: Any = None) -> None:
        self.name = name
        self.names = RedisKeys(prefix)
        self.handovers = HandoverWaiters(prefix=prefix)
        self.connection = ServerConnection(pool, script=LeaseScript(self.names, self.handovers), timeout=timeout)
        self._pool = pool
        self._timeout = timeout
        self._sentinel = sentinel
        self._subscription: HandoverSubscription | None = None

    def check_together(self, keys: tuple[str, ...], names: tuple[str, ...]) -> None:
        """One server has all keys, so any of them can be locked together."""

    def is_subscribed(self, names: tuple[str, ...]) -> bool:  # noqa: ARG002
        """Whether a hand-over would be received now."""
        return self._subscription is not None and self._subscription.is_open

    async def subscribe(self, names: tuple[str, ...]) -> None:  # noqa: ARG002
        """Subscribe, once for all waiters."""
        if self._subscription is None:
            self._subscription = HandoverSubscription(self._pool, self.handovers, timeout=self._timeout)
        if not self._subscription.is_open:
            await self._subscription.subscribe()

    def subscription_reader(self, names: tuple[str, ...]) -> object:  # noqa: ARG002
        """Identifies the present subscription."""
        return self._subscription.reader if self._subscription else None

    async def unsubscribe(self, names: tuple[str, ...], reader: object) -> None:  # noqa: ARG002
        """End the subscription that `reader` identifies, if it still exists."""
        if self._subscription is not None and self._subscription.reader is reader:
            await self._subscription.close()

    async def holdings(self, *, match: str, limit: int) -> list[Holding]:
        """Scan the leases, then read those that match."""
        wanted = compiled(match)
        # A scan comes in no order and may show a key twice.
        keys = {key async for lease in self._scan() if wanted.fullmatch(key := self.names.key_of(lease.decode()))}
        found = [await self.find(key) for key in sorted(keys)[:limit]]
        return [holding for holding in found if holding]

    async def find(self, key: str) -> Holding | None:
        """The lease of this key, if there is one."""
        return await read_holding(self.connection.command, self.names, key)

    async def _scan(self) -> AsyncIterator[bytes]:
        cursor: Any = 0
        while True:
            cursor, leases = await self.connection.command(
                "SCAN", cursor, "MATCH", f"{self.names.lease_start}*", "COUNT", SCAN_COUNT
            )
            for lease in leases:
                yield lease
            if int(cursor) == 0:
                break

    async def ping(self) -> None:
        """Return if the server answers PING."""
        await self.connection.command("PING")

    async def close(self) -> None:
        """End the subscription and close all connections."""
        if self._subscription is not None:
            await self._subscription.close()
        await self.connection.close()
        await close_pool(self._pool, self._sentinel)


def one_server(url: str, *, prefix: str, timeout: float) -> SingleServer:
    """The server at a redis://, rediss:// or unix:// address."""
    return SingleServer(name="redis", pool=one_pool(url, timeout=timeout), prefix=prefix, timeout=timeout)


def by_sentinel(
    watchers: Sequence[tuple[str, int]], service: str, *, prefix: str, timeout: float, options: dict[str, Any]
) -> SingleServer:
    """The primary of a service; the Sentinels are asked for it whenever a connection is made."""
    pool, sentinel = sentinel_pool(watchers, service, timeout=timeout, options=options)
    return SingleServer(name="sentinel", pool=pool, prefix=prefix, timeout=timeout, sentinel=sentinel)


async def read_holding(ask: Callable[..., Awaitable[Any]], names: RedisKeys, key: str) -> Holding | None:
    """The lease of a key; None if there is none. `ask` sends a command to the server that has it."""
    lease, queue = names.pair(key)
    value = await ask("GET", lease)
    if value is None:
        return None
    ttl_ms = await ask("PTTL", lease)
    line = await ask("LRANGE", queue, 0, -1)
    seconds, micros = await ask("TIME")
    now = int(seconds) + int(micros) / 1e6
    owner, fence, *ends = value.decode().split("|")
    # While a queue exists, the lease itself contains when it ends.
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
