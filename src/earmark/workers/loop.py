"""How a worker lives: act, sleep until there is reason to act again, and stop when told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from earmark.errors import Outage
from earmark.workers.round_status import RoundFailed, RoundStatus, described

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.workers.heartbeat import Heartbeat


class Worker(Protocol):
    """Something that acts in rounds."""

    name: str

    async def act(self) -> float:
        """One bounded round; how long to sleep before the next one. Raises when the round failed."""
        ...


async def run(workers: Sequence[Worker], stop: asyncio.Event, *, heartbeat: Heartbeat | None = None) -> None:
    """Run the workers until `stop` is set; a round that has begun is finished. A heart tells how they fare."""
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(_live(worker, stop, heartbeat), name=worker.name)
        if heartbeat is not None:
            group.create_task(heartbeat.beat(stop), name="heart")


async def _live(worker: Worker, stop: asyncio.Event, heartbeat: Heartbeat | None) -> None:
    status = RoundStatus(worker.name)
    if heartbeat is not None:
        heartbeat.takes(worker.name)
    while not stop.is_set():
        if heartbeat is not None:
            heartbeat.began(worker.name)
        seconds = await _act(worker, status)
        if heartbeat is not None:
            heartbeat.felt(worker.name, status.outcome, failing_since=status.failing_since, because=status.because)
        await _sleep(seconds, stop)


async def _act(worker: Worker, status: RoundStatus) -> float:
    """One round; how long to sleep after it."""
    try:
        seconds = await worker.act()
    except RoundFailed as failed:
        pause = status.failed(failed.code, failed.because, error=failed.__cause__)
        return pause if failed.seconds is None else failed.seconds
    except Outage as outage:
        return status.failed(outage.code, str(outage.facts().get("because") or described(outage)))
    except Exception as broken:  # noqa: BLE001 (whatever it is, the next round may go well)
        return status.failed("internal", described(broken), error=broken)
    status.went_well()
    return seconds


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stop.wait(), timeout=max(seconds, 0.0))
    except TimeoutError:
        return
