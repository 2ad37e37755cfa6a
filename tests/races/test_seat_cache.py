"""The seat cache of a process is advisory: it saves a read, and sells no seat that is not free."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from earmark.domain.bookable_event import Event
from earmark.domain.id_types import EventId, PoolId, PoolRef, SeatId, SeatRef
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import ChangeEvent, Decided, KeyedRequest, Replayed
from earmark.engine.ports.store import RowsNeeded
from earmark.errors import IdempotencyMismatch, LimitExceeded, PoolExhausted, SaleClosed, SeatsTaken
from earmark.store.postgres import rows_cached_for_optimistic_write as module
from earmark.store.postgres.rows_cached_for_optimistic_write import SeatCache

from . import shortcuts
from .commands import EVENT, IDS, SHOP, a_block, a_hold, a_limit, a_release, a_repricing
from .support import AS_BUILT, Shortcut, granted, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.domain.booking import Booking
    from earmark.engine.commands_and_results import Command
    from earmark.store.postgres.rows_cached_for_optimistic_write import Page

    from .support import RaceDatabase, Server


def a_window(**fields: datetime | None) -> ChangeEvent:
    """The operator changes when the event is on sale."""
    return ChangeEvent(actor=SHOP, entry_id=IDS.entry_id(), event_id=EVENT, fields=fields)


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


async def with_cached_event(database: RaceDatabase, *stops: str, shortcut: Shortcut = AS_BUILT) -> Server:
    """A server that has read once, and has the event in its seat cache by now."""
    await database.observer.execute(shortcut.prepare)
    server = await database.server(drafts=True, memory=True, connections_max=6, shortcut=shortcut)
    await server.submit(a_hold("B9", buyer="eve")).outcome()
    await until(lambda: server.store.seat_cache._events)
    server.store.ran.clear()
    server.stop_at(*stops)
    return server


async def by_another(database: RaceDatabase, ask: Command) -> Any:
    """What another process makes of a request."""
    return await database.tried(ask)


def a_page(seats: list[SeatId]) -> Page:
    """Fresh seats that have only their ids."""
    return (1000, 0, seats, None, seats[-1], None, None, None, [None] * len(seats))


def weight(database: module.CachedEvent) -> int:
    """The size of its cached seats, in bytes."""
    return sys.getsizeof(database.free)


def test_a_sold_out_event_takes_no_space_in_the_cache() -> None:
    """Its seats leave the cache as they are sold, though the event itself stays cached."""
    event = Event(id=EVENT, name="Play", currency="EUR", mode=Mode.LIVE, created_at=datetime.now(UTC))
    database = module.CachedEvent(event)
    seats = [SeatId(f"S{number}") for number in range(10_000)]
    assert database.add([a_page(seats)]) == 10_000
    full, empty = weight(database), sys.getsizeof({})
    for number, seat in enumerate(seats):
        assert database.remove(seat)
        assert weight(database) <= max(full * (10_000 - number) * 2 * module.SPARSE / 10_000, full / 1000)
    assert weight(database) <= 2 * empty


def test_control_a_dictionary_keeps_its_room() -> None:
    """Why it is packed anew: emptied one by one, it stays as large as it ever was."""
    kept = dict.fromkeys(range(10_000))
    full = sys.getsizeof(kept)
    for number in range(10_000):
        del kept[number]
    assert sys.getsizeof(kept) == full


async def test_a_fresh_seat_is_sold_without_a_read(either_database: RaceDatabase) -> None:
    """One call; and its price, moment and limits are those of a read."""
    server = await with_cached_event(either_database)
    held = granted(await server.submit(a_hold("A1", "A2")).outcome())
    assert server.store.ran == ["memory"]
    assert (held.total, held.version) == (2000, 1)
    assert abs((held.created_at - either_database.clock.now()).total_seconds()) < 1
    assert await either_database.owner("A1") == held.id
    assert isinstance(await server.submit(a_hold("A1", buyer="cid")).outcome(), SeatsTaken)
    assert server.store.ran == ["memory", "look"]
    assert not await either_database.flaws()


async def test_what_is_sold_without_a_read_has_its_names(either_database: RaceDatabase) -> None:
    """Alone and in a batch, a fresh seat and a released one: no statement is made for the names."""
    names = "section = 'Stalls', row_name = left(id, 1), number = substr(id, 2)::integer, category = 'best'"
    await either_database.observer.execute(f"UPDATE seats SET {names}")
    await by_another(either_database, a_release(granted(await by_another(either_database, a_hold("A2", buyer="dan")))))
    server = await with_cached_event(either_database)
    alone = granted(await server.submit(a_hold("A1")).outcome())
    both = await server.submit_batch(a_hold("A2", buyer="cid"), a_hold("B3", buyer="eve")).outcome()
    assert set(server.store.ran) == {"memory"}
    lines = [line for booking in (alone, *map(granted, both)) for line in booking.lines.seats]
    assert [(line.section, line.row, line.number, line.category) for line in lines] == [
        ("Stalls", "A", 1, "best"),
        ("Stalls", "A", 2, "best"),
        ("Stalls", "B", 3, "best"),
    ]
    kept = await either_database.observer.fetchval(
        "SELECT lines -> 'seats' -> 0 ->> 'row' FROM bookings WHERE id = $1", alone.id
    )
    assert kept == "A"


@pytest.mark.parametrize(
    "change, told",
    [
        pytest.param(a_hold("A1", buyer="cid"), SeatsTaken, id="sold"),
        pytest.param(a_block("A1"), SeatsTaken, id="blocked"),
        pytest.param(a_limit(0), LimitExceeded, id="limited"),
        pytest.param(a_window(sale_opens_at=in_an_hour()), SaleClosed, id="not-on-sale"),
    ],
)
async def test_the_cache_sells_no_seat_that_another_process_took(
    either_database: RaceDatabase, change: Command, told: type[Exception]
) -> None:
    """The cache has the seat as free and on sale; the write compares, and locks decide."""
    server = await with_cached_event(either_database)
    await by_another(either_database, change)
    assert isinstance(await server.submit(a_hold("A1")).outcome(), told)
    assert server.store.ran[:2] == ["memory", "locks"]
    assert not await either_database.flaws()


async def test_the_cache_sells_for_the_current_price(either_database: RaceDatabase) -> None:
    """Also when it was priced by manual SQL, and the event does not show it."""
    server = await with_cached_event(either_database)
    await either_database.observer.execute("UPDATE seats SET price = 99 WHERE id = 'A1'")
    assert granted(await server.submit(a_hold("A1")).outcome()).total == 99
    assert server.store.ran == ["memory", "locks"]
    await until(lambda: _has_cached(server))
    await by_another(either_database, a_repricing("A2", price=77))
    assert granted(await server.submit(a_hold("A2")).outcome()).total == 77


async def _has_cached(server: Server) -> bool:
    """After an unknown outcome it must read before it caches the event again."""
    server.store.seat_cache._left_out.clear()
    await server.submit(a_hold("B8", buyer="eve")).outcome()
    return bool(server.store.seat_cache._events)


async def test_the_cache_sells_no_deleted_seat(bare_database: RaceDatabase) -> None:
    """Manual SQL deleted it."""
    server = await with_cached_event(bare_database)
    await bare_database.observer.execute("DELETE FROM seats WHERE id = 'A1'")
    outcome = await server.submit(a_hold("A1")).outcome()
    assert not isinstance(outcome, Decided)
    assert not await bare_database.flaws()


async def test_without_the_rules_the_cache_sells_what_is_not_on_sale(bare_database: RaceDatabase) -> None:
    """The control: a seat row has nothing of its event's sale window."""
    server = await with_cached_event(bare_database, shortcut=shortcuts.FORGETS_THE_RULES)
    await by_another(bare_database, a_window(sale_opens_at=in_an_hour()))
    for outcome in await server.submit_batch(a_hold("A1"), a_hold("A2", buyer="cid")).outcome():
        granted(outcome)
    assert server.store.ran == ["memory"]


