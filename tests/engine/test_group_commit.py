"""Group commit: which requests form a batch, in which order, and what each is answered when something goes wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.engine.conftest import NOW, QueueUnderTest, ask_number

from earmark.engine.commands_and_results import Command, Decided, TryAgain
from earmark.engine.group_commit import SharedTransaction
from earmark.engine.queued_request import QueuedRequest
from earmark.errors import (
    IdempotencyInProgress,
    OutcomeUnknown,
    Overloaded,
    PoolExhausted,
    Refusal,
    SeatsTaken,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Turn = Callable[[], Awaitable[None]]

TAKEN = SeatsTaken(seats=("A1",))
MOVED = TryAgain(refusal=SeatsTaken(seats=("A1",), transient=True), rounds_max=3)
TWIN = TryAgain(refusal=IdempotencyInProgress(), rounds_max=1000, delay_seconds=0.01)
WITHOUT_ROOM = TryAgain(refusal=PoolExhausted(pool="GA", asked=1, available=0), rounds_max=6, full="GA", short=1)


async def answers_to(*requests: asyncio.Task[object]) -> list[object]:
    return list(await asyncio.gather(*requests))


def is_full(queue: QueueUnderTest) -> bool:
    return queue.batcher.is_full


async def test_a_lone_request_goes_at_once(queue: QueueUnderTest) -> None:
    """There is no timer: when nothing is under way, a request does not wait for others."""
    request = queue.submit(1)
    batch = await queue.store.next()
    assert batch.numbers == (1,)
    batch.commit()
    assert await request == 1


async def test_requests_during_a_running_batch_form_the_next_one(queue: QueueUnderTest, turn: Turn) -> None:
    """While one batch commits, the next gathers, and goes as one."""
    first = queue.submit(1)
    running = await queue.store.next()
    others = [queue.submit(number) for number in (2, 3, 4)]
    await turn()
    assert queue.store.carried == [(1,)]
    running.commit()
    together = await queue.store.next()
    assert together.numbers == (2, 3, 4)
    together.commit()
    assert await answers_to(first, *others) == [1, 2, 3, 4]


async def test_a_batch_is_capped_and_keeps_the_order_of_arrival(queue_of: Callable[..., QueueUnderTest]) -> None:
    """However long the queue, a batch stays small, and no request is overtaken."""
    queue = queue_of(size_max=3)
    requests = [queue.submit(number) for number in range(1, 9)]
    for _ in range(3):
        (await queue.store.next()).commit()
    assert await answers_to(*requests) == list(range(1, 9))
    assert queue.store.carried == [(1, 2, 3), (4, 5, 6), (7, 8)]


async def test_slots_run_batches_side_by_side(queue_of: Callable[..., QueueUnderTest], turn: Turn) -> None:
    """A few transactions run at once, and no more than there are slots."""
    queue = queue_of(connection_slots=2, size_max=1)
    requests = [queue.submit(number) for number in (1, 2, 3)]
    one, two = await queue.store.next(), await queue.store.next()
    await turn()
    assert queue.store.carried == [(1,), (2,)]
    two.commit()
    three = await queue.store.next()
    assert three.numbers == (3,)
    one.commit()
    three.commit()
    assert await answers_to(*requests) == [1, 2, 3]


async def test_a_few_wait_for_the_slot_that_runs(queue_of: Callable[..., QueueUnderTest], turn: Turn) -> None:
    """Another slot is opened for many; a few are the next batch of the one that runs, and larger for it."""
    queue = queue_of(connection_slots=2, next_slot_min=3)
    first = queue.submit(1)
    one = await queue.store.next()
    few = [queue.submit(number) for number in (2, 3)]
    await turn()
    assert queue.store.carried == [(1,)]
    third = queue.submit(4)
    many = await queue.store.next()
    assert many.numbers == (2, 3, 4)
    one.commit()
    many.commit()
    assert await answers_to(first, *few, third) == [1, 2, 3, 4]


async def test_a_rival_waits_for_the_batch_that_decides(queue_of: Callable[..., QueueUnderTest], turn: Turn) -> None:
    """Two slots never decide about one seat at once: the second request is decided after the first one's batch."""
    queue = queue_of(connection_slots=2, size_max=1, wants={1: "A", 2: "A", 3: "B"})
    requests = [queue.submit(number) for number in (1, 2, 3)]
    one, three = await queue.store.next(), await queue.store.next()
    await turn()
    assert queue.store.carried == [(1,), (3,)]
    one.commit()
    (await queue.store.next()).commit()
    three.commit()
    assert await answers_to(*requests) == [1, 2, 3]
    assert queue.store.carried == [(1,), (3,), (2,)]


