"""What the call batching guarantees to callers with a timeout, and to calls whose answer is not read."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from earmark.locks.circuit_breaker import Breaker, BreakerState
from earmark.locks.errors import LocksUnavailable
from earmark.locks.redis.call_batching import QUEUE_SHARE_MAX, CallBatcher
from earmark.locks.redis.encode_and_decode_script_calls import ScriptCall
from earmark.locks.redis.script_connection import _AnswerDeadline

from .support import EVENT, seats, until, until_true

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from earmark.admission import AdmissionPass, SeatAdmission
    from earmark.engine.ports.seat_admission import Busy
    from earmark.testservers import Valkey


class ManualConnection:
    """A connection whose batches end when the test says so."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.deadlines: list[float | None] = []
        self.answers: list[asyncio.Future[Any]] = []

    async def send(self, calls: Sequence[ScriptCall], *, deadline: float | None = None) -> list[Any]:
        """Send the batch, and wait for what the test answers: an outage, or the answer to each call."""
        self.sent.append([str(call.words[0]) for call in calls])
        self.deadlines.append(deadline)
        self.answers.append(asyncio.get_running_loop().create_future())
        answer = await self.answers[-1]
        if answer == "gone":
            raise LocksUnavailable(because="the test says so")
        if answer == "bug":
            raise ZeroDivisionError
        return [answer(call) if callable(answer) else answer for call in calls]

    async def wait_for_abandoned_calls(self) -> None:
        """No call is in progress, and none is left in the queue."""

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def batches_sent(self, count: int) -> None:
        """Until so many batches were sent."""
        await until(lambda: len(self.sent) == count)


def call(name: str) -> ScriptCall:
    return ScriptCall((name,), (name,))


@pytest.fixture
def connection() -> ManualConnection:
    return ManualConnection()


@pytest.fixture
def breaker() -> Breaker:
    return Breaker(failures_max=1)


@pytest.fixture
async def batcher(connection: ManualConnection, breaker: Breaker) -> CallBatcher:
    return CallBatcher(connection, breaker=breaker, timeout=60.0)


async def test_patience_counts_from_the_question_and_not_from_the_take_off(
    connection: ManualConnection, batcher: CallBatcher
) -> None:
    """A call that waited in the queue has the less time left for itself."""
    loop = asyncio.get_running_loop()
    single = [asyncio.ensure_future(batcher.send(call(name))) for name in "ab"]
    await connection.batches_sent(2)
    pending = loop.time()
    queued_call = asyncio.ensure_future(batcher.send(call("c")))
    await asyncio.sleep(0.05)
    connection.answers[0].set_result(0)
    await connection.batches_sent(3)
    assert connection.deadlines[2] is not None
    assert connection.deadlines[2] < pending + 60.05
    for answer in connection.answers[1:]:
        answer.set_result(0)
    await asyncio.gather(*single, queued_call)


async def test_a_call_that_waited_too_long_in_the_queue_is_refused_and_is_no_failure_of_the_server(
    connection: ManualConnection, breaker: Breaker
) -> None:
    """When this process was too busy to ask, that says nothing about Redis."""
    batcher = CallBatcher(connection, breaker=breaker, timeout=0.03)
    single = [asyncio.ensure_future(batcher.send(call(name))) for name in "ab"]
    await connection.batches_sent(2)
    late = asyncio.ensure_future(batcher.send(call("late")))
    await asyncio.sleep(0)
    time.sleep(0.03 * QUEUE_SHARE_MAX)  # noqa: ASYNC251 -- a busy process is what this is about
    connection.answers[0].set_result(0)
    with pytest.raises(LocksUnavailable):
        await late
    connection.answers[1].set_result(0)
    await asyncio.gather(*single)
    assert connection.sent == [["a"], ["b"]]
    assert breaker.state is BreakerState.CLOSED


async def test_posted_calls_travel_together_and_in_order(connection: ManualConnection, batcher: CallBatcher) -> None:
    """One task and one script for all calls of one turn of the event loop, and for a caller after them."""
    for name in "abc":
        batcher.send_unread(call(name))
    pending = asyncio.ensure_future(batcher.send(call("d")))
    await connection.batches_sent(1)
    assert connection.sent == [["a", "b", "c", "d"]]
    connection.answers[0].set_result(7)
    assert await pending == 7
    await batcher.close()


async def test_a_posted_call_that_did_not_get_through_is_made_when_the_server_answers_again(
    connection: ManualConnection, batcher: CallBatcher, breaker: Breaker
) -> None:
    """No caller waits for it, and yet it is sent again; so is one that was made while the breaker was open."""
    batcher.send_unread(call("a"))
    await connection.batches_sent(1)
    connection.answers[0].set_result("gone")
    await until(lambda: breaker.state is BreakerState.OPEN)
    batcher.send_unread(call("b"))
    breaker._next_at = 0.0
    pending = asyncio.ensure_future(batcher.send(call("c")))
    await connection.batches_sent(2)
    connection.answers[1].set_result(0)
    await pending
    await until(lambda: sorted(name for flight in connection.sent[2:] for name in flight) == ["a", "b"])
    assert connection.sent[1] == ["c"], "a call with a caller is sent first"
    for answer in connection.answers[2:]:
        answer.set_result(0)
    await batcher.close()


