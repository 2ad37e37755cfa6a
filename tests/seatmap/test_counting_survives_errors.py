"""The hub goes on counting entries, whatever error one count has met."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.seatmap.streaming import FACT_SECONDS_MAX, hub_over, open_page, shut

from earmark.errors import EarmarkError, Outage
from earmark.seatmap import stream_hub
from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
from earmark.seatmap.stream_hub import StreamHub

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store
    from earmark.library import Earmark


class CountThatFailsOnce:
    """Raises an error that no code translates, the first time that the hub counts."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failed = asyncio.Event()
        self._count = store.outbox.count
        monkeypatch.setattr(store.outbox, "count", self.count)
        monkeypatch.setattr(stream_hub, "POLL_SECONDS", 0.01)

    async def count(self, ids: Any) -> Any:
        """Fail once; then count."""
        if not self.failed.is_set():
            self.failed.set()
            raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
        return await self._count(ids)


async def test_an_error_that_no_code_translates_only_delays_the_count(
    shop: Earmark,
    store: Store,
    clock: MovableClock,
    shop_over: Callable[[Store], Earmark],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What another process changes after it still reaches the page: this process has no other way to find it."""
    del shop
    count = CountThatFailsOnce(store, monkeypatch)
    hub = hub_over(store, clock=clock, feed=EntryFeed())
    page = await open_page(hub)
    await asyncio.wait_for(count.failed.wait(), timeout=FACT_SECONDS_MAX)
    await shop_over(store).hold("play", buyer="alice", seats=["A1"])
    await page.until(lambda page: page.states["A1"] == "held")
    await shut(hub)


async def poll_that_knows_two_errors(hub: Any) -> None:
    """What `_poll` was: any error but these two ends its task, and no line says so."""
    while True:
        await asyncio.sleep(stream_hub.POLL_SECONDS)
        hub._counted_at = time.monotonic()
        try:
            await hub._count()
        except (Outage, EarmarkError):
            continue


async def test_control_a_poll_that_knows_two_errors_ends(
    shop: Earmark, store: Store, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task ends with the raw error while the page is still connected, so nothing counts for it any more."""
    del shop
    CountThatFailsOnce(store, monkeypatch)
    monkeypatch.setattr(StreamHub, "_poll", poll_that_knows_two_errors)
    hub = hub_over(store, clock=clock, feed=EntryFeed())
    await open_page(hub)
    _, poll, _ = hub._tasks
    with pytest.raises(asyncpg.LockNotAvailableError):
        await asyncio.wait_for(poll, timeout=FACT_SECONDS_MAX)
    assert hub.readers == 1
    await shut(hub)


class Minutes:
    """Pauses that take no time, until they make two minutes; records each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pauses: list[float] = []
        monkeypatch.setattr(stream_hub, "asyncio", SimpleNamespace(sleep=self.sleep))

    async def sleep(self, seconds: float) -> None:
        """Pass the time; end the poll after two minutes."""
        if sum(self.pauses) >= 120:
            raise asyncio.CancelledError
        self.pauses.append(seconds)


async def poll_for_two_minutes(
    store: Store, clock: MovableClock, monkeypatch: pytest.MonkeyPatch, count: Callable[[Any], Any]
) -> list[float]:
    """The pauses of a poll whose counts are these."""
    monkeypatch.setattr(store.outbox, "count", count)
    hub = hub_over(store, clock=clock, feed=EntryFeed())
    minutes = Minutes(monkeypatch)
    with pytest.raises(asyncio.CancelledError):
        await hub._poll()
    return minutes.pauses


async def fail(_: Any) -> Any:
    """Each count fails, with an error that no code translates."""
    raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout")


def lines(caplog: pytest.LogCaptureFixture) -> int:
    """How many lines say that a count failed."""
    return sum("outcome=internal" in record.getMessage() for record in caplog.records)


async def test_a_count_that_keeps_failing_is_tried_ever_more_rarely(
    store: Store, clock: MovableClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failure is a traceback in the log, of every server: they must not fill it."""
    pauses = await poll_for_two_minutes(store, clock, monkeypatch, fail)
    assert pauses[:6] == [0.25, 0.5, 1.0, 2.0, 4.0, stream_hub.NOTIFIED_POLL_SECONDS]
    assert lines(caplog) == len(pauses) < 30


async def test_a_count_that_succeeds_again_is_made_as_often_as_before(
    store: Store, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other processes change is found as soon as ever."""
    counts = iter([fail, fail])
    count = store.outbox.count

    async def fail_twice(ids: Any) -> Any:
        return await next(counts, count)(ids)

    pauses = await poll_for_two_minutes(store, clock, monkeypatch, fail_twice)
    assert pauses[:5] == [0.25, 0.5, 1.0, 0.25, 0.25]


async def test_control_with_one_pause_each_minute_has_hundreds_of_lines(
    store: Store, clock: MovableClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As it was: four tracebacks in each second."""
    monkeypatch.setattr(stream_hub, "NOTIFIED_POLL_SECONDS", stream_hub.POLL_SECONDS)
    await poll_for_two_minutes(store, clock, monkeypatch, fail)
    assert lines(caplog) == 480
