"""Gauges of this process: queues, connections, and what admission counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from earmark.observability.metrics.counter_and_histogram_classes import gauge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric

    from earmark.engine.engine import Engine
    from earmark.engine.ports.observer import StoreFigures

ADMISSION = ("admitted", "refused", "remembered", "bypassed", "matched")


@runtime_checkable
class Admits(Protocol):
    """An admission that counts its decisions."""

    @property
    def counts(self) -> Any:
        """How many requests it admitted, refused and so on."""
        ...


@runtime_checkable
class HasFigures(Protocol):
    """A store with a connection pool."""

    def figures(self) -> StoreFigures:
        """The number of connections, and of optimistic writes, now."""
        ...


class ProcessGauges(Collector):
    """Reads the values when a page is rendered; counts nothing itself."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.stream_readers: Callable[[], int] = lambda: 0
        """How many clients follow an event over this process; set by `Metrics.watch_stream`."""

    def collect(self) -> Iterator[Metric]:
        """The values as they are now."""
        yield gauge("earmark_stream_readers", "Clients that follow an event over this server.", self.stream_readers())
        if self.engine is None:
            return
        queues = self.engine.queues
        yield gauge(
            "earmark_queue_waiting",
            "Requests that wait for a batch.",
            {verb: queue.waiting for verb, queue in queues.items()},
            label="verb",
        )
        yield gauge(
            "earmark_batches_in_flight",
            "Batches under way.",
            {verb: queue.in_flight for verb, queue in queues.items()},
            label="verb",
        )
        admission, store = self._parts(self.engine)
        if isinstance(admission, Admits):
            yield from _about_admission(admission)
        if isinstance(store, HasFigures):
            yield from _about_store(store.figures())

    @staticmethod
    def _parts(engine: Engine) -> tuple[object, object]:
        """Admission and store, untyped: each may or may not have figures."""
        return engine.admission, engine.store


def _about_admission(admission: Admits) -> Iterator[Metric]:
    family = CounterMetricFamily(
        "earmark_admission", "Holds by the decision of admission, before the store.", labels=["outcome"]
    )
    for outcome in ADMISSION:
        family.add_metric([outcome], getattr(admission.counts, outcome))
    yield family


def _about_store(seen: StoreFigures) -> Iterator[Metric]:
    yield gauge(
        "earmark_store_connections",
        "Connections to the database.",
        {"busy": seen.connections - seen.idle, "idle": seen.idle},
        label="state",
    )
    yield gauge("earmark_store_connections_max", "How many connections there may be.", seen.connections_max)
    yield CounterMetricFamily(
        "earmark_optimistic_writes",
        "Transactions that began as an optimistic write, without a lock.",
        seen.optimistic_writes,
    )
    family = CounterMetricFamily(
        "earmark_optimistic_writes_again",
        "Optimistic writes that met a concurrent write and were run again.",
        labels=["how"],
    )
    family.add_metric(["unlocked"], seen.optimistic_writes_again)
    family.add_metric(["locked"], seen.optimistic_writes_locked)
    yield family
