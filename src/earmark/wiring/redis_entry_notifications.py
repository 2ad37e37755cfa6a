"""Sends and receives the numbers of new journal entries between processes, over a Redis where there is one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
    from earmark.seatmap.notify_processes_of_entries_over_redis import Listener

NOTIFICATION_SECONDS_MAX = 2.0


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
