"""What a process remembers of a house is only a guess: it spares a look, and sells nothing that is not so."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from earmark.domain.event import Event
from earmark.domain.ids import EventId, PoolId, PoolRef, SeatId, SeatRef
from earmark.domain.journal import IdempotencyKey
from earmark.engine.commands import ChangeEvent, Decided, KeyedRequest, Replayed
from earmark.engine.ports.store import Look
from earmark.errors import IdempotencyMismatch, LimitExceeded, PoolExhausted, SaleClosed, SeatsTaken
from earmark.store.postgres import recall as module
from earmark.store.postgres.recall import Recall

from . import shortcuts
from .commands import EVENT, IDS, SHOP, a_block, a_hold, a_limit, a_release, a_repricing
from .support import AS_BUILT, Shortcut, granted, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.domain.booking import Booking
    from earmark.engine.commands import Command
    from earmark.store.postgres.recall import Page

    from .support import House, Till


def a_window(**fields: datetime | None) -> ChangeEvent:
    """The operator changes when the event is on sale."""
    return ChangeEvent(actor=SHOP, entry_id=IDS.entry_id(), event_id=EVENT, fields=fields)


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


async def remembering(services: House, *stops: str, shortcut: Shortcut = AS_BUILT) -> Till:
    """A till that has looked once, and by now remembers the house."""
    await services.observer.execute(shortcut.prepare)
    payments = await services.payments(drafts=True, memory=True, connections_max=6, shortcut=shortcut)
    await payments.ask(a_hold("B9", buyer="eve")).outcome()
    await until(lambda: payments.store._recall._houses)
    payments.store.ran.clear()
    payments.stop_at(*stops)
    return payments


async def by_another(services: House, ask: Command) -> Any:
    """What another process makes of a request."""
    return await services.tried(ask)


def a_page(seats: list[SeatId]) -> Page:
    """Fresh seats that have only their ids."""
    return (1000, 0, seats, None, seats[-1], None, None, None, [None] * len(seats))


def weight(services: module.House) -> int:
    """Of what is remembered of its seats, in bytes."""
    return sys.getsizeof(services.free)


def test_a_house_that_is_sold_out_weighs_nothing() -> None:
    """What was remembered of its seats goes with them, though the event itself stays known."""
    event = Event(id=EVENT, name="Play", currency="EUR", live=True, created_at=datetime.now(UTC))
    services = module.House(event)
    seats = [SeatId(f"S{number}") for number in range(10_000)]
    assert services.add([a_page(seats)]) == 10_000
    full, empty = weight(services), sys.getsizeof({})
    for number, seat in enumerate(seats):
        assert services.give(seat)
        assert weight(services) <= max(full * (10_000 - number) * 2 * module.SPARSE / 10_000, full / 1000)
    assert weight(services) <= 2 * empty


def test_control_a_dictionary_keeps_its_room() -> None:
    """Why it is packed anew: emptied one by one, it stays as large as it ever was."""
    kept = dict.fromkeys(range(10_000))
    full = sys.getsizeof(kept)
    for number in range(10_000):
        del kept[number]
    assert sys.getsizeof(kept) == full


async def test_a_fresh_seat_is_sold_without_a_look(either_house: House) -> None:
    """One call; and what it says of price, moment and limits is what a look would have said."""
    payments = await remembering(either_house)
    held = granted(await payments.ask(a_hold("A1", "A2")).outcome())
    assert payments.store.ran == ["memory"]
    assert (held.total, held.version) == (2000, 1)
    assert abs((held.created_at - either_house.clock.now()).total_seconds()) < 1
    assert await either_house.owner("A1") == held.id
    assert isinstance(await payments.ask(a_hold("A1", buyer="cid")).outcome(), SeatsTaken)
    assert payments.store.ran == ["memory", "look"]
    assert not await either_house.flaws()


async def test_what_is_sold_without_a_look_has_its_names(either_house: House) -> None:
    """Alone and in company, a seat that is fresh and one that was let go: no statement is made for the names."""
    names = "section = 'Stalls', row_name = left(id, 1), number = substr(id, 2)::integer, category = 'best'"
    await either_house.observer.execute(f"UPDATE seats SET {names}")
    await by_another(either_house, a_release(granted(await by_another(either_house, a_hold("A2", buyer="dan")))))
    payments = await remembering(either_house)
    alone = granted(await payments.ask(a_hold("A1")).outcome())
    both = await payments.ask_together(a_hold("A2", buyer="cid"), a_hold("B3", buyer="eve")).outcome()
    assert set(payments.store.ran) == {"memory"}
    lines = [line for booking in (alone, *map(granted, both)) for line in booking.lines.seats]
    assert [(line.section, line.row, line.number, line.category) for line in lines] == [
        ("Stalls", "A", 1, "best"),
        ("Stalls", "A", 2, "best"),
        ("Stalls", "B", 3, "best"),
    ]
    kept = await either_house.observer.fetchval(
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
async def test_memory_sells_nothing_that_another_process_took_back(
    either_house: House, change: Command, told: type[Exception]
) -> None:
    """It believes the seat to be free and on sale; the write compares, and locks decide."""
    payments = await remembering(either_house)
    await by_another(either_house, change)
    assert isinstance(await payments.ask(a_hold("A1")).outcome(), told)
    assert payments.store.ran[:2] == ["memory", "locks"]
    assert not await either_house.flaws()


async def test_memory_sells_for_the_price_that_is_asked_now(either_house: House) -> None:
    """Also when it was priced by hand, and the event does not tell."""
    payments = await remembering(either_house)
    await either_house.observer.execute("UPDATE seats SET price = 99 WHERE id = 'A1'")
    assert granted(await payments.ask(a_hold("A1")).outcome()).total == 99
    assert payments.store.ran == ["memory", "locks"]
    await until(lambda: _remembers(payments))
    await by_another(either_house, a_repricing("A2", price=77))
    assert granted(await payments.ask(a_hold("A2")).outcome()).total == 77


async def _remembers(payments: Till) -> bool:
    """After a doubt it must look before it reads the house again."""
    payments.store._recall._doubts.clear()
    await payments.ask(a_hold("B8", buyer="eve")).outcome()
    return bool(payments.store._recall._houses)


async def test_memory_sells_no_seat_that_is_no_more(bare_house: House) -> None:
    """A hand removed it."""
    payments = await remembering(bare_house)
    await bare_house.observer.execute("DELETE FROM seats WHERE id = 'A1'")
    outcome = await payments.ask(a_hold("A1")).outcome()
    assert not isinstance(outcome, Decided)
    assert not await bare_house.flaws()


async def test_without_the_rules_memory_sells_what_is_not_on_sale(bare_house: House) -> None:
    """The control: a seat tells nothing about its event."""
    payments = await remembering(bare_house, shortcut=shortcuts.FORGETS_THE_RULES)
    await by_another(bare_house, a_window(sale_opens_at=in_an_hour()))
    for outcome in await payments.ask_together(a_hold("A1"), a_hold("A2", buyer="cid")).outcome():
        granted(outcome)
    assert payments.store.ran == ["memory"]


async def test_memory_refuses_nobody(services: House) -> None:
    """It knew that the sale had not begun; meanwhile the operator opened it, here or elsewhere."""
    await by_another(services, a_window(sale_opens_at=in_an_hour()))
    payments = await remembering(services)
    assert isinstance(await payments.ask(a_hold("A1")).outcome(), SaleClosed)
    await by_another(services, a_window(sale_opens_at=None))
    granted(await payments.ask(a_hold("A1")).outcome())
    granted(await payments.ask(a_hold("A2")).outcome())


async def test_a_limit_that_was_raised_holds_at_once(services: House) -> None:
    """As above, for what one buyer may have, alone and in a batch with somebody who may have it anyway."""
    await by_another(services, a_limit(1))
    payments = await remembering(services)
    assert isinstance(await payments.ask(a_hold("A1", "A2")).outcome(), LimitExceeded)
    await by_another(services, a_limit(5))
    granted(await payments.ask(a_hold("A1", "A2")).outcome())
    for outcome in await payments.ask_together(a_hold("A3", "A4", buyer="cid"), a_hold("A5", buyer="dan")).outcome():
        granted(outcome)
    assert not await services.flaws()


async def test_a_key_is_remembered_by_the_store_and_not_by_memory(either_house: House) -> None:
    """A key that was used elsewhere, for this or for another request, has its one effect."""
    idempotency = KeyedRequest(
        key=IdempotencyKey("shop", "k"), request_hash=b"one", write=lambda booking, _: (201, str(booking.id).encode())
    )
    other = KeyedRequest(key=IdempotencyKey("shop", "k"), request_hash=b"two", write=idempotency.write)
    payments = await remembering(either_house)
    first = granted(await by_another(either_house, a_hold("A1", idempotency=idempotency)))
    replayed = await payments.ask(a_hold("A1", idempotency=idempotency)).outcome()
    assert isinstance(replayed, Replayed)
    assert replayed.record.body == str(first.id).encode()
    await until(lambda: _remembers(payments))
    assert isinstance(await payments.ask(a_hold("A2", idempotency=other)).outcome(), IdempotencyMismatch)
    assert await either_house.owner("A2") is None
    assert not await either_house.flaws()


@pytest.mark.parametrize("seconds", [-1.5, 0.5, 3600.0])
async def test_a_moment_that_is_not_the_server_s_is_not_used(either_house: House, seconds: float) -> None:
    """The process was paused, or one of the clocks was set: nothing is kept, and the server says what time it is."""
    payments = await remembering(either_house)
    wrong(payments, seconds=seconds)
    held = granted(await payments.ask(a_hold("A1")).outcome())
    assert payments.store.ran == ["memory", "locks"]
    assert abs((held.created_at - either_house.clock.now()).total_seconds()) < 0.4


async def test_without_the_hour_a_hold_ends_when_it_should_not(bare_house: House) -> None:
    """The control: it would run an hour longer than anybody agreed to."""
    payments = await remembering(bare_house, shortcut=shortcuts.FORGETS_THE_HOUR)
    wrong(payments, seconds=3600)
    for outcome in await payments.ask_together(a_hold("A1"), a_hold("A2", buyer="cid")).outcome():
        assert granted(outcome).created_at > bare_house.clock.now() + timedelta(minutes=59)


def wrong(payments: Till, *, seconds: float) -> None:
    """Let the clock that is remembered be wrong by so much."""
    clock = payments.store._recall._clock
    assert clock is not None
    payments.store._recall._clock = (clock[0] + timedelta(seconds=seconds), clock[1])


async def test_a_pause_between_memory_and_write_is_noticed(services: House) -> None:
    """The process stood still for longer than a second; the moment that it remembered is over."""
    payments = await remembering(services, "before write")
    payments.ask(a_hold("A1"))
    await payments.reached("before write")
    began = time.monotonic()
    await until(lambda: time.monotonic() - began > 1.05)
    granted(await payments.outcome())
    assert payments.store.ran == ["memory", "locks"]
    assert not await services.flaws()


async def test_a_clock_that_was_read_long_ago_is_read_again(services: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks drift apart: after a while nobody reckons on."""
    payments = await remembering(services)
    monkeypatch.setattr(module, "CLOCK_SECONDS_MAX", 0.0)
    granted(await payments.ask(a_hold("A1")).outcome())
    assert payments.store.ran == ["look"]


