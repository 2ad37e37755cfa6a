"""How an agent lives: act, sleep until there is reason to act again, and stop when told."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Protocol

from earmark import logs
from earmark.errors import Outage

if TYPE_CHECKING:
    from collections.abc import Sequence

PAUSE_SECONDS_MAX = 30.0

log = logs.get()


class Agent(Protocol):
    """Something that acts in rounds."""

    name: str

    async def act(self) -> float:
        """One bounded round; how long to sleep before the next one."""
        ...


async def run(agents: Sequence[Agent], stop: asyncio.Event) -> None:
    """Run the agents until `stop` is set; a round that has begun is finished."""
    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(_live(agent, stop), name=agent.name)


async def _live(agent: Agent, stop: asyncio.Event) -> None:
    failures = 0
    while not stop.is_set():
        try:
            seconds = await agent.act()
            failures = 0
        except Outage as outage:
            failures += 1
            seconds = _pause(failures)
            log.warning(agent.name, outcome=outage.code, pause_seconds=round(seconds, 2), **outage.facts())
        except Exception:
            failures += 1
            seconds = _pause(failures)
            log.exception(agent.name, outcome="internal", pause_seconds=round(seconds, 2))
        await _sleep(seconds, stop)


def _pause(failures: int) -> float:
    """Longer after each failure, with full jitter, so that many workers do not come back in step."""
    return random.uniform(0.1, min(PAUSE_SECONDS_MAX, 0.5 * 2.0**failures))  # noqa: S311 (jitter, not a secret)


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stop.wait(), timeout=max(seconds, 0.0))
    except TimeoutError:
        return
