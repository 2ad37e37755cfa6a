"""Room is made beside the batches: what needs none goes on, and what needs some costs few transactions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.engine.conftest import NOW

from earmark.engine.commands_and_results import Decided, TryAgain
from earmark.engine.group_commit import BatchQueue
from earmark.engine.verbs.expire import Room
from earmark.errors import Overloaded, PoolExhausted, SeatsTaken, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.engine.conftest import QueueUnderTest

    from earmark.engine.commands_and_results import Outcome

    Turn = Callable[[], Awaitable[None]]

MOVED = TryAgain(refusal=SeatsTaken(seats=("A1",), transient=True), rounds_max=3)


def starved_of(pool: str) -> TryAgain:
    """Refused, unless lapsed holds of this pool can be ended."""
    return TryAgain(refusal=PoolExhausted(pool=pool, asked=1, available=0), rounds_max=20, relief=pool, short=1)


class Relief:
    """Makes room only when the test says so."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def relieve(self, *_: Any, **__: Any) -> Room:
        """Wait for the test."""
        self.begun.set()
        await self.may_end.wait()
        return Room(ended=1, units=1, passed_over=False)


async def starve_one_of_three(queue: QueueUnderTest, turn: Turn) -> tuple[Relief, asyncio.Task[object]]:
    """1 needs room, 2 moved, and 3 comes while room is being made; 1 and 3 want the same seat."""
    relief = Relief()
    queue.batcher._starved._relieve = relief.relieve
    queue.submit(1)
    queue.submit(2)
    (await queue.store.next()).commit(starved_of("GA"), MOVED)
    await asyncio.wait_for(relief.begun.wait(), timeout=5)
    later = queue.submit(3)
    await turn()
    return relief, later


async def test_a_request_that_needs_no_room_waits_for_none(queue_of: Callable[..., QueueUnderTest], turn: Turn) -> None:
    """Neither the others of the batch, nor later ones that want a seat of the starved request."""
    queue = queue_of(wants={1: "A", 2: "B", 3: "A"})
    relief, later = await starve_one_of_three(queue, turn)
    (await queue.store.next()).commit()
    (await queue.store.next()).commit()
    assert await later == 3
    assert queue.store.carried == [(1, 2), (2,), (3,)]
    relief.may_end.set()
    (await queue.store.next()).commit()
    assert await queue.requests[0] == 1


async def test_control_room_made_within_the_slot_stops_all(
    queue_of: Callable[..., QueueUnderTest], turn: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: the slot, and all that the batch claimed, wait for the relief."""
    decide = BatchQueue._decide

    async def decide_and_make_room(self: BatchQueue[Any], requests: Any, **options: Any) -> None:
        await decide(self, requests, **options)
        while self._starved.tasks:
            await asyncio.wait(self._starved.tasks)

    monkeypatch.setattr(BatchQueue, "_decide", decide_and_make_room)
    queue = queue_of(wants={1: "A", 2: "B", 3: "A"})
    _, later = await starve_one_of_three(queue, turn)
    assert queue.store.carried == [(1, 2)]
    assert not later.done()


async def test_one_read_finds_which_pools_have_lapsed_holds(queue: QueueUnderTest) -> None:
    """Room is made only in those; the others refuse for good, after one more look at the counts."""
    requests = [queue.submit(number) for number in (1, 2, 3)]
    queue.store.due, queue.store.room = {"B"}, Room(ended=1, units=1, passed_over=False)
    (await queue.store.next()).commit(starved_of("A"), starved_of("B"), starved_of("C"))
    left = 3
    while left:
        batch = await queue.store.next()
        left -= len(batch.numbers)
        outcomes: dict[int, Outcome] = {1: starved_of("A"), 2: Decided(value=2, now=NOW), 3: starved_of("C")}
        batch.commit(*(outcomes[number] for number in batch.numbers))
    first, second, third = await asyncio.gather(*requests, return_exceptions=True)
    assert second == 2
    assert isinstance(first, PoolExhausted)
    assert isinstance(third, PoolExhausted)
    assert (first.transient, third.transient) == (False, False)
    assert (queue.store.reads, queue.store.reliefs) == ([("A", "B", "C")], [("B", 1)])


async def test_where_one_pool_is_in_need_nothing_is_read_first(queue: QueueUnderTest) -> None:
    """Making room finds out by itself whether there is a lapsed hold: a read would be a transaction more."""
    queue.submit(1)
    queue.submit(2)
    (await queue.store.next()).commit(starved_of("A"), starved_of("A"))
    await queue.store.next()
    assert (queue.store.reads, queue.store.reliefs) == ([], [("A", 2)])


async def test_a_read_that_fails_refuses_for_now(queue: QueueUnderTest) -> None:
    """It is not known that nothing is left, and a relief for each pool would meet the same store."""

    async def broken(*_: Any, **__: Any) -> list[bool]:
        raise StoreUnavailable(because="it is being restarted")

    queue.batcher._starved._have_due = broken
    requests = [queue.submit(number) for number in (1, 2)]
    (await queue.store.next()).commit(starved_of("A"), starved_of("B"))
    for told in await asyncio.gather(*requests, return_exceptions=True):
        assert isinstance(told, PoolExhausted)
        assert told.transient
    assert queue.store.reliefs == []


async def test_requests_that_wait_for_room_count_as_waiting(queue_of: Callable[..., QueueUnderTest]) -> None:
    """They are bounded with those in the queue, so that a rush for a sold-out pool is refused when it is too long."""
    queue, relief = queue_of(waiting_max=2), Relief()
    queue.batcher._starved._relieve = relief.relieve
    starved = [queue.submit(number) for number in (1, 2)]
    (await queue.store.next()).commit(starved_of("GA"), starved_of("GA"))
    await asyncio.wait_for(relief.begun.wait(), timeout=5)
    assert (queue.batcher.waiting, queue.batcher.is_full) == (2, True)
    with pytest.raises(Overloaded):
        await queue.submit(3)
    relief.may_end.set()
    (await queue.store.next()).commit()
    assert await asyncio.gather(*starved) == [1, 2]
    assert (queue.batcher.waiting, queue.batcher.is_full) == (0, False)


async def test_closing_waits_for_the_room_that_is_being_made(queue: QueueUnderTest) -> None:
    """What was accepted is decided before the store is let go of."""
    relief = Relief()
    queue.batcher._starved._relieve = relief.relieve
    request = queue.submit(1)
    (await queue.store.next()).commit(starved_of("GA"))
    await asyncio.wait_for(relief.begun.wait(), timeout=5)
    closing = asyncio.create_task(queue.batcher.close())
    relief.may_end.set()
    (await queue.store.next()).commit()
    await asyncio.wait_for(closing, timeout=5)
    assert await request == 1
