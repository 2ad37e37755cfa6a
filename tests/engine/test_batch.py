"""Group commit: who travels with whom, in which order, and what each is told when something goes wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from earmark.engine.commands import Command, Decided, TryAgain
from earmark.engine.queued_requests import QueuedRequest, Shared
from earmark.errors import (
    IdempotencyInProgress,
    OutcomeUnknown,
    Overloaded,
    PoolExhausted,
    Refusal,
    SeatsTaken,
    StoreUnavailable,
)

from .conftest import NOW, Line, ask_number

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Turn = Callable[[], Awaitable[None]]

TAKEN = SeatsTaken(seats=("A1",))
MOVED = TryAgain(refusal=SeatsTaken(seats=("A1",), transient=True), rounds_max=3)
TWIN = TryAgain(refusal=IdempotencyInProgress(), rounds_max=1000, delay_seconds=0.01)
STARVED = TryAgain(refusal=PoolExhausted(pool="GA", asked=1, available=0), rounds_max=6, relief="GA", short=1)


async def answers_to(*requests: asyncio.Task[object]) -> list[object]:
    return list(await asyncio.gather(*requests))


def is_full(line: Line) -> bool:
    return line.batcher.is_full


async def test_a_lone_request_goes_at_once(line: Line) -> None:
    """There is no timer: when nothing is under way, nobody waits for company."""
    request = line.submit(1)
    batch = await line.store.next()
    assert batch.numbers == (1,)
    batch.commit()
    assert await request == 1


async def test_requests_during_a_running_batch_travel_together(line: Line, turn: Turn) -> None:
    """While one batch commits, the next gathers, and goes as one."""
    first = line.submit(1)
    running = await line.store.next()
    others = [line.submit(number) for number in (2, 3, 4)]
    await turn()
    assert line.store.carried == [(1,)]
    running.commit()
    together = await line.store.next()
    assert together.numbers == (2, 3, 4)
    together.commit()
    assert await answers_to(first, *others) == [1, 2, 3, 4]


async def test_a_batch_is_capped_and_keeps_the_order_of_arrival(line_of: Callable[..., Line]) -> None:
    """However long the line, a batch stays small, and nobody is overtaken."""
    line = line_of(size_max=3)
    requests = [line.submit(number) for number in range(1, 9)]
    for _ in range(3):
        (await line.store.next()).commit()
    assert await answers_to(*requests) == list(range(1, 9))
    assert line.store.carried == [(1, 2, 3), (4, 5, 6), (7, 8)]


async def test_lanes_carry_batches_side_by_side(line_of: Callable[..., Line], turn: Turn) -> None:
    """A few transactions run at once, and no more than there are lanes."""
    line = line_of(lanes=2, size_max=1)
    requests = [line.submit(number) for number in (1, 2, 3)]
    one, two = await line.store.next(), await line.store.next()
    await turn()
    assert line.store.carried == [(1,), (2,)]
    two.commit()
    three = await line.store.next()
    assert three.numbers == (3,)
    one.commit()
    three.commit()
    assert await answers_to(*requests) == [1, 2, 3]


async def test_a_few_wait_for_the_lane_that_runs(line_of: Callable[..., Line], turn: Turn) -> None:
    """Another lane is opened for many; a few are the next batch of the one that runs, and larger for it."""
    line = line_of(lanes=2, lane_min=3)
    first = line.submit(1)
    one = await line.store.next()
    few = [line.submit(number) for number in (2, 3)]
    await turn()
    assert line.store.carried == [(1,)]
    third = line.submit(4)
    many = await line.store.next()
    assert many.numbers == (2, 3, 4)
    one.commit()
    many.commit()
    assert await answers_to(first, *few, third) == [1, 2, 3, 4]


async def test_a_rival_waits_for_the_batch_that_decides(line_of: Callable[..., Line], turn: Turn) -> None:
    """Two lanes never decide about one seat at once: the second to ask is told by what the first one's batch became."""
    line = line_of(lanes=2, size_max=1, wants={1: "A", 2: "A", 3: "B"})
    requests = [line.submit(number) for number in (1, 2, 3)]
    one, three = await line.store.next(), await line.store.next()
    await turn()
    assert line.store.carried == [(1,), (3,)]
    one.commit()
    (await line.store.next()).commit()
    three.commit()
    assert await answers_to(*requests) == [1, 2, 3]
    assert line.store.carried == [(1,), (3,), (2,)]


