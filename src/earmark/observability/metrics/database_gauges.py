"""Gauges that need the database: read at most every few seconds, and a page waits for a read a second at most.

One reading covers the whole shop, whichever process takes it: a page shows it once, however many processes share it.
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

from earmark.domain.live_or_test_mode import Mode
from earmark.engine.ports.contacts_and_mails import MailBacklog
from earmark.engine.ports.heartbeats import WELL
from earmark.engine.ports.number_and_read_journal import Lag
from earmark.engine.ports.payment_monitoring_reads import MoneyWatch
from earmark.errors import Outage
from earmark.observability import logs
from earmark.observability.metrics.counter_and_histogram_classes import gauge
from earmark.wiring.workers import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from prometheus_client.metrics_core import Metric

    from earmark.engine.ports.heartbeats import HeartbeatRow
    from earmark.engine.ports.store import Store

WATCH_SECONDS = 5.0
"""How long one reading is shown: the page needs no key, and its requests must not load the database."""
PAGE_WAIT_SECONDS_MAX = 1.0
"""How long a page waits for a reading that it began. One that takes longer is for the next page."""
COUNT_MAX = 10_000
BEATS_MAX = 1000
BEAT_AGE_SECONDS_MAX = 120.0
"""A process whose heartbeat is older has ended, and the last state of its workers is ignored."""

log = logs.get()


@runtime_checkable
class HasBeats(Protocol):
    """A store that keeps the heartbeats of workers."""

    @property
    def heartbeats(self) -> Any:
        """The port to read the heartbeats through."""
        ...


class DatabaseReading(msgspec.Struct, frozen=True, kw_only=True):
    """The database's figures at one moment."""

    money: Mapping[Mode, MoneyWatch]
    """By mode, `live` and `test`: test payments do not hide live ones."""
    outbox: Lag
    mails: MailBacklog
    due_seconds: float
    """How long the hold is due that is due the longest and not ended; 0 when none is."""
    beats: Mapping[str, float] | None
    """By role, the seconds since its last heartbeat of any process, infinite without one; None where the store keeps no
    heartbeats."""
    failing: Mapping[str, float]
    """By role, the seconds for which a worker has failed, of the one that fails the longest; 0 where none fails."""


class DatabaseGauges(Collector):
    """Collects the last reading; no figures when it failed, for old numbers would look as if all were well."""

    def __init__(self) -> None:
        self.store: Store | None = None
        self.gateways: Sequence[str] = ()
        self._reading: asyncio.Task[DatabaseReading | None] | None = None
        self._began_at: datetime | None = None
        self._seen: DatabaseReading | None = None

    async def refresh(self, *, now: datetime) -> None:
        """Read again if the last reading is some seconds old, and wait for that a second at most."""
        if self.store is None:
            return
        old = self._began_at is None or now - self._began_at >= timedelta(seconds=WATCH_SECONDS)
        if old and (self._reading is None or self._reading.done()):
            self._began_at = now
            self._reading = asyncio.create_task(_read(self.store))
            await asyncio.wait([self._reading], timeout=PAGE_WAIT_SECONDS_MAX)
        self._seen = self._reading.result() if self._reading is not None and self._reading.done() else None

    async def close(self) -> None:
        """Cancel a reading under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def collect(self) -> Iterator[Metric]:
        """The figures of the last reading, or only `earmark_store_up` 0."""
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
        yield from _about_mails(seen.mails, now=seen.money[Mode.LIVE].now)
        yield gauge(
            "earmark_holds_due_oldest_seconds",
            "How long the oldest due hold waits for the sweeper.",
            seen.due_seconds,
        )
        if seen.beats is not None:
            about = "Seconds since the last heartbeat of any process in this role; +Inf if there is none."
            yield gauge("earmark_beat_age_seconds", about, seen.beats, label="role")
            about = "How long the worker of this role fails that fails the longest; 0 while none does."
            yield gauge("earmark_beat_failing_seconds", about, seen.failing, label="role")


async def _read(store: Store) -> DatabaseReading | None:
    """Read all figures, one query after the other; None when the store fails."""
    try:
        money = {mode: await store.watch_money(limit=COUNT_MAX, mode=mode) for mode in Mode}
        outbox = await store.outbox.lag(limit=COUNT_MAX)
        mails = await store.mails.backlog(limit=COUNT_MAX)
        due_in = await store.seconds_to_next_due()
        beats, failing = await _read_beats(store)
    except Outage:
        return None
    except Exception:  # the page has more to show than this
        log.exception("metrics", outcome="internal")
        return None
    due_seconds = max(-due_in, 0.0) if due_in is not None else 0.0
    return DatabaseReading(
        money=money, outbox=outbox, mails=mails, due_seconds=due_seconds, beats=beats, failing=failing
    )


async def _read_beats(store: object) -> tuple[dict[str, float] | None, dict[str, float]]:
    if not isinstance(store, HasBeats):
        return None, {}
    roll = await store.heartbeats.read(limit=BEATS_MAX)
    # A role without any worker is worse than one with an old heartbeat: it is shown as infinite, not left out.
    ages: dict[str, float] = dict.fromkeys(ROLES, math.inf)
    failing: dict[str, float] = dict.fromkeys(ROLES, 0.0)
    for beat in roll.heartbeats:
        age = max((roll.now - beat.beat_at).total_seconds(), 0.0)
        ages[beat.role] = min(age, ages.get(beat.role, age))
        if age <= BEAT_AGE_SECONDS_MAX:
            failing[beat.role] = max(_failing_seconds(beat, now=roll.now), failing.get(beat.role, 0.0))
    return ages, failing


def _failing_seconds(beat: HeartbeatRow, *, now: datetime) -> float:
    """How long a worker has failed; 1 where an older version reports the failure without its beginning."""
    if beat.code in WELL:
        return 0.0
    return max((now - beat.failing_since).total_seconds(), 1.0) if beat.failing_since else 1.0


def _about_mails(mails: MailBacklog, *, now: datetime) -> Iterator[Metric]:
    yield gauge("earmark_mails_pending", "Mails that wait to be sent.", mails.pending)
    yield gauge(
        "earmark_mails_oldest_seconds", "How long the oldest mail waits to be sent.", _age(mails.oldest_at, now=now)
    )
    yield gauge("earmark_mails_failed", "Mails that were given up, as long as they are kept.", mails.failed)
    yield gauge(
        "earmark_mails_above_limit",
        "Mails that were skipped as too many for an address or a buyer, as long as they are kept.",
        mails.above_limit,
    )


def _about_money(money: Mapping[Mode, MoneyWatch], gateways: Sequence[str]) -> Iterator[Metric]:
    flagged = GaugeMetricFamily(
        "earmark_payments_needing_attention",
        "Payments that need review by an operator: see `earmark payments attention`.",
        labels=["gateway", "mode"],
    )
    for mode, watch in money.items():
        for gateway in sorted({*gateways, *watch.attention}):
            flagged.add_metric([gateway, mode], watch.attention.get(gateway, 0))
    yield flagged
    opened = {mode.value: float(watch.open) for mode, watch in money.items()}
    yield gauge("earmark_payments_open", "Payments that the reconciler still drives.", opened, label="mode")
    yield gauge(
        "earmark_payments_open_oldest_seconds",
        "How long the oldest open payment or refund is open.",
        {mode.value: _age(watch.open_since, now=watch.now) for mode, watch in money.items()},
        label="mode",
    )


def _age(since: datetime | None, *, now: datetime) -> float:
    return max((now - since).total_seconds(), 0.0) if since else 0.0