async def test_no_request_is_overtaken_by_a_rival(queue_of: Callable[..., QueueUnderTest], turn: Turn) -> None:
    """A request that waits for one seat keeps its place for its other seats: a later request for those waits behind."""
    queue = queue_of(connection_slots=2, wants={1: "A", 2: "AB", 3: "B", 4: "C"})
    first = queue.submit(1)
    one = await queue.store.next()
    others = [queue.submit(number) for number in (2, 3, 4)]
    four = await queue.store.next()
    await turn()
    assert four.numbers == (4,)
    one.commit()
    behind = await queue.store.next()
    assert behind.numbers == (2, 3)
    behind.commit()
    four.commit()
    assert await answers_to(first, *others) == [1, 2, 3, 4]


async def test_rivals_in_one_batch_are_decided_together(queue_of: Callable[..., QueueUnderTest]) -> None:
    """Within a batch the order of arrival decides, so no request is kept back for another of its batch."""
    queue = queue_of(wants={1: "A", 2: "A"})
    requests = [queue.submit(number) for number in (1, 2)]
    batch = await queue.store.next()
    assert batch.numbers == (1, 2)
    batch.commit()
    assert await answers_to(*requests) == [1, 2]


async def test_a_rival_has_its_turn_when_the_batch_before_it_fails(queue_of: Callable[..., QueueUnderTest]) -> None:
    """What was claimed is free again however the batch ends."""
    queue = queue_of(connection_slots=2, wants={1: "A", 2: "A"})
    first = queue.submit(1)
    one = await queue.store.next()
    second = queue.submit(2)
    one.break_(StoreUnavailable(because="gone"))
    (await queue.store.next()).commit()
    assert await second == 2
    with pytest.raises(StoreUnavailable):
        await first


async def test_each_request_gets_its_own_outcome(queue: QueueUnderTest) -> None:
    """One batch, one transaction, as many answers as requests: a refusal is for the refused request alone."""
    requests = [queue.submit(number) for number in (1, 2, 3)]
    batch = await queue.store.next()
    batch.commit(Decided(value="won", now=NOW), TAKEN, Decided(value="won too", now=NOW))
    answers = await asyncio.gather(*requests, return_exceptions=True)
    assert answers == ["won", TAKEN, "won too"]


async def test_a_failed_batch_is_split_and_only_the_failing_command_fails(queue: QueueUnderTest) -> None:
    """One failing request never fails others of its batch: halves are run again until the failing one is alone."""
    requests = [queue.submit(number) for number in range(1, 9)]
    poison = ValueError("poison")
    for _ in range(7):
        batch = await queue.store.next()
        if 6 in batch.numbers:
            batch.break_(poison)
        else:
            batch.commit()
    answers = await asyncio.gather(*requests, return_exceptions=True)
    assert answers == [1, 2, 3, 4, 5, poison, 7, 8]
    assert queue.store.carried == [(1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4), (5, 6, 7, 8), (5, 6), (5,), (6,), (7, 8)]


async def test_an_outage_fails_the_whole_batch_and_is_not_retried(queue: QueueUnderTest) -> None:
    """When the store is silent the whole batch fails with it: running it again blindly could do it twice."""
    requests = [queue.submit(number) for number in (1, 2)]
    (await queue.store.next()).break_(OutcomeUnknown())
    answers = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(answer) for answer in answers] == [OutcomeUnknown, OutcomeUnknown]
    assert queue.store.carried == [(1, 2)]


async def test_the_queue_goes_on_after_an_outage(queue: QueueUnderTest, turn: Turn) -> None:
    """A slot outlives the batch that failed in it."""
    first = queue.submit(1)
    running = await queue.store.next()
    second = queue.submit(2)
    await turn()
    running.break_(StoreUnavailable(because="gone"))
    (await queue.store.next()).commit()
    assert await second == 2
    with pytest.raises(StoreUnavailable):
        await first


async def test_past_the_bound_a_request_is_refused_at_once(queue_of: Callable[..., QueueUnderTest], turn: Turn) -> None:
    """A queue that cannot be served in time grows no longer; what is already queued is served."""
    queue = queue_of(waiting_max=2)
    running = queue.submit(1)
    first = await queue.store.next()
    waiting = [queue.submit(2), queue.submit(3)]
    await turn()
    with pytest.raises(Overloaded):
        await queue.submit(4)
    first.commit()
    (await queue.store.next()).commit()
    assert await answers_to(running, *waiting) == [1, 2, 3]
    assert queue.store.carried == [(1,), (2, 3)]