async def test_a_bug_in_a_batch_leaves_no_caller_waiting(connection: ManualConnection, batcher: CallBatcher) -> None:
    """Both batches fail; the calls in the queue are sent all the same."""
    for number, name in enumerate("ab"):
        batcher.send_unread(call(name))
        await connection.batches_sent(number + 1)
    broken = list(batcher._tasks)
    pending = asyncio.ensure_future(batcher.send(call("c")))
    await asyncio.sleep(0)
    for answer in connection.answers:
        answer.set_result("bug")
    ends = await asyncio.gather(*broken, return_exceptions=True)
    assert [type(end) for end in ends] == [ZeroDivisionError] * 2
    await connection.batches_sent(3)
    connection.answers[2].set_result(7)
    assert await pending == 7


@pytest.mark.parametrize("partial_is_failure", [True, False])
async def test_a_silent_server_of_several_is_a_failure_where_the_caller_wants_it(
    connection: ManualConnection, breaker: Breaker, *, partial_is_failure: bool
) -> None:
    """Admission would rather do without than wait for one of them again and again; locks go on with the others."""
    batcher = CallBatcher(connection, breaker=breaker, timeout=60.0, partial_is_failure=partial_is_failure)
    batcher.send_unread(call("silent"))
    pending = asyncio.ensure_future(batcher.send(call("a")))
    await connection.batches_sent(1)
    silent = LocksUnavailable(because="this one is silent")
    connection.answers[0].set_result(lambda call: silent if call.names == ("silent",) else 0)
    assert await pending == 0
    assert (breaker.state is BreakerState.OPEN) == partial_is_failure
    assert [call.names for call in batcher._unsent] == [("silent",)]


async def answers_to_a_busy_process(admission: SeatAdmission) -> list[AdmissionPass | Busy | None]:
    """The outcomes of requests whose process is kept busy past their deadline, while Redis answers at once.

    Three of them, or the first without an answer: after it, Redis may not be called at all.
    """
    outcomes: list[AdmissionPass | Busy | None] = []
    while len(outcomes) < 3 and None not in outcomes:
        pending = asyncio.ensure_future(admission.admit(EVENT, seats(f"B{len(outcomes)}")))
        await asyncio.sleep(0)
        assert admission._servers[0].batcher._calls_in_progress
        time.sleep(0.2)  # noqa: ASYNC251 -- a busy process is what this is about
        outcomes.append(await pending)
    return outcomes


async def connected(admission: SeatAdmission) -> bool:
    return await admission.admit(EVENT, seats("A1")) is not None


async def test_an_answer_that_came_in_time_is_read_though_this_process_was_busy(
    server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The deadline is for Redis, which kept it: a loop that was blocked past it finds answer and timer together."""
    admission = open_seat_admission(server.url, timeout=0.1)
    await until_true(lambda: connected(admission))
    assert None not in await answers_to_a_busy_process(admission)


async def test_such_an_answer_would_be_lost_to_a_timer_that_acts_at_once(
    server: Valkey, open_seat_admission: Callable[..., SeatAdmission], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the one turn that it is late by, the timer cuts off an answer that is there."""
    monkeypatch.setattr(_AnswerDeadline, "expire", lambda deadline: deadline._act())
    admission = open_seat_admission(server.url, timeout=0.1)
    await until_true(lambda: connected(admission))
    assert None in await answers_to_a_busy_process(admission)


async def test_the_undo_follows_the_call_that_it_undoes(connection: ManualConnection, batcher: CallBatcher) -> None:
    """The caller was cancelled while its call was in progress: the undo is sent only when that has ended."""
    single = [asyncio.ensure_future(batcher.send(call(name))) for name in "ab"]
    await connection.batches_sent(2)
    queued_call = asyncio.ensure_future(batcher.send(call("c"), undo=call("undo")))
    connection.answers[0].set_result(0)
    await connection.batches_sent(3)
    queued_call.cancel()
    connection.answers[1].set_result(0)
    await asyncio.gather(*single)
    await asyncio.sleep(0.01)
    assert connection.sent == [["a"], ["b"], ["c"]]
    connection.answers[2].set_result(0)
    await connection.batches_sent(4)
    assert connection.sent[3] == ["undo"]
    connection.answers[3].set_result(0)
    await batcher.close()


async def test_a_call_that_was_never_sent_needs_no_undo(connection: ManualConnection, batcher: CallBatcher) -> None:
    """A caller that is cancelled in the queue, or meets an outage there, has nothing to undo."""
    single = [asyncio.ensure_future(batcher.send(call(name))) for name in "ab"]
    await connection.batches_sent(2)
    gone = asyncio.ensure_future(batcher.send(call("c"), undo=call("undo c")))
    await asyncio.sleep(0)
    gone.cancel()
    queued = asyncio.ensure_future(batcher.send(call("d"), undo=call("undo d")))
    await asyncio.sleep(0)
    connection.answers[0].set_result("gone")
    with pytest.raises(LocksUnavailable):
        await queued
    connection.answers[1].set_result(0)
    await asyncio.gather(*single, return_exceptions=True)
    await batcher.close()
    assert connection.sent == [["a"], ["b"]]


async def test_a_call_that_was_not_answered_needs_an_undo(connection: ManualConnection) -> None:
    """Alone or with others: it may have been carried out."""
    batcher = CallBatcher(connection, breaker=Breaker(failures_max=9))
    alone = asyncio.ensure_future(batcher.send(call("a"), undo=call("undo")))
    await connection.batches_sent(1)
    connection.answers[0].set_result("gone")
    with pytest.raises(LocksUnavailable):
        await alone
    await connection.batches_sent(2)
    assert connection.sent[1] == ["undo"]
    connection.answers[1].set_result(0)
    await batcher.close()
