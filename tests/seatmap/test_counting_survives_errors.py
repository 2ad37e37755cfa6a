"""The hub goes on counting entries, whatever error one count has met."""

from __future__ import annotations

import asyncio
import time
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