async def test_the_cache_alone_refuses_no_hold(database: RaceDatabase) -> None:
    """It knew that the sale had not begun; meanwhile the operator opened it, here or elsewhere."""
    await by_another(database, a_window(sale_opens_at=in_an_hour()))
    server = await with_cached_event(database)
    assert isinstance(await server.submit(a_hold("A1")).outcome(), SaleClosed)
    await by_another(database, a_window(sale_opens_at=None))
    granted(await server.submit(a_hold("A1")).outcome())
    granted(await server.submit(a_hold("A2")).outcome())


async def test_a_raised_limit_takes_effect_at_once(database: RaceDatabase) -> None:
    """The same for a buyer's limit, alone and in a batch with a buyer who is within the limit anyway."""
    await by_another(database, a_limit(1))
    server = await with_cached_event(database)
    assert isinstance(await server.submit(a_hold("A1", "A2")).outcome(), LimitExceeded)
    await by_another(database, a_limit(5))
    granted(await server.submit(a_hold("A1", "A2")).outcome())
    for outcome in await server.submit_batch(a_hold("A3", "A4", buyer="cid"), a_hold("A5", buyer="dan")).outcome():
        granted(outcome)
    assert not await database.flaws()


async def test_the_store_and_not_the_cache_keeps_a_key(either_database: RaceDatabase) -> None:
    """A key that was used elsewhere, for this or for another request, has its one effect."""
    idempotency = KeyedRequest(
        key=IdempotencyKey("shop", "k"), request_hash=b"one", write=lambda booking, _: (201, str(booking.id).encode())
    )
    other = KeyedRequest(key=IdempotencyKey("shop", "k"), request_hash=b"two", write=idempotency.write)
    server = await with_cached_event(either_database)
    first = granted(await by_another(either_database, a_hold("A1", idempotency=idempotency)))
    replayed = await server.submit(a_hold("A1", idempotency=idempotency)).outcome()
    assert isinstance(replayed, Replayed)
    assert replayed.record.body == str(first.id).encode()
    await until(lambda: _has_cached(server))
    assert isinstance(await server.submit(a_hold("A2", idempotency=other)).outcome(), IdempotencyMismatch)
    assert await either_database.owner("A2") is None
    assert not await either_database.flaws()


