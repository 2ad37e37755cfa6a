"""The locks' counts as Prometheus metrics, made when they are scraped and not while a caller locks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

from earmark.locks.circuit_breaker import Breaker, BreakerState
from earmark.locks.stats import Histogram, Stats, StatsSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric


class MonitoredLocks(Protocol):
    """What the metrics read of `Locks`."""

    @property
    def stats(self) -> Stats:
        """The counts since the locks were opened."""
        ...

    @property
    def breaker(self) -> Breaker | None:
        """The circuit breaker of the server, if it has one."""
        ...


def register(
    watched: MonitoredLocks | Stats, breaker: Breaker | None = None, registry: CollectorRegistry = REGISTRY
) -> LocksCollector:
    """Add these locks to the registry's metrics. One registry takes one `Locks`; give the next its own."""
    collector = LocksCollector(watched, breaker)
    registry.register(collector)
    return collector


class LocksCollector(Collector):
    """Reads the stats of locks, and the state of their breaker, whenever it is scraped."""

    def __init__(self, watched: MonitoredLocks | Stats, breaker: Breaker | None = None) -> None:
        self._watched = watched
        self._breaker = breaker

    def collect(self) -> Iterator[Metric]:
        """All metrics, of one moment."""
        if isinstance(self._watched, Stats):
            stats, breaker = self._watched, self._breaker
        else:
            stats, breaker = self._watched.stats, self._breaker or self._watched.breaker
        yield from _about_locks(stats.snapshot())
        if breaker is not None:
            yield from _about_breaker(breaker)

    def describe(self) -> Iterator[Metric]:
        """The names alone, so that a registry refuses a second collector of the same ones."""
        yield from _about_locks(Stats().snapshot())
        yield from _about_breaker(Breaker())


def _about_locks(seen: StatsSnapshot) -> Iterator[Metric]:
    yield _acquisitions(seen)
    yield _histogram(
        "earmark_lock_acquisition_seconds", "From the call to the grant, waiting included.", seen.acquisition
    )
    yield _histogram("earmark_lock_held_seconds", "From the grant to the release.", seen.held)
    yield CounterMetricFamily("earmark_lock_conflicts", "Keys that another caller held.", value=seen.conflicts)
    yield CounterMetricFamily("earmark_lock_extensions", "Leases that were made longer.", value=seen.extended)
    yield CounterMetricFamily(
        "earmark_lock_expired", "Releases and extensions that found the lease gone.", value=seen.expired
    )
    yield CounterMetricFamily("earmark_lock_lost", "Locks lost while the holder worked.", value=seen.lost)
    yield GaugeMetricFamily("earmark_lock_waiters", "Callers that wait for a lock now.", value=seen.waiters)
    yield GaugeMetricFamily("earmark_lock_waiters_max", "The most that waited at one time.", value=seen.waiters_max)
    yield GaugeMetricFamily("earmark_lock_stuck", "Locks that the last look found held for too long.", value=seen.stuck)


def _about_breaker(breaker: Breaker) -> Iterator[Metric]:
    now = breaker.state
    state = GaugeMetricFamily("earmark_lock_breaker_state", "1 for the state the breaker is in.", labels=["state"])
    for each in BreakerState:
        state.add_metric([each.value], int(each is now))
    yield state
    yield CounterMetricFamily(
        "earmark_lock_breaker_opened", "How often the breaker opened.", value=breaker.opened_count
    )


def _acquisitions(seen: StatsSnapshot) -> CounterMetricFamily:
    family = CounterMetricFamily("earmark_lock_acquisitions", "Acquisitions by how they ended.", labels=["outcome"])
    for outcome, count in {"acquired": seen.acquired, **seen.refusals}.items():
        family.add_metric([outcome], count)
    return family


def _histogram(name: str, documentation: str, seen: Histogram) -> HistogramMetricFamily:
    bounds = (*map(floatToGoString, seen.bounds), "+Inf")
    buckets = list(zip(bounds, seen.cumulative, strict=True))
    return HistogramMetricFamily(name, documentation, buckets=buckets, sum_value=seen.sum_seconds)
