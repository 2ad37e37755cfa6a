"""Heartbeats: a running worker has one, a stopping worker removes it, and a silent store is no error."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.acceptance.support import EARMARK, environment, free_port

from earmark.errors import StoreUnavailable
from earmark.store.sqlite.memory import MemoryStore
from earmark.wiring import open_and_maintain_databases
from earmark.wiring.workers import ROLES
from earmark.workers import loop
from earmark.workers.heartbeat import Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from earmark.clock import MovableClock
    from earmark.engine.ports.heartbeats import HeartbeatList
    from earmark.engine.ports.store import Store


class Busy:
    """A worker that acts until the test says otherwise."""

    name = "busy"

    def __init__(self) -> None:
        self.broken: Exception | None = None

    async def act(self) -> float:
        """One round."""
        if self.broken:
            raise self.broken
        return 0.01


async def heartbeats_when(store: Store, so: Callable[[HeartbeatList], bool]) -> HeartbeatList:
    """Wait for the fact."""
    for _ in range(3000):
        roll = await store.heartbeats.read(limit=10)
        if so(roll):
            return roll
        await asyncio.sleep(0.01)
    raise AssertionError(f"never heard: {roll}")


async def test_a_running_worker_has_a_heartbeat_and_removes_it_at_its_end(clock: MovableClock) -> None:
    """Its rounds, how the last one went, and nothing any more once it has stopped politely."""
    store, stop, worker = MemoryStore(clock=clock), asyncio.Event(), Busy()
    heartbeat = Heartbeat(store.heartbeats, interval_seconds=0.01, host="shop-1")
    running = asyncio.create_task(loop.run([worker], stop, heartbeat=heartbeat))
    roll = await heartbeats_when(store, lambda roll: any(beat.rounds > 3 for beat in roll.heartbeats))
    (beat,) = roll.heartbeats
    assert (beat.role, beat.host, beat.outcome, beat.process_id) == ("busy", "shop-1", "ok", heartbeat.process.id)
    worker.broken = StoreUnavailable(because="the cable was cut")
    await heartbeats_when(store, lambda roll: roll.heartbeats[0].code == "unavailable")
    worker.broken = ValueError("a bug")
    await heartbeats_when(store, lambda roll: roll.heartbeats[0].code == "internal")
    stop.set()
    await asyncio.wait_for(running, timeout=60)
    assert (await store.heartbeats.read(limit=10)).heartbeats == []


async def test_a_process_without_workers_has_a_heartbeat_too(clock: MovableClock) -> None:
    """A server whose workers are elsewhere."""
    store, stop = MemoryStore(clock=clock), asyncio.Event()
    heartbeat = Heartbeat(store.heartbeats, interval_seconds=0.01)
    heartbeat.add_role("server", outcome="ok")
    running = asyncio.create_task(loop.run([], stop, heartbeat=heartbeat))
    roll = await heartbeats_when(store, lambda roll: bool(roll.heartbeats))
    assert [(beat.role, beat.outcome) for beat in roll.heartbeats] == [("server", "ok")]
    stop.set()
    await asyncio.wait_for(running, timeout=60)


async def test_a_silent_store_stops_no_worker() -> None:
    """The heartbeats are missing then; the workers go on, and so does the heartbeat task."""
    stop, told = asyncio.Event(), 0

    class Silent:
        async def write(self, *_: object) -> None:
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


async def test_a_server_has_a_heartbeat_while_it_runs_and_none_when_it_has_stopped(tmp_path: Path) -> None:
    """The real command, with all its workers; a server is one role more."""
    url = f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3"
    await open_and_maintain_databases.migrate(url)
    given = {
        "EARMARK_DATABASE_URL": url,
        "EARMARK_ADMIN_KEY": "ek_test_heartbeat",
        "EARMARK_HEARTBEAT_SECONDS": "0.1",
    }
    ours = environment(**given, EARMARK_PORT=str(free_port()))
    process = await asyncio.create_subprocess_exec(EARMARK, "serve", env=ours, stdout=asyncio.subprocess.DEVNULL)
    store = await open_and_maintain_databases.open_store(url)
    try:
        await heartbeats_when(
            store, lambda roll: {beat.role for beat in roll.heartbeats if beat.outcome == "ok"} == {*ROLES, "server"}
        )
    finally:
        process.terminate()
        code = await asyncio.wait_for(process.wait(), timeout=60)
        left = await store.heartbeats.read(limit=10)
        await store.close()
    assert (code, left.heartbeats) == (0, [])