async def test_time_that_a_test_moves_is_moved_in_memory_too(services: House) -> None:
    """The offset is not part of what is remembered."""
    payments = await remembering(services)
    services.clock.advance(3600)
    held = granted(await payments.ask(a_hold("A1")).outcome())
    assert payments.store.ran == ["memory"]
    assert abs((held.created_at - services.clock.now()).total_seconds()) < 1


async def test_a_seat_that_was_let_go_is_looked_at(services: House) -> None:
    """Memory knows seats as they were when their house was read; one that comes back later is found by a look."""
    payments = await remembering(services)
    held = granted(await payments.ask(a_hold("A1")).outcome())
    await by_another(services, a_release(held))
    granted(await payments.ask(a_hold("A1", buyer="cid")).outcome())
    assert payments.store.ran == ["memory", "look"]
    assert not await services.flaws()


async def left_behind(services: House, *names: str) -> list[Booking]:
    """Seats that somebody held and let go of, before anybody remembers them."""
    left = [granted(await by_another(services, a_hold(name, buyer="fay"))) for name in names]
    for held in left:
        await by_another(services, a_release(held))
    return left


async def test_a_seat_that_an_ended_booking_left_is_sold_without_a_look(either_house: House) -> None:
    """Alone and with others: what has ended may be remembered, and the write compares the pointer and the fence."""
    await left_behind(either_house, "A1", "A2")
    payments = await remembering(either_house)
    first = granted(await payments.ask(a_hold("A1")).outcome())
    second, third = await payments.ask_together(a_hold("A2", buyer="cid"), a_hold("A3", buyer="dan")).outcome()
    assert payments.store.ran == ["memory", "memory"]
    for seat, held in (("A1", first), ("A2", granted(second)), ("A3", granted(third))):
        assert await either_house.owner(seat) == held.id
    assert not await either_house.flaws()


