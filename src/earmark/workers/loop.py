"""How an agent lives: act, sleep until there is reason to act again, and stop when told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from earmark.errors import Outage
from earmark.workers.round_status import RoundFailed, RoundStatus, described

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.workers.heartbeat import Heart


class Agent(Protocol):
    """Something that acts in rounds."""

    name: str

    async def act(self) -> float:
        """One bounded round; how long to sleep before the next one. Raises when the round failed."""
        ...


async def run(agents: Sequence[Agent], stop: asyncio.Event, *, heart: Heart | None = None) -> None:
    """Run the agents until `stop` is set; a round that has begun is finished. A heart tells how they fare."""
    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(_live(agent, stop, heart), name=agent.name)
        if heart is not None:
            group.create_task(heart.beat(stop), name="heart")


async def _live(agent: Agent, stop: asyncio.Event, heart: Heart | None) -> None:
    status = RoundStatus(agent.name)
    if heart is not None:
        heart.takes(agent.name)
    while not stop.is_set():
        if heart is not None:
            heart.began(agent.name)
        seconds = await _act(agent, status)
        if heart is not None:
            heart.felt(agent.name, status.outcome, failing_since=status.failing_since, because=status.because)
        await _sleep(seconds, stop)


async def _act(agent: Agent, status: RoundStatus) -> float:
    """One round; how long to sleep after it."""
    try:
        seconds = await agent.act()
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