async def test_a_queue_that_does_not_move_accepts_no_request(
    queue_of: Callable[..., QueueUnderTest], turn: Turn, jump: Callable[[float], None]
) -> None:
    """When the first in the queue has waited for too long, a new request would wait longer: it is refused at once."""
    queue = queue_of(waiting_seconds_max=5)
    running = queue.submit(1)
    first = await queue.store.next()
    waiting = queue.submit(2)
    await turn()
    assert not is_full(queue)
    jump(6)
    assert is_full(queue)
    with pytest.raises(Overloaded):
        await queue.submit(3)
    first.commit()
    (await queue.store.next()).commit()
    assert await answers_to(running, waiting) == [1, 2]
    assert not is_full(queue), "an empty queue is never full"


async def test_a_slow_queue_accepts_what_it_can_carry_in_time(
    queue_of: Callable[..., QueueUnderTest], turn: Turn, monkeypatch: pytest.MonkeyPatch, jump: Callable[[float], None]
) -> None:
    """The pace of the batches before says how long a newcomer would wait, before any request has waited."""
    monkeypatch.setattr("earmark.engine.measure_recent_commit_speed.HALF_LIFE_SECONDS", 3600)
    queue = queue_of(waiting_seconds_max=1, size_max=100)
    for number in range(3):
        slow = queue.submit(number)
        batch = await queue.store.next()
        jump(8)
        batch.commit()
        assert await slow == number
    running = queue.submit(3)
    first = await queue.store.next()
    waiting = [queue.submit(number) for number in range(4, 24)]
    await turn()
    assert is_full(queue), "a batch takes eight seconds here, and some are before the next"
    first.commit()
    (await queue.store.next()).commit()
    await answers_to(running, *(request for request in waiting if not request.done()))


async def test_a_request_that_waits_too_long_is_refused_for_certain_and_never_run(
    queue: QueueUnderTest, turn: Turn, jump: Callable[[float], None]
) -> None:
    """A deadline that passes in the queue leaves nothing behind: the command was not begun, and never will be."""
    first = queue.submit(1)
    running = await queue.store.next()
    late, patient = queue.submit(2, within=5), queue.submit(3, within=60)
    await turn()
    jump(6)
    with pytest.raises(Overloaded):
        await late
    running.commit()
    (await queue.store.next()).commit()
    assert await answers_to(first, patient) == [1, 3]
    assert queue.store.carried == [(1,), (3,)]


async def test_a_deadline_in_flight_leaves_the_outcome_unknown(
    queue: QueueUnderTest, jump: Callable[[float], None]
) -> None:
    """What the store may be committing is neither done nor refused: its outcome is unknown."""
    late = queue.submit(1, within=5)
    batch = await queue.store.next()
    jump(6)
    with pytest.raises(OutcomeUnknown):
        await late
    batch.commit()
    following = queue.submit(2)
    (await queue.store.next()).commit()
    assert await following == 2


async def test_an_answer_in_the_moment_of_the_deadline_is_never_reported_as_a_refusal(
    queue: QueueUnderTest, jump: Callable[[float], None]
) -> None:
    """Committed is committed: a request past its deadline as the answer arrives gets that, or `outcome_unknown`."""
    request = queue.submit(1, within=5)
    batch = await queue.store.next()
    batch.commit()
    jump(6)
    (answer,) = await asyncio.gather(request, return_exceptions=True)
    assert answer == 1 or isinstance(answer, OutcomeUnknown)


async def test_a_caller_that_leaves_the_queue_is_never_run(queue: QueueUnderTest, turn: Turn) -> None:
    """A closed connection takes its request with it, and other requests are not affected."""
    first = queue.submit(1)
    running = await queue.store.next()
    gone, stays = queue.submit(2), queue.submit(3)
    await turn()
    gone.cancel()
    await turn()
    running.commit()
    (await queue.store.next()).commit()
    assert await answers_to(first, stays) == [1, 3]
    assert queue.store.carried == [(1,), (3,)]


async def test_a_caller_that_leaves_in_flight_fails_no_other(queue: QueueUnderTest, turn: Turn) -> None:
    """The transaction runs on, and its other askers are answered."""
    gone, stays = queue.submit(1), queue.submit(2)
    batch = await queue.store.next()
    gone.cancel()
    await turn()
    batch.commit()
    assert await stays == 2


