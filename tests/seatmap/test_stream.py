"""The live stream: a client that applies every event sees the map, whatever happened in between."""

from __future__ import annotations

import asyncio
import os
import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.eager_tasks import eager_tasks
from tests.seatmap.conftest import drain, open_play
from tests.seatmap.streaming import FACT_SECONDS_MAX, Page, hub_over, open_page, shut

from earmark.domain.id_types import Buyer, EventId, PoolId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor, ChangeEvent, PoolPatch, SeatPatch
from earmark.errors import EarmarkError, EventUnknown, Overloaded, StoreUnavailable
from earmark.schemas import to_response
from earmark.seatmap import follow_seat_changes as channels
from earmark.seatmap import state_and_changes as scenes
from earmark.seatmap import stream_hub as streams
from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
from earmark.store.sqlite.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store
    from earmark.library import Earmark
    from earmark.seatmap.stream_hub import StreamHub

PLAY = EventId("play")


@pytest.fixture
def feed() -> EntryFeed:
    return EntryFeed()


@pytest.fixture
async def hub(store: Store, clock: MovableClock, feed: EntryFeed) -> AsyncIterator[StreamHub]:
    hub = hub_over(store, clock=clock, feed=feed)
    yield hub
    await shut(hub)


@pytest.fixture
def uninformed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process counts entries: what the feed does not send is not received."""
    monkeypatch.setattr(streams, "POLL_SECONDS", 3600.0)


async def relay(store: Store, feed: EntryFeed) -> None:
    """One round of the relay, until nothing is left."""
    feed.publish(await drain(store))


async def plain(store: Store, buyer: str | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Seats and pools as they are, worded without any cache."""
    seen = await store.read_map(PLAY)
    whose = Buyer(buyer) if buyer else None
    seats = [to_response.seat_value(seat, now=seen.now, buyer=whose) for seat in seen.seats]
    pools = [to_response.pool_value(pool) for pool in seen.pools]
    return (
        {seat.id: {name: getattr(seat, name) for name in seat.__struct_fields__} for seat in seats},
        {pool.id: {name: getattr(pool, name) for name in pool.__struct_fields__} for pool in pools},
    )


@pytest.mark.usefixtures("uninformed")
async def test_a_change_is_sent_alone_and_as_it_is_now(
    shop: Earmark, store: Store, hub: StreamHub, feed: EntryFeed
) -> None:
    """First the map, then one seat and the pool, under the number of the newest entry."""
    await relay(store, feed)
    page = await open_page(hub)
    assert (page.kinds, page.number, len(page.seats)) == (["snapshot"], 1, 10)
    held = await shop.hold("play", buyer="alice", seats=["A1"], pools={"GA": 2})
    await relay(store, feed)
    await page.until(lambda page: page.number == 2)
    assert page.kinds == ["snapshot", "delta"]
    assert [seat["id"] for seat in page.told[-1]["seats"]] == ["A1"]
    assert (page.seats, page.pools) == await plain(store)
    await shop.confirm(held.id, payment_id="till-1")
    await relay(store, feed)
    await page.until(lambda page: page.number == 3)
    assert page.states["A1"] == "booked"
    assert (page.seats, page.pools) == await plain(store)


