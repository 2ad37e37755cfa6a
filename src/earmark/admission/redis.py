"""From a URL to the Redis servers that admission asks, over the connections and flights of the locks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from earmark.admission.script import SOURCE, AdmissionScript
from earmark.errors import SetupError
from earmark.locks import url as addresses
from earmark.locks.breaker import Breaker, BreakerState, Change
from earmark.locks.errors import LocksUnavailable
from earmark.locks.redis.cluster import ClusterWire, open_cluster
from earmark.locks.redis.flights import Flights
from earmark.locks.redis.script import milliseconds
from earmark.locks.redis.servers import close_pool, one_pool, sentinel_pool
from earmark.locks.redis.wire import ServerWire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from earmark.locks.redis.wire import Wire

logger = logging.getLogger("earmark.admission")

COOLDOWN_SECONDS = 0.5
COOLDOWN_SECONDS_MAX = 5.0
PING_SECONDS_MAX = 5.0
"""When a PING whose page was answered without it is given up."""
OWED_MAX = 1000
"""Calls that did not get through and are made again when Redis answers. All of them are moot after a few seconds."""


class Line:
    """The way to one Redis."""

    def __init__(
        self,
        wire: Wire,
        *,
        timeout: float,
        close: Callable[[], Awaitable[None]],
        address: str = "",
        ping: Callable[[], Awaitable[Any]] | None = None,
        find: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        self.address = address
        self.breaker = Breaker(
            cooldown_seconds=COOLDOWN_SECONDS, cooldown_seconds_max=COOLDOWN_SECONDS_MAX, on_change=_say
        )
        whole = find is not None
        self.flights = Flights(wire, breaker=self.breaker, patience=timeout, whole=whole, owed_max=OWED_MAX)
        self._wire = wire
        self._close = close
        self._ping = ping
        self._find = find
        self._finding: asyncio.Task[None] | None = None

    def failed(self) -> None:
        """Nobody answered in time.

        Who has which part of a cluster is found out by several questions, which take longer than a request waits: they
        are asked on the side, so that they are not given up again and again.
        """
        if self._find is not None and (self._finding is None or self._finding.done()):
            self._finding = asyncio.get_running_loop().create_task(self._find_again(self._find))

    async def answers(self, *, within: float) -> bool:
        """Whether the server answers a PING within so many seconds, past the breaker."""
        try:
            async with asyncio.timeout(within):
                if self._ping is not None:
                    await self._ping()
        except (LocksUnavailable, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        """Send what is still to be sent, then disconnect."""
        await self.flights.close()
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.wait([self._finding])
        await self._wire.close()
        await self._close()

    @staticmethod
    async def _find_again(find: Callable[[], Awaitable[Any]]) -> None:
        with contextlib.suppress(LocksUnavailable):
            await find()


def open_lines(url: str | Sequence[str], *, timeout: float, ttl_seconds: float, source: bytes = SOURCE) -> list[Line]:
    """One for each address. Several servers share the events among them: no event needs more than one."""
    script = AdmissionScript(ttl_ms=milliseconds(ttl_seconds), source=source)
    return [_line(one, script=script, timeout=timeout) for one in addresses.addresses_of(url)]


def _line(url: str, *, script: AdmissionScript, timeout: float) -> Line:
    scheme = urlsplit(url).scheme
    if scheme == "cluster":
        nodes, _, options = addresses.hosts_of(url)
        cluster = open_cluster(nodes, timeout=timeout, options=options)
        wire = ClusterWire(cluster, script=script, timeout=timeout)
        return Line(wire, timeout=timeout, close=_nothing_more, address=_address(url), ping=wire.ping, find=wire.meet)
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
    server = ServerWire(pool, script=script, timeout=timeout)
    return Line(
        server,
        timeout=timeout,
        close=lambda: close_pool(pool, sentinel),
        address=_address(url),
        ping=lambda: server.command("PING", deadline=asyncio.get_running_loop().time() + PING_SECONDS_MAX),
    )


def _address(url: str) -> str:
    """Where it is, without what is secret about it."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] + parts.path


async def _nothing_more() -> None:
    """A cluster's client is closed by its wire."""


def _say(change: Change) -> None:
    if change.after is BreakerState.OPEN:
        seconds = change.retry_after_seconds
        logger.error("Redis does not answer; the store alone is asked, and Redis again in %.1f s", seconds)
    elif change.after is BreakerState.CLOSED:
        logger.warning("Redis answers again")
