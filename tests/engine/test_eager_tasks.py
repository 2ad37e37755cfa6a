"""Where the event loop begins tasks at once, a task may have ended before it is noted: then it is not noted at all.

The controls have what the code was before: the task was noted after it had ended, and stood there for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from tests.eager_tasks import eager_tasks
from tests.engine.conftest import NOW, ask_number, number_of

from earmark.domain.choose_best_seats import Wish
from earmark.domain.id_types import Buyer, EventId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor, Command, Decided, Hold, TryAgain
from earmark.engine.engine import Engine
from earmark.engine.group_commit import BatchQueue
from earmark.engine.hold_best_available import BestSeats
from earmark.engine.requests_waiting_for_locked_rows import BlockedRows
from earmark.engine.verbs.expire import Room
from earmark.engine.wait_for_one_locked_row import LockedRowWaits
from earmark.errors import LimitExceeded, PoolExhausted, RowBusy, SeatsTaken
from earmark.library import Earmark
from earmark.store.sqlite.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from earmark.clock import MovableClock
    from earmark.engine.commands_and_results import Outcome, Row
    from earmark.engine.queued_request import QueuedRequest
    from earmark.uuids import Uuid7Ids

PLAY = EventId("play")
ROW: Row = ("rows", "P")


@pytest.fixture
async def shop(clock: MovableClock, ids: Uuid7Ids) -> AsyncIterator[Earmark]:
    """A play with ten seats in a store that answers without a wait; at most four for a buyer."""
    shop = Earmark(Engine(MemoryStore(clock=clock), ids=ids))
    seats = {f"A{number}": 1 for number in range(1, 11)}
    await shop.create_event("play", name="A play", currency="EUR", seats=seats, pools={"GA": (50, 1)}, per_buyer_max=4)
    yield shop
    await shop.engine.close()


def best_of(ids: Uuid7Ids, buyer: str) -> Hold:
    """A hold whose seats are to be chosen."""
    actor = Actor(name="shop", mode=Mode.LIVE)
    return Hold(actor=actor, entry_id=ids.entry_id(), booking_id=ids.booking_id(), event_id=PLAY, buyer=Buyer(buyer))


async def within_seconds(answer: Any) -> Any:
    """Not a measurement: what has no answer by then has none."""
    return await asyncio.wait_for(answer, timeout=10)


async def test_a_connection_slot_that_ended_at_once_is_free(shop: Earmark) -> None:
    """More requests, one after the other, than there are slots: each finds one."""
    with eager_tasks():
        for number in range(6):
            held = await within_seconds(shop.hold("play", buyer=f"b{number}", pools={"GA": 1}))
            assert held.state == "held"
            assert not shop.engine._holds._running


async def test_control_a_slot_that_is_noted_after_its_end_is_never_free(
    shop: Earmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one slot less for each lone request, the fourth is never begun."""

    def take_slot(queue: BatchQueue[Any], **_: Any) -> None:
        queue._running.add(asyncio.get_running_loop().create_task(queue._run_batches()))

    monkeypatch.setattr(BatchQueue, "_take_slot", take_slot)
    with eager_tasks():
        await within_seconds(shop.hold("play", buyer="ann", pools={"GA": 1}))
    assert [slot.done() for slot in shop.engine._holds._running] == [True]
    shop.engine._holds._running.clear()


async def test_a_reading_of_the_map_that_ended_at_once_is_over(shop: Earmark, ids: Uuid7Ids) -> None:
    """The next request for the best seats begins another."""
    with eager_tasks():
        for buyer in ("ann", "bob", "cem"):
            found: Any = await within_seconds(shop.engine.hold_best(best_of(ids, buyer), Wish(count=2)))
            assert len(found.value.lines.seats) == 2
    assert not shop.engine._best._pending