@pytest.mark.parametrize("seconds", [-1.5, 0.5, 3600.0])
async def test_a_moment_that_is_not_the_server_s_is_not_used(either_database: RaceDatabase, seconds: float) -> None:
    """The process was paused, or one of the clocks was set: nothing is kept, and the server says what time it is."""
    server = await with_cached_event(either_database)
    wrong(server, seconds=seconds)
    held = granted(await server.submit(a_hold("A1")).outcome())
    assert server.store.ran == ["memory", "locks"]
    assert abs((held.created_at - either_database.clock.now()).total_seconds()) < 0.4


async def test_without_the_hour_a_hold_ends_when_it_should_not(bare_database: RaceDatabase) -> None:
    """The control: it would run an hour too long."""
    server = await with_cached_event(bare_database, shortcut=shortcuts.FORGETS_THE_HOUR)
    wrong(server, seconds=3600)
    for outcome in await server.submit_batch(a_hold("A1"), a_hold("A2", buyer="cid")).outcome():
        assert granted(outcome).created_at > bare_database.clock.now() + timedelta(minutes=59)


def wrong(server: Server, *, seconds: float) -> None:
    """Let the cached clock be wrong by so much."""
    clock = server.store.seat_cache._clock
    assert clock is not None
    server.store.seat_cache._clock = (clock[0] + timedelta(seconds=seconds), clock[1])


async def test_a_pause_between_cache_and_write_is_noticed(database: RaceDatabase) -> None:
    """The process stood still for longer than a second; the cached moment is over."""
    server = await with_cached_event(database, "before write")
    server.submit(a_hold("A1"))
    await server.reached("before write")
    began = time.monotonic()
    await until(lambda: time.monotonic() - began > 1.05)
    granted(await server.outcome())
    assert server.store.ran == ["memory", "locks"]
    assert not await database.flaws()


