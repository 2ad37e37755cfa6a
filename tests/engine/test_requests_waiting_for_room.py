"""Room is made beside the batches: what needs none goes on, and what needs some costs few transactions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.engine.conftest import NOW

from earmark.domain.id_types import Buyer, EventId, TotalRef
from earmark.engine import requests_waiting_for_room
from earmark.engine.commands_and_results import Decided, TryAgain
from earmark.engine.group_commit import BatchQueue
from earmark.engine.requests_waiting_for_locked_rows import BlockedRows
from earmark.engine.requests_waiting_for_room import RequestsWaitingForRoom
from earmark.engine.verbs.expire import Room
from earmark.errors import (
    IdempotencyInProgress,
    LimitExceeded,
    Overloaded,
    PoolExhausted,
    RowBusy,
    SeatsTaken,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.engine.conftest import QueueUnderTest

    from earmark.engine.commands_and_results import Outcome, Row
    from earmark.engine.queued_request import QueuedRequest

    Turn = Callable[[], Awaitable[None]]

MOVED = TryAgain(refusal=SeatsTaken(seats=("A1",), transient=True), rounds_max=3)


def full_pool(pool: str) -> TryAgain:
    """Refused, unless lapsed holds of this pool can be ended."""
    return TryAgain(refusal=PoolExhausted(pool=pool, asked=1, available=0), rounds_max=20, full=pool, short=1)


class RoomMaker:
    """Makes room only when the test says so."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def make_room_in(self, *_: Any, **__: Any) -> Room:
        """Wait for the test."""
        self.begun.set()
        await self.may_end.wait()
        return Room(ended=1, units=1, passed_over=False)


async def one_of_three_without_room(queue: QueueUnderTest, turn: Turn) -> tuple[RoomMaker, asyncio.Task[object]]:
    """1 needs room, 2 moved, and 3 comes while room is being made; 1 and 3 want the same seat."""
    room_maker = RoomMaker()
    queue.batcher._without_room._make_room_in = room_maker.make_room_in
    queue.submit(1)
    queue.submit(2)
    (await queue.store.next()).commit(full_pool("GA"), MOVED)
    await asyncio.wait_for(room_maker.begun.wait(), timeout=5)
    later = queue.submit(3)
    await turn()
    return room_maker, later


async def test_a_request_that_needs_no_room_waits_for_none(queue_of: Callable[..., QueueUnderTest], turn: Turn) -> None:
    """Neither the others of the batch, nor later ones that want a seat of the request without room."""
    queue = queue_of(wants={1: "A", 2: "B", 3: "A"})
    room_maker, later = await one_of_three_without_room(queue, turn)
    (await queue.store.next()).commit()
    (await queue.store.next()).commit()
    assert await later == 3
    assert queue.store.carried == [(1, 2), (2,), (3,)]
    room_maker.may_end.set()
    (await queue.store.next()).commit()
    assert await queue.requests[0] == 1


