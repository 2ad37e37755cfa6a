"""The cached map: right at once after a commit here, soon after one elsewhere, on time when a hold runs out."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.seatmap.conftest import drain, open_play

from earmark.domain.id_types import EventId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.seat import shown_state
from earmark.engine.commands_and_results import Actor, ChangeEvent, SeatPatch
from earmark.errors import EventUnknown, SeatsTaken, StoreUnavailable
from earmark.seatmap.rendered_seat_map_cache import RenderedMap, SeatMapCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.clock import MovableClock
    from earmark.domain.bookable_event import Event
    from earmark.engine.ports.store import SeatMap, Store
    from earmark.library import Earmark

PLAY = EventId("play")
LONG = 1000.0


def sketch(_: Event, seen: SeatMap) -> RenderedMap:
    """A map in short form."""
    told = {
        on.seat.id: shown_state(
            blocked=on.seat.blocked,
            owner_state=on.owner_state,
            due=on.owner_expires_at is not None and seen.now >= on.owner_expires_at,
        ).value
        for on in seen.seats
    } | {pool.id: pool.free for pool in seen.pools}
    body = msgspec.json.encode(told)
    return RenderedMap(version=str(hash(body)), body=body)


async def states(cache: SeatMapCache, event_id: str = "play") -> dict[str, Any]:
    shown = await cache.show(EventId(event_id))
    told: dict[str, Any] = msgspec.json.decode(shown.rendered.body)
    return told


class Reads:
    """Counts how often a map is read, and keeps the readers waiting while a test wants them to."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.at_once = 0
        self.most_at_once = 0
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.begun = asyncio.Event()
        self._read = store.read_map
        monkeypatch.setattr(store, "read_map", self)

    async def __call__(self, event_id: EventId) -> SeatMap:
        """Reads first and waits then: what is committed meanwhile is not in it."""
        self.count += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            seen = await self._read(event_id)
            self.begun.set()
            await self.may_go.wait()
        finally:
            self.at_once -= 1
        return seen


@pytest.fixture
def reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(store, monkeypatch)


@pytest.fixture
def cache(shop: Earmark, clock: MovableClock) -> SeatMapCache:
    """A cache that is informed of this shop's commits, and otherwise keeps its maps for long."""
    return SeatMapCache(shop.engine, clock=clock, render=sketch, seconds_max=LONG, check_seconds=LONG)


class SilentEngine:
    """An engine that informs no listener of its commits: as another process's."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def listen(self, _: object) -> None:
        """Never."""


def uninformed(store: Store, clock: MovableClock, **knobs: Any) -> SeatMapCache:
    """A cache that is informed of no commit."""
    engine: Any = SilentEngine(store)
    return SeatMapCache(engine, clock=clock, render=sketch, **{"seconds_max": LONG, "check_seconds": LONG, **knobs})


async def block(shop: Earmark, seat: str) -> None:
    """An operator's change."""
    patch = SeatPatch(id=SeatId(seat), blocked=True)
    actor = Actor(name="manager", mode=Mode.LIVE)
    await shop.engine.change_event(
        ChangeEvent(actor=actor, entry_id=shop.engine.ids.entry_id(), event_id=PLAY, seats=(patch,))
    )


async def test_every_change_by_this_process_shows_in_the_next_read(
    shop: Earmark, cache: SeatMapCache, clock: MovableClock, reads: Reads
) -> None:
    """Hold, confirm, cancel, release, expire and block: every reader that got the answer sees it on the map."""
    assert (await states(cache))["A1"] == "available"
    first = await shop.hold("play", buyer="alice", seats=["A1"], pools={"GA": 2})
    assert (await states(cache))["A1"] == "held"
    await shop.confirm(first.id, payment_id="till-1")
    assert (await states(cache))["A1"] == "booked"
    assert (await states(cache))["GA"] == 8
    await shop.cancel(first.id)
    assert (await states(cache))["A1"] == "available"
    assert (await states(cache))["GA"] == 10
    second = await shop.hold("play", buyer="alice", seats=["A2"])
    assert (await states(cache))["A2"] == "held"
    await shop.release(second.id)
    assert (await states(cache))["A2"] == "available"
    await shop.hold("play", buyer="alice", seats=["A3"], ttl_seconds=60)
    assert (await states(cache))["A3"] == "held"
    clock.advance(60)
    assert len(await shop.engine.expire(limit=10)) == 1
    assert (await states(cache))["A3"] == "available"
    await block(shop, "A4")
    before = reads.count
    assert (await states(cache))["A4"] == "blocked"
    assert (await states(cache))["A4"] == "blocked"
    assert reads.count == before + 1, "unchanged, it is not read again"


