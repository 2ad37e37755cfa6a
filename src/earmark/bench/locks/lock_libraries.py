"""The locks that are measured: Earmark's, and those of other Python libraries for Redis.

Each is used as its documentation shows, on its own client, and with the same time to live. A library that is not
installed is left out and named; redis-py's lock is always there, because the others are compared with it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import redis
import redis.asyncio

from earmark.locks import Locks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractAsyncContextManager

OURS = "earmark"
YARDSTICK = "redis-py"
TTL_SECONDS = 10
WAIT_SECONDS = 60
"""How long a waiter of ours may wait; the other libraries wait without limit."""


class Contender(Protocol):
    """A lock as tasks use it."""

    name: str

    async def once(self, key: str) -> None:
        """Acquire and release it."""
        ...

    async def thrice(self, keys: tuple[str, str, str]) -> None:
        """Acquire three keys in the way this library offers, and release them."""
        ...

    def turn(self, key: str) -> AbstractAsyncContextManager[object]:
        """Wait for it without limit."""
        ...

    async def close(self) -> None:
        """Close the connections to the servers under test."""
        ...


class SyncContender(Protocol):
    """A lock as a thread uses it."""

    name: str

    def once(self, key: str) -> None:
        """Acquire and release it."""
        ...

    def close(self) -> None:
        """Close the connections to the servers under test."""
        ...


class LockContenders(msgspec.Struct, frozen=True, kw_only=True):
    """All locks that take part; ours first, then those it is compared with."""

    tasks: tuple[Contender, ...]
    threads: tuple[SyncContender, ...]
    absent: tuple[str, ...] = ()
    """Libraries that are not installed."""


PEERS: Mapping[str, str] = {"pottery": "pottery", "python-redis-lock": "redis_lock", "redlock-py": "redlock"}
"""The module of each distribution."""


def gather(url: str) -> LockContenders:
    """All installed libraries, on the server of `url`. None connects yet."""
    found = {name: module for name, module in _installed() if module is not None}
    tasks: list[Contender] = [EarmarkLock(url), RedisPy(url)]
    threads: list[SyncContender] = [EarmarkSyncLock(url), RedisPySync(url)]
    if pottery := found.get("pottery"):
        tasks.append(Pottery(url, pottery))
        threads.append(PotterySync(url, pottery))
    if redis_lock := found.get("python-redis-lock"):
        threads.append(PythonRedisLock(url, redis_lock))
    if redlock := found.get("redlock-py"):
        threads.append(RedlockPy(url, redlock))
    return LockContenders(tasks=tuple(tasks), threads=tuple(threads), absent=tuple(sorted(PEERS.keys() - found.keys())))


def versions(field: LockContenders) -> dict[str, str]:
    """The version of each library that takes part."""
    known = {OURS: OURS, YARDSTICK: "redis", "hiredis": "hiredis", **{name: name for name in PEERS}}
    found = {}
    for name, distribution in known.items():
        try:
            found[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return {name: version for name, version in found.items() if name not in field.absent}


def _installed() -> Iterator[tuple[str, Any]]:
    for name, module in PEERS.items():
        # Importing pottery replaces json.dumps for the whole process; this restores it.
        dumps = json.dumps
        try:
            yield name, importlib.import_module(module)
        except ImportError:
            yield name, None
        finally:
            json.dumps = dumps


class EarmarkLock:
    """Ours, with its defaults: metrics, circuit breaker, queue, fence."""

    name = OURS

    def __init__(self, url: str) -> None:
        self._locks = Locks.from_url(url)

    async def once(self, key: str) -> None:
        """Acquire and release one key."""
        async with self._locks.lock(key, ttl=TTL_SECONDS):
            pass

    async def thrice(self, keys: tuple[str, str, str]) -> None:
        """Acquire three keys, all or nothing, and release them."""
        async with self._locks.lock(*keys, ttl=TTL_SECONDS):
            pass

    def turn(self, key: str) -> AbstractAsyncContextManager[object]:
        """Wait in a queue: first come, first served."""
        return self._locks.lock(key, ttl=TTL_SECONDS, wait=WAIT_SECONDS)

    async def close(self) -> None:
        """Close the connections to the servers under test."""
        await self._locks.close()


class RedisPy:
    """`redis.asyncio.lock.Lock`, through the client's own method."""

    name = YARDSTICK

    def __init__(self, url: str) -> None:
        self._client = redis.asyncio.Redis.from_url(url)

    async def once(self, key: str) -> None:
        """Acquire and release one key."""
        async with self._client.lock(key, timeout=TTL_SECONDS):
            pass

    async def thrice(self, keys: tuple[str, str, str]) -> None:
        """It has no lock for several keys, so three locks nest."""
        lock = self._client.lock
        first, second, third = keys
        async with (
            lock(first, timeout=TTL_SECONDS),
            lock(second, timeout=TTL_SECONDS),
            lock(third, timeout=TTL_SECONDS),
        ):
            pass

    def turn(self, key: str) -> AbstractAsyncContextManager[object]:
        """It polls every tenth of a second, which is its default."""
        turn: AbstractAsyncContextManager[object] = self._client.lock(key, timeout=TTL_SECONDS)
        return turn

    async def close(self) -> None:
        """Close the connections to the servers under test."""
        await self._client.aclose()