async def test_memory_does_not_know_a_seat_that_somebody_has(either_house: House) -> None:
    """Held, with time left or without: whether its time is over is judged on the locked booking, never remembered."""
    held = granted(await by_another(either_house, a_hold("A1", buyer="fay")))
    payments = await remembering(either_house)
    assert isinstance(await payments.ask(a_hold("A1")).outcome(), SeatsTaken)
    assert payments.store.ran == ["look"]
    assert await either_house.owner("A1") == held.id


EXPIRED = "UPDATE bookings SET state = 'expired' WHERE state = 'released'"
RECLAIM = """
BEGIN;
UPDATE seats SET fence = fence + 1 WHERE booking_id = '{0}';
UPDATE bookings SET state = 'confirmed', confirmed_at = now(), version = version + 1 WHERE id = '{0}';
COMMIT;
"""


async def test_memory_sells_no_seat_that_late_money_has_bought_back(bare_house: House) -> None:
    """What had ended lives again, and its pointer is the same: the fence tells."""
    left = await left_behind(bare_house, "A1")
    await bare_house.observer.execute(EXPIRED)
    payments = await remembering(bare_house)
    await bare_house.observer.execute(RECLAIM.format(left[0].id))
    assert isinstance(await payments.ask(a_hold("A1")).outcome(), SeatsTaken)
    assert payments.store.ran == ["memory", "locks"]
    assert await bare_house.owner("A1") == left[0].id


