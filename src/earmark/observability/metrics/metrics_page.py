"""The metrics page: verbs, batches, conflicts, workers, locks, payments, and lags.

A page waits for the database a second at most: figures from there are read at most every few seconds.
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
from earmark.observability.metrics.database_gauges import WATCH_SECONDS, DatabaseGauges
from earmark.observability.metrics.gauges_of_queues_streams_connections import ProcessGauges
from earmark.observability.metrics.recorder import MetricsRecorder
from earmark.observability.metrics.redis_up_gauges import RedisGauges
from earmark.observability.metrics.share_metrics_between_processes import SharedValues

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from datetime import datetime

    from prometheus_client.metrics_core import Metric

    from earmark.engine.engine import Engine
    from earmark.locks.prometheus import MonitoredLocks

__all__ = ["PAGE_SECONDS", "WATCH_SECONDS", "Metrics"]

COPY_SECONDS = 1.0
PAGE_SECONDS = 1.0
"""How long a server reuses one page: rendering takes milliseconds of its event loop, and the page needs no key."""
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


class Metrics:
    """The metrics of one server; one process may have several. With a shared directory, they are part of a host's."""

    def __init__(self, *, version: str, page_seconds: float = 0.0, timer: Callable[[], float] = time.monotonic) -> None:
        self.recorder = MetricsRecorder(version=version)
        """Counts what the API and the workers report; it is also the engine's observer."""
        self._page_seconds = page_seconds
        self._timer = timer
        self._page_task: asyncio.Task[bytes] | None = None
        self._page_at = 0.0
        self._levels = ProcessGauges()
        self._locks = LocksCollector(Stats())
        self._readings = DatabaseGauges()
        self._redis = RedisGauges()
        self._page = CollectorRegistry(auto_describe=False)
        self._directory = os.environ.get(DIRECTORY)
        self._copies = SharedValues() if self._directory else None
        self._page.register(self._readings)
        self._page.register(self._redis)
        if self._directory:
            MultiProcessCollector(self._page, path=self._directory)  # type: ignore[no-untyped-call]
        else:
            self._page.register(_All(self._own))

    def watch(self, engine: Engine, *, gateways: Iterable[str]) -> None:
        """Show this engine's queues and store, and the payments at these gateways."""
        self._levels.engine = engine
        self._redis.engine = engine
        self._readings.store = engine.store
        self._readings.gateways = sorted(gateways)
        self.recorder.expect_gateways(self._readings.gateways)

    def watch_locks(self, locks: MonitoredLocks) -> None:
        """Show these locks. Without any, their metrics exist and stay at zero."""
        self._locks = LocksCollector(locks)
        self._redis.locks = locks

    def watch_stream(self, readers: Callable[[], int]) -> None:
        """Show how many clients follow an event over this server."""
        self._levels.stream_readers = readers

    async def page(self, *, now: datetime) -> bytes:
        """In the Prometheus text format. Requests within `page_seconds` share one."""
        if not self._page_seconds:
            return await self._render(now=now)
        asked_at = self._timer()
        if self._page_task is None or asked_at - self._page_at >= self._page_seconds:
            self._page_task, self._page_at = asyncio.create_task(self._render(now=now)), asked_at
        page = self._page_task
        if not page.done():
            # Not awaited itself: a client that disconnects must not cancel the page of the others.
            await asyncio.wait([page])
        return page.result()

    async def _render(self, *, now: datetime) -> bytes:
        await asyncio.gather(self._readings.refresh(now=now), self._redis.refresh())
        self.copy()
        return generate_latest(self._page)

    def figures(self) -> dict[tuple[str, str], float]:
        """The host's counters and gauges by name and label; those with several labels are left out."""
        self.copy()
        samples = (sample for family in self._page.collect() for sample in family.samples if len(sample.labels) <= 1)
        return {(one.name, next(iter(one.labels.values()), "")): one.value for one in samples}

    def copy(self) -> None:
        """Copy this process's numbers to where other processes read them, if there are any."""
        if self._copies is not None:
            self._copies.take(self._own())

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """While this process serves, copy its numbers regularly, so that the pages of other processes contain them.

        At the end its counters stay there, and its gauges are removed.
        """
        copying = asyncio.create_task(self._keep_copying()) if self._copies else None
        try:
            yield
        finally:
            if self._page_task is not None:
                self._page_task.cancel()
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
    """One collector over those that the server has at the moment of a page."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self.collect = collect