async def test_a_clock_that_was_read_long_ago_is_read_again(
    database: RaceDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks drift apart: after a while the process reads the database's clock again."""
    server = await with_cached_event(database)
    monkeypatch.setattr(module, "CLOCK_SECONDS_MAX", 0.0)
    granted(await server.submit(a_hold("A1")).outcome())
    assert server.store.ran == ["look"]


async def test_time_that_a_test_moves_is_moved_in_the_cache_too(database: RaceDatabase) -> None:
    """The offset is not cached."""
    server = await with_cached_event(database)
    database.clock.advance(3600)
    held = granted(await server.submit(a_hold("A1")).outcome())
    assert server.store.ran == ["memory"]
    assert abs((held.created_at - database.clock.now()).total_seconds()) < 1


async def test_a_released_seat_is_read(database: RaceDatabase) -> None:
    """The cache has seats as they were when their event was read; a seat freed later is found by a read."""
    server = await with_cached_event(database)
    held = granted(await server.submit(a_hold("A1")).outcome())
    await by_another(database, a_release(held))
    granted(await server.submit(a_hold("A1", buyer="cid")).outcome())
    assert server.store.ran == ["memory", "look"]
    assert not await database.flaws()


async def released_seats(database: RaceDatabase, *names: str) -> list[Booking]:
    """Seats that a buyer held and released before the event was cached."""
    left = [granted(await by_another(database, a_hold(name, buyer="fay"))) for name in names]
    for held in left:
        await by_another(database, a_release(held))
    return left


async def test_a_seat_that_an_ended_booking_left_is_sold_without_a_read(either_database: RaceDatabase) -> None:
    """Alone and with others: what has ended may be cached, and the write compares the pointer and the fence."""
    await released_seats(either_database, "A1", "A2")
    server = await with_cached_event(either_database)
    first = granted(await server.submit(a_hold("A1")).outcome())
    second, third = await server.submit_batch(a_hold("A2", buyer="cid"), a_hold("A3", buyer="dan")).outcome()
    assert server.store.ran == ["memory", "memory"]
    for seat, held in (("A1", first), ("A2", granted(second)), ("A3", granted(third))):
        assert await either_database.owner(seat) == held.id
    assert not await either_database.flaws()


async def test_the_cache_does_not_have_a_held_seat(either_database: RaceDatabase) -> None:
    """Held, with time left or without: whether its time is over is judged on the locked booking, never cached."""
    held = granted(await by_another(either_database, a_hold("A1", buyer="fay")))
    server = await with_cached_event(either_database)
    assert isinstance(await server.submit(a_hold("A1")).outcome(), SeatsTaken)
    assert server.store.ran == ["look"]
    assert await either_database.owner("A1") == held.id


EXPIRED = "UPDATE bookings SET state = 'expired' WHERE state = 'released'"
RECLAIM = """
BEGIN;
UPDATE seats SET fence = fence + 1 WHERE booking_id = '{0}';
UPDATE bookings SET state = 'confirmed', confirmed_at = now(), version = version + 1 WHERE id = '{0}';
COMMIT;
"""


async def test_the_cache_sells_no_seat_that_late_money_re_claimed(bare_database: RaceDatabase) -> None:
    """The expired booking is active again, and the pointer is the same: the fence shows it."""
    left = await released_seats(bare_database, "A1")
    await bare_database.observer.execute(EXPIRED)
    server = await with_cached_event(bare_database)
    await bare_database.observer.execute(RECLAIM.format(left[0].id))
    assert isinstance(await server.submit(a_hold("A1")).outcome(), SeatsTaken)
    assert server.store.ran == ["memory", "locks"]
    assert await bare_database.owner("A1") == left[0].id


async def test_without_the_fence_the_cache_sells_what_late_money_re_claimed(bare_database: RaceDatabase) -> None:
    """The control: pointer and price are as they were cached, and a sale loses its seat."""
    left = await released_seats(bare_database, "A1")
    await bare_database.observer.execute(EXPIRED)
    server = await with_cached_event(bare_database, shortcut=shortcuts.FORGETS_THE_FENCE)
    await bare_database.observer.execute(RECLAIM.format(left[0].id))
    held = granted(await server.submit(a_hold("A1")).outcome())
    assert await bare_database.owner("A1") == held.id
    assert await bare_database.flaws()


async def test_without_the_pointer_the_cache_takes_a_seat_from_its_owner(bare_database: RaceDatabase) -> None:
    """The control: the seat was cached as released, and another buyer has held it since."""
    await released_seats(bare_database, "A1")
    server = await with_cached_event(bare_database, shortcut=shortcuts.FORGETS_THE_POINTER)
    other = granted(await by_another(bare_database, a_hold("A1", buyer="cid")))
    assert await bare_database.owner("A1") == other.id
    assert granted(await server.submit(a_hold("A1")).outcome()).id == await bare_database.owner("A1")
    assert await bare_database.flaws()


# The cache by itself, with pages that a test supplies.

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Pages:
    """An event of so many seats, read page by page as the test allows."""

    def __init__(self, seats: int) -> None:
        self.names = [f"S{n:06}" for n in range(seats)]
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.after = 0
        """It stops once it has handed out so many pages."""
        self.reads = 0
        self.broken = False

    async def read(self, _: EventId, after: str, limit: int) -> Sequence[Page]:
        """The next page."""
        if self.reads >= self.after:
            await self.may_go_on.wait()
        self.reads += 1
        if self.broken:
            raise OSError
        page = [SeatId(name) for name in self.names if name > after][:limit]
        return [a_page(page)] if page else []


def an_event(name: str = "play") -> Event:
    return Event(id=EventId(name), name="Play", currency="EUR", mode=Mode.LIVE, created_at=NOW)


def looking_for(seat: str, event: str = "play") -> RowsNeeded:
    return RowsNeeded(events=[EventId(event)], seats=[SeatRef(EventId(event), SeatId(seat))])


def knows(cache: SeatCache, seat: str, event: str = "play") -> bool:
    return cache.find(looking_for(seat, event), offset=timedelta(0)) is not None


async def loaded(cache: SeatCache, *names: str) -> None:
    """Learn of events, one after the other."""
    for name in names:
        cache.keep_events([an_event(name)], now=NOW)
        await until(lambda: not cache._reading)


async def test_a_seat_sold_while_its_event_is_read_is_not_fresh() -> None:
    """It was read before it was sold, and would be cached after."""
    pages = Pages(10)
    pages.after = 1
    pages.may_go_on.clear()
    cache = SeatCache(pages.read, requests_per_page=0)
    cache.keep_events([an_event()], now=NOW)
    await until(lambda: pages.reads)
    cache.remove_seats([SeatRef(EventId("play"), SeatId("S000003"))])
    pages.may_go_on.set()
    await until(lambda: not cache._reading)
    assert knows(cache, "S000002")
    assert not knows(cache, "S000003")


async def test_one_event_is_read_at_a_time_and_no_request_waits_for_it() -> None:
    """A request meanwhile finds nothing cached; the next event is read by itself."""
    pages = Pages(10)
    pages.after = 1
    pages.may_go_on.clear()
    cache = SeatCache(pages.read, requests_per_page=0)
    cache.keep_events([an_event("one"), an_event("two")], now=NOW)
    cache.keep_events([an_event("two")], now=NOW)
    assert not knows(cache, "S000001", "one")
    await until(lambda: knows(cache, "S000001", "one"))
    assert cache._reading is not None
    assert not knows(cache, "S000001", "two")
    assert pages.reads == 1
    pages.may_go_on.set()
    await until(lambda: not cache._reading)
    assert knows(cache, "S000001", "two")
    assert pages.reads == 2


async def test_an_event_that_cannot_be_read_is_not_cached() -> None:
    """Nor is a part of it cached; the next read tries again."""
    pages = Pages(10)
    pages.broken = True
    cache = SeatCache(pages.read, requests_per_page=0)
    await loaded(cache, "play")
    assert not knows(cache, "S000001")
    pages.broken = False
    await loaded(cache, "play")
    assert knows(cache, "S000001")


async def test_reading_stops_when_the_store_closes() -> None:
    """Nothing is left running."""
    pages = Pages(10)
    cache = SeatCache(pages.read, requests_per_page=0)
    cache.keep_events([an_event()], now=NOW)
    pages.may_go_on.clear()
    await asyncio.sleep(0)
    task = cache._reading
    assert task is not None
    await cache.close()
    assert task.done()
    await cache.close()


async def test_the_cache_is_bounded_and_keeps_the_event_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events without requests for a while are evicted first; an event larger than the cache is not cached."""
    monkeypatch.setattr(module, "SEATS_MAX", 30)
    monkeypatch.setattr(module, "PAGE", 4)
    monkeypatch.setattr(module, "KEPT_SECONDS", 0.0)
    pages = Pages(10)
    cache = SeatCache(pages.read, requests_per_page=0)
    await loaded(cache, "one", "two", "three")
    assert knows(cache, "S000001", "one")
    await loaded(cache, "four")
    assert [knows(cache, "S000001", name) for name in ("one", "two", "three", "four")] == [True, False, True, True]
    assert cache._seats == 30
    pages.names = [f"S{n:06}" for n in range(31)]
    await loaded(cache, "stadium")
    assert not knows(cache, "S000001", "stadium")
    assert cache._seats <= 30


async def test_events_do_not_evict_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more events are sold than fit, caching them in turn would cost more than reading."""
    monkeypatch.setattr(module, "SEATS_MAX", 30)
    pages = Pages(10)
    cache = SeatCache(pages.read, requests_per_page=0)
    names = ("one", "two", "three", "four")
    for _ in range(5):
        for name in names:
            await loaded(cache, name)
            knows(cache, "S000001", name)
    assert [knows(cache, "S000001", name) for name in names] == [True, True, True, False]
    assert (pages.reads, cache._seats) == (4, 30)


async def test_an_event_is_read_as_fast_as_it_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page for every so many requests, and known only when all of it is."""
    monkeypatch.setattr(module, "PAGE", 4)
    pages = Pages(10)
    cache = SeatCache(pages.read, requests_per_page=5)
    read = []
    for _ in range(16):
        await loaded(cache, "play")
        read.append(pages.reads)
    assert read == [0] * 4 + [1] * 5 + [2] * 5 + [3] * 2
    assert knows(cache, "S000009")
    for requests, reads in ((8, False), (0, False), (2, True)):
        cache.keep_events([an_event("one"), an_event("two")], now=NOW, requests=requests)
        assert (cache._reading is not None) is reads
    await cache.close()


async def test_what_was_given_is_not_counted_twice() -> None:
    """The bound is on what is cached, so the count must be right."""
    cache = SeatCache(Pages(10).read, requests_per_page=0)
    await loaded(cache, "play")
    ref = SeatRef(EventId("play"), SeatId("S000001"))
    cache.remove_seats([ref])
    cache.remove_seats([ref])
    assert cache._seats == 9
    cache.drop_outdated([EventId("play")])
    assert cache._seats == 0


async def test_an_uncertain_event_is_read_for_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five seconds, then twice as long each time, up to a minute; then it is read again."""
    moment = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: moment))
    pages = Pages(10)
    cache = SeatCache(pages.read, requests_per_page=0)
    lasted = []
    for _ in range(6):
        await loaded(cache, "play")
        cache.drop_outdated([EventId("play")])
        began = moment
        while cache._is_left_out(EventId("play")):
            cache.keep_events([an_event()], now=NOW)
            assert not cache._reading
            moment += 0.5
        lasted.append(moment - began)
    assert lasted == [5, 10, 20, 40, 60, 60]


