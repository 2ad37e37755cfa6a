"""Pages of metrics, read as Prometheus reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from earmark.admission.seat_admission import AdmissionCounts
from earmark.clock import MovableClock
from earmark.engine.engine import Engine
from earmark.engine.ports.observer import StoreFigures
from earmark.locks.circuit_breaker import Breaker
from earmark.locks.stats import Stats
from earmark.observability.metrics.metrics_page import Metrics
from earmark.store.sqlite.memory import MemoryStore
from earmark.uuids import Uuid7Ids
from earmark.wiring.workers import ROLES

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

NOW = datetime(2030, 6, 1, 20, 0, tzinfo=UTC)


def families(text: str) -> dict[str, Metric]:
    """By name, as it is written in an expression: counters with their `_total`."""
    found = text_string_to_metric_families(text)
    return {f"{one.name}_total" if one.type == "counter" else one.name: one for one in found}


def value(text: str, metric: str, **labels: str) -> float | None:
    """One sample."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == metric and sample.labels == labels:
                return float(sample.value)
    return None


class StoreWithAllFigures(MemoryStore):
    """A store with every figure that some store reports."""

    heartbeats: Any = None

    def figures(self) -> StoreFigures:
        """Made up."""
        return StoreFigures(
            connections=4,
            idle=3,
            connections_max=12,
            optimistic_writes=100,
            optimistic_writes_again=7,
            optimistic_writes_locked=2,
        )


async def whole_page(*, calls: bool = True) -> str:
    """Every metric that there is: a server with PostgreSQL, Redis, locks, workers, and something to count in each.

    Without `calls`, as it is before anything was counted.
    """
    metrics = Metrics(version="1.2.3")
    store = StoreWithAllFigures(clock=MovableClock())

    async def read(**_: object) -> Any:
        return SimpleNamespace(
            now=NOW, heartbeats=[SimpleNamespace(role=role, beat_at=NOW, code="ok") for role in ROLES]
        )

    store.heartbeats = SimpleNamespace(read=read)

    async def answering(*, within: float) -> dict[str, bool]:
        return {"redis:6379": within > 0}

    admission: Any = SimpleNamespace(counts=AdmissionCounts(admitted=5), answering=answering, drop=lambda _: None)
    metrics.watch(Engine(store, ids=Uuid7Ids(), admission=admission), gateways=["stripe"])

    async def ping() -> None:
        """It answers."""

    metrics.watch_locks(SimpleNamespace(stats=Stats(), breaker=Breaker(), ping=ping))
    if not calls:
        return (await metrics.page(now=NOW)).decode()
    metrics.recorder.acted("sweeper", "ok")
    with metrics.recorder.gateway("stripe", "authorise"), metrics.recorder.transaction("hold"):
        pass
    return (await metrics.page(now=NOW)).decode()