async def test_an_uninformed_cache_shows_the_old_map(shop: Earmark, store: Store, clock: MovableClock) -> None:
    """The control: without the information, a hold of this very process stays unseen."""
    cache = uninformed(store, clock)
    assert (await states(cache))["A1"] == "available"
    await shop.hold("play", buyer="alice", seats=["A1"])
    assert (await states(cache))["A1"] == "available"


async def test_a_change_of_one_event_leaves_the_others_kept(shop: Earmark, cache: SeatMapCache, reads: Reads) -> None:
    """A busy event does not make the quiet ones slow."""
    await open_play(shop, "opera")
    await states(cache, "opera")
    before = reads.count
    await shop.hold("play", buyer="alice", seats=["A1"])
    await states(cache, "opera")
    assert reads.count == before


@pytest.mark.parametrize("numbered", [False, True])
async def test_a_commit_elsewhere_is_found_in_the_outbox(
    shop: Earmark, store: Store, clock: MovableClock, reads: Reads, *, numbered: bool
) -> None:
    """Within the time between two checks, whether a relay has numbered it yet or not."""
    cache = uninformed(store, clock, check_seconds=0.25)
    assert (await states(cache))["A1"] == "available"
    await shop.hold("play", buyer="alice", seats=["A1"])
    if numbered:
        await drain(store)
    clock.advance(0.25)
    assert (await states(cache))["A1"] == "held"
    assert reads.count == 2


async def test_a_relay_changes_nothing_on_the_map(
    shop: Earmark, store: Store, clock: MovableClock, reads: Reads
) -> None:
    """Numbers are given to what the map shows already."""
    await shop.hold("play", buyer="alice", seats=["A1"])
    cache = uninformed(store, clock, check_seconds=0.25)
    await states(cache)
    assert len(await drain(store)) == 2
    clock.advance(0.25)
    assert (await states(cache))["A1"] == "held"
    assert reads.count == 1


