"""What only the database knows, read at most every few seconds and never waited for.

One reading is of the whole shop, whoever takes it: a page shows it once, however many processes share the page.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from earmark.domain.mode import Mode
from earmark.engine.ports.heartbeats import WELL
from earmark.engine.ports.outbox import Lag
from earmark.engine.ports.payment_watch import MoneyWatch
from earmark.errors import Outage
from earmark.observability import logs
from earmark.observability.metrics.counters import gauge
from earmark.wiring.workers import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from prometheus_client.metrics_core import Metric

    from earmark.engine.ports.heartbeats import HeartbeatRow
    from earmark.engine.ports.store import Store

WATCH_SECONDS = 5.0
"""How long what was counted is shown: anybody may ask for the page, and the database is not to feel it."""
PATIENCE_SECONDS = 1.0
"""How long a page waits for a reading that it began. One that takes longer is for the next page."""
COUNT_MAX = 10_000
BEATS_MAX = 1000
HEARD_OF_SECONDS_MAX = 120.0
"""A process that was not heard of for longer is gone, and what it last said of its workers is history."""

log = logs.get()


@runtime_checkable
class HasBeats(Protocol):
    """A store in which workers leave heartbeats."""

    @property
    def heartbeats(self) -> Any:
        """Where they are read."""
        ...


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What the database said at one moment."""

    money: Mapping[Mode, MoneyWatch]
    """By mode, `live` and `test`: test payments do not hide live ones."""
    outbox: Lag
    due_seconds: float
    """How long the hold is due that is due the longest and not ended; 0 when none is."""
    beats: Mapping[str, float] | None
    """By role, the seconds since any process was heard of in it, without end if none is there; None where the store
    keeps no heartbeats."""
    failing: Mapping[str, float]
    """By role, for how many seconds the worker fails that fails the longest; 0 where all go well."""


class Readings(Collector):
    """The last reading; nothing when that is not known, for an old number would say that all is well."""

    def __init__(self) -> None:
        self.store: Store | None = None
        self.gateways: Sequence[str] = ()
        self._reading: asyncio.Task[Reading | None] | None = None
        self._began_at: datetime | None = None
        self._seen: Reading | None = None

    async def refresh(self, *, now: datetime) -> None:
        """Read again if the last reading is some seconds old, and wait for that a second at most."""
        if self.store is None:
            return
        old = self._began_at is None or now - self._began_at >= timedelta(seconds=WATCH_SECONDS)
        if old and (self._reading is None or self._reading.done()):
            self._began_at = now
            self._reading = asyncio.create_task(_read(self.store))
            await asyncio.wait([self._reading], timeout=PATIENCE_SECONDS)
        self._seen = self._reading.result() if self._reading is not None and self._reading.done() else None

    async def close(self) -> None:
        """Leave a reading that is under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def collect(self) -> Iterator[Metric]:
        """Each figure, or only that there are none."""
        if self.store is None:
            return
        seen = self._seen
        yield gauge("earmark_store_up", "1 when the database answered the last reading.", int(seen is not None))
        if seen is None:
            return
        yield from _about_money(seen.money, self.gateways)
        yield gauge("earmark_outbox_unsent", "Journal entries that no relay has numbered yet.", seen.outbox.unsent)
        yield gauge(
            "earmark_outbox_oldest_seconds",
            "How long the oldest entry without a number waits.",
            _age(seen.outbox.oldest_at, now=seen.money[Mode.LIVE].now),
        )
        yield gauge(
            "earmark_holds_due_oldest_seconds",
            "How long a hold is due that nobody has ended: how late the sweeper is.",
            seen.due_seconds,
        )
        if seen.beats is not None:
            about = "How long ago any process said that it works in this role; +Inf if none does."
            yield gauge("earmark_beat_age_seconds", about, seen.beats, label="role")
            about = "How long the worker of this role fails that fails the longest; 0 while none does."
            yield gauge("earmark_beat_failing_seconds", about, seen.failing, label="role")


async def _read(store: Store) -> Reading | None:
    """One after the other, on one connection."""
    try:
        money = {mode: await store.watch_money(limit=COUNT_MAX, mode=mode) for mode in Mode}
        outbox = await store.outbox.lag(limit=COUNT_MAX)
        due_in = await store.seconds_to_next_due()
        beats, failing = await _read_beats(store)
    except Outage:
        return None
    except Exception:  # the page has more to show than this
        log.exception("metrics", outcome="internal")
        return None
    due_seconds = max(-due_in, 0.0) if due_in is not None else 0.0
    return Reading(money=money, outbox=outbox, due_seconds=due_seconds, beats=beats, failing=failing)


async def _read_beats(store: object) -> tuple[dict[str, float] | None, dict[str, float]]:
    if not isinstance(store, HasBeats):
        return None, {}
    roll = await store.heartbeats.read(limit=BEATS_MAX)
    # A role that nobody has is worse than one that was not heard of for long, and must not look like no news.
    ages: dict[str, float] = dict.fromkeys(ROLES, math.inf)
    failing: dict[str, float] = dict.fromkeys(ROLES, 0.0)
    for beat in roll.heartbeats:
        age = max((roll.now - beat.beat_at).total_seconds(), 0.0)
        ages[beat.role] = min(age, ages.get(beat.role, age))
        if age <= HEARD_OF_SECONDS_MAX:
            failing[beat.role] = max(_failing_seconds(beat, now=roll.now), failing.get(beat.role, 0.0))
    return ages, failing


def _failing_seconds(beat: HeartbeatRow, *, now: datetime) -> float:
    """An older version does not say since when: then it is known to fail now, and no more."""
    if beat.code in WELL:
        return 0.0
    return max((now - beat.failing_since).total_seconds(), 1.0) if beat.failing_since else 1.0


def _about_money(money: Mapping[Mode, MoneyWatch], gateways: Sequence[str]) -> Iterator[Metric]:
    flagged = GaugeMetricFamily(
        "earmark_payments_needing_attention",
        "Payments that only a person can settle: see `earmark payments attention`.",
        labels=["gateway", "mode"],
    )
    for mode, watch in money.items():
        for gateway in sorted({*gateways, *watch.attention}):
            flagged.add_metric([gateway, mode], watch.attention.get(gateway, 0))
    yield flagged
    opened = {mode.value: float(watch.open) for mode, watch in money.items()}
    yield gauge("earmark_payments_open", "Payments that the reconciler sees through.", opened, label="mode")
    yield gauge(
        "earmark_payments_open_oldest_seconds",
        "How long the oldest open payment or refund is open.",
        {mode.value: _age(watch.open_since, now=watch.now) for mode, watch in money.items()},
        label="mode",
    )


def _age(since: datetime | None, *, now: datetime) -> float:
    return max((now - since).total_seconds(), 0.0) if since else 0.0
