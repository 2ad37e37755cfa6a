"""What an operator watches: verbs by outcome, how long they take, and payments that wait for somebody."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from earmark.errors import Outage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from earmark.engine.watch import MoneyWatch, Watched

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WATCH_SECONDS = 5.0
"""How long what was counted is shown: anybody may ask for the page, and the database is not to feel it."""
COUNT_MAX = 10_000


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
        self._counted: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self._money = _Money()
        self._registry.register(self._money)
        self._watched_at: datetime | None = None

    def observe(self, verb: str, *, outcome: str, seconds: float) -> None:
        """One call."""
        counted = self._counted.get((verb, outcome))
        if counted is None:
            # Both are found once: to look a label up costs more than to count.
            counted = self._counted[verb, outcome] = (self._verbs.labels(verb, outcome), self._seconds.labels(verb))
        calls, times = counted
        calls.inc()
        times.observe(seconds)

    def swept(self, count: int) -> None:
        """Holds that the sweeper ended."""
        self._expired.inc(count)

    async def watch(self, store: Watched, *, gateways: Iterable[str], now: datetime) -> None:
        """Count the payments that wait for somebody, at most every few seconds.

        A store that does not answer leaves these figures out: an old number would say that all is well.
        """
        if self._watched_at is not None and now - self._watched_at < timedelta(seconds=WATCH_SECONDS):
            return
        self._watched_at = now
        self._money.gateways = sorted(gateways)
        try:
            self._money.seen = await store.watch_money(limit=COUNT_MAX)
        except Outage:
            self._money.seen = None

    def page(self) -> bytes:
        """In the Prometheus text format."""
        return generate_latest(self._registry)


class _Money(Collector):
    """The payments as they were last counted; nothing when that is not known."""

    def __init__(self) -> None:
        self.seen: MoneyWatch | None = None
        self.gateways: list[str] = []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One reading for all servers: each shows the same database."""
        if self.seen is None:
            return
        flagged = GaugeMetricFamily(
            "earmark_payments_needing_attention",
            "Payments that only a person can settle: see `earmark payments attention`.",
            labels=["gateway"],
        )
        for gateway in sorted({*self.gateways, *self.seen.attention}):
            flagged.add_metric([gateway], self.seen.attention.get(gateway, 0))
        yield flagged
        yield GaugeMetricFamily("earmark_payments_open", "Payments that the reconciler sees through.", self.seen.open)
        since = self.seen.open_since
        age = (self.seen.now - since).total_seconds() if since else 0.0
        yield GaugeMetricFamily(
            "earmark_payments_open_oldest_seconds", "How long the oldest open payment or refund is open.", max(age, 0.0)
        )
