"""Notifications between processes: quicker with a Redis, and never wrong without one."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests import skip_summary
from tests.seatmap.conftest import drain, open_play
from tests.seatmap.streaming import FACT_SECONDS_MAX, hub_over, open_page, shut

from earmark.seatmap import notify_processes_of_entries_over_redis as wire
from earmark.seatmap import stream_hub as streams
from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
from earmark.store.sqlite.memory import MemoryStore
from earmark.testservers import ServerUnavailable, start_valkey
from earmark.wiring.redis_entry_notifications import Notifications

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from earmark.clock import MovableClock
    from earmark.domain.id_types import EventId
    from earmark.engine.ports.store import Store
    from earmark.library import Earmark
    from earmark.testservers import Valkey


@pytest.fixture
def redis() -> Iterator[Valkey]:
    """A server that a test may kill."""
    try:
        server = start_valkey()
    except ServerUnavailable as reason:
        skip_summary.missing("NOTIFICATIONS OVER REDIS ARE NOT TESTED", reason)
    with server:
        yield server


@asynccontextmanager
async def notifying(redis_url: str | None, *, feed: EntryFeed | None, listener: Any) -> AsyncIterator[None]:
    """As two processes are wired: one publishes what its relay published, one listens."""
    notifications = Notifications(redis_url)
    if feed is not None:
        notifications.publish(feed)
    if listener is not None:
        notifications.listen(listener)
    try:
        yield
    finally:
        await notifications.close()


class RecordingListener:
    """Records what it received."""

    def __init__(self) -> None:
        self.hearing: asyncio.Queue[bool] = asyncio.Queue()
        self.numbers: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    def on_number(self, event_id: EventId, number: int) -> None:
        """A number."""
        self.numbers.put_nowait((event_id, number))

    def on_connection(self, *, connected: bool) -> None:
        """Whether there will be any."""
        self.hearing.put_nowait(connected)

    async def until(self, *, hearing: bool) -> None:
        """Wait for the fact."""
        async with asyncio.timeout(FACT_SECONDS_MAX):
            while await self.hearing.get() is not hearing:
                pass


async def test_a_number_given_here_moves_a_page_that_another_process_serves(
    clock: MovableClock, redis: Valkey, shop_over: Callable[[Store], Earmark], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process counts entries: all it knows, it received."""
    monkeypatch.setattr(streams, "POLL_SECONDS", 3600.0)
    store = MemoryStore(clock=clock)
    shop = shop_over(store)
    await open_play(shop)
    feed, listener = EntryFeed(), RecordingListener()
    elsewhere = hub_over(store, clock=clock, feed=EntryFeed())
    async with (
        notifying(redis.url, feed=feed, listener=listener),
        notifying(redis.url, feed=None, listener=elsewhere),
    ):
        page = await open_page(elsewhere)
        await listener.until(hearing=True)
        async with asyncio.timeout(FACT_SECONDS_MAX):
            while not (elsewhere._notified and feed.has_followers):  # noqa: ASYNC110 (two facts, without a signal)
                await asyncio.sleep(0.01)
        await shop.hold("play", buyer="alice", seats=["A1"])
        feed.publish(await drain(store))
        await page.until(lambda page: page.states["A1"] == "held")
        assert await asyncio.wait_for(listener.numbers.get(), timeout=FACT_SECONDS_MAX) == ("play", 2)
        await shut(elsewhere)


async def test_a_lost_redis_is_noticed_and_found_again(redis: Valkey) -> None:
    """Meanwhile the hub knows that it receives nothing; publishing without Redis delays no request."""
    feed, listener = EntryFeed(), RecordingListener()
    async with notifying(redis.url, feed=feed, listener=listener):
        await listener.until(hearing=True)
        redis.kill()
        await listener.until(hearing=False)
        redis.start()
        await listener.until(hearing=True)


async def test_without_notifications_entries_are_counted_as_often_as_without_redis(
    clock: MovableClock, shop_over: Callable[[Store], Earmark], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it receives, it counts rarely; the moment it does not, it counts again."""
    monkeypatch.setattr(streams, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(streams, "NOTIFIED_POLL_SECONDS", 3600.0)
    store = MemoryStore(clock=clock)
    shop = shop_over(store)
    await open_play(shop)
    hub = hub_over(store, clock=clock, feed=EntryFeed())
    page = await open_page(hub)
    hub.on_connection(connected=True)
    await shop.hold("play", buyer="alice", seats=["A1"])
    await drain(store)
    hub.on_connection(connected=False)
    await page.until(lambda page: page.states["A1"] == "held")
    await shut(hub)


async def test_an_invalid_message_is_skipped(redis: Valkey) -> None:
    """Every client may publish on a channel; the next message is received."""
    from redis.asyncio import Redis

    listener = RecordingListener()
    async with notifying(redis.url, feed=None, listener=listener), Redis.from_url(redis.url) as other:
        await listener.until(hearing=True)
        await other.publish(wire.CHANNEL, b"\xff not json")
        await other.publish(wire.CHANNEL, b'{"play": 7}')
        assert await asyncio.wait_for(listener.numbers.get(), timeout=FACT_SECONDS_MAX) == ("play", 7)


@pytest.mark.parametrize("url", [None, "cluster://127.0.0.1:7000", "redis://127.0.0.1:1,redis://127.0.0.1:2"])
async def test_a_redis_that_cannot_carry_notifications_is_not_used(url: str | None) -> None:
    """A cluster and several servers: the database is queried instead, and no connection is made."""
    listener = RecordingListener()
    async with notifying(url, feed=EntryFeed(), listener=listener):
        await asyncio.sleep(0)
    assert listener.hearing.empty()
