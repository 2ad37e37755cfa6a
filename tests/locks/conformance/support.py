"""What the rules are asked with: names to lock by, and ways to wait for a fact."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

from earmark.locks import LockLost
from earmark.locks.backend_protocol import Group

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

    from earmark.locks import Held, Locks
    from earmark.locks.backend_protocol import Holding

KEY = "invoice:42"
SEATS = tuple(f"event:{{opera}}:seat:A{number}" for number in range(1, 5))
"""Of one event, so that they can be locked together everywhere."""
BOUND = 30.0
"""A wait that does not reach its end when all is well."""
SHORT = 0.3
"""A lease that is meant to run out: long enough to be won and looked at, short enough to wait for."""


async def eventually(fact: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a fact, within a bound."""
    deadline = time.monotonic() + BOUND
    while not await fact():
        assert time.monotonic() < deadline, "the fact never came"
        await asyncio.sleep(0.01)


async def holding(locks: Locks, key: str = KEY) -> Holding | None:
    """What an inspector sees of one key."""
    return next((each for each in await locks.holdings() if each.key == key), None)


async def waiters(locks: Locks, key: str = KEY) -> int:
    """How many callers wait, as `find` reports it."""
    found = await holding(locks, key)
    return len(found.waiters) if found else 0


async def until_waiting(locks: Locks, count: int, key: str = KEY, *, unless: asyncio.Task[Any] | None = None) -> None:
    """Until so many callers wait. A backend without a queue shows no waiters, so a moment must do.

    A wait that may end by itself is named as `unless`, for a slow machine may see its end first.
    """
    if Group.FIFO in locks.groups:

        async def so_many() -> bool:
            return await waiters(locks, key) == count or (unless is not None and unless.done())

        await eventually(so_many)
    else:
        await asyncio.sleep(0.05)


async def reached(place: asyncio.Event, task: asyncio.Future[Any]) -> None:
    """Until a task has come so far. One that failed before raises its error, so that no test waits for ever."""
    waiting = asyncio.ensure_future(place.wait())
    await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not place.is_set():
        await task


async def soon_lost(locks: Locks, *keys: str) -> Held:
    """A lock whose lease is about to run out. Where it has before the answer came, the machine is slow: once more."""
    wait = 0.0
    while True:
        with contextlib.suppress(LockLost):
            return await locks.acquire(*keys, ttl=SHORT, wait=wait)
        wait = BOUND


async def until_nothing_is_left(locks: Locks) -> None:
    """Until no lock is held and no caller waits. The leases of a test live longer than this waits."""

    async def nothing() -> bool:
        return await locks.holdings() == []

    await eventually(nothing)


def warnings_in(caplog: pytest.LogCaptureFixture) -> str:
    """What the toolkit warned of, as text. That a busy machine was slow to acquire is no matter of these tests."""
    return "\n".join(
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("earmark.locks")
        and record.levelno >= logging.WARNING
        and "acquiring" not in record.getMessage()
    )
