"""How an agent lives: act, sleep until there is reason to act again, and stop when told."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Protocol

from earmark import logs
from earmark.errors import Outage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.workers.heart import Heart

PAUSE_SECONDS_MAX = 30.0

log = logs.get()


class Agent(Protocol):
    """Something that acts in rounds."""

    name: str

    async def act(self) -> float:
        """One bounded round; how long to sleep before the next one."""
        ...


async def run(agents: Sequence[Agent], stop: asyncio.Event, *, heart: Heart | None = None) -> None:
    """Run the agents until `stop` is set; a round that has begun is finished. A heart tells how they fare."""
    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(_live(agent, stop, heart), name=agent.name)
        if heart is not None:
            group.create_task(heart.beat(stop), name="heart")


async def _live(agent: Agent, stop: asyncio.Event, heart: Heart | None) -> None:
    failures = 0
    if heart is not None:
        heart.takes(agent.name)
    while not stop.is_set():
        try:
            seconds = await agent.act()
            failures, outcome = 0, "ok"
        except Outage as outage:
            failures, outcome = failures + 1, outage.code
            seconds = _pause(failures)
            log.warning(agent.name, outcome=outage.code, pause_seconds=round(seconds, 2), **outage.facts())
        except Exception:
            failures, outcome = failures + 1, "internal"
            seconds = _pause(failures)
            log.exception(agent.name, outcome="internal", pause_seconds=round(seconds, 2))
        if heart is not None:
            heart.felt(agent.name, outcome)
        await _sleep(seconds, stop)


def _pause(failures: int) -> float:
    """Longer after each failure, with full jitter, so that many workers do not come back in step."""
    return random.uniform(0.1, min(PAUSE_SECONDS_MAX, 0.5 * 2.0**failures))  # noqa: S311 (jitter, not a secret)


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stop.wait(), timeout=max(seconds, 0.0))
    except TimeoutError:
        return
