"""Group commit: requests that arrive while a transaction commits share the next one.

No batch waits to be filled. A request that comes while no batch of its verb runs is run at once. Any other waits for
the next batch: that begins when a running one ends, or earlier in another connection slot, when many requests wait or
the running batches take too long. Under load, batches grow by themselves, up to a cap that keeps the connection slots
from committing in step. Within a batch the order of arrival decides. A request that causes an error never fails the
others: its batch is split and run again, until that request is alone.

Nor does one locked row stop the others. A batch waits for it only as long as a few batches take. Then the requests that
need the row wait for it elsewhere (`requests_waiting_for_locked_rows`), and the others are run again at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from earmark.engine.commands_and_results import Command, Outcome, Result, Row, TryAgain
from earmark.engine.measure_recent_commit_speed import CommitSpeed
from earmark.engine.ports.observer import NullObserver
from earmark.engine.queued_request import RESOLVED, QueuedRequest, unresolved
from earmark.engine.requests_waiting_for_locked_rows import UNKNOWN, RequestsWaitingForLockedRows
from earmark.engine.requests_waiting_for_room import RequestsWaitingForRoom, for_now, key_of
from earmark.engine.requests_waiting_for_same_key import RequestsWaitingForSameKey
from earmark.errors import EarmarkError, Outage, Overloaded, RowBusy
from earmark.observability import logs
from earmark.shared_deadline_timer import DeadlineTimer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
    from contextlib import AbstractContextManager

    from earmark.engine.ports.observer import Observer
    from earmark.engine.verbs.expire import Room
    from earmark.engine.wait_for_one_locked_row import LockedRowWaits

A = TypeVar("A", bound=Command)

PASSED_MAX = 200
"""How many requests that wait for a rival are passed over for one batch: scanning more costs more than it gives."""


class BatchQueue(Generic[A]):
    """The queue of requests for one verb. Its connection slots are how many batches run at once."""

    def __init__(
        self,
        run: Callable[..., Awaitable[list[Outcome]]],
        *,
        make_room_in: Callable[..., Awaitable[Room]],
        have_due: Callable[..., Awaitable[Sequence[bool]]],
        row_waits: LockedRowWaits,
        claims: Callable[[A], Collection[object]] = lambda _: (),
        connection_slots: int = 3,
        next_slot_min: int = 32,
        size_max: int = 100,
        waiting_max: int = 5000,
        waiting_seconds_max: float = 15.0,
        verb: str = "",
        observer: Observer | None = None,
    ) -> None:
        self._run = run
        """One transaction: `run(begin, lock_seconds=…)` calls `begin` for its requests, each time it is run."""
        self._verb = verb
        self._observer: Observer = observer or NullObserver()
        self._claims = claims
        self._claimed: set[object] = set()
        """What the batches under way are deciding about. A request for the same waits, and is then decided at once."""
        self._connection_slots = connection_slots
        self._next_slot_min = next_slot_min
        self._size_max = size_max
        self._waiting_max = waiting_max
        self._waiting_seconds_max = waiting_seconds_max
        self._requests_in_flight = 0
        self._pace = CommitSpeed()
        self._queue: deque[QueuedRequest[A]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._gathered_at = 0.0
        """When a connection slot last took a batch."""
        self._standstill: asyncio.TimerHandle | None = None
        self._later: dict[QueuedRequest[A], asyncio.TimerHandle] = {}
        self._deadlines: DeadlineTimer[QueuedRequest[A]] = DeadlineTimer()
        # Both are counted apart from the queue: requests for one row or pool must not keep out those for others.
        self._without_row: RequestsWaitingForLockedRows[A] = RequestsWaitingForLockedRows(
            waits=row_waits,
            decide=self._decide,
            run_batch=self._run_batch,
            enter_first=self._enter_first,
            observe=self._observe,
            lock_seconds=lambda: self.lock_seconds,
            size_max=size_max,
            waiting_max=waiting_max // 2,
        )
        self._blocked = self._without_row.blocked
        self._without_room: RequestsWaitingForRoom[A] = RequestsWaitingForRoom(
            make_room_in=make_room_in,
            have_due=have_due,
            lock_seconds=lambda: self.lock_seconds,
            enter=self._enter_again,
            waiting_max=waiting_max // 2,
        )
        self._repeats: RequestsWaitingForSameKey[A] = RequestsWaitingForSameKey(
            run_batch=self._run_batch, observe=self._observe, size_max=size_max, waiting_max=waiting_max // 2
        )
        self._closing = False

    @property
    def waiting(self) -> int:
        """How many requests are queued or will be again, or wait for a locked row, for room or for their twin."""
        elsewhere = len(self._blocked) + len(self._without_room) + len(self._repeats)
        return len(self._queue) + len(self._later) + elsewhere

    @property
    def in_flight(self) -> int:
        """How many batches are under way."""
        return len(self._running) + len(self._without_row.tasks) + len(self._repeats.tasks)

    @property
    def lock_seconds(self) -> float:
        """How long a batch waits for a locked row at present."""
        return self._pace.lock_seconds(now=asyncio.get_running_loop().time())

    async def submit(self, command: A, *, within: float) -> Result:
        """Queue a command, and return its result once its transaction has committed."""
        if self.is_full:
            raise Overloaded
        loop = asyncio.get_running_loop()
        request = QueuedRequest(
            command,
            loop.create_future(),
            deadline=loop.time() + within,
            mark=self._observer.mark() if self._observer.marks else None,
        )
        self._deadlines.watch(request)
        self._enter(request)
        try:
            result: Result = await request.result
            return result
        finally:
            # What still has the request would keep what was raised here, and with it every frame that it has passed.
            request.result, request.is_over = RESOLVED, True

    @property
    def is_full(self) -> bool:
        """Whether new requests are refused.

        A new request waits as long as the first in the queue has waited, at least, and as those before it will take. So
        a burst is accepted as far as it can be decided in time, and none is accepted only to be refused too late.
        """
        queue = self._queue
        if len(queue) >= self._waiting_max:
            return True
        if not queue:
            return False
        now = asyncio.get_running_loop().time()
        ahead = self._pace.queue_seconds(len(queue) + self._requests_in_flight, now=now)
        return max(now - queue[0].since, ahead) > self._waiting_seconds_max

    async def close(self) -> None:
        """Finish what was accepted; refuse requests that wait for one with the same key in another process."""
        self._closing = True
        self._repeats.close()
        for request, handle in self._later.items():
            handle.cancel()
            request.fail(request.refusal or Overloaded())
        self._later.clear()
        while tasks := self._running | self._without_row.tasks | self._without_room.tasks | self._repeats.tasks:
            await asyncio.wait(tasks)

    def _enter(self, request: QueuedRequest[A]) -> None:
        if request.result.done():
            return
        request.since = asyncio.get_running_loop().time()
        self._queue.append(request)
        self._take_slot(queued_min=self._next_slot_min)

    def _enter_first(self, requests: Sequence[QueuedRequest[A]]) -> None:
        """Queue these before all others, in their order; all of them are queued before a slot may take the first."""
        waiting = unresolved(requests)
        now = asyncio.get_running_loop().time()
        for request in waiting:
            request.since = now
        self._queue.extendleft(reversed(waiting))
        for _ in range(self._connection_slots):
            if self._queue:
                self._take_slot(queued_min=self._next_slot_min)

    def _take_slot(self, *, queued_min: int) -> None:
        """Begin another batch; a few are not worth one while one is under way: they will be the next."""
        if not self._running or (len(self._running) < self._connection_slots and len(self._queue) >= queued_min):
            slot = asyncio.get_running_loop().create_task(self._run_batches())
            if not slot.done():  # with `asyncio.eager_task_factory` it may have ended already
                self._running.add(slot)
        elif self._standstill is None and len(self._running) < self._connection_slots:
            self._watch_for_standstill()

    def _watch_for_standstill(self) -> None:
        self._standstill = asyncio.get_running_loop().call_later(self.lock_seconds, self._end_standstill)

    def _end_standstill(self) -> None:
        """Use another slot even for a few requests when the running ones took nothing for a while: one may hang."""
        self._standstill = None
        if not self._queue or len(self._running) >= self._connection_slots:
            return
        if asyncio.get_running_loop().time() - self._gathered_at >= self.lock_seconds:
            self._take_slot(queued_min=1)
        self._watch_for_standstill()

    async def _run_batches(self) -> None:
        """Use one connection slot: batch after batch until the queue is empty."""
        # The request that came first made this task, but it serves all: its id is not for others' log lines.
        logs.request_id.set(None)
        slot = asyncio.current_task()
        assert slot is not None
        self._running.add(slot)
        try:
            while batch := self._gather():
                claimed = {claim for request in batch for claim in self._claims(request.command)}
                self._claimed |= claimed
                self._requests_in_flight += len(batch)
                try:
                    with self._observer.batch(self._verb, [request.mark for request in batch]):
                        await self._run_batch(batch)
                finally:
                    self._requests_in_flight -= len(batch)
                    self._claimed -= claimed
        finally:
            # At once, and not by a callback: a request that came in between would wait for a slot that has ended.
            self._running.discard(slot)

    def _observe(self, requests: Iterable[QueuedRequest[A]]) -> AbstractContextManager[object]:
        return self._observer.batch(self._verb, [request.mark for request in requests])

    def _gather(self) -> list[QueuedRequest[A]]:
        """The next batch: first come, first served, but for those whose rivals are being decided at this moment.

        They keep their places, and no request behind them gets what they want. Those that need a locked row leave.
        """
        batch: list[QueuedRequest[A]] = []
        passed: list[QueuedRequest[A]] = []
        wanted = set(self._claimed)
        blocked = self._blocked if self._blocked.rows else None
        self._gathered_at = asyncio.get_running_loop().time()
        while self._queue and len(batch) < self._size_max and len(passed) < PASSED_MAX:
            request = self._queue.popleft()
            if request.result.done() or (blocked is not None and blocked.take(request)):
                continue
            if wanted and not wanted.isdisjoint(claims := self._claims(request.command)):
                wanted.update(claims)
                passed.append(request)
                continue
            batch.append(request)
        self._queue.extendleft(reversed(passed))
        return batch

    async def _run_batch(
        self, requests: Sequence[QueuedRequest[A]], *, lock_seconds: float | None = None, had: Row | None = None
    ) -> Collection[Row]:
        """One batch; where a row is locked, again without the requests that need it. The locked rows that they met."""
        in_vain = 0
        met: set[Row] = set()
        while requests:
            try:
                await self._decide(requests, lock_seconds=self.lock_seconds if lock_seconds is None else lock_seconds)
            except RowBusy as busy:
                self._observer.blocked(self._verb)
                met.update(busy.rows.values())
                waiting = unresolved(requests)
                requests = self._blocked.part(waiting, busy.rows, had=had)
                in_vain += len(requests) == len(waiting)
                if in_vain > 1 or not busy.rows:
                    # No row can be named that one of these needs.
                    self._blocked.keep(UNKNOWN, requests)
                    break
            else:
                break
        return met

    async def _decide(self, requests: Sequence[QueuedRequest[A]], *, lock_seconds: float, teaches: bool = True) -> None:
        """One transaction for these, and their results. `RowBusy` is for the caller to handle."""
        shared: SharedTransaction[A] = SharedTransaction(list(requests))
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            outcomes = await self._run(shared.begin, lock_seconds=lock_seconds)
        except RowBusy:
            shared.undo()
            raise
        except Outage as outage:
            for request in requests:
                request.fail(outage)
            return
        except Exception as broken:  # noqa: BLE001 (whatever broke must reach its own caller, and no other)
            shared.undo()
            await self._split(requests, broken)
            return
        now = loop.time()
        if teaches and outcomes:
            self._pace.learn(
                requests=len(outcomes), seconds=now - began, side_by_side=max(1, len(self._running)), now=now
            )
        decided = zip(shared.requests, outcomes, strict=True)
        if undecided := [
            (request, again) for request, outcome in decided if (again := self._answer_or_retry(request, outcome))
        ]:
            self._retry(undecided)

    async def _split(self, requests: Sequence[QueuedRequest[A]], broken: Exception) -> None:
        if len(requests) == 1:
            requests[0].fail(broken)
            return
        middle = len(requests) // 2
        await self._run_batch(requests[:middle])
        await self._run_batch(requests[middle:])

    def _answer_or_retry(self, request: QueuedRequest[A], outcome: Outcome) -> TryAgain | None:
        """Give the request its outcome, or return why it shall be decided again instead."""
        if isinstance(outcome, TryAgain):
            reason = outcome.refusal.code
            request.rounds = request.rounds or Counter()
            request.rounds[reason] += 1
            is_final = outcome.full is not None and key_of(outcome.full) in request.nothing_due_in
            refusal = outcome.refusal if is_final or outcome.full is None else for_now(outcome.refusal)
            if not is_final and request.rounds[reason] < outcome.rounds_max:
                request.refusal = refusal
                request.in_flight = False
                self._observer.again(self._verb, reason)
                return outcome
            outcome = refusal
        if isinstance(outcome, EarmarkError):
            request.fail(outcome)
        elif not request.result.done():
            request.result.set_result(outcome)
        return None

    def _retry(self, again: Sequence[tuple[QueuedRequest[A], TryAgain]]) -> None:
        """Those that moved go first in the next batch, those without room once it was made; repeats have their own."""
        for request, outcome in again:
            if outcome.full is None and outcome.delay_seconds:
                request.nothing_due_in = frozenset()
                times = request.rounds[outcome.refusal.code] if request.rounds else 1
                self._repeats.add(request, seconds=outcome.delay_seconds, times=times)
        moved = [request for request, outcome in again if outcome.full is None and not outcome.delay_seconds]
        if moved:
            self._enter_first(moved)
        self._without_room.add([(request, outcome) for request, outcome in again if outcome.full is not None])

    def _enter_again(self, requests: Sequence[tuple[QueuedRequest[A], float]]) -> None:
        """Each as one of the first, or after so many seconds; if the queue closes it is refused instead of waiting."""
        loop = asyncio.get_running_loop()
        for request, delay_seconds in requests:
            if delay_seconds and self._closing:
                request.fail(request.refusal or Overloaded())
            elif delay_seconds:
                request.nothing_due_in = frozenset()
                self._later[request] = loop.call_later(delay_seconds, self._enter_late, request)
        self._enter_first([request for request, _ in requests if request not in self._later])

    def _enter_late(self, request: QueuedRequest[A]) -> None:
        del self._later[request]
        self._enter(request)


class SharedTransaction(msgspec.Struct, Generic[A]):
    """The requests that share one transaction."""

    requests: list[QueuedRequest[A]]

    def begin(self) -> list[A]:
        """Those whose callers still wait, in the moment in which the store is ready to decide about them.

        A store may run a transaction again, and calls this each time.
        """
        for request in self.requests:
            request.in_flight = True
        self.requests = [request for request in self.requests if not (request.ended or request.result.done())]
        return [request.command for request in self.requests]

    def undo(self) -> None:
        """The transaction was rolled back for certain."""
        for request in self.requests:
            request.in_flight = False
