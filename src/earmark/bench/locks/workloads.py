"""What is measured, one cell at a time: one workload on one contender.

A cell warms up before its clock starts: connections are open and scripts are known by then.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

TASKS = 50
WARM_PASSES = 3
LEAVE_TRIES_MAX = 60
LEAVE_SECONDS = 0.5
POLL_SECONDS = 0.01


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What happened while many stood in one line."""

    seconds: float
    waits: list[list[float]]
    """Per waiter, the seconds that each of its turns took to come."""
    unserved: list[float | None]
    """Per waiter, for how long it had waited when time was up, if it still did."""
    changes: int
    """How often the lock went to another than the one who had it last."""
    overlaps: int
    """How often somebody was let in while another was inside: a lock allows none."""

    @property
    def passes(self) -> list[int]:
        """Per waiter, how often it had its turn."""
        return [len(waits) for waits in self.waits]

    @property
    def longest_wait(self) -> float:
        """In seconds; those who wait at the end count with what they have waited by then."""
        waits = [wait for waits in self.waits for wait in waits]
        return max([*waits, *(wait for wait in self.unserved if wait is not None)], default=0.0)


async def crowd(acts: Sequence[Callable[[], Awaitable[None]]], *, seconds: float) -> float:
    """Everybody acts again and again, all at once, and once at least. Acts per second."""
    for _ in range(WARM_PASSES):
        await asyncio.gather(*(act() for act in acts))
    done = 0
    began = perf_counter()
    ends = began + seconds

    async def repeat(act: Callable[[], Awaitable[None]]) -> None:
        nonlocal done
        while True:
            await act()
            done += 1
            if perf_counter() >= ends:
                break

    async with asyncio.TaskGroup() as group:
        for act in acts:
            group.create_task(repeat(act))
    return done / (perf_counter() - began)


async def alone(act: Callable[[], Awaitable[None]], *, seconds: float) -> list[float]:
    """One task acts again and again. The seconds that each act took."""
    for _ in range(WARM_PASSES):
        await act()
    took: list[float] = []
    ends = perf_counter() + seconds
    while not took or perf_counter() < ends:
        began = perf_counter()
        await act()
        took.append(perf_counter() - began)
    return took


def alone_sync(act: Callable[[], None], *, seconds: float) -> list[float]:
    """One thread acts again and again. The seconds that each act took."""
    for _ in range(WARM_PASSES):
        act()
    took: list[float] = []
    ends = perf_counter() + seconds
    while not took or perf_counter() < ends:
        began = perf_counter()
        act()
        took.append(perf_counter() - began)
    return took


async def handover(
    turn: Callable[[], AbstractAsyncContextManager[object]], *, seconds: float, tasks: int = TASKS
) -> Line:
    """Everybody wants the one lock, holds it for a moment, and queues again. Who waits when time is up is cancelled."""
    for _ in range(WARM_PASSES):
        async with turn():
            pass
    waits: list[list[float]] = [[] for _ in range(tasks)]
    waiting_since: list[float | None] = [None] * tasks
    inside = overlaps = changes = 0
    latest = -1
    over = False

    async def queue(number: int) -> None:
        nonlocal inside, overlaps, changes, latest
        while not over:
            waiting_since[number] = since = perf_counter()
            async with turn():
                if not over:
                    waits[number].append(perf_counter() - since)
                    waiting_since[number] = None
                    changes += latest != number
                    latest = number
                inside += 1
                overlaps += inside > 1
                # Whoever is let in too early, is let in here.
                await asyncio.sleep(0)
                inside -= 1

    began = perf_counter()
    crew = [asyncio.create_task(queue(number)) for number in range(tasks)]
    failed, _ = await asyncio.wait(crew, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    # On a machine that is busy elsewhere a short time may pass without any turn: then it is not over yet.
    while not failed and not any(waits):
        failed, _ = await asyncio.wait(crew, timeout=POLL_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
    over = True
    ended = perf_counter()
    unserved = [None if since is None else ended - since for since in waiting_since]
    await _dismiss(crew, waiting={member for member, wait in zip(crew, unserved, strict=True) if wait is not None})
    return Line(seconds=ended - began, waits=waits, unserved=unserved, changes=changes, overlaps=overlaps)


async def _dismiss(crew: Sequence[asyncio.Task[None]], *, waiting: set[asyncio.Task[None]]) -> None:
    """Send home who waits; whoever is inside leaves by itself."""
    staying = set(crew)
    for _ in range(LEAVE_TRIES_MAX):
        # Said again each time: a library may swallow a cancellation, and wait on.
        for member in staying & waiting:
            member.cancel()
        _, staying = await asyncio.wait(staying, timeout=LEAVE_SECONDS)
        if not staying:
            break
    for member in crew:
        if member in staying:
            raise TimeoutError("a waiter did not leave when it was cancelled")
        if not member.cancelled():
            member.result()