async def test_close_finishes_what_was_accepted(queue_of: Callable[..., QueueUnderTest], turn: Turn) -> None:
    """Stopping loses no request: the running batch and the queue behind it are carried to their end."""
    queue = queue_of(size_max=2)
    requests = [queue.submit(number) for number in (1, 2, 3)]
    first = await queue.store.next()
    closing = asyncio.create_task(queue.batcher.close())
    await turn()
    assert not closing.done()
    first.commit()
    (await queue.store.next()).commit()
    await asyncio.wait_for(closing, timeout=5)
    assert await answers_to(*requests) == [1, 2, 3]


async def test_close_of_an_idle_queue_returns_at_once(queue: QueueUnderTest) -> None:
    """Nothing under way, nothing to wait for."""
    await asyncio.wait_for(queue.batcher.close(), timeout=5)
    assert queue.store.batches == []


async def test_close_does_not_forget_a_request_that_waits_for_a_duplicate(queue: QueueUnderTest, turn: Turn) -> None:
    """A request that was to be retried later was accepted too: it is carried, or answered `in progress`."""
    request = queue.submit(1)
    (await queue.store.next()).commit(TWIN)
    await turn()
    closing = asyncio.create_task(queue.batcher.close())

    async def commit_whatever_comes() -> None:
        while True:
            (await queue.store.next()).commit()

    serving = asyncio.create_task(commit_whatever_comes())
    await asyncio.wait_for(closing, timeout=4)
    await asyncio.wait({request}, timeout=1)
    serving.cancel()
    assert request.done(), "the queue is closed, and this request still waits"
    (answer,) = await asyncio.gather(request, return_exceptions=True)
    assert answer == 1 or isinstance(answer, IdempotencyInProgress)


async def test_a_request_to_decide_again_goes_first_in_the_next_batch(queue: QueueUnderTest, turn: Turn) -> None:
    """A request that has to be decided again loses no place in the queue."""
    requests = [queue.submit(number) for number in (1, 2, 3)]
    first = await queue.store.next()
    requests.append(queue.submit(4))
    await turn()
    first.commit(MOVED, Decided(value=2, now=NOW), MOVED)
    second = await queue.store.next()
    assert second.numbers == (1, 3, 4)
    second.commit()
    assert await answers_to(*requests) == [1, 2, 3, 4]


async def test_what_keeps_changing_is_refused_in_the_third_round(queue: QueueUnderTest) -> None:
    """Looking again has a bound, and then the refusal is the one that says to try later."""
    request = queue.submit(1)
    for _ in range(3):
        (await queue.store.next()).commit(MOVED)
    with pytest.raises(SeatsTaken) as refused:
        await request
    assert refused.value.transient
    assert queue.store.carried == [(1,), (1,), (1,)]


async def test_room_is_made_once_before_a_refusal(queue: QueueUnderTest) -> None:
    """A request without room is decided again once lapsed holds were ended, and refused only if that did not help."""
    request = queue.submit(1)
    (await queue.store.next()).commit(WITHOUT_ROOM)
    again = await queue.store.next()
    assert queue.store.times_room_was_made == [("GA", 1)]
    again.commit(WITHOUT_ROOM)
    with pytest.raises(PoolExhausted):
        await request
    assert queue.store.times_room_was_made == [("GA", 1)]
    assert queue.store.carried == [(1,), (1,)]


async def test_room_is_made_once_for_all_requests_that_need_it(queue: QueueUnderTest) -> None:
    """A batch in need of one pool requests room once."""
    requests = [queue.submit(number) for number in (1, 2, 3)]
    (await queue.store.next()).commit(WITHOUT_ROOM, WITHOUT_ROOM, Decided(value=3, now=NOW))
    second = await queue.store.next()
    assert (second.numbers, queue.store.times_room_was_made) == ((1, 2), [("GA", 2)])
    second.commit()
    assert await answers_to(*requests) == [1, 2, 3]


async def test_room_is_made_also_for_a_request_that_waited_long_for_a_duplicate(
    queue: QueueUnderTest, jump: Callable[[float], None]
) -> None:
    """Rounds spent waiting for a duplicate are not rounds spent waiting for room."""
    request = queue.submit(1)
    for _ in range(8):
        (await queue.store.next()).commit(TWIN)
        jump(1)
    (await queue.store.next()).commit(WITHOUT_ROOM)
    await asyncio.wait({request, asyncio.create_task(queue.store.next())}, timeout=5, return_when="FIRST_COMPLETED")
    assert queue.store.times_room_was_made == [("GA", 1)]
    queue.store.batches[-1].commit()
    assert await request == 1


