"""What an operator watches: verbs by outcome and how long they take."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """A registry of this server's own, so that several can live in one process."""

    def __init__(self, *, version: str) -> None:
        self._registry = CollectorRegistry()
        self._verbs = Counter(
            "earmark_verbs", "Calls by verb and outcome.", ["verb", "outcome"], registry=self._registry
        )
        self._seconds = Histogram(
            "earmark_verb_seconds", "Time per call.", ["verb"], buckets=BUCKETS, registry=self._registry
        )
        self._expired = Counter("earmark_expired", "Holds that this process's sweeper ended.", registry=self._registry)
        Gauge("earmark_info", "This server.", ["version"], registry=self._registry).labels(version).set(1)

    def observe(self, verb: str, *, outcome: str, seconds: float) -> None:
        """One call."""
        self._verbs.labels(verb, outcome).inc()
        self._seconds.labels(verb).observe(seconds)

    def swept(self, count: int) -> None:
        """Holds that the sweeper ended."""
        self._expired.inc(count)

    def page(self) -> bytes:
        """In the Prometheus text format."""
        return generate_latest(self._registry)
