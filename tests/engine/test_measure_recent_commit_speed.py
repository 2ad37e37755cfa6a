"""How the database's pace is measured, and how soon a measurement is forgotten."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from earmark.engine import measure_recent_commit_speed as module
from earmark.engine.measure_recent_commit_speed import LOCK_SECONDS_MIN, CommitSpeed
from earmark.engine.ports.store import LOCK_SECONDS_MAX
from earmark.errors import OutcomeUnknown, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.engine.conftest import QueueUnderTest

    Turn = Callable[[], Awaitable[None]]


def after_a_pause(*, quick_batches: int, seconds_since: float = 0.0) -> float:
    """The estimated wait of 24 requests, after a batch of 24 that took 20 s and some that took 5 ms."""
    pace = CommitSpeed()
    now = 1000.0
    pace.learn(requests=24, seconds=20, side_by_side=1, now=now)
    for _ in range(quick_batches):
        now += 0.005
        pace.learn(requests=2, seconds=0.005, side_by_side=1, now=now)
    return pace.queue_seconds(24, now=now + seconds_since)


def test_one_batch_that_hung_refuses_no_request() -> None:
    """A process that slept for 20 s finds as many clients as it had, and accepts them all."""
    assert after_a_pause(quick_batches=0) < 15


def test_small_batches_are_measured_too() -> None:
    """After an incident there may be no large ones: a hundred small ones say that the database is quick."""
    assert after_a_pause(quick_batches=100) < 0.5


def test_a_measured_pace_is_forgotten_with_time() -> None:
    """A second later less than half of the estimated wait is left, and after five seconds almost none."""
    assert after_a_pause(quick_batches=0, seconds_since=1) < after_a_pause(quick_batches=0) / 2
    assert after_a_pause(quick_batches=0, seconds_since=5) < 0.1


def test_control_a_pace_that_is_never_forgotten_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without forgetting, the same wait is estimated for ever."""
    monkeypatch.setattr(module, "HALF_LIFE_SECONDS", float("inf"))
    assert after_a_pause(quick_batches=0, seconds_since=3600) == after_a_pause(quick_batches=0)


def test_a_slow_database_is_known_as_slow() -> None:
    """Batches of 100 that take 2 s each carry 50 requests a second, within what forgetting blurs."""
    pace, now = CommitSpeed(), 1000.0
    for _ in range(20):
        now += 2
        pace.learn(requests=100, seconds=2, side_by_side=1, now=now)
    assert 25 < 1000 / pace.queue_seconds(1000, now=now) < 100


def test_a_single_slow_commit_says_little_about_many_requests() -> None:
    """A commit of 50 ms that carries one request would have carried sixteen."""
    pace, now = CommitSpeed(), 1000.0
    for _ in range(100):
        now += 0.05
        pace.learn(requests=1, seconds=0.05, side_by_side=1, now=now)
    assert pace.queue_seconds(1000, now=now) < 5


@pytest.mark.parametrize(
    "batch_seconds, waits", [(0.001, LOCK_SECONDS_MIN), (0.1, 0.5), (0.4, 2.0), (30, LOCK_SECONDS_MAX)]
)
def test_a_locked_row_is_waited_for_as_long_as_five_batches_take(batch_seconds: float, waits: float) -> None:
    """With a tenth of a second at least, and five seconds at most."""
    pace, now = CommitSpeed(), 1000.0
    for _ in range(50):
        now += 0.01
        pace.learn(requests=10, seconds=batch_seconds, side_by_side=3, now=now)
    assert pace.lock_seconds(now=now) == pytest.approx(waits, rel=0.1)


@pytest.mark.parametrize("failure", [StoreUnavailable(because="gone"), OutcomeUnknown()])
async def test_a_failed_batch_is_not_measured(
    queue_of: Callable[..., QueueUnderTest], turn: Turn, jump: Callable[[float], None], failure: Exception
) -> None:
    """However long it took: a pace measured on failures would refuse requests of a database that is quick again."""
    queue = queue_of(waiting_seconds_max=15)
    for number in range(20):
        lost = queue.submit(number, within=60)
        batch = await queue.store.next()
        jump(20)
        batch.break_(failure)
        with pytest.raises(type(failure)):
            await lost
    running = queue.submit(100)
    first = await queue.store.next()
    crowd = [queue.submit(number) for number in range(200, 264)]
    await turn()
    assert not queue.batcher.is_full
    first.commit()
    (await queue.store.next()).commit()
    assert await running == 100
    assert await asyncio.gather(*crowd) == list(range(200, 264))
