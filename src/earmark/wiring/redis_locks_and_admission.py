"""What the settings want of Redis: locks, admission, and notifications between processes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.config import Settings
    from earmark.engine.ports.seat_admission import Admission
    from earmark.locks import Locks
    from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
    from earmark.seatmap.notify_processes_of_entries_over_redis import Listener

NOTIFICATION_SECONDS_MAX = 2.0


def open_locks(settings: Settings, *, prefix: str = "earmark") -> Locks:
    """The locks that the settings describe, where their Redis is."""
    addresses = lock_addresses(settings)
    if not addresses:
        raise SetupError(problem="Say where the locks are: --redis redis://127.0.0.1:6379, or set EARMARK_LOCKS_URL.")
    from earmark.locks import Locks

    return Locks.from_url(
        addresses,
        prefix=prefix,
        ttl=settings.lock_ttl_seconds,
        drift_factor=settings.redlock_drift_factor,
        retry_seconds=settings.redlock_retry_seconds,
    )


def lock_addresses(settings: Settings) -> list[str]:
    """Where the locks are: at addresses of their own, else at the first one of admission. None where neither is set."""
    from earmark.locks.backend_from_url import addresses_of

    if settings.locks_url is not None:
        return addresses_of(settings.locks_url)
    return addresses_of(settings.redis_url)[:1] if settings.redis_url else []


def open_admission(redis_url: str, **options: Any) -> Admission:
    """Admission in front of the store, on these Redis servers."""
    try:
        from earmark import admission
    except ImportError as missing:
        raise SetupError(problem="Redis needs an extra: pip install 'earmark[redis]'") from missing
    return admission.open_admission(redis_url, **options)


class Notifications:
    """Sends the numbers of entries published here to other processes, and passes theirs to a listener here.

    Without a Redis that can carry them nothing is sent: each process then reads the database, which is never wrong.
    """

    def __init__(self, redis_url: str | None) -> None:
        self._connections = _open_connections(redis_url) if redis_url else None
        self._tasks: list[asyncio.Task[None]] = []

    def publish(self, feed: EntryFeed) -> None:
        """Send what this process's relay publishes to the other processes, until closed."""
        if self._connections is not None:
            from earmark.seatmap import notify_processes_of_entries_over_redis

            self._tasks.append(
                asyncio.create_task(notify_processes_of_entries_over_redis.publish_numbers(feed, self._connections[0]))
            )

    def listen(self, listener: Listener) -> None:
        """Pass on what other processes publish, until closed."""
        if self._connections is not None:
            from earmark.seatmap import notify_processes_of_entries_over_redis

            self._tasks.append(
                asyncio.create_task(
                    notify_processes_of_entries_over_redis.receive_numbers(listener, self._connections[0])
                )
            )

    async def close(self) -> None:
        """Stop both, and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._connections is not None:
            await self._connections[1]()


def _open_connections(redis_url: str) -> tuple[Any, Callable[[], Awaitable[None]]] | None:
    """A pool to one server, or to the one that Sentinels name, and what closes it.

    None for a cluster or several servers: those would need a connection to each.
    """
    from earmark.locks import backend_from_url as addresses
    from earmark.locks.redis.connection_pools import close_pool, one_pool, sentinel_pool

    [url, *more] = addresses.addresses_of(redis_url)
    scheme = urlsplit(url).scheme
    if more or scheme not in (*addresses.REDIS, "sentinel"):
        return None
    if scheme != "sentinel":
        pool = one_pool(url, timeout=NOTIFICATION_SECONDS_MAX)
        return pool, lambda: close_pool(pool)
    watchers, service, options = addresses.hosts_of(url)
    pool, sentinel = sentinel_pool(watchers, service, timeout=NOTIFICATION_SECONDS_MAX, options=options)
    return pool, lambda: close_pool(pool, sentinel)