async def test_without_the_fence_memory_sells_what_late_money_has_bought_back(bare_house: House) -> None:
    """The control: pointer and price are as they were remembered, and a sale loses its seat."""
    left = await left_behind(bare_house, "A1")
    await bare_house.observer.execute(EXPIRED)
    payments = await remembering(bare_house, shortcut=shortcuts.FORGETS_THE_FENCE)
    await bare_house.observer.execute(RECLAIM.format(left[0].id))
    held = granted(await payments.ask(a_hold("A1")).outcome())
    assert await bare_house.owner("A1") == held.id
    assert await bare_house.flaws()


async def test_without_the_pointer_memory_takes_a_seat_from_its_owner(bare_house: House) -> None:
    """The control: the seat was remembered as left, and somebody has held it since."""
    await left_behind(bare_house, "A1")
    payments = await remembering(bare_house, shortcut=shortcuts.FORGETS_THE_POINTER)
    other = granted(await by_another(bare_house, a_hold("A1", buyer="cid")))
    assert await bare_house.owner("A1") == other.id
    assert granted(await payments.ask(a_hold("A1")).outcome()).id == await bare_house.owner("A1")
    assert await bare_house.flaws()


# The memory by itself, with pages that a test hands out.

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Pages:
    """A house of so many seats, read page by page as the test allows."""

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
    return Event(id=EventId(name), name="Play", currency="EUR", live=True, created_at=NOW)


def looking_for(seat: str, event: str = "play") -> Look:
    return Look(events=[EventId(event)], seats=[SeatRef(EventId(event), SeatId(seat))])


def knows(recall: Recall, seat: str, event: str = "play") -> bool:
    return recall.of(looking_for(seat, event), offset=timedelta(0)) is not None


