"""The circuit breaker: when it opens, whom it lets through, and that nothing keeps it from closing again."""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earmark.errors import SetupError
from earmark.locks.circuit_breaker import Breaker, BreakerChange, BreakerState

if TYPE_CHECKING:
    from collections.abc import Callable

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


class Clock:
    """Moves when a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The time that the test has set."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(failures_max=3, cooldown_seconds=1.0, cooldown_seconds_max=5.0, clock=clock)


def opened(breaker: Breaker) -> Breaker:
    for _ in range(3):
        breaker.failed()
    assert breaker.state is OPEN
    return breaker


def in_threads(count: int, ask: Callable[[], bool]) -> list[bool]:
    """What so many threads are answered that ask at the same moment."""
    answers: list[bool] = []
    start = threading.Barrier(count)

    def run() -> None:
        start.wait(timeout=30)
        answers.append(ask())

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(answers) == count
    return answers


def test_all_calls_go_through_while_the_server_answers(breaker: Breaker) -> None:
    """Without failures a breaker lets every call through."""
    assert all(breaker.allow() for _ in range(10))
    breaker.succeeded()
    assert (breaker.state, breaker.opened_count, breaker.retry_after_seconds) == (CLOSED, 0, 0.0)


def test_failures_in_a_row_open_it(breaker: Breaker) -> None:
    """After the third failure in a row a caller need not wait for a fourth."""
    breaker.failed()
    breaker.failed()
    assert breaker.allow()
    breaker.failed()
    assert not breaker.allow()
    assert (breaker.state, breaker.opened_count, breaker.retry_after_seconds) == (OPEN, 1, 1.0)


def test_an_answer_between_failures_keeps_it_closed(breaker: Breaker) -> None:
    """A server that loses one packet in two is slow, not gone."""
    for _ in range(10):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert (breaker.state, breaker.opened_count) == (CLOSED, 0)


def test_after_the_cool_down_one_caller_tries(breaker: Breaker, clock: Clock) -> None:
    """One is enough to find out; the others would only wait for the same answer."""
    opened(breaker)
    clock.now += 0.999
    assert not breaker.allow()
    clock.now += 0.101
    assert breaker.retry_after_seconds == 0.0
    assert [breaker.allow() for _ in range(5)] == [True, False, False, False, False]
    assert breaker.state is HALF_OPEN


def test_the_success_of_the_try_closes_it(breaker: Breaker, clock: Clock) -> None:
    """Once the server answers again, all callers go through, and the next outage starts from the beginning."""
    opened(breaker)
    clock.now += 1
    assert breaker.allow()
    breaker.succeeded()
    assert (breaker.state, breaker.retry_after_seconds) == (CLOSED, 0.0)
    assert [breaker.allow() for _ in range(3)] == [True] * 3
    breaker.failed()
    breaker.failed()
    assert breaker.state is CLOSED


def test_a_caller_in_the_moment_it_closes_is_let_through(breaker: Breaker, clock: Clock) -> None:
    """A thread that saw it open, and calls when another has just closed it, need not be refused."""
    opened(breaker)
    clock.now += 1
    breaker.allow()
    assert not breaker._allow_one()
    breaker.succeeded()
    assert breaker._allow_one()
    assert breaker.state is CLOSED


def test_each_failed_try_doubles_the_cool_down_up_to_its_maximum(breaker: Breaker, clock: Clock) -> None:
    """A server that stays away is asked less and less often, but never given up."""
    opened(breaker)
    waited = []
    for _ in range(5):
        waited.append(breaker.retry_after_seconds)
        clock.now += breaker.retry_after_seconds
        assert breaker.allow()
        breaker.failed()
        assert not breaker.allow()
    assert waited == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert breaker.opened_count == 6


def test_a_recovery_forgets_the_long_cool_down(breaker: Breaker, clock: Clock) -> None:
    """Yesterday's outage does not make today's longer."""
    opened(breaker)
    clock.now += 1
    breaker.allow()
    breaker.failed()
    clock.now += 2
    breaker.allow()
    breaker.succeeded()
    assert opened(breaker).retry_after_seconds == 1.0


def test_a_try_that_never_reports_is_followed_by_another(breaker: Breaker, clock: Clock) -> None:
    """A cancelled caller must not leave the locks shut for good."""
    opened(breaker)
    clock.now += 1
    assert breaker.allow()
    clock.now += 0.999
    assert not breaker.allow()
    assert breaker.retry_after_seconds == pytest.approx(0.001)
    clock.now += 0.001
    assert [breaker.allow() for _ in range(3)] == [True, False, False]
    breaker.succeeded()
    assert breaker.state is CLOSED


def test_two_tries_that_fail_late_count_once(breaker: Breaker, clock: Clock) -> None:
    """The second of them reports what is known already."""
    opened(breaker)
    for _ in range(2):
        clock.now += 1
        assert breaker.allow()
    breaker.failed()
    breaker.failed()
    assert (breaker.state, breaker.opened_count, breaker.retry_after_seconds) == (OPEN, 2, 2.0)


def test_late_reports_change_nothing_while_it_is_open(breaker: Breaker, clock: Clock) -> None:
    """Fifty calls that were under way neither prolong the cool-down nor end it."""
    opened(breaker)
    clock.now += 0.5
    for _ in range(50):
        breaker.failed()
        breaker.succeeded()
    assert (breaker.state, breaker.opened_count, breaker.retry_after_seconds) == (OPEN, 1, 0.5)


def test_every_change_is_reported_and_the_callback_may_use_the_breaker(clock: Clock) -> None:
    """An operator reads in the log when the locks were shut; what listens must not hang on the breaker's own lock."""
    reported: list[tuple[BreakerChange, BreakerState]] = []

    def listen(change: BreakerChange) -> None:
        assert not listened.allow() or change.after is not OPEN
        reported.append((change, listened.state))

    listened = Breaker(clock=clock, on_change=listen)
    opened(listened)
    clock.now += 1
    listened.allow()
    listened.succeeded()
    listened.succeeded()
    assert [change for change, _ in reported] == [
        BreakerChange(before=CLOSED, after=OPEN, retry_after_seconds=1.0),
        BreakerChange(before=OPEN, after=HALF_OPEN, retry_after_seconds=1.0),
        BreakerChange(before=HALF_OPEN, after=CLOSED, retry_after_seconds=0.0),
    ]
    assert all(change.after is state for change, state in reported)


