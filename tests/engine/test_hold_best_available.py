"""Choosing seats for many buyers: no request waits for ever, no offered seat is lost, and the search has an end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from earmark.domain.bookable_event import Event
from earmark.domain.choose_best_seats import Wish
from earmark.domain.id_types import Buyer, EventId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.seat import Seat
from earmark.engine.commands_and_results import Actor, CreateEvent, Decided, Hold
from earmark.engine.engine import Engine
from earmark.engine.hold_best_available import ROUNDS_MAX, BestSeats
from earmark.errors import NoneAvailable, Overloaded, SeatsTaken
from earmark.store.sqlite.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.clock import MovableClock
    from earmark.engine.commands_and_results import Result
    from earmark.engine.ports.store import SeatMap
    from earmark.uuids import Uuid7Ids

EVENT = EventId("concert")
SHOP = Actor(name="shop", mode=Mode.LIVE)
PATIENCE = 30.0


@pytest.fixture
async def engine(clock: MovableClock, ids: Uuid7Ids) -> Engine:
    """Four seats in a row."""
    made = Engine(MemoryStore(clock=clock), ids=ids)
    event = Event(id=EVENT, name="A concert", currency="EUR", mode=Mode.LIVE, created_at=clock.now())
    seats = tuple(Seat(event_id=EVENT, id=SeatId(f"A{n}"), price=1, row="A", number=n) for n in range(1, 5))
    await made.create_event(CreateEvent(actor=SHOP, entry_id=ids.entry_id(), event=event, seats=seats))
    return made


def command(ids: Uuid7Ids, buyer: str = "ann") -> Hold:
    return Hold(actor=SHOP, entry_id=ids.entry_id(), booking_id=ids.booking_id(), event_id=EVENT, buyer=Buyer(buyer))


def chooser(engine: Engine, hold: Callable[[Hold], Awaitable[Result]]) -> BestSeats:
    def holding(one: Hold, *, within: float) -> Awaitable[Result]:
        assert within <= PATIENCE
        return hold(one)

    return BestSeats(engine.store, hold=holding)


async def turns(true: Callable[[], bool]) -> None:
    """Let the others go on until a fact is so."""
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never was so")


async def test_a_request_that_is_always_too_late_is_refused_in_the_end(engine: Engine, ids: Uuid7Ids) -> None:
    """A bounded number of times it chooses again, and then the refusal says that it may succeed later."""
    tried: list[tuple[SeatId, ...]] = []

    async def too_late(one: Hold) -> Result:
        tried.append(one.seats)
        raise SeatsTaken(seats=one.seats)

    best = chooser(engine, too_late)
    with pytest.raises(SeatsTaken) as refused:
        await best.hold(command(ids), Wish(count=2), within=PATIENCE)
    assert len(tried) == ROUNDS_MAX
    assert refused.value.transient
    assert not best._pending, "nothing is left behind"


async def test_a_request_that_waits_for_anothers_offer_gets_it_if_it_is_not_taken(
    engine: Engine, ids: Uuid7Ids
) -> None:
    """The last seats are on offer to one; the next is not sent away before that is decided."""
    decide: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def hold(one: Hold) -> Result:
        if one.buyer == "slow":
            await decide
            raise NoneAvailable(asked=0, available=0)
        return await engine.hold(one)

    best = chooser(engine, hold)
    slow = asyncio.create_task(best.hold(command(ids, "slow"), Wish(count=4), within=PATIENCE))
    await turns(lambda: bool(best._pending) and bool(best._pending[EVENT].offered))
    next_ = asyncio.create_task(best.hold(command(ids, "next"), Wish(count=4), within=PATIENCE))
    await turns(lambda: bool(best._pending[EVENT].parked))
    decide.set_result(None)
    with pytest.raises(NoneAvailable):
        await slow
    answer = await next_
    assert isinstance(answer, Decided)
    assert len(answer.value.lines.seats) == 4
    assert not best._pending


async def test_an_offer_to_a_caller_that_left_is_made_to_the_next(engine: Engine, ids: Uuid7Ids) -> None:
    """A caller that hangs up while it is being chosen for keeps no seat from the others."""
    best = chooser(engine, engine.hold)
    for _ in range(3):
        leaving = asyncio.create_task(best.hold(command(ids), Wish(count=4), within=PATIENCE))
        for _turn in range(2):
            await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
    answer = await best.hold(command(ids), Wish(count=4), within=PATIENCE)
    assert isinstance(answer, Decided)
    assert not best._pending
    with pytest.raises(NoneAvailable) as none:
        await best.hold(command(ids, "bob"), Wish(count=1), within=PATIENCE)
    assert (none.value.available, none.value.transient) == (0, True)
    await best.close()


async def test_a_choice_that_takes_too_long_is_answered_at_the_deadline(
    engine: Engine, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The map is never read to its end: the request was not begun, and keeps no seat from others."""
    may_read = asyncio.Event()
    read_map = engine.store.read_map

    async def slow(event_id: EventId) -> SeatMap:
        await may_read.wait()
        return await read_map(event_id)

    monkeypatch.setattr(engine.store, "read_map", slow)
    best = chooser(engine, engine.hold)
    with pytest.raises(Overloaded):
        await best.hold(command(ids), Wish(count=4), within=0.01)
    may_read.set()
    answer = await best.hold(command(ids, "bob"), Wish(count=4), within=PATIENCE)
    assert isinstance(answer, Decided)
    assert not best._pending


