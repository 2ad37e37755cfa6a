"""The loop of every worker: run a round, sleep until the next one is due, stop when `stop` is set."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from earmark.errors import Outage
from earmark.workers.failed_rounds import RoundFailed, RoundStatus, described

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.workers.heartbeat import Heartbeat


class Worker(Protocol):
    """An agent that acts in bounded rounds."""

    name: str

    async def act(self) -> float:
        """Run one bounded round; return how many seconds to sleep before the next one. Raises when the round failed."""
        ...


async def run(workers: Sequence[Worker], stop: asyncio.Event, *, heartbeat: Heartbeat | None = None) -> None:
    """Run the workers until `stop` is set; a round that has begun is finished. `heartbeat` records how rounds end."""
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(_run_rounds(worker, stop, heartbeat), name=worker.name)
        if heartbeat is not None:
            group.create_task(heartbeat.run(stop), name="heartbeat")


async def _run_rounds(worker: Worker, stop: asyncio.Event, heartbeat: Heartbeat | None) -> None:
    status = RoundStatus(worker.name)
    if heartbeat is not None:
        heartbeat.add_role(worker.name)
    while not stop.is_set():
        if heartbeat is not None:
            heartbeat.round_began(worker.name)
        seconds = await _act(worker, status)
        if heartbeat is not None:
            heartbeat.round_ended(
                worker.name, status.outcome, failing_since=status.failing_since, because=status.because
            )
        await _sleep(seconds, stop)


async def _act(worker: Worker, status: RoundStatus) -> float:
    """Run one round; return how many seconds to sleep after it."""
    try:
        seconds = await worker.act()
    except RoundFailed as failed:
        pause = status.failed(failed.code, failed.because, error=failed.__cause__)
        return pause if failed.seconds is None else failed.seconds
    except Outage as outage:
        return status.failed(outage.code, str(outage.facts().get("because") or described(outage)))
    except Exception as broken:  # noqa: BLE001 (the next round may succeed)
        return status.failed("internal", described(broken), error=broken)
    status.succeeded()
    return seconds


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stop.wait(), timeout=max(seconds, 0.0))
    except TimeoutError:
        return