async def test_control_a_reading_that_is_noted_after_its_end_is_never_over(
    shop: Earmark, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request for the best seats of this event would wait for it."""

    def wake(best: BestSeats, pending: Any, event_id: EventId) -> None:
        if pending.waiting and pending.reading is None:
            pending.reading = asyncio.get_running_loop().create_task(best._read(pending, event_id))

    monkeypatch.setattr(BestSeats, "_wake", wake)
    with eager_tasks():
        await within_seconds(shop.engine.hold_best(best_of(ids, "ann"), Wish(count=2)))
    reading = shop.engine._best._pending[PLAY].reading
    assert reading is not None
    assert reading.done()


async def test_room_that_was_made_at_once_leaves_no_task(shop: Earmark) -> None:
    """Buyers at their limit are refused for good, time after time."""
    with eager_tasks():
        for buyer in ("ann", "bob"):
            await within_seconds(shop.hold("play", buyer=buyer, pools={"GA": 4}))
        for _ in range(3):
            more = [shop.hold("play", buyer=buyer, pools={"GA": 1}) for buyer in ("ann", "bob")]
            told = await within_seconds(asyncio.gather(*more, return_exceptions=True))
            assert {(type(one), one.transient) for one in told} == {(LimitExceeded, False)}
            assert not shop.engine._holds._without_room.tasks
            assert not len(shop.engine._holds._without_room)


def queue_that_meets_a_locked_row() -> tuple[BatchQueue[Command], list[tuple[int, ...]]]:
    """Its first batch meets the row; all that follow are decided without a wait."""
    carried: list[tuple[int, ...]] = []

    async def run(begin: Callable[[], Sequence[Command]], *, lock_seconds: float) -> list[Outcome]:
        assert lock_seconds > 0
        numbers = tuple(map(number_of, begin()))
        carried.append(numbers)
        if len(carried) == 1:
            raise RowBusy(because="lock timeout", rows={ROW: ROW})
        return [Decided(value=number, now=NOW) for number in numbers]

    async def unused(*_: Any, **__: Any) -> Any:
        raise AssertionError("no request needs room")

    async def have_row(*_: Any, **__: Any) -> None:
        """At once."""

    row_waits = LockedRowWaits(have_row)
    return BatchQueue(run, make_room_in=unused, have_due=unused, row_waits=row_waits), carried


async def test_a_row_that_was_had_at_once_leaves_no_task() -> None:
    """The request is queued for the row before the task begins, which decides it and is over."""
    queue, carried = queue_that_meets_a_locked_row()
    with eager_tasks():
        answer: Any = await within_seconds(queue.submit(ask_number(1, needs="P"), within=60))
    assert (answer.value, carried) == (1, [(1,), (1,)])
    assert (queue.in_flight, queue.waiting) == (0, 0)
    await queue.close()


async def test_control_a_row_that_is_waited_for_before_its_request_is_queued_breaks_the_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The task finds no request, and takes the row away while the request is being queued for it."""

    def keep(blocked: BlockedRows[Any], row: Row, requests: Any, *, first: bool = False) -> None:
        assert not first
        if row not in blocked.rows:
            blocked.rows[row] = deque()
            blocked._wait_for(row)
        blocked.rows[row].extend(requests)

    monkeypatch.setattr(BlockedRows, "keep", keep)
    queue, carried = queue_that_meets_a_locked_row()
    slots: list[asyncio.Task[None]] = []
    with eager_tasks():
        run_batches = queue._run_batches
        monkeypatch.setattr(queue, "_take_slot", lambda **_: slots.append(asyncio.create_task(run_batches())))
        request = asyncio.create_task(queue.submit(ask_number(1, needs="P"), within=60))
    with pytest.raises(KeyError):
        await slots[0]
    assert (request.done(), carried) == (False, [(1,)])
    request.cancel()


MOVED = TryAgain(refusal=SeatsTaken(seats=("A1",), transient=True), rounds_max=3)


def queue_that_decides_twice(first_outcome: Outcome) -> tuple[BatchQueue[Command], list[tuple[int, ...]]]:
    """Of the first batch every request gets this outcome. All that follow are decided without a wait."""
    carried: list[tuple[int, ...]] = []
    together = asyncio.Event()

    async def run(begin: Callable[[], Sequence[Command]], *, lock_seconds: float) -> list[Outcome]:
        assert lock_seconds > 0
        if not carried:
            await together.wait()
        numbers = tuple(map(number_of, begin()))
        carried.append(numbers)
        if len(carried) == 2:
            return [first_outcome for _ in numbers]
        return [Decided(value=number, now=NOW) for number in numbers]

    async def room(*_: Any, **__: Any) -> Room:
        """At once."""
        return Room(ended=3, units=3, passed_over=False)

    async def unused(*_: Any, **__: Any) -> Any:
        raise AssertionError("one pool is in need, and no row is locked")

    queue: BatchQueue[Command] = BatchQueue(run, make_room_in=room, have_due=unused, row_waits=LockedRowWaits(unused))
    asyncio.get_running_loop().call_soon(together.set)
    return queue, carried


async def order_when_queued_again(outcome: Outcome) -> list[tuple[int, ...]]:
    """The batches of three requests that are queued again together."""
    queue, carried = queue_that_decides_twice(outcome)
    with eager_tasks():
        requests = [queue.submit(ask_number(number), within=60) for number in range(4)]
        await within_seconds(asyncio.gather(*requests))
    await queue.close()
    return carried


FULL = TryAgain(refusal=PoolExhausted(pool="GA", asked=1, available=0), rounds_max=3, full="GA", short=1)


@pytest.mark.parametrize("outcome", [MOVED, FULL], ids=["moved", "without room"])
async def test_requests_that_are_queued_again_keep_their_order(outcome: Outcome) -> None:
    """All are in the queue before a slot takes the first of them."""
    assert await order_when_queued_again(outcome) == [(0,), (1, 2, 3), (1, 2, 3)]


async def test_control_queued_again_one_by_one_the_last_is_decided_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: each was put before the others, and the slot began at once with the one that was put there first."""

    def enter_first(queue: BatchQueue[Any], requests: Sequence[QueuedRequest[Any]]) -> None:
        for request in reversed(requests):
            queue._queue.appendleft(request)
            queue._take_slot(queued_min=1)

    monkeypatch.setattr(BatchQueue, "_enter_first", enter_first)
    assert await order_when_queued_again(FULL) == [(0,), (1, 2, 3), (3,), (2,), (1,)]