async def test_a_request_waits_for_its_duplicate_without_holding_up_the_queue(
    queue: QueueUnderTest, turn: Turn, jump: Callable[[float], None]
) -> None:
    """A duplicate that is being decided elsewhere is checked later; other requests pass meanwhile."""
    waits = queue.submit(1, within=60)
    (await queue.store.next()).commit(msgspec.structs.replace(TWIN, delay_seconds=30))
    await turn()
    passes = queue.submit(2)
    batch = await queue.store.next()
    assert batch.numbers == (2,)
    batch.commit()
    assert await passes == 2
    jump(31)
    later = await queue.store.next()
    assert later.numbers == (1,)
    later.commit()
    assert await waits == 1


async def test_a_request_that_waits_for_a_duplicate_until_its_deadline_is_answered_so(
    queue: QueueUnderTest, turn: Turn, jump: Callable[[float], None]
) -> None:
    """Between two rounds nothing is under way, so the answer is certain: in progress, elsewhere."""
    request = queue.submit(1, within=60)
    (await queue.store.next()).commit(msgspec.structs.replace(TWIN, delay_seconds=600))
    await turn()
    jump(61)
    with pytest.raises(IdempotencyInProgress):
        await request
    jump(600)
    await turn()
    assert queue.store.carried == [(1,)]


async def test_a_failure_to_make_room_costs_no_request_its_place(queue: QueueUnderTest, turn: Turn) -> None:
    """Making room is optional: when it fails, the request without room is refused, and the queue moves on."""

    async def broken(_: object, **__: object) -> None:
        raise ValueError("no room today")

    queue.batcher._without_room._make_room_in = broken  # type: ignore[assignment] # it returns nothing, for it never returns
    waiting = queue.submit(1)
    first = await queue.store.next()
    behind = queue.submit(2)
    await turn()
    first.commit(WITHOUT_ROOM)
    while not behind.done():
        arrived = asyncio.create_task(queue.store.next())
        done, _ = await asyncio.wait({arrived, behind}, timeout=2, return_when="FIRST_COMPLETED")
        assert done, "the queue is not carried any more"
        if arrived.done():
            batch = arrived.result()
            batch.commit(*(WITHOUT_ROOM if number == 1 else Decided(value=number, now=NOW) for number in batch.numbers))
            await turn()
        else:
            arrived.cancel()
    assert await behind == 2
    with pytest.raises((Refusal, ValueError)):
        await asyncio.wait_for(waiting, timeout=1)


async def test_no_slot_is_lost_when_a_request_comes_as_one_ends(queue: QueueUnderTest) -> None:
    """A request that arrives in the very moment in which a slot ends finds a slot: there is always one to run it.

    The first answer's callbacks run right beside the end of its slot, so a request is sent from each turn of the
    loop around that moment.
    """
    for distance in range(6):
        base = 10 * distance
        first = queue.submit(base + 1)
        batch = await queue.store.next()
        batch.commit()
        for _ in range(distance):
            await asyncio.sleep(0)
        second = queue.submit(base + 2)
        (await queue.store.next()).commit()
        assert await answers_to(first, second) == [base + 1, base + 2]


async def test_no_slot_is_lost_when_an_answered_caller_sends_again(queue: QueueUnderTest) -> None:
    """A caller that sends again the moment it is answered, as loops do, is carried every time."""

    async def ask_ten_times() -> list[object]:
        return [await queue.submit(number) for number in range(1, 11)]

    asking = asyncio.create_task(ask_ten_times())
    for _ in range(10):
        (await queue.store.next()).commit()
    assert await asyncio.wait_for(asking, timeout=5) == list(range(1, 11))
    assert queue.store.carried == [(number,) for number in range(1, 11)]


async def test_a_slot_ends_with_the_queue(queue: QueueUnderTest, turn: Turn) -> None:
    """No task is left behind by an idle queue."""
    request = queue.submit(1)
    (await queue.store.next()).commit()
    await request
    await turn()
    assert not queue.batcher._running


async def test_a_store_in_another_thread_never_begins_what_is_being_ended() -> None:
    """In whatever order a deadline and a store in a thread of its own come to a request: not begun is not begun."""
    told: list[Exception] = []

    class Interrupted(QueuedRequest[Command]):
        def fail(self, error: Exception) -> None:
            """The thread comes between the outcome and its delivery."""
            assert shared.begin() == []
            told.append(error)

    request = Interrupted(ask_number(1), asyncio.get_running_loop().create_future(), deadline=0)
    shared: SharedTransaction[Command] = SharedTransaction([request])
    request.expire()
    assert [type(one) for one in told] == [Overloaded]
