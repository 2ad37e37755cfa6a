from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from earmark.domain.id_types import EventId
from earmark.engine.ports.number_and_read_journal import START, Numbering
from earmark.errors import StoreUnavailable
from earmark.library import Earmark
from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
from earmark.testing import open_in_memory
from earmark.workers import loop
from earmark.workers.journal_numbering_and_publishing_relay import OutboxRelay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from earmark.engine.ports.number_and_read_journal import Numbered
    from earmark.seatmap.broadcast_journal_entries_in_process import FeedFollower

PLAY = EventId("play")
LONG = 1000.0


@pytest.fixture
async def earmark() -> AsyncIterator[Earmark]:
    """An event of ten seats, in memory."""
    async with open_in_memory() as shop:
        await open_event(shop)
        yield shop


async def open_event(shop: Earmark, event_id: str = "play") -> None:
    await shop.create_event(event_id, name="A play", currency="EUR", seats={f"A{n}": 100 for n in range(1, 11)})


def relay_of(shop: Earmark, feed: EntryFeed, **knobs: Any) -> OutboxRelay:
    return OutboxRelay(shop.engine.store.outbox, feed, **{"interval_seconds_max": LONG, **knobs})


async def received(follower: FeedFollower, count: int) -> list[Numbered]:
    return [await asyncio.wait_for(anext(follower), timeout=10) for _ in range(count)]


async def test_what_was_committed_is_published_with_its_number(earmark: Earmark) -> None:
    """Once, in order, to the followers."""
    feed = EntryFeed()
    relay = relay_of(earmark, feed)
    held = await earmark.hold("play", buyer="alice", seats=["A1"])
    await earmark.confirm(held.id, payment_id="till-1")
    async with feed.subscribe() as follower:
        await relay.act()
        told = await received(follower, 3)
        assert [(one.sequence, one.entry.verb) for one in told] == [(1, "create_event"), (2, "hold"), (3, "confirm")]
        await relay.act()
        await earmark.cancel(held.id)
        await relay.act()
        assert [(one.sequence, one.entry.verb) for one in await received(follower, 1)] == [(4, "cancel")]


async def test_a_backlog_is_published_in_small_steps_without_a_long_pause(earmark: Earmark) -> None:
    """Event after event and round after round, and only then it pauses."""
    await open_event(earmark, "opera")
    for number in range(1, 11):
        await earmark.hold("play", buyer="alice", seats=[f"A{number}"])
        await earmark.hold("opera", buyer="alice", seats=[f"A{number}"])
    feed = EntryFeed()
    relay = relay_of(earmark, feed, batch_size_max=3)
    async with feed.subscribe() as follower:
        rounds = 1
        while await relay.act() < LONG / 2:
            rounds += 1
        told = await received(follower, 22)
    assert 22 / 3 < rounds < 50
    for event in ("play", "opera"):
        assert [one.sequence for one in told if one.entry.event_id == event] == list(range(1, 12))


async def test_it_pauses_when_another_relay_has_every_event(earmark: Earmark, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full round without an effect is no reason for another one at once."""
    calls: list[EventId] = []
    answers = [Numbering(after=PLAY, more=True), Numbering(), Numbering(after=PLAY, more=True)]

    async def number(*, after: EventId, limit: int, tell: bool, mail: bool) -> Numbering:
        assert limit > 0
        assert not tell, "there is no follower"
        assert not mail, "no mail is sent"
        calls.append(after)
        return answers[len(calls) - 1]

    monkeypatch.setattr(earmark.engine.store.outbox, "number", number)
    relay = relay_of(earmark, EntryFeed())
    assert await relay.act() > LONG / 2
    assert await relay.act() < LONG / 2, "it has come round, and something was left behind"
    assert await relay.act() > LONG / 2
    assert calls == [START, PLAY, START]


async def test_a_relay_killed_before_it_publishes_loses_nothing(earmark: Earmark) -> None:
    """The number is in the journal: a follower sees the gap, and reads on from the last one it knows."""

    class KilledFeed(EntryFeed):
        def publish(self, entries: Any) -> None:
            assert entries
            raise KeyboardInterrupt

    feed = EntryFeed()
    async with feed.subscribe() as follower:
        await relay_of(earmark, feed).act()
        (known,) = await received(follower, 1)
        await earmark.hold("play", buyer="alice", seats=["A1"])
        dying = KilledFeed()
        async with dying.subscribe():
            with pytest.raises(KeyboardInterrupt):
                await relay_of(earmark, dying).act()
        await earmark.hold("play", buyer="bob", seats=["A2"])
        await relay_of(earmark, feed).act()
        (next_,) = await received(follower, 1)
    assert (known.sequence, next_.sequence) == (1, 3)
    between = await earmark.engine.store.outbox.read_numbered(PLAY, after=known.sequence, limit=10)
    assert [(one.sequence, one.entry.verb, one.entry.facts["buyer"]) for one in between] == [
        (2, "hold", "alice"),
        (3, "hold", "bob"),
    ]


async def test_it_outlives_an_outage_and_publishes_what_happened_meanwhile(
    earmark: Earmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every agent: pause, try again, go on."""
    feed, stop = EntryFeed(), asyncio.Event()
    outbox = earmark.engine.store.outbox
    number = outbox.number
    failed = asyncio.Event()

    async def silent(**asked: Any) -> Numbering:
        if not failed.is_set():
            failed.set()
            raise StoreUnavailable(because="the cable was cut")
        return await number(**asked)

    monkeypatch.setattr(outbox, "number", silent)
    async with feed.subscribe() as follower:
        running = asyncio.create_task(loop.run([relay_of(earmark, feed, interval_seconds_max=0.01)], stop))
        await asyncio.wait_for(failed.wait(), timeout=10)
        await earmark.hold("play", buyer="alice", seats=["A1"])
        assert [one.entry.verb for one in await received(follower, 2)] == ["create_event", "hold"]
        stop.set()
        await asyncio.wait_for(running, timeout=10)


async def test_two_relays_on_one_file_publish_everything_once(tmp_path: Path) -> None:
    """Together they publish what each alone would have published, while a buyer buys."""
    url = f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3"
    feed, stop = EntryFeed(), asyncio.Event()
    async with Earmark.open(url) as here, Earmark.open(url) as there, feed.subscribe() as follower:
        await open_event(here)
        workers = [relay_of(shop, feed, batch_size_max=2, interval_seconds_max=0.01) for shop in (here, there)]
        running = asyncio.create_task(loop.run(workers, stop))
        for number in range(1, 11):
            held = await here.hold("play", buyer="alice", seats=[f"A{number}"])
            await there.release(held.id)
        told = await received(follower, 21)
        stop.set()
        await asyncio.wait_for(running, timeout=10)
        assert sorted(one.sequence for one in told) == list(range(1, 22))
        in_order = sorted(told, key=lambda one: one.sequence)
        assert [one.entry.version for one in in_order if str(one.entry.booking_id) == held.id] == [1, 2]