async def test_nobody_is_overtaken_by_a_rival(line_of: Callable[..., Line], turn: Turn) -> None:
    """Who waits for one seat keeps the place for the other seats too: a later request for those waits behind."""
    line = line_of(lanes=2, wants={1: "A", 2: "AB", 3: "B", 4: "C"})
    first = line.submit(1)
    one = await line.store.next()
    others = [line.submit(number) for number in (2, 3, 4)]
    four = await line.store.next()
    await turn()
    assert four.numbers == (4,)
    one.commit()
    behind = await line.store.next()
    assert behind.numbers == (2, 3)
    behind.commit()
    four.commit()
    assert await answers_to(first, *others) == [1, 2, 3, 4]


async def test_rivals_in_one_batch_are_decided_together(line_of: Callable[..., Line]) -> None:
    """Within a batch the order of arrival decides, so nobody is kept back for a batch-mate."""
    line = line_of(wants={1: "A", 2: "A"})
    requests = [line.submit(number) for number in (1, 2)]
    batch = await line.store.next()
    assert batch.numbers == (1, 2)
    batch.commit()
    assert await answers_to(*requests) == [1, 2]


async def test_a_rival_has_its_turn_when_the_batch_before_it_breaks(line_of: Callable[..., Line]) -> None:
    """What was claimed is free again however the batch ends."""
    line = line_of(lanes=2, wants={1: "A", 2: "A"})
    first = line.submit(1)
    one = await line.store.next()
    second = line.submit(2)
    one.break_(StoreUnavailable(because="gone"))
    (await line.store.next()).commit()
    assert await second == 2
    with pytest.raises(StoreUnavailable):
        await first


async def test_each_request_gets_its_own_outcome(line: Line) -> None:
    """One batch, one transaction, as many answers as requests: a refusal is for the one who is refused."""
    requests = [line.submit(number) for number in (1, 2, 3)]
    batch = await line.store.next()
    batch.commit(Decided(value="won", now=NOW), TAKEN, Decided(value="won too", now=NOW))
    answers = await asyncio.gather(*requests, return_exceptions=True)
    assert answers == ["won", TAKEN, "won too"]


async def test_a_broken_batch_is_split_and_only_the_poisoned_ask_fails(line: Line) -> None:
    """One failing request never fails its batch-mates: halves are run again until the one that breaks is alone."""
    requests = [line.submit(number) for number in range(1, 9)]
    poison = ValueError("poison")
    for _ in range(7):
        batch = await line.store.next()
        if 6 in batch.numbers:
            batch.break_(poison)
        else:
            batch.commit()
    answers = await asyncio.gather(*requests, return_exceptions=True)
    assert answers == [1, 2, 3, 4, 5, poison, 7, 8]
    assert line.store.carried == [(1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4), (5, 6, 7, 8), (5, 6), (5,), (6,), (7, 8)]


async def test_an_outage_is_everybodys_and_is_not_tried_again(line: Line) -> None:
    """When the store is silent the whole batch hears so: running it again blindly could do it twice."""
    requests = [line.submit(number) for number in (1, 2)]
    (await line.store.next()).break_(OutcomeUnknown())
    answers = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(answer) for answer in answers] == [OutcomeUnknown, OutcomeUnknown]
    assert line.store.carried == [(1, 2)]


async def test_the_line_goes_on_after_an_outage(line: Line, turn: Turn) -> None:
    """A lane outlives the batch that failed in it."""
    first = line.submit(1)
    running = await line.store.next()
    second = line.submit(2)
    await turn()
    running.break_(StoreUnavailable(because="gone"))
    (await line.store.next()).commit()
    assert await second == 2
    with pytest.raises(StoreUnavailable):
        await first


async def test_past_the_bound_a_request_is_turned_away_at_the_door(line_of: Callable[..., Line], turn: Turn) -> None:
    """A line that cannot be served in time grows no longer; what already stands in it is served."""
    line = line_of(waiting_max=2)
    running = line.submit(1)
    first = await line.store.next()
    waiting = [line.submit(2), line.submit(3)]
    await turn()
    with pytest.raises(Overloaded):
        await line.submit(4)
    first.commit()
    (await line.store.next()).commit()
    assert await answers_to(running, *waiting) == [1, 2, 3]
    assert line.store.carried == [(1,), (2, 3)]