async def test_where_entries_cannot_be_counted_a_map_is_kept_until_the_next_read(
    shop: Earmark, clock: MovableClock, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a relay the entries pile up uncounted: two looks that know nothing are not two that agree."""

    async def count_nothing(ids: Any) -> dict[EventId, int | None]:
        return dict.fromkeys(ids)

    monkeypatch.setattr(shop.engine.store.outbox, "count", count_nothing)
    cache = uninformed(shop.engine.store, clock, check_seconds=5.0)
    await states(cache)
    await states(cache)
    assert reads.count == 1
    clock.advance(5)
    await states(cache)
    assert reads.count == 2


async def test_between_two_checks_no_read_queries_the_database(
    shop: Earmark, store: Store, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One query for all cached events, however many readers there are and of however many events."""
    await open_play(shop, "opera")
    await drain(store)
    cache = uninformed(store, clock, check_seconds=5.0)
    await states(cache)
    await states(cache, "opera")
    asked: list[list[str]] = []
    count = store.outbox.count

    async def counted(ids: Any) -> Any:
        asked.append(sorted(ids))
        return await count(ids)

    monkeypatch.setattr(store.outbox, "count", counted)
    await asyncio.gather(*(states(cache) for _ in range(50)))
    assert asked == []
    clock.advance(5)
    await asyncio.gather(*(states(cache, event) for event in ("play", "opera") for _ in range(50)))
    assert asked == [["opera", "play"]]


async def test_a_hold_that_runs_out_frees_its_seat_on_the_map_by_itself(
    shop: Earmark, cache: SeatMapCache, clock: MovableClock, reads: Reads
) -> None:
    """On time, with no commit and no sweeper; the earliest end counts."""
    await shop.hold("play", buyer="alice", seats=["A1"], ttl_seconds=30)
    await shop.hold("play", buyer="alice", seats=["A2"], ttl_seconds=8)
    assert (await states(cache))["A1"] == "held"
    clock.advance(4)
    assert (await states(cache))["A2"] == "held"
    assert reads.count == 1
    clock.advance(4)
    assert [(await states(cache))[seat] for seat in ("A1", "A2")] == ["held", "available"]
    clock.advance(22)
    assert [(await states(cache))[seat] for seat in ("A1", "A2")] == ["available", "available"]


async def test_units_that_run_out_return_to_the_map_by_themselves(
    shop: Earmark, cache: SeatMapCache, clock: MovableClock
) -> None:
    """They have no seat that shows when."""
    await shop.hold("play", buyer="alice", pools={"GA": 4}, ttl_seconds=5)
    assert (await states(cache))["GA"] == 6
    clock.advance(5)
    assert (await states(cache))["GA"] == 10


async def test_a_map_that_does_not_know_its_end_shows_holds_that_are_over(
    shop: Earmark, store: Store, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with the end unknown, a hold that ran out stays on the map."""
    read = store.read_map

    async def endless(event_id: EventId) -> SeatMap:
        return msgspec.structs.replace(await read(event_id), ends_at=None)

    monkeypatch.setattr(store, "read_map", endless)
    cache = uninformed(store, clock)
    await shop.hold("play", buyer="alice", seats=["A1"], ttl_seconds=5)
    assert (await states(cache))["A1"] == "held"
    clock.advance(5)
    assert (await states(cache))["A1"] == "held"


async def test_nothing_is_shown_for_longer_than_its_time(shop: Earmark, clock: MovableClock, reads: Reads) -> None:
    """Whatever happened unnoticed, by hand-written SQL say: five seconds, and it is read anew."""
    cache = SeatMapCache(shop.engine, clock=clock, render=sketch)
    await states(cache)
    clock.advance(3)
    await states(cache)
    assert reads.count == 1
    clock.advance(2)
    await states(cache)
    assert reads.count == 2


async def test_a_hundred_readers_at_once_share_one_read(cache: SeatMapCache, reads: Reads) -> None:
    """Many readers cost the database as much as one."""
    told = await asyncio.gather(*(states(cache) for _ in range(100)))
    assert reads.count == 1
    assert all(one == told[0] for one in told)
    assert len(told[0]) == 11


async def test_a_map_that_changed_while_it_was_read_is_not_kept(
    shop: Earmark, cache: SeatMapCache, reads: Reads
) -> None:
    """A reader from before the commit may get the old map; every later reader sees the change."""
    reads.may_go.clear()
    before = asyncio.create_task(states(cache))
    await reads.begun.wait()
    await shop.hold("play", buyer="alice", seats=["A1"])
    after = [asyncio.create_task(states(cache)) for _ in range(10)]
    await asyncio.sleep(0)
    await shop.hold("play", buyer="alice", seats=["A2"])
    after += [asyncio.create_task(states(cache)) for _ in range(10)]
    await asyncio.sleep(0)
    reads.may_go.set()
    assert (await before)["A1"] == "available"
    assert [(await one)["A1"] for one in after] == ["held"] * 20
    assert (await states(cache))["A1"] == "held"
    assert reads.count == 2, "the late ones share one reading, which began after all they know of"


async def test_control_a_read_that_is_not_invalidated_keeps_the_old_map(
    shop: Earmark, cache: SeatMapCache, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with that guard off, the old map is kept after the commit, and shown for its whole time."""
    monkeypatch.setattr(cache, "_overtake", lambda _: None)
    reads.may_go.clear()
    before = asyncio.create_task(states(cache))
    await reads.begun.wait()
    await shop.hold("play", buyer="alice", seats=["A1"])
    reads.may_go.set()
    assert (await before)["A1"] == "available"
    assert (await states(cache))["A1"] == "available"


async def test_a_commit_elsewhere_during_the_read_is_found_by_the_next_check(
    shop: Earmark, store: Store, clock: MovableClock, reads: Reads
) -> None:
    """The event's number is read before its map, so nothing can slip between the two."""
    await drain(store)
    cache = uninformed(store, clock, check_seconds=0.25)
    reads.may_go.clear()
    before = asyncio.create_task(states(cache))
    await reads.begun.wait()
    await shop.hold("play", buyer="alice", seats=["A1"])
    await drain(store)
    reads.may_go.set()
    assert (await before)["A1"] == "available"
    clock.advance(0.25)
    assert (await states(cache))["A1"] == "held"


async def test_a_map_that_changes_all_the_time_is_read_one_by_one(
    shop: Earmark, cache: SeatMapCache, reads: Reads
) -> None:
    """However fast it changes and however many look, one reading of an event runs at a time."""
    lookers: list[asyncio.Task[dict[str, Any]]] = []
    for number in range(1, 11):
        lookers += [asyncio.create_task(states(cache)) for _ in range(5)]
        await asyncio.sleep(0)
        await shop.hold("play", buyer="alice", seats=[f"A{number}"])
    told = await asyncio.gather(*lookers)
    assert reads.most_at_once == 1
    assert len(told) == 50
    assert set((await states(cache)).values()) == {"held", 10}


async def test_a_reader_that_leaves_does_not_end_the_shared_read(cache: SeatMapCache, reads: Reads) -> None:
    """The first reader disconnects; those that joined are answered."""
    reads.may_go.clear()
    first = asyncio.create_task(states(cache))
    await reads.begun.wait()
    second = asyncio.create_task(states(cache))
    await asyncio.sleep(0)
    first.cancel()
    reads.may_go.set()
    assert (await second)["A1"] == "available"
    with pytest.raises(asyncio.CancelledError):
        await first
    assert reads.count == 1


async def test_a_failed_read_fails_all_its_readers_and_is_then_forgotten(
    cache: SeatMapCache, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next reader queries the database again."""
    with monkeypatch.context() as patched:

        async def silent(_: EventId) -> SeatMap:
            raise StoreUnavailable(because="the cable was cut")

        patched.setattr(store, "read_map", silent)
        answers = await asyncio.gather(*(states(cache) for _ in range(5)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreUnavailable] * 5
    assert (await states(cache))["A1"] == "available"


async def test_what_cannot_be_checked_is_not_shown(
    shop: Earmark, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the database silent, it is unknown whether the map is still right."""
    cache = uninformed(shop.engine.store, clock, check_seconds=0.25)
    await states(cache)
    clock.advance(1)
    with monkeypatch.context() as patched:

        async def silent(_: object) -> None:
            raise StoreUnavailable(because="the cable was cut")

        patched.setattr(shop.engine.store.outbox, "count", silent)
        with pytest.raises(StoreUnavailable):
            await states(cache)
    assert (await states(cache))["A1"] == "available"


async def test_an_event_that_is_not_there_is_looked_for_each_time(shop: Earmark, cache: SeatMapCache) -> None:
    """Nothing is cached about it, so it is found as soon as it is made."""
    with pytest.raises(EventUnknown):
        await states(cache, "opera")
    await open_play(shop, "opera")
    assert (await states(cache, "opera"))["A1"] == "available"


async def test_the_cache_is_bounded_and_the_least_used_goes_first(
    shop: Earmark, clock: MovableClock, reads: Reads
) -> None:
    """By bytes, not by number: stadiums count for more than studios."""
    for event in ("opera", "film"):
        await open_play(shop, event)
    size = (await uninformed(shop.engine.store, clock).show(PLAY)).rendered.size
    cache = SeatMapCache(
        shop.engine, clock=clock, render=sketch, bytes_max=2 * size, seconds_max=LONG, check_seconds=LONG
    )
    for event in ("play", "opera", "play", "film"):
        await states(cache, event)
    reads.count = 0
    await states(cache, "play")
    await states(cache, "film")
    assert reads.count == 0
    await states(cache, "opera")
    assert reads.count == 1
    assert cache._bytes == 2 * size
    small = SeatMapCache(
        shop.engine, clock=clock, render=sketch, bytes_max=size - 1, seconds_max=LONG, check_seconds=LONG
    )
    assert (await states(small))["A1"] == "available"
    assert (len(small._kept), small._bytes) == (0, 0)


async def test_a_large_map_is_rendered_beside_the_loop(shop: Earmark, clock: MovableClock) -> None:
    """So that others are answered meanwhile; a small one is not worth the trip."""
    seats = {f"S{number}": 1 for number in range(600)}
    await shop.create_event("stadium", name="A stadium", currency="EUR", seats=seats)
    threads: list[threading.Thread] = []

    def render(event: Event, seen: SeatMap) -> RenderedMap:
        threads.append(threading.current_thread())
        return sketch(event, seen)

    cache = SeatMapCache(shop.engine, clock=clock, render=render)
    await states(cache, "stadium")
    await states(cache, "play")
    assert [thread is threading.main_thread() for thread in threads] == [False, True]


async def test_a_wrong_map_decides_nothing(shop: Earmark, cache: SeatMapCache) -> None:
    """Whatever the cache says, a seat that is held stays held, and one that is free can be had."""
    await shop.hold("play", buyer="alice", seats=["A1"])
    shown = await cache.show(PLAY)
    upside_down = {"A1": "available", "A2": "booked"}
    lie = msgspec.structs.replace(shown.rendered, body=msgspec.json.encode(upside_down))
    cache._keep(msgspec.structs.replace(shown, rendered=lie))
    assert await states(cache) == upside_down
    with pytest.raises(SeatsTaken):
        await shop.hold("play", buyer="bob", seats=["A1"])
    assert (await shop.hold("play", buyer="bob", seats=["A2"])).state == "held"


def test_nothing_that_decides_can_see_the_cache() -> None:
    """Rules, verbs and stores import none of it, directly or indirectly."""
    import ast
    from pathlib import Path

    import earmark

    root = Path(earmark.__path__[0])
    deciding = [path for folder in ("domain", "engine", "store") for path in (root / folder).rglob("*.py")]
    named = [
        name
        for path in deciding
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
    ]
    assert len(deciding) > 30
    assert not [name for name in named if "seatmap" in name or "SeatMapCache" in name]


async def test_another_process_is_seen_within_a_bound(postgres_url: str, shop_over: Callable[[Store], Earmark]) -> None:
    """Two engines on one PostgreSQL, real time, no moved clock: the map follows."""
    from earmark.clock import SystemClock
    from earmark.store.postgres import PostgresStore

    stores = [await PostgresStore.connect(postgres_url, clock=SystemClock()) for _ in range(2)]
    here, there = (shop_over(store) for store in stores)
    await open_play(here)
    cache = SeatMapCache(here.engine, clock=SystemClock(), render=sketch, seconds_max=LONG)

    async def follow(*, until: str) -> str:
        while (now := (await states(cache))["A1"]) != until:  # noqa: ASYNC110 (only the map tells)
            await asyncio.sleep(0.01)
        return str(now)

    seen = []
    async with asyncio.timeout(30):
        seen.append(await follow(until="available"))
        held = await there.hold("play", buyer="alice", seats=["A1"])
        seen.append(await follow(until="held"))
        await there.confirm(held.id, payment_id="till-1")
        await drain(stores[1])
        seen.append(await follow(until="booked"))
        await there.cancel(held.id)
        seen.append(await follow(until="available"))
    for store in stores:
        await store.close()
    assert seen == ["available", "held", "booked", "available"]
