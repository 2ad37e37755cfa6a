"""What this process has at this moment: lines, connections, what admission counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from earmark.observability.metrics.counters import gauge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric

    from earmark.engine.engine import Engine
    from earmark.engine.ports.observer import StoreFigures

ADMISSION = ("admitted", "refused", "remembered", "bypassed", "matched")


@runtime_checkable
class Admits(Protocol):
    """An admission that can say what it did."""

    @property
    def counts(self) -> Any:
        """How many requests it admitted, refused and so on."""
        ...


@runtime_checkable
class HasFigures(Protocol):
    """A store that keeps connections."""

    def figures(self) -> StoreFigures:
        """What it has of them now."""
        ...


class Levels(Collector):
    """Looks when it is asked; nothing is counted in between."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.stream_readers: Callable[[], int] = lambda: 0
        """How many follow an event over this process: whoever serves them says so here."""

    def collect(self) -> Iterator[Metric]:
        """All levels of this moment."""
        yield gauge("earmark_stream_readers", "Clients that follow an event over this server.", self.stream_readers())
        if self.engine is None:
            return
        lines = self.engine.queues
        yield gauge(
            "earmark_queue_waiting",
            "Requests that wait for a batch.",
            {verb: line.waiting for verb, line in lines.items()},
            label="verb",
        )
        yield gauge(
            "earmark_batches_in_flight",
            "Batches under way.",
            {verb: line.in_flight for verb, line in lines.items()},
            label="verb",
        )
        admission, store = self._parts(self.engine)
        if isinstance(admission, Admits):
            yield from _about_admission(admission)
        if isinstance(store, HasFigures):
            yield from _about_store(store.figures())

    @staticmethod
    def _parts(engine: Engine) -> tuple[object, object]:
        """What may or may not be able to tell something."""
        return engine.admission, engine.store


def _about_admission(admission: Admits) -> Iterator[Metric]:
    family = CounterMetricFamily(
        "earmark_admission", "Holds by what admission said in front of the store.", labels=["outcome"]
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
    yield CounterMetricFamily("earmark_drafts", "Transactions that began as a draft, without a lock.", seen.drafts)
    family = CounterMetricFamily("earmark_drafts_again", "Drafts that met somebody and were run again.", labels=["how"])
    family.add_metric(["unlocked"], seen.drafts_again)
    family.add_metric(["locked"], seen.drafts_locked)
    yield family
