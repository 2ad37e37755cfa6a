"""Choosing seats for many buyers in a large event: the queue has an end, and the search delays no other request."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from earmark.domain.bookable_event import Event
from earmark.domain.choose_best_seats import Wish, allocate
from earmark.domain.id_types import Buyer, EventId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.seat import Seat
from earmark.engine import hold_best_available as best_module
from earmark.engine.commands_and_results import Actor, CreateEvent, Decided, Hold
from earmark.engine.engine import Engine
from earmark.errors import NoneAvailable, Overloaded
from earmark.store.sqlite.memory import MemoryStore

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.engine.ports.store import SeatMap
    from earmark.uuids import Uuid7Ids

EVENT = EventId("concert")
SHOP = Actor(name="shop", mode=Mode.LIVE)
SEATS = 600
"""More than are searched at once, in the event loop."""
WAITING_MAX = 3
ALLOCATE = allocate


async def open_event(clock: MovableClock, ids: Uuid7Ids, *, seats: int = SEATS, **limits: Any) -> Engine:
    """One long row."""
    engine = Engine(MemoryStore(clock=clock), ids=ids, **limits)
    event = Event(id=EVENT, name="A concert", currency="EUR", mode=Mode.LIVE, created_at=clock.now())
    row = tuple(Seat(event_id=EVENT, id=SeatId(f"A{n}"), price=1, row="A", number=n) for n in range(1, seats + 1))
    await engine.create_event(CreateEvent(actor=SHOP, entry_id=ids.entry_id(), event=event, seats=row))
    return engine


def command(ids: Uuid7Ids, buyer: str = "ann") -> Hold:
    return Hold(actor=SHOP, entry_id=ids.entry_id(), booking_id=ids.booking_id(), event_id=EVENT, buyer=Buyer(buyer))


class SlowMaps:
    """A store whose maps take as long as a test likes."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_read = asyncio.Event()
        self.readings = 0
        self._read_map = engine.store.read_map
        monkeypatch.setattr(engine.store, "read_map", self._slow)

    async def _slow(self, event_id: EventId) -> SeatMap:
        self.readings += 1
        await self.may_read.wait()
        return await self._read_map(event_id)


async def turns(count: int = 20) -> None:
    """Let the others go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def searched_beside_the_loop(
    engine: Engine, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch, *, patience: float
) -> bool:
    """Whether the event loop went on during a search that lasts until the loop has said something."""
    said = threading.Event()
    heard: list[bool] = []
    search = ALLOCATE

    def waiting(*seats: Any, **how: Any) -> Any:
        asyncio.run_coroutine_threadsafe(say(), loop)
        heard.append(said.wait(timeout=patience))
        return search(*seats, **how)

    async def say() -> None:
        said.set()

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(best_module, "allocate", waiting)
    answer = await engine.hold_best(command(ids), Wish(count=4))
    assert isinstance(answer, Decided)
    return all(heard)


async def test_the_event_loop_goes_on_while_seats_are_searched(
    clock: MovableClock, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search over a stadium takes a good part of a second, and other requests do not wait for it."""
    engine = await open_event(clock, ids)
    assert await searched_beside_the_loop(engine, ids, monkeypatch, patience=10)


async def test_a_search_in_the_event_loop_stops_it(
    clock: MovableClock, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the same search without the thread."""
    engine = await open_event(clock, ids)
    monkeypatch.setattr(best_module, "AT_ONCE_MAX", 10**9)
    assert not await searched_beside_the_loop(engine, ids, monkeypatch, patience=0.2)


async def test_a_queue_that_is_full_refuses_at_once_and_takes_requests_again_when_it_is_not(
    clock: MovableClock, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the queues of other verbs do, by the same setting."""
    engine = await open_event(clock, ids, waiting_max=WAITING_MAX)
    maps = SlowMaps(engine, monkeypatch)
    waiting = [asyncio.create_task(engine.hold_best(command(ids, f"b{n}"), Wish(count=1))) for n in range(WAITING_MAX)]
    await turns()
    with pytest.raises(Overloaded):
        await asyncio.wait_for(engine.hold_best(command(ids, "late"), Wish(count=1)), timeout=2)
    maps.may_read.set()
    assert all(isinstance(answer, Decided) for answer in await asyncio.gather(*waiting))
    assert isinstance(await engine.hold_best(command(ids, "late"), Wish(count=1)), Decided)


async def test_a_cancelled_request_leaves_nothing_in_the_queue(
    clock: MovableClock, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that hang up while a map is read, thousands of them, are not kept until it has been read."""
    engine = await open_event(clock, ids)
    SlowMaps(engine, monkeypatch)
    for _ in range(10):
        leaving = [asyncio.create_task(engine.hold_best(command(ids), Wish(count=1))) for _ in range(100)]
        await turns()
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
    [house] = engine._best._pending.values()
    assert len(house.waiting) < 200
    assert engine._best._waiting == 0


async def test_a_request_without_an_offer_wakes_no_other_request(
    clock: MovableClock, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One waits for seats that are offered to another; requests that get nothing do not make it read again."""
    engine = await open_event(clock, ids, seats=4)
    maps = SlowMaps(engine, monkeypatch)
    maps.may_read.set()
    decide = asyncio.Event()
    hold = engine._best._hold

    async def slow(one: Hold, *, within: float) -> Any:
        if one.buyer == "slow":
            await decide.wait()
        return await hold(one, within=within)

    monkeypatch.setattr(engine._best, "_hold", slow)
    first = asyncio.create_task(engine.hold_best(command(ids, "slow"), Wish(count=4)))
    await turns()
    parked = asyncio.create_task(engine.hold_best(command(ids, "parked"), Wish(count=4)))
    await turns()
    before = maps.readings
    for number in range(5):
        with pytest.raises(NoneAvailable):
            await engine.hold_best(command(ids, f"b{number}"), Wish(count=9))
        await turns()
    assert maps.readings - before == 5, "one for each request, and none for the waiting one"
    decide.set()
    assert isinstance(await first, Decided)
    with pytest.raises(NoneAvailable):
        await parked


async def test_an_offer_decided_during_a_search_is_looked_at_again(
    clock: MovableClock, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that would wait for it has nothing to wait for any more, and must not wait for ever."""
    engine = await open_event(clock, ids)
    offered, decide = asyncio.Event(), asyncio.Event()
    searching, may_end = threading.Event(), threading.Event()
    hold, search = engine._best._hold, ALLOCATE

    async def slow(one: Hold, *, within: float) -> Any:
        if one.buyer == "slow":
            offered.set()
            await decide.wait()
            raise NoneAvailable(asked=0, available=0)
        return await hold(one, within=within)

    monkeypatch.setattr(engine._best, "_hold", slow)
    first = asyncio.create_task(engine.hold_best(command(ids, "slow"), Wish(count=SEATS)))
    await asyncio.wait_for(offered.wait(), timeout=30)

    def long(*seats: Any, **how: Any) -> Any:
        searching.set()
        assert may_end.wait(timeout=30)
        return search(*seats, **how)

    monkeypatch.setattr(best_module, "allocate", long)
    second = asyncio.create_task(engine.hold_best(command(ids, "second"), Wish(count=SEATS)))
    assert await asyncio.to_thread(searching.wait, 30)
    decide.set()
    with pytest.raises(NoneAvailable):
        await first
    may_end.set()
    assert isinstance(await asyncio.wait_for(second, timeout=30), Decided)