async def loaded(recall: Recall, *names: str) -> None:
    """Learn of events, one after the other."""
    for name in names:
        recall.learn([an_event(name)], now=NOW)
        await until(lambda: not recall._reading)


async def test_a_seat_given_away_while_its_house_is_read_is_not_fresh() -> None:
    """It was read before it was given, and is remembered after."""
    pages = Pages(10)
    pages.after = 1
    pages.may_go_on.clear()
    recall = Recall(pages.read, requests_per_page=0)
    recall.learn([an_event()], now=NOW)
    await until(lambda: pages.reads)
    recall.gave([SeatRef(EventId("play"), SeatId("S000003"))])
    pages.may_go_on.set()
    await until(lambda: not recall._reading)
    assert knows(recall, "S000002")
    assert not knows(recall, "S000003")


async def test_one_house_is_read_at_a_time_and_nobody_waits_for_it() -> None:
    """Whoever asks meanwhile is told that nothing is remembered; the next house is read by itself."""
    pages = Pages(10)
    pages.after = 1
    pages.may_go_on.clear()
    recall = Recall(pages.read, requests_per_page=0)
    recall.learn([an_event("one"), an_event("two")], now=NOW)
    recall.learn([an_event("two")], now=NOW)
    assert not knows(recall, "S000001", "one")
    await until(lambda: knows(recall, "S000001", "one"))
    assert recall._reading is not None
    assert not knows(recall, "S000001", "two")
    assert pages.reads == 1
    pages.may_go_on.set()
    await until(lambda: not recall._reading)
    assert knows(recall, "S000001", "two")
    assert pages.reads == 2


async def test_a_house_that_cannot_be_read_is_not_remembered() -> None:
    """Nor is it half remembered; the next look tries again."""
    pages = Pages(10)
    pages.broken = True
    recall = Recall(pages.read, requests_per_page=0)
    await loaded(recall, "play")
    assert not knows(recall, "S000001")
    pages.broken = False
    await loaded(recall, "play")
    assert knows(recall, "S000001")


async def test_reading_stops_when_the_store_closes() -> None:
    """Nothing is left running."""
    pages = Pages(10)
    recall = Recall(pages.read, requests_per_page=0)
    recall.learn([an_event()], now=NOW)
    pages.may_go_on.clear()
    await asyncio.sleep(0)
    task = recall._reading
    assert task is not None
    await recall.close()
    assert task.done()
    await recall.close()


async def test_memory_is_bounded_and_the_house_used_last_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that nobody asked for in a while go first; a house too large for all of it is not remembered."""
    monkeypatch.setattr(module, "SEATS_MAX", 30)
    monkeypatch.setattr(module, "PAGE", 4)
    monkeypatch.setattr(module, "KEPT_SECONDS", 0.0)
    pages = Pages(10)
    recall = Recall(pages.read, requests_per_page=0)
    await loaded(recall, "one", "two", "three")
    assert knows(recall, "S000001", "one")
    await loaded(recall, "four")
    assert [knows(recall, "S000001", name) for name in ("one", "two", "three", "four")] == [True, False, True, True]
    assert recall._seats == 30
    pages.names = [f"S{n:06}" for n in range(31)]
    await loaded(recall, "stadium")
    assert not knows(recall, "S000001", "stadium")
    assert recall._seats <= 30


async def test_houses_do_not_push_each_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more houses are sold than can be remembered, reading them in turn would cost more than looking."""
    monkeypatch.setattr(module, "SEATS_MAX", 30)
    pages = Pages(10)
    recall = Recall(pages.read, requests_per_page=0)
    names = ("one", "two", "three", "four")
    for _ in range(5):
        for name in names:
            await loaded(recall, name)
            knows(recall, "S000001", name)
    assert [knows(recall, "S000001", name) for name in names] == [True, True, True, False]
    assert (pages.reads, recall._seats) == (4, 30)