async def test_a_line_that_stands_still_takes_nobody_in(
    line_of: Callable[..., Line], turn: Turn, jump: Callable[[float], None]
) -> None:
    """When the first in line has waited for too long, a newcomer would wait longer: it hears so at once."""
    line = line_of(waiting_seconds_max=5)
    running = line.submit(1)
    first = await line.store.next()
    waiting = line.submit(2)
    await turn()
    assert not is_full(line)
    jump(6)
    assert is_full(line)
    with pytest.raises(Overloaded):
        await line.submit(3)
    first.commit()
    (await line.store.next()).commit()
    assert await answers_to(running, waiting) == [1, 2]
    assert not is_full(line), "an empty line is never full"


async def test_a_line_that_is_slow_takes_in_what_it_can_carry_in_time(
    line_of: Callable[..., Line], turn: Turn, monkeypatch: pytest.MonkeyPatch, jump: Callable[[float], None]
) -> None:
    """The pace of the batches before says how long a newcomer would wait, before any request has waited."""
    monkeypatch.setattr("earmark.engine.commit_speed.HALF_LIFE_SECONDS", 3600)
    line = line_of(waiting_seconds_max=1, size_max=100)
    for number in range(3):
        slow = line.submit(number)
        batch = await line.store.next()
        jump(8)
        batch.commit()
        assert await slow == number
    running = line.submit(3)
    first = await line.store.next()
    waiting = [line.submit(number) for number in range(4, 24)]
    await turn()
    assert is_full(line), "a batch takes eight seconds here, and some are before the next"
    first.commit()
    (await line.store.next()).commit()
    await answers_to(running, *(request for request in waiting if not request.done()))


async def test_whoever_waits_too_long_is_refused_for_certain_and_never_run(
    line: Line, turn: Turn, jump: Callable[[float], None]
) -> None:
    """A deadline that passes in the line leaves nothing behind: the ask was not begun, and never will be."""
    first = line.submit(1)
    running = await line.store.next()
    late, patient = line.submit(2, within=5), line.submit(3, within=60)
    await turn()
    jump(6)
    with pytest.raises(Overloaded):
        await late
    running.commit()
    (await line.store.next()).commit()
    assert await answers_to(first, patient) == [1, 3]
    assert line.store.carried == [(1,), (3,)]


async def test_a_deadline_in_flight_leaves_the_outcome_unknown(line: Line, jump: Callable[[float], None]) -> None:
    """What the store may be committing is neither done nor refused: nobody may claim to know."""
    late = line.submit(1, within=5)
    batch = await line.store.next()
    jump(6)
    with pytest.raises(OutcomeUnknown):
        await late
    batch.commit()
    following = line.submit(2)
    (await line.store.next()).commit()
    assert await following == 2


async def test_an_answer_in_the_moment_of_the_deadline_is_never_told_as_a_refusal(
    line: Line, jump: Callable[[float], None]
) -> None:
    """Committed is committed: whose deadline passes as the answer arrives may hear that, or that it is unknown."""
    request = line.submit(1, within=5)
    batch = await line.store.next()
    batch.commit()
    jump(6)
    (answer,) = await asyncio.gather(request, return_exceptions=True)
    assert answer == 1 or isinstance(answer, OutcomeUnknown)


async def test_a_caller_who_leaves_the_line_is_never_run(line: Line, turn: Turn) -> None:
    """A closed connection takes its request with it, and its neighbours notice nothing."""
    first = line.submit(1)
    running = await line.store.next()
    gone, stays = line.submit(2), line.submit(3)
    await turn()
    gone.cancel()
    await turn()
    running.commit()
    (await line.store.next()).commit()
    assert await answers_to(first, stays) == [1, 3]
    assert line.store.carried == [(1,), (3,)]


async def test_a_caller_who_leaves_in_flight_fails_nobody(line: Line, turn: Turn) -> None:
    """The transaction runs on, and its other askers are answered."""
    gone, stays = line.submit(1), line.submit(2)
    batch = await line.store.next()
    gone.cancel()
    await turn()
    batch.commit()
    assert await stays == 2


