"""A failing round is not a good round: every worker pauses, reports the failure, and logs it once."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.workers.undo import undone_on_error

from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import EventId
from earmark.engine.ports.heartbeats import WELL
from earmark.errors import StoreUnavailable
from earmark.store.sqlite.memory import MemoryStore
from earmark.testing import open_in_memory
from earmark.workers import loop
from earmark.workers.due_hold_sweeper import Sweeper
from earmark.workers.heartbeat import Heartbeat
from earmark.workers.old_row_janitor import Janitor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking as Row
    from earmark.engine.ports.heartbeats import HeartbeatRow
    from earmark.library import Earmark

SLEEP = loop._sleep
PAUSE_SECONDS_MAX = 5.0
"""The longest pause that lets a worker act again soon after the database answers again."""


@pytest.fixture
async def earmark(clock: MovableClock) -> AsyncIterator[Earmark]:
    """Twenty due holds, in memory."""
    async with open_in_memory(clock=clock) as shop:
        seats = {f"A{number}": 100 for number in range(1, 21)}
        await shop.create_event("play", name="A play", currency="EUR", seats=seats)
        for number in range(1, 21):
            await shop.hold("play", buyer=f"b{number}", seats=[f"A{number}"], ttl_seconds=60)
            clock.advance(0.001)
        clock.advance(60)
        yield shop


class Rounds:
    """Runs workers for a number of rounds without waiting, and keeps the pauses that they requested."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: MemoryStore, *, until: int) -> None:
        self.pauses: list[float] = []
        self.heartbeat = Heartbeat(store.heartbeats, interval_seconds=1000.0, host="shop-1")
        self._store = store
        self._stop = asyncio.Event()
        self._until = until
        monkeypatch.setattr(loop, "_sleep", self._keep)

    async def _keep(self, seconds: float, stop: asyncio.Event) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) >= self._until:
            stop.set()
        await SLEEP(0.0, stop)

    async def run(self, worker: Any) -> HeartbeatRow:
        """The worker's heartbeat after the last round."""
        await asyncio.wait_for(loop.run([worker], self._stop, heartbeat=self.heartbeat), timeout=60)
        await self.heartbeat._write()
        beats = (await self._store.heartbeats.read(limit=10)).heartbeats
        return next(beat for beat in beats if beat.process_id == self.heartbeat.process.id)


