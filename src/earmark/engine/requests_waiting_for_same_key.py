"""Repeats: requests with the idempotency key of one that is being decided elsewhere.

A batch with such a request writes nothing while the other is under way: the database refuses it as a whole, and it is
run again. So repeats are decided in batches of their own, after pauses that grow.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from earmark.engine.commands_and_results import Command
from earmark.engine.queued_request import unresolved
from earmark.engine.start_and_track_task import start_task
from earmark.errors import Overloaded
from earmark.observability import logs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from contextlib import AbstractContextManager

    from earmark.engine.queued_request import QueuedRequest

A = TypeVar("A", bound=Command)

PAUSE_SECONDS_MAX = 0.16
"""Each pause is twice as long as the last one, up to this."""


class RequestsWaitingForSameKey(Generic[A]):
    """Decides the repeats of one queue, after a pause each time that the twin turned out to be under way still."""

    def __init__(
        self,
        *,
        run_batch: Callable[..., Awaitable[object]],
        observe: Callable[[Iterable[QueuedRequest[A]]], AbstractContextManager[object]],
        size_max: int,
        waiting_max: int,
    ) -> None:
        self._run_batch = run_batch
        self._observe = observe
        self._size_max = size_max
        self._waiting_max = waiting_max
        self._paused: dict[QueuedRequest[A], asyncio.TimerHandle] = {}
        self._ready: list[QueuedRequest[A]] = []
        self._closed = False
        self.tasks: set[asyncio.Task[None]] = set()
        """The one that runs their batches, while some are ready."""

    def __len__(self) -> int:
        return len(self._paused) + len(self._ready)

    def add(self, request: QueuedRequest[A], *, seconds: float, times: int) -> None:
        """Decide it again after a pause, which grows with the times; refused if too many wait, or the queue closes."""
        if self._closed or len(self) >= self._waiting_max:
            request.fail(request.refusal or Overloaded())
            return
        pause = max(seconds, min(seconds * 2 ** (min(times, 10) - 1), PAUSE_SECONDS_MAX))
        self._paused[request] = asyncio.get_running_loop().call_later(pause, self._end_pause, request)

    def close(self) -> None:
        """Refuse those that wait, and all that would have to from now on: the twin may take long."""
        self._closed = True
        for request, timer in self._paused.items():
            timer.cancel()
            request.fail(request.refusal or Overloaded())
        self._paused.clear()

    def _end_pause(self, request: QueuedRequest[A]) -> None:
        del self._paused[request]
        self._ready.append(request)
        if not self.tasks:
            start_task(self.tasks, self._run_batches)

    async def _run_batches(self) -> None:
        logs.request_id.set(None)
        while self._ready:
            batch, self._ready = self._ready[: self._size_max], self._ready[self._size_max :]
            if waiting := unresolved(batch):
                with self._observe(waiting):
                    await self._run_batch(waiting)