def test_a_listener_that_breaks_leaves_the_breaker_right(clock: Clock) -> None:
    """The change is made before it is reported."""

    def broken(_: BreakerChange) -> None:
        raise RuntimeError("no log today")

    breaker = Breaker(failures_max=1, clock=clock, on_change=broken)
    with pytest.raises(RuntimeError, match="no log today"):
        breaker.failed()
    assert breaker.state is OPEN
    assert not breaker.allow()


@pytest.mark.parametrize(
    "knobs",
    [
        {"failures_max": 0},
        {"cooldown_seconds": 0.0},
        {"cooldown_seconds": -1.0},
        {"cooldown_seconds": float("nan")},
        {"cooldown_seconds": 31.0},
    ],
)
def test_a_breaker_that_could_not_work_is_not_made(knobs: dict[str, Any]) -> None:
    """Without a cool-down it would never be open, and without a failure never closed."""
    with pytest.raises(SetupError, match="breaker"):
        Breaker(**knobs)


class Meeting(Clock):
    """A clock on which two threads that read it together meet, so that both have looked before either acts."""

    def __init__(self, *, patience_seconds: float) -> None:
        super().__init__()
        self.both = threading.Barrier(2, timeout=patience_seconds)

    def __call__(self) -> float:
        """What it shows, once the other has come or the patience is over."""
        with suppress(threading.BrokenBarrierError):
            self.both.wait()
        return self.now


def ready_for_one(clock: Clock) -> Breaker:
    breaker = Breaker(failures_max=1, clock=clock)
    breaker._next_at = clock.now
    breaker._failures = 1
    breaker._move(OPEN, retry_after_seconds=0.0)
    return breaker


def test_without_its_lock_two_threads_would_both_try() -> None:
    """The control: the race is real, and these threads run into it."""
    breaker = ready_for_one(Meeting(patience_seconds=30))
    breaker._lock = nullcontext()
    assert in_threads(2, breaker.allow) == [True, True]


def test_of_two_threads_one_tries() -> None:
    """With the lock the second never comes to the meeting, so that the first continues alone after a moment."""
    breaker = ready_for_one(Meeting(patience_seconds=0.2))
    assert sorted(in_threads(2, breaker.allow)) == [False, True]


def test_of_many_threads_one_tries(breaker: Breaker, clock: Clock) -> None:
    """However many ask in the same moment after the cool-down."""
    opened(breaker)
    clock.now += 1
    assert sum(in_threads(16, breaker.allow)) == 1


# Failures outnumber the rest, or few of these stories would get beyond a closed breaker.
steps = st.lists(
    st.sampled_from(["fail", "fail", "fail", "ask", "succeed"]) | st.floats(min_value=0, max_value=3), max_size=60
)


@given(steps)
def test_whatever_happens_it_protects_the_server_and_opens_again(steps: list[str | float]) -> None:
    """Between two tries lies the cool-down; an open breaker has its reason; and no history wedges it."""
    clock = Clock()
    breaker = Breaker(failures_max=3, cooldown_seconds=1.0, cooldown_seconds_max=5.0, clock=clock)
    in_a_row, tried_at = 0, float("-inf")
    for step in steps:
        before = breaker.state
        if isinstance(step, float):
            clock.now += step
            assert breaker.state is before
        elif step == "succeed":
            breaker.succeeded()
            in_a_row = 0 if before is not OPEN else in_a_row
            assert breaker.state is (OPEN if before is OPEN else CLOSED)
        elif step == "fail":
            breaker.failed()
            in_a_row += 1
            assert breaker.state is (CLOSED if before is CLOSED and in_a_row < 3 else OPEN)
        elif breaker.allow() and before is not CLOSED:
            assert breaker.state is HALF_OPEN
            assert clock.now - tried_at > 0.999
            tried_at = clock.now
        assert 0.0 <= breaker.retry_after_seconds <= 5.0
    clock.now += breaker.retry_after_seconds + 0.001
    assert breaker.allow()
    breaker.succeeded()
    assert breaker.state is CLOSED