async def test_the_rounds_of_one_request_share_one_deadline(engine: Engine, ids: Uuid7Ids) -> None:
    """A request that chooses again has the remaining time, not as much again."""
    left: list[float] = []

    async def too_late(one: Hold, *, within: float) -> Result:
        left.append(within)
        await asyncio.sleep(0.001)
        raise SeatsTaken(seats=one.seats)

    best = BestSeats(engine.store, hold=too_late)
    with pytest.raises(SeatsTaken):
        await best.hold(command(ids), Wish(count=2), within=PATIENCE)
    assert len(left) == ROUNDS_MAX
    assert PATIENCE > left[0] > left[-1]
    assert left == sorted(left, reverse=True)


async def test_seats_that_another_request_is_being_given_are_not_chosen_again_at_once(
    engine: Engine, ids: Uuid7Ids
) -> None:
    """The map shows them as free until that request commits; the next best ones are free for certain."""
    in_flight: set[SeatId] = set()
    tried: list[tuple[SeatId, ...]] = []

    async def refuse_what_is_in_flight(one: Hold) -> Result:
        tried.append(one.seats)
        in_flight.update(one.seats if len(tried) == 1 else ())
        if in_flight & set(one.seats):
            raise SeatsTaken(seats=sorted(in_flight & set(one.seats)), transient=True)
        return await engine.hold(one)

    answer = await chooser(engine, refuse_what_is_in_flight).hold(command(ids), Wish(count=2), within=PATIENCE)
    assert isinstance(answer, Decided)
    assert len(tried) == 2
    assert not set(tried[0]) & set(tried[1])


async def test_where_only_avoided_seats_are_left_they_are_tried_again(engine: Engine, ids: Uuid7Ids) -> None:
    """The avoided seats are tried again in the round after, and held once they are free."""
    tries = 0

    async def free_in_the_end(one: Hold) -> Result:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise SeatsTaken(seats=one.seats, transient=True)
        return await engine.hold(one)

    everything = len((await engine.store.read_map(EVENT)).seats)
    answer = await chooser(engine, free_in_the_end).hold(command(ids), Wish(count=everything), within=PATIENCE)
    assert isinstance(answer, Decided)
    assert tries == 3


async def test_where_only_avoided_seats_are_left_and_stay_taken_the_hold_is_refused(
    engine: Engine, ids: Uuid7Ids
) -> None:
    """Every other round avoids them, and after the last round the refusal says that it may succeed later."""
    tried: list[tuple[SeatId, ...]] = []

    async def too_late(one: Hold) -> Result:
        tried.append(one.seats)
        raise SeatsTaken(seats=one.seats, transient=True)

    everything = {on_map.seat.id for on_map in (await engine.store.read_map(EVENT)).seats}
    best = chooser(engine, too_late)
    with pytest.raises(SeatsTaken) as refused:
        await best.hold(command(ids), Wish(count=len(everything)), within=PATIENCE)
    assert refused.value.transient
    assert set(refused.value.seats) == everything
    assert len(tried) == ROUNDS_MAX // 2
    assert not best._pending
