"""One page for all processes of a host: each process copies its numbers to where the others read them.

With `PROMETHEUS_MULTIPROC_DIR` set before the start, `prometheus_client` keeps its values in files of that directory,
one set per process, and sums them for the process that renders the page. Our own collectors are not part of that, so
their families are copied into the library's values, about once a second and before each page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Gauge, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

MODES = {
    "earmark_info": "livemax",
    "earmark_worker_last_round_timestamp_seconds": "livemax",
    "earmark_lock_waiters_max": "livemax",
    "earmark_lock_stuck": "livemax",
    "earmark_lock_breaker_state": "livemax",
}
"""How a gauge is combined from those of the processes; gauges that are not named here are summed."""


class SharedValues:
    """The values of `prometheus_client`, and what they were when they were last written."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._seen: dict[tuple[str, tuple[str, ...]], float] = {}

    def take(self, families: Iterable[Metric]) -> None:
        """Bring the copies up to these families. Counters and histograms only grow: what is added is the difference."""
        for family in families:
            match family.type:
                case "counter":
                    self._counter(family)
                case "histogram":
                    self._histogram(family)
                case _:
                    self._gauge(family)

    def _counter(self, family: Metric) -> None:
        for sample in family.samples:
            counter = self._child(Counter, family, sample.labels)
            counter.inc(self._grown(sample.name, sample.labels, sample.value))

    def _gauge(self, family: Metric) -> None:
        mode = MODES.get(family.name, "livesum")
        for sample in family.samples:
            self._child(Gauge, family, sample.labels, multiprocess_mode=mode).set(sample.value)

    def _histogram(self, family: Metric) -> None:
        bounds = list(dict.fromkeys(float(one.labels["le"]) for one in family.samples if "le" in one.labels))
        below: dict[tuple[str, ...], float] = {}
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "le"}
            child = self._child(Histogram, family, labels, buckets=bounds)
            if sample.name.endswith("_sum"):
                child._sum.inc(self._grown(sample.name, labels, sample.value))  # noqa: SLF001 (see below)
            elif "le" in sample.labels:
                # `observe` takes one value at a time, and we have sums. Nothing public takes these.
                own = sample.value - below.get(key := tuple(labels.values()), 0.0)
                below[key] = sample.value
                bucket = child._buckets[bounds.index(float(sample.labels["le"]))]  # noqa: SLF001 (as above)
                bucket.inc(self._grown(sample.name, sample.labels, own))

    def _child(self, kind: Any, family: Metric, labels: dict[str, str], **options: Any) -> Any:
        metric = self._metrics.get(family.name)
        if metric is None:
            metric = kind(family.name, family.documentation, list(labels), registry=None, **options)
            self._metrics[family.name] = metric
        return metric.labels(**labels) if labels else metric

    def _grown(self, name: str, labels: dict[str, str], value: float) -> float:
        key = (name, tuple(labels.values()))
        grown = value - self._seen.get(key, 0.0)
        self._seen[key] = value
        return grown
