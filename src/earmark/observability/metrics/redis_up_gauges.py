"""Whether each Redis answers a PING when a page is rendered.

The outcome of the last hold means nothing while there are no holds, so every server gets a PING: at most one a second,
however many pages are requested. Each PING has half a second, so a page waits a second at most.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from prometheus_client.registry import Collector

from earmark.locks.errors import LocksUnavailable
from earmark.observability.metrics.counter_and_histogram_classes import gauge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from earmark.engine.engine import Engine

PING_SECONDS = 0.5
"""A server that takes longer is too slow to check holds, and counts as down."""
AGE_SECONDS_MAX = 1.0


@runtime_checkable
class AdmissionOverRedis(Protocol):
    """An admission over one Redis or several."""

    async def answering(self, *, within: float) -> Mapping[str, bool]:
        """By address, whether a server answers within so many seconds."""
        ...


@runtime_checkable
class Pings(Protocol):
    """Locks whose server can be pinged."""

    async def ping(self) -> None:
        """Return if the server answers; raise `LocksUnavailable` if not."""
        ...


class RedisGauges(Collector):
    """The results of the last PINGs."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.locks: object = None
        self._pinging: asyncio.Task[None] | None = None
        self._pinged_at: float | None = None
        self._admission: Mapping[str, bool] | None = None
        self._locks_up: bool | None = None

    async def refresh(self) -> None:
        """Ping again if the last results are older than a second. Concurrent pages share one round of PINGs."""
        if self._pinging is None or self._pinging.done():
            if self._pinged_at is not None and time.monotonic() - self._pinged_at < AGE_SECONDS_MAX:
                return
            self._pinged_at = time.monotonic()
            self._pinging = asyncio.create_task(self._ping_all())
        await asyncio.wait([self._pinging])

    async def close(self) -> None:
        """Cancel PINGs under way."""
        if self._pinging is not None:
            self._pinging.cancel()
            await asyncio.wait([self._pinging])

    def collect(self) -> Iterator[Metric]:
        """One sample for each Redis of admission, and one for the locks; nothing where there is none."""
        if self._admission is not None:
            about = "1 when this Redis of admission answered a PING for this page."
            up = {server: int(answers) for server, answers in self._admission.items()}
            yield gauge("earmark_redis_up", about, up, label="server")
        if self._locks_up is not None:
            about = "1 when the server of the locks answered a PING for this page; of several, most of them."
            yield gauge("earmark_lock_server_up", about, int(self._locks_up))

    async def _ping_all(self) -> None:
        admission: object = self.engine.admission if self.engine is not None else None
        if isinstance(admission, AdmissionOverRedis):
            self._admission = await admission.answering(within=PING_SECONDS)
        if isinstance(self.locks, Pings):
            self._locks_up = await _answers(self.locks)


async def _answers(locks: Pings) -> bool:
    try:
        async with asyncio.timeout(PING_SECONDS):
            await locks.ping()
    except (LocksUnavailable, TimeoutError):
        return False
    return True