async def test_a_sweeper_whose_verb_always_fails_pauses_and_reports_it(
    earmark: Earmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a pause it made 886 rollbacks in a second, and its heartbeat said `ok`."""
    rollbacks = 0

    async def broken(**_: Any) -> list[Row]:
        nonlocal rollbacks
        rollbacks += 1
        raise ValueError("a rule of the schema is broken")

    monkeypatch.setattr(earmark.engine, "expire", broken)
    store: Any = earmark.engine.store
    rounds = Rounds(monkeypatch, store, until=30)
    beat = await rounds.run(Sweeper(earmark.engine))
    assert beat.outcome not in WELL
    assert all(0 < pause <= PAUSE_SECONDS_MAX for pause in rounds.pauses)
    assert sum(rounds.pauses[10:]) > 5, "20 rounds of at most 8 rollbacks take some seconds"
    assert rollbacks <= 30 * 8


async def test_a_heartbeat_says_why_a_worker_fails_and_since_when(
    earmark: Earmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first failure counts, however many follow; a good round ends it."""
    down = StoreUnavailable(because="the cable was cut, password=hunter22")
    answers: list[Exception | None] = [down, down, down, None]
    seen: list[HeartbeatRow] = []
    store: Any = earmark.engine.store

    class Flaky:
        name = "flaky"

        async def act(self) -> float:
            await rounds.heartbeat._write()
            seen.extend((await store.heartbeats.read(limit=10)).heartbeats)
            if failure := answers.pop(0):
                raise failure
            return 1.0

    rounds = Rounds(monkeypatch, store, until=4)
    before = datetime.now(UTC).replace(microsecond=0)
    last = await rounds.run(Flaky())
    assert [beat.code for beat in [*seen, last]] == ["starting", "unavailable", "unavailable", "unavailable", "ok"]
    sinces = {beat.failing_since for beat in seen[1:]}
    assert len(sinces) == 1
    [since] = sinces
    assert since is not None
    assert since >= before
    assert seen[1].because == "the cable was cut, password=[redacted]"
    assert (last.failing_since, last.because) == (None, None)


async def test_the_log_has_a_failure_once_and_its_end(
    earmark: Earmark, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not once per round: a worker that fails for a day must not fill a disk."""
    answers: list[Exception | None] = [
        *[StoreUnavailable(because="the cable was cut")] * 20,
        *[ValueError("a bug")] * 20,
        None,
    ]

    class Flaky:
        name = "flaky"

        async def act(self) -> float:
            if failure := answers.pop(0):
                raise failure
            return 1.0

    store: Any = earmark.engine.store
    caplog.set_level(logging.INFO, logger="earmark")
    await Rounds(monkeypatch, store, until=len(answers)).run(Flaky())
    heartbeat_with = [record.levelname for record in caplog.records if "flaky" in record.getMessage()]
    assert heartbeat_with == ["WARNING", "ERROR", "INFO"]


async def test_a_round_that_does_not_end_is_reported_as_stalled(clock: MovableClock) -> None:
    """A hanging worker's process runs and its heartbeat goes on: the heartbeat must not go on saying `ok`."""
    store, stop, may_end = MemoryStore(clock=clock), asyncio.Event(), asyncio.Event()
    acted = 0

    class Hanging:
        name = "hanging"

        async def act(self) -> float:
            nonlocal acted
            acted += 1
            if acted == 2:
                await may_end.wait()
            return 0.001

    heartbeat = Heartbeat(store.heartbeats, interval_seconds=0.005, stalled_seconds=0.05)
    running = asyncio.create_task(loop.run([Hanging()], stop, heartbeat=heartbeat))

    async def heartbeat_with(code: str) -> HeartbeatRow:
        async with asyncio.timeout(30):
            while True:
                beats = (await store.heartbeats.read(limit=10)).heartbeats
                if beats and beats[0].code == code:
                    return beats[0]
                await asyncio.sleep(0.001)

    stalled = await heartbeat_with("stalled")
    assert stalled.failing_since is not None
    may_end.set()
    await heartbeat_with("ok")
    stop.set()
    await asyncio.wait_for(running, timeout=60)


async def test_some_holds_that_cannot_be_ended_do_not_keep_the_others(
    earmark: Earmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are skipped, the heartbeat reports it as long as it is so, and they are ended once they can be."""
    poison = {f"A{number}" for number in (1, 2, 3, 11)}
    expire = earmark.engine.expire
    rollbacks = 0

    async def broken(**asked: Any) -> list[Row]:
        nonlocal rollbacks
        with undone_on_error(earmark.engine.store):
            ended = await expire(**asked)
            if poison & {seat.id for booking in ended for seat in booking.lines.seats}:
                rollbacks += 1
                raise ValueError("the counts of this one are off")
        return ended

    monkeypatch.setattr(earmark.engine, "expire", broken)
    store: Any = earmark.engine.store
    sweeper = Sweeper(earmark.engine)
    rounds = Rounds(monkeypatch, store, until=40)
    beat = await rounds.run(sweeper)
    seen = (await store.read_map(EventId("play"))).seats
    assert {one.seat.id for one in seen if one.owner_state is State.HELD} == poison
    assert beat.outcome not in WELL
    found = rollbacks
    assert rounds.pauses[-1] > 0.5, "what cannot be ended makes no hurry"
    poison.clear()
    sweeper._retry_at = 0.0
    again = Rounds(monkeypatch, store, until=10)
    healed = await again.run(sweeper)
    assert healed.outcome in WELL
    assert rollbacks == found


async def test_a_locked_due_hold_is_retried_less_and_less_often(
    earmark: Earmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is due and cannot be locked: the sweeper looks again soon, then less and less often."""

    async def passed_over(**_: Any) -> list[Row]:
        return []

    monkeypatch.setattr(earmark.engine, "expire", passed_over)
    store: Any = earmark.engine.store
    rounds = Rounds(monkeypatch, store, until=12)
    beat = await rounds.run(Sweeper(earmark.engine, interval_seconds_max=1.0))
    assert beat.outcome in WELL
    assert rounds.pauses[0] < 0.5 < rounds.pauses[-1] <= 1.0


async def test_a_chore_that_fails_does_not_keep_the_janitor_from_the_others(
    clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are done, and the round is a failed one all the same."""
    store = MemoryStore(clock=clock)
    done: list[str] = []

    async def broken(**_: Any) -> Any:
        raise ValueError("a rule of the schema is broken")

    async def clear(**_: Any) -> int:
        done.append("beats")
        return 0

    async def prune(**_: Any) -> int:
        done.append("deliveries")
        return 0

    monkeypatch.setattr(store.upkeep, "forget_keys", broken)
    monkeypatch.setattr(store.heartbeats, "clear", clear)
    monkeypatch.setattr(store.webhooks, "prune", prune)
    rounds = Rounds(monkeypatch, store, until=3)
    beat = await rounds.run(Janitor(store))
    assert done == ["beats", "deliveries"] * 3
    assert beat.outcome not in WELL
    assert all(0 < pause <= PAUSE_SECONDS_MAX for pause in rounds.pauses)
