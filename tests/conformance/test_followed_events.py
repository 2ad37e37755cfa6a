"""What followers of an event read: some seats as they are now, and the newest number of the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.seatmap.conftest import drain, open_play

from earmark.domain.id_types import EventId, SeatId
from earmark.engine.engine import Engine
from earmark.library import Earmark

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store
    from earmark.uuids import Uuid7Ids

PLAY = EventId("play")


async def test_some_seats_are_as_the_whole_map_has_them(store: Store, ids: Uuid7Ids, clock: MovableClock) -> None:
    """With their owners and all pools, in the order of the layout; an unknown seat is left out."""
    shop = Earmark(Engine(store, ids=ids))
    await open_play(shop)
    await open_play(shop, "other")
    await shop.hold("play", buyer="alice", seats=["A2", "A10"], pools={"GA": 3}, ttl_seconds=5)
    whole = await store.read_map(PLAY)
    seen = await store.followed_events.read_seats(PLAY, [SeatId("A10"), SeatId("A2"), SeatId("A3"), SeatId("Z9")])
    assert list(seen.seats) == [one for one in whole.seats if one.seat.id in {"A2", "A3", "A10"}]
    assert (list(seen.pools), seen.ends_at) == (list(whole.pools), whole.ends_at)
    clock.advance(5)
    lapsed = await store.followed_events.read_seats(PLAY, [])
    assert not lapsed.seats
    assert [pool.free for pool in lapsed.pools] == [10]


async def test_the_newest_number_is_the_last_that_was_given(store: Store, ids: Uuid7Ids) -> None:
    """Zero before any was, and of this event alone."""
    shop = Earmark(Engine(store, ids=ids))
    await open_play(shop)
    await open_play(shop, "other")
    assert await store.followed_events.newest(PLAY) == 0
    await shop.hold("other", buyer="alice", seats=["A1"])
    await drain(store)
    assert await store.followed_events.newest(PLAY) == 1
    await shop.hold("play", buyer="alice", seats=["A1"])
    assert await store.followed_events.newest(PLAY) == 1
    await drain(store)
    assert await store.followed_events.newest(PLAY) == 2