async def test_a_house_is_read_as_fast_as_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page for every so many requests, and known only when all of it is."""
    monkeypatch.setattr(module, "PAGE", 4)
    pages = Pages(10)
    recall = Recall(pages.read, requests_per_page=5)
    read = []
    for _ in range(16):
        await loaded(recall, "play")
        read.append(pages.reads)
    assert read == [0] * 4 + [1] * 5 + [2] * 5 + [3] * 2
    assert knows(recall, "S000009")
    for requests, reads in ((8, False), (0, False), (2, True)):
        recall.learn([an_event("one"), an_event("two")], now=NOW, requests=requests)
        assert (recall._reading is not None) is reads
    await recall.close()


async def test_what_was_given_is_not_counted_twice() -> None:
    """The bound is on what is remembered, so the count must be right."""
    recall = Recall(Pages(10).read, requests_per_page=0)
    await loaded(recall, "play")
    ref = SeatRef(EventId("play"), SeatId("S000001"))
    recall.gave([ref])
    recall.gave([ref])
    assert recall._seats == 9
    recall.doubt([EventId("play")])
    assert recall._seats == 0


async def test_a_house_in_doubt_is_looked_at_for_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five seconds, then twice as long each time, up to a minute; then it is read again."""
    moment = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: moment))
    pages = Pages(10)
    recall = Recall(pages.read, requests_per_page=0)
    lasted = []
    for _ in range(6):
        await loaded(recall, "play")
        recall.doubt([EventId("play")])
        began = moment
        while recall._is_doubted(EventId("play")):
            recall.learn([an_event()], now=NOW)
            assert not recall._reading
            moment += 0.5
        lasted.append(moment - began)
    assert lasted == [5, 10, 20, 40, 60, 60]


# Pools: remembered as they were seen last, and compared when they are written.


async def remembering_a_pool(services: House, *, shortcut: Shortcut = AS_BUILT) -> Till:
    """A till that has sold units, and by now remembers the pool."""
    payments = await remembering(services, shortcut=shortcut)
    granted(await payments.ask(a_hold(units=1, buyer="eve")).outcome())
    payments.store.ran.clear()
    return payments


async def test_units_are_sold_without_a_look(either_house: House) -> None:
    """One call, and the counts that are remembered follow what was sold."""
    payments = await remembering_a_pool(either_house)
    for buyer in ("ann", "bob"):
        granted(await payments.ask(a_hold(units=1, buyer=buyer)).outcome())
    assert payments.store.ran == ["memory", "memory"]
    pool = payments.store._recall.pools([PoolRef(EVENT, PoolId("GA"))])
    assert pool is not None
    counted = await either_house.observer.fetchval("SELECT held FROM pools WHERE id = 'GA'")
    assert pool[PoolRef(EVENT, PoolId("GA"))].held == counted
    assert not await either_house.flaws()


async def test_memory_sells_no_unit_that_another_process_has_sold(either_house: House) -> None:
    """It believes that there are some left; the write counts them."""
    payments = await remembering_a_pool(either_house)
    free = await either_house.observer.fetchval("SELECT capacity - held - sold FROM pools WHERE id = 'GA'")
    await by_another(either_house, a_hold(units=free, buyer="cid"))
    assert isinstance(await payments.ask(a_hold(units=1)).outcome(), PoolExhausted)
    assert payments.store.ran[0] == "memory"
    assert not await either_house.flaws()


async def test_units_are_sold_for_the_price_that_is_asked_now(either_house: House) -> None:
    """Also when they were priced by hand, and the event does not tell."""
    payments = await remembering_a_pool(either_house)
    await either_house.observer.execute("UPDATE pools SET price = 99 WHERE id = 'GA'")
    assert granted(await payments.ask(a_hold(units=1)).outcome()).total == 99
    assert payments.store.ran == ["memory", "locks"]


async def test_without_their_price_units_are_sold_for_what_they_cost_once(bare_house: House) -> None:
    """The control."""
    payments = await remembering_a_pool(bare_house, shortcut=shortcuts.FORGETS_THE_PRICE_OF_UNITS)
    await bare_house.observer.execute("UPDATE pools SET price = 99 WHERE id = 'GA'")
    assert granted(await payments.ask(a_hold(units=1)).outcome()).total != 99
    assert payments.store.ran == ["memory"]