async def test_close_finishes_what_was_accepted(line_of: Callable[..., Line], turn: Turn) -> None:
    """Stopping loses nobody: the running batch and the line behind it are carried to their end."""
    line = line_of(size_max=2)
    requests = [line.submit(number) for number in (1, 2, 3)]
    first = await line.store.next()
    closing = asyncio.create_task(line.batcher.close())
    await turn()
    assert not closing.done()
    first.commit()
    (await line.store.next()).commit()
    await asyncio.wait_for(closing, timeout=5)
    assert await answers_to(*requests) == [1, 2, 3]


async def test_close_of_an_idle_line_returns_at_once(line: Line) -> None:
    """Nothing under way, nothing to wait for."""
    await asyncio.wait_for(line.batcher.close(), timeout=5)
    assert line.store.batches == []


async def test_close_does_not_forget_whoever_waits_for_a_twin(line: Line, turn: Turn) -> None:
    """A request that was to come again later was accepted too: it is carried, or told that its twin is still busy."""
    request = line.submit(1)
    (await line.store.next()).commit(TWIN)
    await turn()
    closing = asyncio.create_task(line.batcher.close())

    async def commit_whatever_comes() -> None:
        while True:
            (await line.store.next()).commit()

    serving = asyncio.create_task(commit_whatever_comes())
    await asyncio.wait_for(closing, timeout=4)
    await asyncio.wait({request}, timeout=1)
    serving.cancel()
    assert request.done(), "the line is closed, and this request still waits"
    (answer,) = await asyncio.gather(request, return_exceptions=True)
    assert answer == 1 or isinstance(answer, IdempotencyInProgress)


async def test_what_moved_goes_first_in_the_next_batch(line: Line, turn: Turn) -> None:
    """Whoever has to be decided again loses no place in the line."""
    requests = [line.submit(number) for number in (1, 2, 3)]
    first = await line.store.next()
    requests.append(line.submit(4))
    await turn()
    first.commit(MOVED, Decided(value=2, now=NOW), MOVED)
    second = await line.store.next()
    assert second.numbers == (1, 3, 4)
    second.commit()
    assert await answers_to(*requests) == [1, 2, 3, 4]


async def test_what_keeps_moving_is_refused_in_the_third_round(line: Line) -> None:
    """Looking again has a bound, and then the refusal is the one that says to try later."""
    request = line.submit(1)
    for _ in range(3):
        (await line.store.next()).commit(MOVED)
    with pytest.raises(SeatsTaken) as refused:
        await request
    assert refused.value.transient
    assert line.store.carried == [(1,), (1,), (1,)]


async def test_room_is_made_once_before_a_refusal(line: Line) -> None:
    """Whoever is starved by lapsed holds is decided again after they ended, and refused only if that did not help."""
    request = line.submit(1)
    (await line.store.next()).commit(STARVED)
    again = await line.store.next()
    assert line.store.reliefs == [("GA", 1)]
    again.commit(STARVED)
    with pytest.raises(PoolExhausted):
        await request
    assert line.store.reliefs == [("GA", 1)]
    assert line.store.carried == [(1,), (1,)]


async def test_room_is_made_once_for_all_who_need_it(line: Line) -> None:
    """A batch that is starved of one pool asks for it once."""
    requests = [line.submit(number) for number in (1, 2, 3)]
    (await line.store.next()).commit(STARVED, STARVED, Decided(value=3, now=NOW))
    second = await line.store.next()
    assert (second.numbers, line.store.reliefs) == ((1, 2), [("GA", 2)])
    second.commit()
    assert await answers_to(*requests) == [1, 2, 3]


async def test_room_is_made_also_for_one_who_waited_long_for_a_twin(line: Line, jump: Callable[[float], None]) -> None:
    """Rounds spent waiting for a twin are not rounds spent being starved."""
    request = line.submit(1)
    for _ in range(8):
        (await line.store.next()).commit(TWIN)
        jump(1)
    (await line.store.next()).commit(STARVED)
    await asyncio.wait({request, asyncio.create_task(line.store.next())}, timeout=5, return_when="FIRST_COMPLETED")
    assert line.store.reliefs == [("GA", 1)]
    line.store.batches[-1].commit()
    assert await request == 1