class Pottery:
    """`pottery.AIORedlock` with one master."""

    name = "pottery"

    def __init__(self, url: str, module: Any) -> None:
        self._client = redis.asyncio.Redis.from_url(url)
        self._masters = {self._client}
        self._lock = module.AIORedlock

    async def once(self, key: str) -> None:
        """Acquire and release one key."""
        async with self._lock(key=key, masters=self._masters, auto_release_time=TTL_SECONDS):
            pass

    async def thrice(self, keys: tuple[str, str, str]) -> None:
        """It has no lock for several keys, so three locks nest."""
        first, second, third = keys
        async with self.turn(first), self.turn(second), self.turn(third):
            pass

    def turn(self, key: str) -> AbstractAsyncContextManager[object]:
        """It polls at random intervals, which is its default."""
        lock: AbstractAsyncContextManager[object] = self._lock(
            key=key, masters=self._masters, auto_release_time=TTL_SECONDS
        )
        return lock

    async def close(self) -> None:
        """Close the connections to the servers under test."""
        await self._client.aclose()


class EarmarkSyncLock:
    """Ours, in a plain `with`."""

    name = OURS

    def __init__(self, url: str) -> None:
        self._locks = Locks.from_url(url)

    def once(self, key: str) -> None:
        """Acquire and release one key."""
        with self._locks.lock(key, ttl=TTL_SECONDS):
            pass

    def close(self) -> None:
        """Close the connections to the servers under test."""
        self._locks.sync.close()


class RedisPySync:
    """`redis.lock.Lock`, through the client's own method."""

    name = YARDSTICK

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)

    def once(self, key: str) -> None:
        """Acquire and release one key."""
        with self._client.lock(key, timeout=TTL_SECONDS):
            pass

    def close(self) -> None:
        """Close the connections to the servers under test."""
        self._client.close()


class PotterySync:
    """`pottery.Redlock` with one master."""

    name = "pottery"

    def __init__(self, url: str, module: Any) -> None:
        self._client = redis.Redis.from_url(url)
        self._masters = {self._client}
        self._lock = module.Redlock

    def once(self, key: str) -> None:
        """Acquire and release one key."""
        with self._lock(key=key, masters=self._masters, auto_release_time=TTL_SECONDS):
            pass

    def close(self) -> None:
        """Close the connections to the servers under test."""
        self._client.close()


class PythonRedisLock:
    """`redis_lock.Lock` of the package python-redis-lock."""

    name = "python-redis-lock"

    def __init__(self, url: str, module: Any) -> None:
        self._client = redis.StrictRedis.from_url(url)
        self._lock = module.Lock

    def once(self, key: str) -> None:
        """Acquire and release one key."""
        with self._lock(self._client, key, expire=TTL_SECONDS):
            pass

    def close(self) -> None:
        """Close the connections to the servers under test."""
        self._client.close()


class RedlockPy:
    """`redlock.Redlock` with one server; it has no context manager."""

    name = "redlock-py"

    def __init__(self, url: str, module: Any) -> None:
        self._manager = module.Redlock([url])

    def once(self, key: str) -> None:
        """Acquire and release one key."""
        lock = self._manager.lock(key, TTL_SECONDS * 1000)
        assert lock, "no other client uses this key"
        self._manager.unlock(lock)

    def close(self) -> None:
        """Close the connections to the servers under test."""
        for server in self._manager.servers:
            server.close()
