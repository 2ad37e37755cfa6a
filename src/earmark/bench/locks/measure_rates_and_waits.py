"""The workloads of the lock bench, each on one contender.

Each warms up before its time is taken: connections are open and scripts are loaded by then.
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


class HandoverWaits(msgspec.Struct, frozen=True, kw_only=True):
    """The waits of many tasks for one lock."""

    seconds: float
    waits: list[list[float]]
    """Per waiter, the seconds that each of its turns took to come."""
    unserved: list[float | None]
    """Per waiter, for how long it had waited when time was up, if it still did."""
    changes: int
    """How often the lock went to another waiter than its last holder."""
    overlaps: int
    """How often the lock had two holders: it must be zero."""

    @property
    def passes(self) -> list[int]:
        """Per waiter, how often it has had the lock."""
        return [len(waits) for waits in self.waits]

    @property
    def longest_wait(self) -> float:
        """In seconds; a wait that is not over at the end counts with its length by then."""
        waits = [wait for waits in self.waits for wait in waits]
        return max([*waits, *(wait for wait in self.unserved if wait is not None)], default=0.0)


async def acts_per_second(acts: Sequence[Callable[[], Awaitable[None]]], *, seconds: float) -> float:
    """Run all acts again and again, at once, each at least once."""
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


async def time_task(act: Callable[[], Awaitable[None]], *, seconds: float) -> list[float]:
    """Run one task again and again. The seconds that each act took."""
    for _ in range(WARM_PASSES):
        await act()
    took: list[float] = []
    ends = perf_counter() + seconds
    while not took or perf_counter() < ends:
        began = perf_counter()
        await act()
        took.append(perf_counter() - began)
    return took


def time_thread(act: Callable[[], None], *, seconds: float) -> list[float]:
    """Run one thread again and again. The seconds that each act took."""
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
) -> HandoverWaits:
    """All tasks want one lock, hold it for a moment, and queue again. Tasks that wait at the end are cancelled."""
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
                # A second holder would enter during this switch.
                await asyncio.sleep(0)
                inside -= 1

    began = perf_counter()
    waiters = [asyncio.create_task(queue(number)) for number in range(tasks)]
    failed, _ = await asyncio.wait(waiters, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    # On a busy machine a short time may pass without any turn: then it is extended.
    while not failed and not any(waits):
        failed, _ = await asyncio.wait(waiters, timeout=POLL_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
    over = True
    ended = perf_counter()
    unserved = [None if since is None else ended - since for since in waiting_since]
    await _end(waiters, waiting={waiter for waiter, wait in zip(waiters, unserved, strict=True) if wait is not None})
    return HandoverWaits(seconds=ended - began, waits=waits, unserved=unserved, changes=changes, overlaps=overlaps)


async def _end(waiters: Sequence[asyncio.Task[None]], *, waiting: set[asyncio.Task[None]]) -> None:
    """Cancel the tasks that wait; a task that holds the lock ends by itself."""
    remaining = set(waiters)
    for _ in range(LEAVE_TRIES_MAX):
        # Repeated each time: a library may swallow a cancellation and wait on.
        for waiter in remaining & waiting:
            waiter.cancel()
        _, remaining = await asyncio.wait(remaining, timeout=LEAVE_SECONDS)
        if not remaining:
            break
    for waiter in waiters:
        if waiter in remaining:
            raise TimeoutError("a waiter did not leave when it was cancelled")
        if not waiter.cancelled():
            waiter.result()