async def test_a_request_waits_for_its_twin_without_holding_up_the_line(
    line: Line, turn: Turn, jump: Callable[[float], None]
) -> None:
    """A twin that is being decided elsewhere is asked about later; strangers pass meanwhile."""
    waits = line.submit(1)
    (await line.store.next()).commit(TWIN)
    await turn()
    passes = line.submit(2)
    batch = await line.store.next()
    assert batch.numbers == (2,)
    batch.commit()
    assert await passes == 2
    jump(1)
    later = await line.store.next()
    assert later.numbers == (1,)
    later.commit()
    assert await waits == 1


async def test_whoever_waits_for_a_twin_until_the_deadline_is_told_so(
    line: Line, turn: Turn, jump: Callable[[float], None]
) -> None:
    """Between two rounds nothing is under way, so the answer is certain: in progress, elsewhere."""
    request = line.submit(1, within=60)
    (await line.store.next()).commit(msgspec.structs.replace(TWIN, delay_seconds=600))
    await turn()
    jump(61)
    with pytest.raises(IdempotencyInProgress):
        await request
    jump(600)
    await turn()
    assert line.store.carried == [(1,)]


async def test_relief_that_breaks_costs_nobody_a_place(line: Line, turn: Turn) -> None:
    """Making room is a courtesy: when it fails, the starved one is refused, and the line moves on."""

    async def broken(_: object, **__: object) -> None:
        raise ValueError("no relief today")

    line.batcher._relieve = broken  # type: ignore[assignment] # it returns nothing, for it never returns
    starved = line.submit(1)
    first = await line.store.next()
    behind = line.submit(2)
    await turn()
    first.commit(STARVED)
    while not behind.done():
        arrived = asyncio.create_task(line.store.next())
        done, _ = await asyncio.wait({arrived, behind}, timeout=2, return_when="FIRST_COMPLETED")
        assert done, "nobody carries the line any more"
        if arrived.done():
            batch = arrived.result()
            batch.commit(*(STARVED if number == 1 else Decided(value=number, now=NOW) for number in batch.numbers))
            await turn()
        else:
            arrived.cancel()
    assert await behind == 2
    with pytest.raises((Refusal, ValueError)):
        await asyncio.wait_for(starved, timeout=1)


async def test_no_lane_is_lost_when_a_request_comes_as_one_ends(line: Line) -> None:
    """A request that arrives in the very moment in which a lane ends finds a lane: there is always one to carry it.

    The first answer's callbacks run right beside the end of its lane, so a request is sent from each turn of the
    loop around that moment.
    """
    for distance in range(6):
        base = 10 * distance
        first = line.submit(base + 1)
        batch = await line.store.next()
        batch.commit()
        for _ in range(distance):
            await asyncio.sleep(0)
        second = line.submit(base + 2)
        (await line.store.next()).commit()
        assert await answers_to(first, second) == [base + 1, base + 2]


async def test_no_lane_is_lost_when_the_answer_itself_asks_again(line: Line) -> None:
    """A caller who asks anew the moment it is answered, as loops do, is carried every time."""

    async def ask_ten_times() -> list[object]:
        return [await line.submit(number) for number in range(1, 11)]

    asking = asyncio.create_task(ask_ten_times())
    for _ in range(10):
        (await line.store.next()).commit()
    assert await asyncio.wait_for(asking, timeout=5) == list(range(1, 11))
    assert line.store.carried == [(number,) for number in range(1, 11)]


async def test_a_lane_ends_with_the_line(line: Line, turn: Turn) -> None:
    """No task is left behind by an idle line."""
    request = line.submit(1)
    (await line.store.next()).commit()
    await request
    await turn()
    assert not line.batcher._running


async def test_a_store_in_another_thread_never_begins_what_is_being_ended() -> None:
    """In whatever order a deadline and a store in a thread of its own come to a request: not begun is not begun."""
    told: list[Exception] = []

    class Interrupted(QueuedRequest[Command]):
        def fail(self, error: Exception) -> None:
            """The thread comes between what is to be told and its telling."""
            assert shared.begin() == []
            told.append(error)

    request = Interrupted(ask_number(1), asyncio.get_running_loop().create_future(), deadline=0)
    shared: Shared[Command] = Shared([request])
    request.expire()
    assert [type(one) for one in told] == [Overloaded]
