"""Heartbeats: who runs is heard of, who stops takes its leave, and a silent store is no error."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.acceptance.support import EARMARK, environment, free_port

from earmark.errors import StoreUnavailable
from earmark.store.memory import MemoryStore
from earmark.wiring import databases
from earmark.wiring.workers import ROLES
from earmark.workers import loop
from earmark.workers.heartbeat import Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from earmark.clock import MovableClock
    from earmark.engine.ports.heartbeats import Roll
    from earmark.engine.ports.store import Store


class Busy:
    """A worker that acts until it is told what to do otherwise."""

    name = "busy"

    def __init__(self) -> None:
        self.broken: Exception | None = None

    async def act(self) -> float:
        """One round."""
        if self.broken:
            raise self.broken
        return 0.01


async def heard(store: Store, so: Callable[[Roll], bool]) -> Roll:
    """Wait for the fact."""
    for _ in range(3000):
        roll = await store.beats.read(limit=10)
        if so(roll):
            return roll
        await asyncio.sleep(0.01)
    raise AssertionError(f"never heard: {roll}")


async def test_a_running_agent_is_heard_of_and_takes_its_leave(clock: MovableClock) -> None:
    """Its rounds, how the last one went, and nothing any more once it has stopped politely."""
    store, stop, worker = MemoryStore(clock=clock), asyncio.Event(), Busy()
    heartbeat = Heartbeat(store.beats, interval_seconds=0.01, host="shop-1")
    running = asyncio.create_task(loop.run([worker], stop, heartbeat=heartbeat))
    roll = await heard(store, lambda roll: any(beat.rounds > 3 for beat in roll.beats))
    (beat,) = roll.beats
    assert (beat.role, beat.host, beat.outcome, beat.process_id) == ("busy", "shop-1", "ok", heartbeat.process.id)
    worker.broken = StoreUnavailable(because="the cable was cut")
    await heard(store, lambda roll: roll.beats[0].code == "unavailable")
    worker.broken = ValueError("a bug")
    await heard(store, lambda roll: roll.beats[0].code == "internal")
    stop.set()
    await asyncio.wait_for(running, timeout=60)
    assert (await store.beats.read(limit=10)).beats == []


async def test_a_process_without_agents_is_heard_of_too(clock: MovableClock) -> None:
    """A server whose workers are elsewhere."""
    store, stop = MemoryStore(clock=clock), asyncio.Event()
    heartbeat = Heartbeat(store.beats, interval_seconds=0.01)
    heartbeat.takes("server", outcome="ok")
    running = asyncio.create_task(loop.run([], stop, heartbeat=heartbeat))
    roll = await heard(store, lambda roll: bool(roll.beats))
    assert [(beat.role, beat.outcome) for beat in roll.beats] == [("server", "ok")]
    stop.set()
    await asyncio.wait_for(running, timeout=60)


async def test_a_store_that_is_silent_stops_nobody() -> None:
    """Whoever is missed then is missed by right; the workers go on, and so does the heart."""
    stop, told = asyncio.Event(), 0

    class Silent:
        async def tell(self, *_: object) -> None:
            nonlocal told
            told += 1
            if told > 2:
                stop.set()
            raise StoreUnavailable(because="the cable was cut")

        async def leave(self, *_: object) -> None:
            raise StoreUnavailable(because="the cable was cut")

    silent: Any = Silent()
    await asyncio.wait_for(loop.run([Busy()], stop, heartbeat=Heartbeat(silent, interval_seconds=0.01)), timeout=60)
    assert told == 3


async def test_a_server_is_heard_of_while_it_runs_and_gone_when_it_has_stopped(tmp_path: Path) -> None:
    """The real command, with all its workers; a server is one role more."""
    url = f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3"
    await databases.migrate(url)
    given = {
        "EARMARK_DATABASE_URL": url,
        "EARMARK_ADMIN_KEY": "ek_test_heartbeat",
        "EARMARK_HEARTBEAT_SECONDS": "0.1",
    }
    ours = environment(**given, EARMARK_PORT=str(free_port()))
    process = await asyncio.create_subprocess_exec(EARMARK, "serve", env=ours, stdout=asyncio.subprocess.DEVNULL)
    store = await databases.open_store(url)
    try:
        await heard(
            store, lambda roll: {beat.role for beat in roll.beats if beat.outcome == "ok"} == {*ROLES, "server"}
        )
    finally:
        process.terminate()
        code = await asyncio.wait_for(process.wait(), timeout=60)
        left = await store.beats.read(limit=10)
        await store.close()
    assert (code, left.beats) == (0, [])
