"""Reads that many requests need at once: all that wait share the next call to the store, one call at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from earmark.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

Q = TypeVar("Q")
R = TypeVar("R")

BATCH_MAX = 500
WAITING_MAX = 5000
SECONDS_MAX = 5.0
"""For one call. A request waits for the one under way and for its own, which leaves time to respond."""


class SharedReads(Generic[Q, R]):
    """A bounded queue of reads. What a read returns is never older than its request."""

    def __init__(
        self, read_all: Callable[[Sequence[Q]], Awaitable[Sequence[R]]], *, seconds_max: float = SECONDS_MAX
    ) -> None:
        self._read_all = read_all
        """One call to the store: the results, in the order of the queries."""
        self._seconds_max = seconds_max
        self._waiting: list[tuple[Q, asyncio.Future[R]]] = []
        self._reading: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def read(self, query: Q) -> asyncio.Future[R]:
        """The result to come, or `Overloaded` where too many wait or the store is silent: nothing was begun.

        A plain function: in a rush nearly every request reads, and a coroutine more would cost each of them.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise Overloaded
        # Looked up once, for it serves one event loop: for each request that would cost as much as the rest of this.
        loop = self._loop = self._loop or asyncio.get_running_loop()
        result: asyncio.Future[R] = asyncio.Future(loop=loop)
        self._waiting.append((query, result))
        # Done already where the event loop begins tasks at once and the store answered without a wait.
        if self._reading is None or self._reading.done():
            self._reading = loop.create_task(self._run())
        return result

    async def close(self) -> None:
        """Wait for the reads under way."""
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def _run(self) -> None:
        while self._waiting:
            batch = [one for one in self._waiting[:BATCH_MAX] if not one[1].done()]
            del self._waiting[:BATCH_MAX]
            if batch:
                await self._read_batch(batch)

    async def _read_batch(self, batch: list[tuple[Q, asyncio.Future[R]]]) -> None:
        try:
            async with asyncio.timeout(self._seconds_max):
                found = await self._read_all([query for query, _ in batch])
        except Exception as broken:  # noqa: BLE001 (any error goes to the requests that wait)
            # Requests that wait behind this batch get the same error: calling a silent store again for each batch would
            # take as long each time.
            error = Overloaded() if isinstance(broken, TimeoutError) else broken
            for _, result in batch + self._waiting:
                if not result.done():
                    result.set_exception(error)
            self._waiting.clear()
            return
        for (_, result), value in zip(batch, found, strict=True):
            if not result.done():
                result.set_result(value)
