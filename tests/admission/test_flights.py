"""What the flights owe to callers who will not wait, and to calls that nobody waits for."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from earmark.locks.breaker import Breaker, BreakerState
from earmark.locks.errors import LocksUnavailable
from earmark.locks.redis.flights import GROUND_SHARE_MAX, Flights
from earmark.locks.redis.script import Call
from earmark.locks.redis.wire import _Timer

from .support import EVENT, seats, until, until_true

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from earmark.admission import Gate, Pass
    from earmark.engine.ports.admission import Busy
    from earmark.testservers import Valkey


class Ground:
    """A wire whose flights land when the test says so."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.deadlines: list[float | None] = []
        self.answers: list[asyncio.Future[Any]] = []

    async def send(self, calls: Sequence[Call], *, deadline: float | None = None) -> list[Any]:
        """Take off, and wait for what the test answers: an outage, or whatever becomes of each call."""
        self.sent.append([str(call.words[0]) for call in calls])
        self.deadlines.append(deadline)
        self.answers.append(asyncio.get_running_loop().create_future())
        answer = await self.answers[-1]
        if answer == "gone":
            raise LocksUnavailable(because="the test says so")
        if answer == "bug":
            raise ZeroDivisionError
        return [answer(call) if callable(answer) else answer for call in calls]

    async def settle(self) -> None:
        """Whoever goes leaves nothing behind."""

    async def close(self) -> None:
        """Nothing is open."""

    async def flew(self, count: int) -> None:
        """Until so many flights have taken off."""
        await until(lambda: len(self.sent) == count)


def call(name: str) -> Call:
    return Call((name,), (name,))


@pytest.fixture
def wire() -> Ground:
    return Ground()


@pytest.fixture
def breaker() -> Breaker:
    return Breaker(failures_max=1)


@pytest.fixture
async def flights(wire: Ground, breaker: Breaker) -> Flights:
    return Flights(wire, breaker=breaker, patience=60.0)


async def test_patience_counts_from_the_question_and_not_from_the_take_off(wire: Ground, flights: Flights) -> None:
    """Who had to wait for a flight has the less time for it."""
    loop = asyncio.get_running_loop()
    lone = [asyncio.ensure_future(flights.ask(call(name))) for name in "ab"]
    await wire.flew(2)
    asked = loop.time()
    gathered = asyncio.ensure_future(flights.ask(call("c")))
    await asyncio.sleep(0.05)
    wire.answers[0].set_result(0)
    await wire.flew(3)
    assert wire.deadlines[2] is not None
    assert wire.deadlines[2] < asked + 60.05
    for answer in wire.answers[1:]:
        answer.set_result(0)
    await asyncio.gather(*lone, gathered)


async def test_who_waited_too_long_to_fly_is_sent_home_and_the_server_is_not_blamed(
    wire: Ground, breaker: Breaker
) -> None:
    """When this process was too busy to ask, that says nothing about Redis."""
    flights = Flights(wire, breaker=breaker, patience=0.03)
    lone = [asyncio.ensure_future(flights.ask(call(name))) for name in "ab"]
    await wire.flew(2)
    late = asyncio.ensure_future(flights.ask(call("late")))
    await asyncio.sleep(0)
    time.sleep(0.03 * GROUND_SHARE_MAX)  # noqa: ASYNC251 -- a busy process is what this is about
    wire.answers[0].set_result(0)
    with pytest.raises(LocksUnavailable):
        await late
    wire.answers[1].set_result(0)
    await asyncio.gather(*lone)
    assert wire.sent == [["a"], ["b"]]
    assert breaker.state is BreakerState.CLOSED


async def test_posted_calls_travel_together_and_in_order(wire: Ground, flights: Flights) -> None:
    """One task and one script for all that a tick has to say, with whoever asks something after it."""
    for name in "abc":
        flights.post(call(name))
    asked = asyncio.ensure_future(flights.ask(call("d")))
    await wire.flew(1)
    assert wire.sent == [["a", "b", "c", "d"]]
    wire.answers[0].set_result(7)
    assert await asked == 7
    await flights.close()


async def test_a_posted_call_that_did_not_get_through_is_made_when_the_server_answers_again(
    wire: Ground, flights: Flights, breaker: Breaker
) -> None:
    """Nobody waits for it, and yet it is not forgotten; nor is one that was posted while the breaker was open."""
    flights.post(call("a"))
    await wire.flew(1)
    wire.answers[0].set_result("gone")
    await until(lambda: breaker.state is BreakerState.OPEN)
    flights.post(call("b"))
    breaker._next_at = 0.0
    asked = asyncio.ensure_future(flights.ask(call("c")))
    await wire.flew(2)
    wire.answers[1].set_result(0)
    await asked
    await until(lambda: sorted(name for flight in wire.sent[2:] for name in flight) == ["a", "b"])
    assert wire.sent[1] == ["c"], "who waits goes first"
    for answer in wire.answers[2:]:
        answer.set_result(0)
    await flights.close()


