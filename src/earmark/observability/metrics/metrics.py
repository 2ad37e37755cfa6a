"""What an operator watches: verbs, batches, conflicts, workers, locks, payments, and how far anything lags behind.

A page never waits for the database: what only that knows is read at most every few seconds, and for a second at most.
Label values are from short, fixed lists: verbs, codes, gateways, and never an id.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from earmark.locks.prometheus import LocksCollector
from earmark.locks.stats import Stats
from earmark.observability.metrics.database_gauges import WATCH_SECONDS, Readings
from earmark.observability.metrics.multiprocess import Copies
from earmark.observability.metrics.process_gauges import Levels
from earmark.observability.metrics.recorder import MetricsRecorder
from earmark.observability.metrics.redis_gauges import RedisReadings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from datetime import datetime

    from prometheus_client.metrics_core import Metric

    from earmark.engine.engine import Engine
    from earmark.locks.prometheus import MonitoredLocks

__all__ = ["PAGE_SECONDS", "WATCH_SECONDS", "Metrics"]

COPY_SECONDS = 1.0
PAGE_SECONDS = 1.0
"""How long a server gives out one page: to word it takes milliseconds of its loop, and asking needs no key."""
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


class Metrics:
    """This server's own, so that several can live in one process; with a shared directory, its part of a host's."""

    def __init__(self, *, version: str, page_seconds: float = 0.0, timer: Callable[[], float] = time.monotonic) -> None:
        self.recorder = MetricsRecorder(version=version)
        """Whoever something happens to tells it here; it is also the engine's observer."""
        self._page_seconds = page_seconds
        self._timer = timer
        self._worded: asyncio.Task[bytes] | None = None
        self._worded_at = 0.0
        self._levels = Levels()
        self._locks = LocksCollector(Stats())
        self._readings = Readings()
        self._redis = RedisReadings()
        self._page = CollectorRegistry(auto_describe=False)
        self._directory = os.environ.get(DIRECTORY)
        self._copies = Copies() if self._directory else None
        self._page.register(self._readings)
        self._page.register(self._redis)
        if self._directory:
            MultiProcessCollector(self._page, path=self._directory)  # type: ignore[no-untyped-call]
        else:
            self._page.register(_All(self._own))

    def watch(self, engine: Engine, *, gateways: Iterable[str]) -> None:
        """Show this engine's lines and store, and the payments at these gateways."""
        self._levels.engine = engine
        self._redis.engine = engine
        self._readings.store = engine.store
        self._readings.gateways = sorted(gateways)
        self.recorder.expect_gateways(self._readings.gateways)

    def watch_locks(self, locks: MonitoredLocks) -> None:
        """Show these locks. Without any, their metrics are there and stay at zero."""
        self._locks = LocksCollector(locks)
        self._redis.locks = locks

    def watch_stream(self, readers: Callable[[], int]) -> None:
        """Show how many follow an event over this server."""
        self._levels.stream_readers = readers

    async def page(self, *, now: datetime) -> bytes:
        """In the Prometheus text format. Requests within `page_seconds` share one."""
        if not self._page_seconds:
            return await self._word(now=now)
        asked_at = self._timer()
        if self._worded is None or asked_at - self._worded_at >= self._page_seconds:
            self._worded, self._worded_at = asyncio.create_task(self._word(now=now)), asked_at
        worded = self._worded
        if not worded.done():
            # Not awaited itself: a client that goes away must not end the page of the others.
            await asyncio.wait([worded])
        return worded.result()

    async def _word(self, *, now: datetime) -> bytes:
        await asyncio.gather(self._readings.refresh(now=now), self._redis.refresh())
        self.copy()
        return generate_latest(self._page)

    def figures(self) -> dict[tuple[str, str], float]:
        """The host's counts and levels by name and label; what has several labels is left out."""
        self.copy()
        samples = (sample for family in self._page.collect() for sample in family.samples if len(sample.labels) <= 1)
        return {(one.name, next(iter(one.labels.values()), "")): one.value for one in samples}

    def copy(self) -> None:
        """Show this process's numbers to the others, if there are any."""
        if self._copies is not None:
            self._copies.take(self._own())

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """While this process serves: one that nobody asks for a page is on the page of the others all the same.

        At the end its counts stay there, and its levels leave.
        """
        copying = asyncio.create_task(self._keep_copying()) if self._copies else None
        try:
            yield
        finally:
            if self._worded is not None:
                self._worded.cancel()
            await self._readings.close()
            await self._redis.close()
            if copying is not None:
                copying.cancel()
                self.copy()
                mark_process_dead(os.getpid(), path=self._directory)  # type: ignore[no-untyped-call]

    async def _keep_copying(self) -> None:
        while True:
            self.copy()
            await asyncio.sleep(COPY_SECONDS)

    def _own(self) -> Iterator[Metric]:
        yield from self.recorder.collect()
        yield from self._levels.collect()
        yield from self._locks.collect()


class _All:
    """Collectors as one, whichever they are at that moment."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self.collect = collect