async def test_control_room_made_within_the_slot_stops_all(
    queue_of: Callable[..., QueueUnderTest], turn: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: the slot, and all that the batch claimed, wait until room was made."""
    decide = BatchQueue._decide

    async def decide_and_make_room(self: BatchQueue[Any], requests: Any, **options: Any) -> None:
        await decide(self, requests, **options)
        while self._without_room.tasks:
            await asyncio.wait(self._without_room.tasks)

    monkeypatch.setattr(BatchQueue, "_decide", decide_and_make_room)
    queue = queue_of(wants={1: "A", 2: "B", 3: "A"})
    _, later = await one_of_three_without_room(queue, turn)
    assert queue.store.carried == [(1, 2)]
    assert not later.done()


async def test_one_read_finds_which_pools_have_lapsed_holds(queue: QueueUnderTest) -> None:
    """Room is made only in those; the others refuse for good, after one more look at the counts."""
    requests = [queue.submit(number) for number in (1, 2, 3)]
    queue.store.due, queue.store.room = {"B"}, Room(ended=1, units=1, passed_over=False)
    (await queue.store.next()).commit(full_pool("A"), full_pool("B"), full_pool("C"))
    left = 3
    while left:
        batch = await queue.store.next()
        left -= len(batch.numbers)
        outcomes: dict[int, Outcome] = {1: full_pool("A"), 2: Decided(value=2, now=NOW), 3: full_pool("C")}
        batch.commit(*(outcomes[number] for number in batch.numbers))
    first, second, third = await asyncio.gather(*requests, return_exceptions=True)
    assert second == 2
    assert isinstance(first, PoolExhausted)
    assert isinstance(third, PoolExhausted)
    assert (first.transient, third.transient) == (False, False)
    assert (queue.store.reads, queue.store.times_room_was_made) == ([("A", "B", "C")], [("B", 1)])


async def test_where_one_pool_is_in_need_nothing_is_read_first(queue: QueueUnderTest) -> None:
    """Making room finds out by itself whether there is a lapsed hold: a read would be a transaction more."""
    queue.submit(1)
    queue.submit(2)
    (await queue.store.next()).commit(full_pool("A"), full_pool("A"))
    await queue.store.next()
    assert (queue.store.reads, queue.store.times_room_was_made) == ([], [("A", 2)])


async def test_a_read_that_fails_refuses_for_now(queue: QueueUnderTest) -> None:
    """It is not known that nothing is left, and making room in each pool would meet the same store."""

    async def broken(*_: Any, **__: Any) -> list[bool]:
        raise StoreUnavailable(because="it is being restarted")

    queue.batcher._without_room._have_due = broken
    requests = [queue.submit(number) for number in (1, 2)]
    (await queue.store.next()).commit(full_pool("A"), full_pool("B"))
    for told in await asyncio.gather(*requests, return_exceptions=True):
        assert isinstance(told, PoolExhausted)
        assert told.transient
    assert queue.store.times_room_was_made == []


async def fill(queue: QueueUnderTest, turn: Turn, *, units_of: str, numbers: Sequence[int]) -> RoomMaker:
    """These need room in one pool, and it is not made before the test says so."""
    room_maker = RoomMaker()
    queue.batcher._without_room._make_room_in = room_maker.make_room_in
    for number in numbers:
        queue.submit(number)
    await turn()
    (await queue.store.next()).commit(*(full_pool(units_of) for _ in numbers))
    await asyncio.wait_for(room_maker.begun.wait(), timeout=5)
    return room_maker


async def test_requests_that_wait_for_room_keep_no_other_out(
    queue_of: Callable[..., QueueUnderTest], turn: Turn
) -> None:
    """They count as waiting, but the queue is not full with them: a hold that needs no room is granted."""
    queue = queue_of(waiting_max=4)
    room_maker = await fill(queue, turn, units_of="GA", numbers=(1, 2, 3, 4))
    assert (queue.batcher.waiting, queue.batcher.is_full) == (2, False)
    other = queue.submit(5)
    (await queue.store.next()).commit()
    assert await other == 5
    room_maker.may_end.set()
    (await queue.store.next()).commit()
    assert await asyncio.gather(*queue.requests[:2]) == [1, 2]
    assert queue.batcher.waiting == 0


async def test_control_counted_with_the_queue_they_turn_others_away(
    queue_of: Callable[..., QueueUnderTest], turn: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: requests of one event that need room made the queue full for all events."""
    is_full = property(lambda queue: len(queue._queue) + len(queue._without_room) >= queue._waiting_max)
    monkeypatch.setattr(BatchQueue, "is_full", is_full)
    queue = queue_of(waiting_max=4)
    queue.batcher._without_room._waiting_max = 4
    await fill(queue, turn, units_of="GA", numbers=(1, 2, 3, 4))
    with pytest.raises(Overloaded):
        await queue.submit(5)


async def test_those_that_are_too_many_for_room_are_refused_for_now(
    queue_of: Callable[..., QueueUnderTest], turn: Turn
) -> None:
    """Half as many as the queue takes may wait: more would not be served in time."""
    queue = queue_of(waiting_max=4)
    await fill(queue, turn, units_of="GA", numbers=(1, 2, 3, 4))
    for told in await asyncio.gather(*queue.requests[2:], return_exceptions=True):
        assert isinstance(told, PoolExhausted)
        assert told.transient
    assert not any(request.done() for request in queue.requests[:2])


async def test_requests_that_were_answered_make_place_for_others(
    queue_of: Callable[..., QueueUnderTest], turn: Turn, jump: Callable[[float], None]
) -> None:
    """Those whose callers wait no longer are dropped before another request is refused."""
    queue = queue_of(waiting_max=4)
    room_maker = await fill(queue, turn, units_of="GA", numbers=(1,))
    brief = queue.submit(2, within=5)
    (await queue.store.next()).commit(full_pool("GA"))
    jump(6)
    with pytest.raises(PoolExhausted):
        await brief
    late = queue.submit(3)
    (await queue.store.next()).commit(full_pool("GA"))
    await turn()
    assert not late.done()
    room_maker.may_end.set()
    while not late.done():
        (await queue.store.next()).commit()
        await turn()
    assert await late == 3


FIRST, LATER = 11, 12
"""Two requests for one unit of a pool."""


class MakeRoomForBuyers:
    """Makes room in a pool at once, and for one buyer each time that the test says so."""

    def __init__(self) -> None:
        self.order: list[object] = []
        self.may_end = asyncio.Semaphore(0)

    async def make_room_in(self, room_maker: object, **_: Any) -> Room:
        """Note the order."""
        self.order.append(room_maker)
        if isinstance(room_maker, TotalRef):
            await self.may_end.acquire()
        return Room(ended=1, units=1, passed_over=False)


def full_buyer(number: int) -> TryAgain:
    """Refused for the limit, unless lapsed holds of this buyer can be ended."""
    over = LimitExceeded(limit=1, have=1, asked=1)
    return TryAgain(refusal=over, rounds_max=20, full=total_of(number), short=1)


def total_of(number: int) -> TotalRef:
    """What this buyer has."""
    return TotalRef(EventId("play"), Buyer(f"b{number}"))


async def pool_behind_ten_buyers(queue: QueueUnderTest, turn: Turn) -> MakeRoomForBuyers:
    """Room is being made for ten buyers when FIRST needs a unit of a pool; it is made for one, and LATER comes."""
    room_maker, buyers = MakeRoomForBuyers(), range(1, 11)
    queue.batcher._without_room._make_room_in = room_maker.make_room_in
    queue.store.due = set(map(total_of, buyers))
    for number in buyers:
        queue.submit(number)
    await turn()
    (await queue.store.next()).commit(*map(full_buyer, buyers))
    await turn()
    queue.submit(FIRST)
    (await queue.store.next()).commit(full_pool("GA"))
    await turn()
    room_maker.may_end.release()
    await turn()
    queue.submit(LATER)
    await turn()
    return room_maker


async def test_a_pool_is_served_before_the_buyers_that_wait(queue: QueueUnderTest, turn: Turn) -> None:
    """Its units are for the request that came first: behind all those buyers, a later one would take them."""
    room_maker = await pool_behind_ten_buyers(queue, turn)
    assert room_maker.order == [*map(total_of, (1, 2, 3)), "GA", total_of(4)]
    (await queue.store.next()).commit()
    (await queue.store.next()).commit()
    assert queue.store.carried[2:] == [(FIRST,), (LATER,)]


async def test_control_one_after_the_other_a_later_request_is_decided_first(
    queue: QueueUnderTest, turn: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: a pool waits behind each buyer, one by one, and what comes meanwhile takes its units."""

    def next_in_order(waiting: RequestsWaitingForRoom[Any]) -> object:
        return next((key for lane in (waiting._buyers, waiting._pools) for key in lane), None)

    monkeypatch.setattr(requests_waiting_for_room, "MAKE_ROOM_AT_ONCE_MAX", 1)
    monkeypatch.setattr(RequestsWaitingForRoom, "_next", next_in_order)
    room_maker = await pool_behind_ten_buyers(queue, turn)
    assert room_maker.order == [total_of(1), total_of(2)]
    (await queue.store.next()).commit()
    assert queue.store.carried[2:] == [(LATER,)]


CROWD = 400


async def batches_of_a_crowd(queue: QueueUnderTest, turn: Turn) -> int:
    """So many buyers whose own hold lapsed ask again, and are all granted: how many batches decide them."""
    waited: set[int] = set()
    requests = [queue.submit(number) for number in range(CROWD)]
    queue.store.due = set(map(total_of, range(CROWD)))
    queue.store.room = Room(ended=1, units=1, passed_over=False)
    while not all(request.done() for request in requests):
        batch = await queue.store.next()
        granted: list[Outcome] = [
            Decided(value=number, now=NOW) if number in waited else full_buyer(number) for number in batch.numbers
        ]
        waited |= set(batch.numbers)
        batch.commit(*granted)
        await turn()
    assert await asyncio.gather(*requests) == list(range(CROWD))
    return len(queue.store.batches)


async def test_buyers_whose_holds_lapsed_share_batches(queue: QueueUnderTest, turn: Turn) -> None:
    """Each of them costs a transaction that ends the lapsed hold, but not one more that grants the new hold."""
    assert await batches_of_a_crowd(queue, turn) <= CROWD // 10


async def test_control_buyers_that_are_queued_again_one_by_one_share_none(
    queue: QueueUnderTest, turn: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: each that had room began a batch, for the connection slot was free."""

    async def slowly(*_: Any, **__: Any) -> Room:
        await turn()
        return Room(ended=1, units=1, passed_over=False)

    monkeypatch.setattr(requests_waiting_for_room, "TOGETHER_SECONDS", 0.0)
    queue.batcher._without_room._make_room_in = slowly
    assert await batches_of_a_crowd(queue, turn) > CROWD // 10


async def test_closing_waits_for_the_room_that_is_being_made(queue: QueueUnderTest) -> None:
    """What was accepted is decided before the store is let go of."""
    room_maker = RoomMaker()
    queue.batcher._without_room._make_room_in = room_maker.make_room_in
    request = queue.submit(1)
    (await queue.store.next()).commit(full_pool("GA"))
    await asyncio.wait_for(room_maker.begun.wait(), timeout=5)
    closing = asyncio.create_task(queue.batcher.close())
    room_maker.may_end.set()
    (await queue.store.next()).commit()
    await asyncio.wait_for(closing, timeout=5)
    assert await request == 1


async def blocked_after_nothing_was_due(queue: QueueUnderTest) -> asyncio.Task[object]:
    """No lapsed hold was left for a request; then it waits for a locked row, and holds lapse meanwhile."""
    request = queue.submit(1)
    (await queue.store.next()).commit(full_pool("GA"))
    locked: Row = ("rows", "P")
    (await queue.store.next()).break_(RowBusy(because="lock timeout", rows={locked: locked}))
    wait = await queue.store.next_row_wait()
    queue.store.room = Room(ended=1, units=1, passed_over=False)
    wait.have()
    (await queue.store.next()).commit(full_pool("GA"))
    return request


async def test_that_nothing_was_due_before_a_wait_is_forgotten(queue_of: Callable[..., QueueUnderTest]) -> None:
    """Seconds have passed: room is made again, before the pool is called exhausted for good."""
    queue = queue_of(needs={1: "P"})
    request = await blocked_after_nothing_was_due(queue)
    (await queue.store.next()).commit()
    assert await request == 1
    assert queue.store.times_room_was_made == [("GA", 1)] * 2


async def test_control_what_was_known_before_the_wait_refuses_for_good(
    queue_of: Callable[..., QueueUnderTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: the pool was called exhausted by what was read before the request was blocked."""
    keep = BlockedRows.keep

    def keep_knowledge(blocked: BlockedRows[Any], row: Row, requests: Sequence[QueuedRequest[Any]], **how: Any) -> None:
        known = [request.nothing_due_in for request in requests]
        keep(blocked, row, requests, **how)
        for request, nothing_due_in in zip(requests, known, strict=True):
            request.nothing_due_in = nothing_due_in

    monkeypatch.setattr(BlockedRows, "keep", keep_knowledge)
    request = await blocked_after_nothing_was_due(queue_of(needs={1: "P"}))
    with pytest.raises(PoolExhausted) as refused:
        await request
    assert not refused.value.transient


async def test_that_nothing_was_due_before_a_pause_is_forgotten(queue: QueueUnderTest) -> None:
    """A request that waits for its twin may wait for seconds, too."""
    request = queue.submit(1)
    (await queue.store.next()).commit(full_pool("GA"))
    twin = TryAgain(refusal=IdempotencyInProgress(), rounds_max=3, delay_seconds=0.001)
    (await queue.store.next()).commit(twin)
    batch = await queue.store.next()
    queue.store.room = Room(ended=1, units=1, passed_over=False)
    batch.commit(full_pool("GA"))
    (await queue.store.next()).commit()
    assert await request == 1