async def test_a_bug_of_ours_strands_nobody(wire: Ground, flights: Flights) -> None:
    """Both flights break; whoever waits on the ground flies all the same."""
    for number, name in enumerate("ab"):
        flights.post(call(name))
        await wire.flew(number + 1)
    broken = list(flights._tasks)
    asked = asyncio.ensure_future(flights.ask(call("c")))
    await asyncio.sleep(0)
    for answer in wire.answers:
        answer.set_result("bug")
    ends = await asyncio.gather(*broken, return_exceptions=True)
    assert [type(end) for end in ends] == [ZeroDivisionError] * 2
    await wire.flew(3)
    wire.answers[2].set_result(7)
    assert await asked == 7


@pytest.mark.parametrize("whole", [True, False])
async def test_a_server_of_several_that_is_silent_counts_for_those_who_say_so(
    wire: Ground, breaker: Breaker, *, whole: bool
) -> None:
    """Admission would rather ask nobody than wait for one of them again and again; locks go on with the others."""
    flights = Flights(wire, breaker=breaker, patience=60.0, whole=whole)
    flights.post(call("silent"))
    asked = asyncio.ensure_future(flights.ask(call("a")))
    await wire.flew(1)
    silent = LocksUnavailable(because="this one is silent")
    wire.answers[0].set_result(lambda call: silent if call.names == ("silent",) else 0)
    assert await asked == 0
    assert (breaker.state is BreakerState.OPEN) == whole
    assert [call.names for call in flights._owed] == [("silent",)]


async def answers_to_a_busy_process(gate: Gate) -> list[Pass | Busy | None]:
    """What requests hear whose process is kept busy past their deadline, while Redis answers at once.

    Three of them, or the first that heard nothing: after it, Redis may not be asked at all.
    """
    heard: list[Pass | Busy | None] = []
    while len(heard) < 3 and None not in heard:
        asked = asyncio.ensure_future(gate.admit(EVENT, seats(f"B{len(heard)}")))
        await asyncio.sleep(0)
        assert gate._lines[0].flights._aloft
        time.sleep(0.2)  # noqa: ASYNC251 -- a busy process is what this is about
        heard.append(await asked)
    return heard


async def connected(gate: Gate) -> bool:
    return await gate.admit(EVENT, seats("A1")) is not None


async def test_an_answer_that_came_in_time_is_read_though_this_process_was_busy(
    server: Valkey, open_gate: Callable[..., Gate]
) -> None:
    """The deadline is for Redis, which kept it: a loop that was blocked past it finds answer and timer together."""
    gate = open_gate(server.url, timeout=0.1)
    await until_true(lambda: connected(gate))
    assert None not in await answers_to_a_busy_process(gate)


async def test_such_an_answer_would_be_lost_to_a_timer_that_acts_at_once(
    server: Valkey, open_gate: Callable[..., Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the one turn that it is late by, the timer cuts off an answer that is there."""
    monkeypatch.setattr(_Timer, "_ring", lambda timer: timer._act())
    gate = open_gate(server.url, timeout=0.1)
    await until_true(lambda: connected(gate))
    assert None in await answers_to_a_busy_process(gate)


async def test_amends_follow_the_call_that_they_are_owed_for(wire: Ground, flights: Flights) -> None:
    """Whoever asked has gone while its call was under way: only when that has landed is anything sent for it."""
    lone = [asyncio.ensure_future(flights.ask(call(name))) for name in "ab"]
    await wire.flew(2)
    gathered = asyncio.ensure_future(flights.ask(call("c"), amends=call("sorry")))
    wire.answers[0].set_result(0)
    await wire.flew(3)
    gathered.cancel()
    wire.answers[1].set_result(0)
    await asyncio.gather(*lone)
    await asyncio.sleep(0.01)
    assert wire.sent == [["a"], ["b"], ["c"]]
    wire.answers[2].set_result(0)
    await wire.flew(4)
    assert wire.sent[3] == ["sorry"]
    wire.answers[3].set_result(0)
    await flights.close()


async def test_a_call_that_was_never_made_needs_no_amends(wire: Ground, flights: Flights) -> None:
    """Whoever goes before take-off, or meets an outage on the ground, has nothing to make good."""
    lone = [asyncio.ensure_future(flights.ask(call(name))) for name in "ab"]
    await wire.flew(2)
    gone = asyncio.ensure_future(flights.ask(call("c"), amends=call("sorry for c")))
    await asyncio.sleep(0)
    gone.cancel()
    grounded = asyncio.ensure_future(flights.ask(call("d"), amends=call("sorry for d")))
    await asyncio.sleep(0)
    wire.answers[0].set_result("gone")
    with pytest.raises(LocksUnavailable):
        await grounded
    wire.answers[1].set_result(0)
    await asyncio.gather(*lone, return_exceptions=True)
    await flights.close()
    assert wire.sent == [["a"], ["b"]]


async def test_a_call_that_was_not_answered_needs_amends(wire: Ground) -> None:
    """Alone or with others: it may have been carried out."""
    flights = Flights(wire, breaker=Breaker(failures_max=9))
    alone = asyncio.ensure_future(flights.ask(call("a"), amends=call("sorry")))
    await wire.flew(1)
    wire.answers[0].set_result("gone")
    with pytest.raises(LocksUnavailable):
        await alone
    await wire.flew(2)
    assert wire.sent[1] == ["sorry"]
    wire.answers[1].set_result(0)
    await flights.close()