@pytest.mark.usefixtures("uninformed")
async def test_units_that_are_held_alone_are_sent_at_once(
    shop: Earmark, store: Store, hub: StreamHub, feed: EntryFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry about units names no seat: readers get the new count all the same, and not when the map is read anew."""
    monkeypatch.setattr(channels, "MAP_HORIZON", timedelta(hours=1))
    await relay(store, feed)
    page = await open_page(hub)
    held = await shop.hold("play", buyer="alice", pools={"GA": 2})
    await relay(store, feed)
    await page.until(lambda page: page.number == 2)
    assert page.kinds == ["snapshot", "delta"]
    assert [pool["id"] for pool in page.told[-1]["pools"]] == ["GA"]
    assert (page.seats, page.pools) == await plain(store)
    await shop.change(held.id, pools={"GA": 1})
    await relay(store, feed)
    await page.until(lambda page: page.number == 3)
    assert (page.seats, page.pools) == await plain(store)


@pytest.mark.usefixtures("uninformed")
async def test_each_reader_gets_which_seats_are_theirs(
    shop: Earmark, store: Store, hub: StreamHub, feed: EntryFeed
) -> None:
    """Also when a seat goes from one buyer to the next between two events."""
    alice, bob, shops = [await open_page(hub, who) for who in ("alice", "bob", None)]
    held = await shop.hold("play", buyer="alice", seats=["A1", "A2"])
    await relay(store, feed)
    for page in (alice, bob, shops):
        await page.until(lambda page: page.states["A1"] == "held")
    assert (alice.mine, bob.mine, shops.mine) == (["A1", "A2"], [], [])
    await shop.release(held.id)
    await shop.hold("play", buyer="bob", seats=["A2"])
    await relay(store, feed)
    for page in (alice, bob, shops):
        await page.until(lambda page: page.states["A1"] == "available")
        assert page.states["A2"] == "held"
    assert (alice.mine, bob.mine, shops.mine) == ([], ["A2"], [])
    assert (await open_page(hub, "bob")).mine == ["A2"]


async def test_what_another_process_did_is_found_by_counting(
    shop: Earmark, store: Store, hub: StreamHub, feed: EntryFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its relay sends this process nothing; and without any relay the map itself is compared."""
    monkeypatch.setattr(channels, "UNNUMBERED_SECONDS_MAX", 0.05)
    page = await open_page(hub)
    await shop.hold("play", buyer="alice", seats=["A1"])
    await drain(store)
    await page.until(lambda page: page.states["A1"] == "held")
    await shop.hold("play", buyer="alice", seats=["A2"], pools={"GA": 1})
    await page.until(lambda page: page.states["A2"] == "held" and page.pools["GA"]["held"] == 1)
    await relay(store, feed)
    assert (page.seats, page.pools) == await plain(store)


async def test_an_expired_hold_is_sent_though_no_worker_writes(
    shop: Earmark, hub: StreamHub, clock: MovableClock, feed: EntryFeed, store: Store
) -> None:
    """No sweeper runs; units of a pool return too."""
    await shop.hold("play", buyer="alice", seats=["A1"], ttl_seconds=60)
    await shop.hold("play", buyer="bob", pools={"GA": 3}, ttl_seconds=60)
    await relay(store, feed)
    page = await open_page(hub, "alice")
    assert (page.states["A1"], page.mine, page.pools["GA"]["available"]) == ("held", ["A1"], 7)
    clock.advance(60)
    await page.until(lambda page: page.states["A1"] == "available" and page.pools["GA"]["available"] == 10)
    assert page.mine == []


@pytest.mark.usefixtures("uninformed")
async def test_a_reader_that_reconnects_gets_what_changed_since(
    shop: Earmark, store: Store, hub: StreamHub, feed: EntryFeed, clock: MovableClock
) -> None:
    """By the server that knew them, and by another that opens the event only now."""
    first = await open_page(hub)
    await shop.hold("play", buyer="alice", seats=["A1"])
    await relay(store, feed)
    await first.until(lambda page: page.states["A1"] == "held")
    seen = first.number
    held = await shop.hold("play", buyer="bob", seats=["A2", "A3"])
    await relay(store, feed)
    await first.until(lambda page: page.states["A3"] == "held")
    await shop.release(held.id)
    await relay(store, feed)
    await first.until(lambda page: page.states["A3"] == "available")
    other = hub_over(store, clock=clock, feed=EntryFeed())
    for place in (hub, other):
        back = await open_page(place, after=seen)
        assert back.kinds == ["delta"]
        assert {"A2": "available", "A3": "available"}.items() <= back.states.items()
        assert "A10" not in back.states
        assert back.number == first.number
    assert (await open_page(hub, after=999)).kinds == ["snapshot"]
    await shut(other)


@pytest.mark.usefixtures("uninformed")
async def test_a_reader_that_missed_too_much_gets_the_whole_map(
    shop: Earmark, hub: StreamHub, feed: EntryFeed, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connected readers, too, when more was numbered than is read at once."""
    store = shop.engine.store
    page = await open_page(hub)
    monkeypatch.setattr(channels, "ENTRIES_MAX", 3)
    for number in range(1, 7):
        await shop.hold("play", buyer="alice", seats=[f"A{number}"])
    numbered = await drain(store)
    feed.publish(numbered[-1:])
    await page.until(lambda page: page.states["A6"] == "held")
    assert page.kinds == ["snapshot", "snapshot"]
    assert (page.seats, page.pools) == await plain(store)
    other = hub_over(store, clock=clock, feed=EntryFeed())
    assert (await open_page(other, after=1)).kinds == ["snapshot"]
    await shut(other)


@pytest.mark.usefixtures("uninformed")
async def test_a_change_that_was_seen_before_its_number_reaches_a_reader_from_another_server(
    shop: Earmark, store: Store, feed: EntryFeed, clock: MovableClock
) -> None:
    """Another server showed number 1 before the hold; this one read the hold before it had a number."""
    await relay(store, feed)
    await shop.hold("play", buyer="alice", seats=["A1"])
    hub = hub_over(store, clock=clock, feed=feed)
    here = await open_page(hub)
    back = await open_page(hub, after=1)
    assert (here.states["A1"], back.states) == ("held", {})
    await relay(store, feed)
    await back.until(lambda page: page.states.get("A1") == "held")
    await shut(hub)


async def test_a_reader_that_has_seen_a_number_gets_again_what_came_without_one(
    shop: Earmark, hub: StreamHub, feed: EntryFeed, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two events may carry one number: one that no relay has numbered yet, and one that the clock made."""
    store = shop.engine.store
    monkeypatch.setattr(channels, "UNNUMBERED_SECONDS_MAX", 0.0)
    await shop.hold("play", buyer="alice", seats=["A1"], ttl_seconds=60)
    await relay(store, feed)
    page = await open_page(hub)
    await shop.hold("play", buyer="bob", seats=["A2"])
    await page.until(lambda page: page.states["A2"] == "held")
    assert page.number == 2
    assert (await open_page(hub, after=2)).states == {"A2": "held"}
    clock.advance(60)
    await page.until(lambda page: page.states["A1"] == "available")
    await relay(store, feed)
    await page.until(lambda page: page.number == 3)
    assert (await open_page(hub, after=3)).states["A1"] == "available"


async def test_a_slow_reader_gets_fewer_and_larger_events(
    shop: Earmark, store: Store, hub: StreamHub, feed: EntryFeed
) -> None:
    """Nothing is queued for it: the newest state of each seat wins."""
    slow, quick = await open_page(hub), await open_page(hub)
    for number in range(1, 5):
        held = await shop.hold("play", buyer="alice", seats=[f"A{number}"])
        await relay(store, feed)
        await quick.until(lambda page, seat=f"A{number}": page.states[seat] == "held")  # type: ignore[misc]
    await shop.confirm(held.id, payment_id="till-1")
    await relay(store, feed)
    await quick.until(lambda page: page.states["A4"] == "booked")
    await slow.take()
    assert slow.kinds == ["snapshot", "delta"]
    assert (slow.seats, slow.number) == (quick.seats, quick.number)
    assert len(quick.kinds) > 4


async def test_a_reader_that_takes_nothing_is_dropped_and_no_other_notices(
    shop: Earmark, store: Store, clock: MovableClock, feed: EntryFeed
) -> None:
    """A send that never returns ends its own stream, and its room is free again."""
    hub = hub_over(store, clock=clock, feed=feed, stall_seconds=0.2, tick_seconds=0.05, readers_max=2)
    reader = await hub.join(PLAY, mode=Mode.LIVE, buyer=None, after=None)
    assert reader is not None

    async def send() -> None:
        async with reader:
            async for _ in reader:
                await asyncio.Event().wait()

    sending = asyncio.create_task(send())
    page = await open_page(hub)
    with pytest.raises(Overloaded):
        await open_page(hub)
    await asyncio.wait([sending], timeout=FACT_SECONDS_MAX)
    assert sending.cancelled()
    assert (reader.stalled, hub.dropped, hub.readers) == (True, 1, 1)
    await shop.hold("play", buyer="alice", seats=["A1"])
    await relay(store, feed)
    await page.until(lambda page: page.states["A1"] == "held")
    await shut(hub)


async def test_a_reader_without_changes_gets_signs_of_life(shop: Earmark, store: Store, clock: MovableClock) -> None:
    """Comments, with the newest number: a reader that reconnects after a quiet hour has missed nothing."""
    del shop
    hub = hub_over(store, clock=clock, feed=EntryFeed(), heartbeat_seconds=0.05)
    page = await open_page(hub)
    data = await asyncio.wait_for(anext(page.reader), timeout=FACT_SECONDS_MAX)
    assert data == b": \nid: 0\n\n"
    await shut(hub)


async def test_every_stream_ends_with_a_last_event(shop: Earmark, hub: StreamHub) -> None:
    """It says why, and when to reconnect; and no new reader is accepted any more."""
    del shop
    page = await open_page(hub)
    hub.end()
    event = await page.take()
    assert (event["event"], event["data"]["reason"]) == ("end", "stopping")
    assert int(event["retry"]) == round(event["data"]["retry_seconds"] * 1000)
    with pytest.raises(StopAsyncIteration):
        await anext(page.reader)
    with pytest.raises(Overloaded):
        await open_page(hub)


async def test_the_last_reader_leaves_nothing_behind(shop: Earmark, hub: StreamHub, feed: EntryFeed) -> None:
    """No channel, no task, no follower: the relay has no listener to inform."""
    del shop
    page = await open_page(hub)
    assert feed._followers
    async with page.reader:
        page.reader.close()
    await hub.close()
    assert not feed._followers
    assert (hub.readers, hub._channels, hub._tasks) == (0, {}, [])


async def test_an_event_that_is_not_there_is_not_followed(shop: Earmark, hub: StreamHub) -> None:
    """Nor one of the other kind: a test key sees test events only."""
    del shop
    with pytest.raises(EventUnknown):
        await open_page(hub, event_id="nowhere")
    assert await hub.join(PLAY, mode=Mode.TEST, buyer=None, after=None) is None
    assert not hub._channels


@pytest.mark.usefixtures("uninformed")
async def test_an_event_that_was_opened_at_once_is_followed(
    shop: Earmark, store: Store, hub: StreamHub, feed: EntryFeed
) -> None:
    """Where the event loop begins tasks at once, the channel is open before its opening is noted as under way."""
    with eager_tasks():
        page = await open_page(hub)
        await shop.hold("play", buyer="alice", seats=["A1"])
        await relay(store, feed)
        await page.until(lambda page: page.states["A1"] == "held")
        assert not hub._opening


@pytest.mark.usefixtures("uninformed")
async def test_control_an_opening_that_is_noted_after_its_end_is_never_over(
    clock: MovableClock, shop_over: Callable[[Store], Earmark], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: the next reader would get the channel of that opening, also after it was closed."""

    async def open_(hub: StreamHub, event_id: EventId) -> Any:
        opening = hub._opening[event_id] = asyncio.create_task(hub._begin(event_id))
        return await asyncio.shield(opening)

    monkeypatch.setattr(streams.StreamHub, "_open", open_)
    # The store in memory alone answers without a wait.
    store = MemoryStore(clock=clock)
    await open_play(shop_over(store))
    hub = hub_over(store, clock=clock, feed=EntryFeed())
    with eager_tasks():
        await open_page(hub)
        assert hub._opening[PLAY].done()
    await shut(hub)


async def test_a_store_that_fails_for_a_while_only_delays(
    shop: Earmark, store: Store, hub: StreamHub, feed: EntryFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was received meanwhile is read when it answers again."""
    monkeypatch.setattr(channels, "PAUSE_SECONDS", 0.01)
    page = await open_page(hub)
    really, failed = store.followed_events.read_seats, asyncio.Event()

    async def silent(*_: object) -> None:
        failed.set()
        raise StoreUnavailable(because="it is being restarted")

    monkeypatch.setattr(store.followed_events, "read_seats", silent)
    await shop.hold("play", buyer="alice", seats=["A1"])
    await relay(store, feed)
    await asyncio.wait_for(failed.wait(), timeout=FACT_SECONDS_MAX)
    monkeypatch.setattr(store.followed_events, "read_seats", really)
    await page.until(lambda page: page.states["A1"] == "held")


async def _something(shop: Earmark, chance: random.Random, bookings: list[Any], clock: MovableClock) -> None:
    """A verb that may happen now, and may be refused."""
    seats = chance.sample([f"A{number}" for number in range(1, 11)], chance.randint(1, 3))
    match chance.choice(("hold", "hold", "hold", "confirm", "release", "cancel", "some", "block", "wait")):
        case "hold":
            units = {"GA": chance.randint(1, 3)} if chance.random() < 0.5 else {}
            bookings.append(
                await shop.hold("play", buyer=chance.choice("abc"), seats=seats, pools=units, ttl_seconds=30)
            )
        case "confirm" if bookings:
            await shop.confirm(chance.choice(bookings).id, payment_id=f"till-{chance.random()}")
        case "release" if bookings:
            await shop.release(chance.choice(bookings).id)
        case "cancel" if bookings:
            await shop.cancel(chance.choice(bookings).id)
        case "some" if bookings:
            chosen = chance.choice(bookings)
            await shop.cancel(chosen.id, seats=[seat.id for seat in chosen.seats][:1])
        case "block":
            change = ChangeEvent(
                actor=Actor(name="manager", mode=Mode.LIVE),
                entry_id=shop.engine.ids.entry_id(),
                event_id=PLAY,
                fields={},
                seats=(SeatPatch(id=SeatId(seats[0]), blocked=chance.random() < 0.5, price=chance.randint(1, 9)),),
                pools=(PoolPatch(id=PoolId("GA"), capacity=chance.randint(10, 20)),),
            )
            await shop.engine.change_event(change)
        case _:
            clock.advance(chance.choice((1, 10, 31)))


@pytest.mark.parametrize("seed", range(200 if os.environ.get("EARMARK_PROOF") else 2))
async def test_a_reader_that_applies_every_event_sees_the_map(
    shop: Earmark, feed: EntryFeed, clock: MovableClock, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random verbs on two servers, of which one has the relay; readers that lag, leave and reconnect to either."""
    store = shop.engine.store
    monkeypatch.setattr(scenes, "STEPS_MAX", 5)
    chance = random.Random(seed)  # noqa: S311 (to be had again)
    hubs = [hub_over(store, clock=clock, feed=feed), hub_over(store, clock=clock, feed=EntryFeed())]
    pages = {who: await open_page(chance.choice(hubs), who) for who in ("a", "b", "c")}
    bookings: list[Any] = []
    for _ in range(60):
        try:
            await _something(shop, chance, bookings, clock)
        except EarmarkError:
            continue
        if chance.random() < 0.3:
            await relay(store, feed)
        if chance.random() < 0.3:
            await asyncio.sleep(0.03)
        for who, page in pages.items():
            if chance.random() < 0.1:
                pages[who] = await _reconnect(page, chance.choice(hubs), who)
    await relay(store, feed)
    for who, page in pages.items():
        expected = await plain(store, who)
        await page.until(lambda page, so=expected: (page.seats, page.pools) == so)  # type: ignore[misc]
    await shut(*hubs)


async def _reconnect(page: Page, hub: StreamHub, who: str) -> Page:
    """Leave, and go on elsewhere from the last number, with what was on the page."""
    async with page.reader:
        page.reader.close()
    back = await open_page(hub, who, after=page.number)
    if back.kinds == ["delta"]:
        back.seats, back.pools = page.seats | back.seats, page.pools | back.pools
    return back
