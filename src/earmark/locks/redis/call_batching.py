"""Batches script calls: calls made in the same turn of the event loop are sent to Redis in one script.

A call through redis-py costs the same whether it carries one lock or fifty, so that cost is paid once for many: at
most two batches are in progress, and calls made meanwhile are queued for the next. A single caller is sent at once, in
its own task, at no extra cost. Measured: see docs/explanation/locks.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from earmark.locks.errors import LocksNotCalled, LocksUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from earmark.locks.circuit_breaker import Breaker
    from earmark.locks.redis.encode_and_decode_script_calls import ScriptCall
    from earmark.locks.redis.script_connection import ScriptConnection

    QueuedCall: TypeAlias = tuple[ScriptCall, asyncio.Future[Any] | None, float, ScriptCall | None]
    """A call, the future of its answer (None if its answer is not read), when it was queued, and what undoes it."""

BATCHES_MAX = 2
CALLS_PER_BATCH_MIN = 8  # Fewer are not worth a second batch.
CALLS_PER_BATCH_MAX = 128
UNSENT_MAX = 10_000
QUEUE_SHARE_MAX = 2 / 3  # Of the timeout: the rest is for the call itself.


class CallBatcher:
    """Queues calls and sends them in batches, unless the circuit breaker is open.

    With `timeout` no caller waits longer than that, the time in the queue included. With `partial_is_failure`, a batch
    that one of several servers did not answer counts as a failure, though the others did.
    """

    def __init__(
        self,
        connection: ScriptConnection,
        *,
        breaker: Breaker,
        timeout: float | None = None,
        partial_is_failure: bool = False,
        unsent_max: int = UNSENT_MAX,
    ) -> None:
        self._connection = connection
        self._breaker = breaker
        self._timeout = timeout
        self._partial_is_failure = partial_is_failure
        self._loop = asyncio.get_running_loop()
        self._senders = 0
        self._calls_in_progress = 0
        self._queued: deque[QueuedCall] = deque()
        self._unsent: deque[ScriptCall] = deque(maxlen=unsent_max)
        self._resending = False
        self._resend_again = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._single_done = asyncio.Event()
        self.on_resent: Callable[[], None] = lambda: None
        """Called when unsent calls have reached the server."""

    def send(self, call: ScriptCall, *, undo: ScriptCall | None = None) -> Awaitable[Any]:
        """The script's answer to this call. Not a coroutine, for every call of every lock passes here.

        If the call is sent and its answer not read, because the caller was cancelled or the server is silent, `undo` is
        sent. It is sent after the call is over: by another connection, it could arrive before the call.
        """
        self._check_breaker()
        if self._senders < BATCHES_MAX and not self._queued:
            return self._send_single(call, undo)
        future = self._loop.create_future()
        self._queued.append((call, future, self._loop.time() if self._timeout else 0.0, undo))
        return future

    def send_unread(self, call: ScriptCall) -> None:
        """Send a call with the next batch and do not wait for its answer. If it fails, it is sent again later."""
        if not self._breaker.allow():
            self._unsent.append(call)
            return
        self._queued.append((call, None, 0.0, None))
        if len(self._queued) == 1 and self._senders < BATCHES_MAX:
            self._start_sender()

    def send_eventually(self, call: ScriptCall) -> None:
        """Send a call now, or when the server answers again, and do not wait for its answer."""
        self._unsent.append(call)
        self.resend_unsent()

    def resend_unsent(self) -> None:
        """Send the unsent calls again; if that is in progress, once more after it."""
        self._resend_again = True
        if self._unsent and not self._resending:
            self._resending = True
            self._keep_task(self._loop.create_task(self._resend()))

    async def close(self) -> None:
        """Wait for the calls that are in progress."""
        while self._tasks or self._senders:
            if self._tasks:
                await asyncio.wait(self._tasks)
            else:
                self._single_done.clear()
                await self._single_done.wait()

    async def _resend(self) -> None:
        try:
            while self._resend_again and self._unsent:
                self._resend_again = False
                await self._connection.wait_for_abandoned_calls()
                unsent = list(self._unsent)
                self._unsent.clear()
                answers = await asyncio.gather(*map(self._try_to_send, unsent))
                self._unsent.extend(call for call, sent in zip(unsent, answers, strict=True) if not sent)
                if any(answers):
                    self.on_resent()
        finally:
            self._resending = False

    async def _try_to_send(self, call: ScriptCall) -> bool:
        try:
            await self.send(call)
        except LocksUnavailable:
            return False
        return True

    def _check_breaker(self) -> None:
        if not self._breaker.allow():
            seconds = self._breaker.retry_after_seconds
            raise LocksUnavailable(because=f"Redis did not answer lately; next try in {seconds:.1f} s")

    async def _send_single(self, call: ScriptCall, undo: ScriptCall | None) -> Any:
        self._senders += 1
        try:
            answers = await self._send([call], self._deadline())
        except LocksUnavailable as outage:
            self._send_undo(undo)
            self._fail_queued(outage)
            raise
        except asyncio.CancelledError:
            self._send_undo(undo)
            raise
        finally:
            self._senders -= 1
            self._single_done.set()
            if self._queued:
                self._start_sender()
        answer = answers[0]
        if isinstance(answer, LocksUnavailable):
            self._send_undo(undo)
            raise answer
        return answer

    def _start_sender(self) -> None:
        self._senders += 1
        self._keep_task(self._loop.create_task(self._send_queued()))

    def _keep_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_queued(self) -> None:
        """Send batches until the queue is empty."""
        try:
            while self._queued:
                await self._send_batch()
                # Callers that were answered run now, and what they send next is in the next batch.
                await asyncio.sleep(0)
        finally:
            self._senders -= 1
            # After a bug in a batch: the calls still in the queue must be sent all the same.
            if self._queued and not self._senders:
                self._start_sender()

    async def _send_batch(self) -> None:
        batch = self._next_batch()
        if not batch:
            return
        try:
            answers = await self._send([call for call, *_ in batch], self._deadline(batch))
        except LocksUnavailable as outage:
            for *_, undo in batch:
                self._send_undo(undo)
            self._fail_calls(batch, outage)
            self._fail_queued(outage)
            return
        except BaseException as bug:
            for _, future, _, undo in batch:
                self._send_undo(undo)
                if future is not None and not future.done():
                    future.set_exception(bug)
            raise
        self._answer_batch(batch, answers)

    def _answer_batch(self, batch: list[QueuedCall], answers: list[Any]) -> None:
        for (call, future, _, undo), answer in zip(batch, answers, strict=True):
            if future is None:
                if isinstance(answer, BaseException):
                    self._unsent.append(call)
            elif future.done():
                self._send_undo(undo)
            elif isinstance(answer, BaseException):
                self._send_undo(undo)
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _send_undo(self, undo: ScriptCall | None) -> None:
        if undo is not None:
            self.send_eventually(undo)

    def _next_batch(self) -> list[QueuedCall]:
        """An equal share of all calls that are queued or in progress.

        One batch is prepared while the other is answered. If each took the whole queue, one would soon carry nearly all
        calls and the other a single one; then server and client would only wait for each other.
        """
        waiting = len(self._queued)
        share = max(CALLS_PER_BATCH_MIN, -(-(waiting + self._calls_in_progress) // BATCHES_MAX))
        size = min(waiting, share, CALLS_PER_BATCH_MAX)
        if size < waiting and self._senders < BATCHES_MAX:
            self._start_sender()
        batch = [self._queued.popleft() for _ in range(size)]
        if self._timeout is not None:
            self._refuse_late(batch, late_since=self._loop.time() - self._timeout * QUEUE_SHARE_MAX)
        # A caller that was cancelled in the queue is dropped: its call was never sent.
        return [queued for queued in batch if queued[1] is None or not queued[1].done()]

    def _refuse_late(self, calls: list[QueuedCall], *, late_since: float) -> None:
        """Refuse calls that waited too long in the queue. That is no failure of the server: this process was busy."""
        for _, future, queued_at, _ in calls:
            if future is None or queued_at > late_since:
                continue
            if not future.done():
                future.set_exception(LocksNotCalled(because="it waited too long in this process"))

    def _deadline(self, batch: Sequence[QueuedCall] = ()) -> float | None:
        """When the oldest call of the batch times out. Calls that are still queued are younger than all of these."""
        if self._timeout is None:
            return None
        waiting = next((queued_at for _, future, queued_at, _ in batch if future is not None), None)
        return (self._loop.time() if waiting is None else waiting) + self._timeout

    async def _send(self, calls: list[ScriptCall], deadline: float | None) -> list[Any]:
        self._calls_in_progress += len(calls)
        try:
            answers = await self._connection.send(calls, deadline=deadline)
        except LocksUnavailable:
            self._breaker.failed()
            raise
        finally:
            self._calls_in_progress -= len(calls)
        if self._partial_is_failure and any(isinstance(answer, LocksUnavailable) for answer in answers):
            self._breaker.failed()
            return answers
        self._breaker.succeeded()
        if self._unsent and not self._resending:
            self.resend_unsent()
        return answers

    def _fail_queued(self, outage: LocksUnavailable) -> None:
        """Fail the calls in the queue: a server that did not answer a batch will not answer the next one either."""
        waiting = list(self._queued)
        self._queued.clear()
        self._fail_calls(waiting, outage)

    def _fail_calls(self, calls: list[QueuedCall], outage: LocksUnavailable) -> None:
        for call, future, *_ in calls:
            if future is None:
                self._unsent.append(call)
            elif not future.done():
                future.set_exception(LocksUnavailable(because=outage.because))
