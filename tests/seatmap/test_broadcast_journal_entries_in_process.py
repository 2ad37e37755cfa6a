"""The feed: quick, never blocking a publisher, and honest about what it lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.seatmap.conftest import entry

from earmark.engine.ports.number_and_read_journal import Numbered
from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed

if TYPE_CHECKING:
    from earmark.seatmap.broadcast_journal_entries_in_process import FeedFollower
    from earmark.uuids import Uuid7Ids


def entries(ids: Uuid7Ids, *sequences: int) -> list[Numbered]:
    return [Numbered(sequence=sequence, entry=entry(ids)) for sequence in sequences]


async def take(follower: FeedFollower, count: int) -> list[int]:
    return [(await asyncio.wait_for(anext(follower), timeout=5)).sequence for _ in range(count)]


async def test_every_follower_gets_everything_in_order(ids: Uuid7Ids) -> None:
    """From the moment they begin."""
    feed = EntryFeed()
    feed.publish(entries(ids, 1))
    async with feed.subscribe() as one:
        feed.publish(entries(ids, 2, 3))
        async with feed.subscribe() as other:
            feed.publish(entries(ids, 4))
            assert await take(one, 3) == [2, 3, 4]
            assert await take(other, 1) == [4]


async def test_a_follower_waits_for_entries(ids: Uuid7Ids) -> None:
    """It is woken, it does not poll."""
    feed = EntryFeed()
    async with feed.subscribe() as follower:
        waiting = asyncio.create_task(take(follower, 2))
        await asyncio.sleep(0)
        assert not waiting.done()
        feed.publish(entries(ids, 1))
        feed.publish([])
        feed.publish(entries(ids, 2))
        assert await waiting == [1, 2]


async def test_a_slow_follower_loses_the_oldest_and_notices(ids: Uuid7Ids) -> None:
    """Memory is bounded and no publisher waits for a follower; the numbers show what to read from the store."""
    feed = EntryFeed()
    async with feed.subscribe(waiting_max=3) as follower:
        feed.publish(entries(ids, *range(1, 8)))
        assert await take(follower, 3) == [5, 6, 7]


async def test_a_follower_that_left_gets_nothing(ids: Uuid7Ids) -> None:
    """And is not kept in memory."""
    feed = EntryFeed()
    async with feed.subscribe() as follower:
        pass
    feed.publish(entries(ids, 1))
    assert not follower._waiting
    assert not feed._followers