# Pools: cached as they were read last, and compared when they are written.


async def with_cached_pool(database: RaceDatabase, *, shortcut: Shortcut = AS_BUILT) -> Server:
    """A server that has sold units, and has the pool in its cache by now."""
    server = await with_cached_event(database, shortcut=shortcut)
    granted(await server.submit(a_hold(units=1, buyer="eve")).outcome())
    server.store.ran.clear()
    return server


async def test_units_are_sold_without_a_read(either_database: RaceDatabase) -> None:
    """One call, and the cached counts follow what was sold."""
    server = await with_cached_pool(either_database)
    for buyer in ("ann", "bob"):
        granted(await server.submit(a_hold(units=1, buyer=buyer)).outcome())
    assert server.store.ran == ["memory", "memory"]
    pool = server.store.seat_cache.pools([PoolRef(EVENT, PoolId("GA"))])
    assert pool is not None
    counted = await either_database.observer.fetchval("SELECT held FROM pools WHERE id = 'GA'")
    assert pool[PoolRef(EVENT, PoolId("GA"))].held == counted
    assert not await either_database.flaws()


async def test_the_cache_sells_no_unit_that_another_process_has_sold(either_database: RaceDatabase) -> None:
    """The cache has some left; the write counts them."""
    server = await with_cached_pool(either_database)
    free = await either_database.observer.fetchval("SELECT capacity - held - sold FROM pools WHERE id = 'GA'")
    await by_another(either_database, a_hold(units=free, buyer="cid"))
    assert isinstance(await server.submit(a_hold(units=1)).outcome(), PoolExhausted)
    assert server.store.ran[0] == "memory"
    assert not await either_database.flaws()


async def test_units_are_sold_for_the_current_price(either_database: RaceDatabase) -> None:
    """Also when they were priced by manual SQL, and the event does not show it."""
    server = await with_cached_pool(either_database)
    await either_database.observer.execute("UPDATE pools SET price = 99 WHERE id = 'GA'")
    assert granted(await server.submit(a_hold(units=1)).outcome()).total == 99
    assert server.store.ran == ["memory", "locks"]


async def test_without_their_price_units_are_sold_for_what_they_cost_once(bare_database: RaceDatabase) -> None:
    """The control."""
    server = await with_cached_pool(bare_database, shortcut=shortcuts.FORGETS_THE_PRICE_OF_UNITS)
    await bare_database.observer.execute("UPDATE pools SET price = 99 WHERE id = 'GA'")
    assert granted(await server.submit(a_hold(units=1)).outcome()).total != 99
    assert server.store.ran == ["memory"]
