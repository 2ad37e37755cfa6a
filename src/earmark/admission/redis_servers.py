"""Opens the Redis servers that admission uses, with the connections and the call batching of the locks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from earmark.admission.encode_and_decode_script_calls import SOURCE, AdmissionScript
from earmark.errors import SetupError
from earmark.locks import backend_from_url as addresses
from earmark.locks.circuit_breaker import Breaker, BreakerChange, BreakerState
from earmark.locks.errors import LocksUnavailable
from earmark.locks.redis.call_batching import CallBatcher
from earmark.locks.redis.cluster import ClusterConnection, open_cluster
from earmark.locks.redis.connection_pools import close_pool, one_pool, sentinel_pool
from earmark.locks.redis.encode_and_decode_script_calls import milliseconds
from earmark.locks.redis.script_connection import ServerConnection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from earmark.locks.redis.script_connection import ScriptConnection

logger = logging.getLogger("earmark.admission")

COOLDOWN_SECONDS = 0.5
COOLDOWN_SECONDS_MAX = 5.0
PING_SECONDS_MAX = 5.0
"""When a PING is given up, though the page that wanted it was answered without it long before."""
UNSENT_MAX = 1000
"""Calls that failed and are sent again when Redis answers. After a few seconds none of them matters."""


class AdmissionServer:
    """One Redis: its call batching, its circuit breaker and its health check."""

    def __init__(
        self,
        connection: ScriptConnection,
        *,
        timeout: float,
        close: Callable[[], Awaitable[None]],
        address: str = "",
        ping: Callable[[], Awaitable[Any]] | None = None,
        discover: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        self.address = address
        self.breaker = Breaker(
            cooldown_seconds=COOLDOWN_SECONDS, cooldown_seconds_max=COOLDOWN_SECONDS_MAX, on_change=_log_change
        )
        self.batcher = CallBatcher(
            connection,
            breaker=self.breaker,
            timeout=timeout,
            partial_is_failure=discover is not None,
            unsent_max=UNSENT_MAX,
        )
        self._connection = connection
        self._close = close
        self._ping = ping
        self._discover = discover
        self._discovering: asyncio.Task[None] | None = None

    def failed(self) -> None:
        """Note that Redis did not answer in time.

        Which node has which part of a cluster is found out by several calls, which take longer than a request waits:
        they run in a task of their own, so that they are not cancelled again and again.
        """
        if self._discover is not None and (self._discovering is None or self._discovering.done()):
            self._discovering = asyncio.get_running_loop().create_task(self._discover_quietly(self._discover))

    async def answers(self, *, within: float) -> bool:
        """Whether the server answers a PING within so many seconds, whatever the breaker says."""
        try:
            async with asyncio.timeout(within):
                if self._ping is not None:
                    await self._ping()
        except (LocksUnavailable, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        """Send the calls that are queued, then disconnect."""
        await self.batcher.close()
        if self._discovering is not None:
            self._discovering.cancel()
            await asyncio.wait([self._discovering])
        await self._connection.close()
        await self._close()

    @staticmethod
    async def _discover_quietly(discover: Callable[[], Awaitable[Any]]) -> None:
        with contextlib.suppress(LocksUnavailable):
            await discover()


def open_servers(
    url: str | Sequence[str], *, timeout: float, ttl_seconds: float, source: bytes = SOURCE
) -> list[AdmissionServer]:
    """One for each address. Several servers share the events: each event uses one of them."""
    script = AdmissionScript(ttl_ms=milliseconds(ttl_seconds), source=source)
    return [_server_at(one, script=script, timeout=timeout) for one in addresses.addresses_of(url)]


def _server_at(url: str, *, script: AdmissionScript, timeout: float) -> AdmissionServer:
    scheme = urlsplit(url).scheme
    if scheme == "cluster":
        nodes, _, options = addresses.hosts_of(url)
        cluster = open_cluster(nodes, timeout=timeout, options=options)
        connection = ClusterConnection(cluster, script=script, timeout=timeout)
        return AdmissionServer(
            connection,
            timeout=timeout,
            close=_nothing_to_close,
            address=_address(url),
            ping=connection.ping,
            discover=connection.discover_nodes,
        )
    sentinel = None
    if scheme == "sentinel":
        watchers, service, options = addresses.hosts_of(url)
        if not service:
            raise SetupError(problem="A sentinel URL ends with the service it watches: sentinel://host:26379/mymaster")
        pool, sentinel = sentinel_pool(watchers, service, timeout=timeout, options=options)
    elif scheme in addresses.REDIS:
        pool = one_pool(url, timeout=timeout)
    else:
        raise SetupError(
            problem="Admission asks a Redis: redis://, rediss://, unix://, sentinel:// or cluster://, "
            f"not {scheme or url!r}."
        )
    server = ServerConnection(pool, script=script, timeout=timeout)
    return AdmissionServer(
        server,
        timeout=timeout,
        close=lambda: close_pool(pool, sentinel),
        address=_address(url),
        ping=lambda: server.command("PING", deadline=asyncio.get_running_loop().time() + PING_SECONDS_MAX),
    )


def _address(url: str) -> str:
    """Host, port and path, without credentials."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] + parts.path


async def _nothing_to_close() -> None:
    """Do nothing: `ClusterConnection` closes the client of a cluster."""


def _log_change(change: BreakerChange) -> None:
    if change.after is BreakerState.OPEN:
        seconds = change.retry_after_seconds
        logger.error("Redis does not answer; requests go to the store alone; next try in %.1f s", seconds)
    elif change.after is BreakerState.CLOSED:
        logger.warning("Redis answers again")
