"""The requests that need a row which another transaction keeps locked.

A batch waits for a row only briefly. Then the requests that need it leave the batch and wait here, together, and so do
those that come after them. Once the row was had, in a transaction that locks nothing else, they are decided as any
batch is. All others go on without them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from earmark.engine.commands_and_results import Command, Row
from earmark.engine.measure_recent_commit_speed import LOCK_SECONDS_MIN
from earmark.engine.ports.store import LOCK_SECONDS_MAX
from earmark.engine.queued_request import unresolved
from earmark.engine.start_and_track_task import start_task
from earmark.engine.wait_for_one_locked_row import locked_last
from earmark.errors import Overloaded, RowBusy
from earmark.observability import logs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from earmark.engine.queued_request import QueuedRequest
    from earmark.engine.wait_for_one_locked_row import LockedRowWaits

A = TypeVar("A", bound=Command)

UNKNOWN: Row = ("", None)
"""No row could be named: the lock may have gone, or be on a whole table, or on a row that is being inserted."""
DECIDED_AT_ONCE_MAX = 2
"""For how many rows that were had requests are decided at once: each takes a connection."""
LEADS_MAX = 10_000
"""How many rows are remembered at most that lead to locked ones: a pool may be locked for hours."""
DECIDING_SECONDS = 0.25
"""What a request keeps of its time for the work after a lock, so that its caller still waits when it is decided."""


class BlockedRows(Generic[A]):
    """The locked rows that are known, each with the requests that wait for it."""

    def __init__(self, *, waiting_max: int, wait_for: Callable[[Row], None]) -> None:
        self._waiting_max = waiting_max
        self._wait_for = wait_for
        """Told of each row once, when the first request has to wait for it."""
        self.rows: dict[Row, deque[QueuedRequest[A]]] = {}
        """The locked rows, and the requests that wait for each."""
        self._leads: dict[Row, Row] = {}
        """For each row that requests name, the known locked row that they need with it; perhaps the same."""
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def take(self, request: QueuedRequest[A]) -> bool:
        """Whether this request needs a row that is known to be locked: it waits for that here."""
        row = self._locked_for(request, self._leads)
        if row is not None:
            self.keep(row, [request])
        return row is not None

    def part(
        self, requests: Sequence[QueuedRequest[A]], locked: Mapping[Row, Row], *, had: Row | None = None
    ) -> list[QueuedRequest[A]]:
        """Keep those that need a locked row, each under the row that is locked, and return the others.

        Those that need the row that they have waited for before are the first for it again.
        """
        others: list[QueuedRequest[A]] = []
        kept: dict[Row, list[QueuedRequest[A]]] = {}
        for request in requests:
            row = self._locked_for(request, locked)
            (others if row is None else kept.setdefault(row, [])).append(request)
        for row, waiting in kept.items():
            if len(self._leads) < LEADS_MAX:
                self._leads |= {named: row for named, leads_to in locked.items() if leads_to == row}
            self.keep(row, waiting, first=row == had)
        return others

    @staticmethod
    def _locked_for(request: QueuedRequest[A], locked: Mapping[Row, Row]) -> Row | None:
        return locked_last(locked[row] for row in request.command.rows if row in locked)

    def keep(self, row: Row, requests: Sequence[QueuedRequest[A]], *, first: bool = False) -> None:
        """Let these wait for the row; first, if they waited before."""
        is_new = row not in self.rows
        now = asyncio.get_running_loop().time()
        for request in reversed(requests) if first else requests:
            if self._waiting >= self._waiting_max:
                self._drop_answered()
            if self._waiting >= self._waiting_max:
                request.fail(Overloaded())
                continue
            request.since = now
            request.nothing_due_in = frozenset()
            queue = self.rows.setdefault(row, deque())
            (queue.appendleft if first else queue.append)(request)
            self._waiting += 1
        if row not in self.rows:
            self._forget_leads(row)
        elif is_new:
            self._leads[row] = row
            # The last step: where the event loop begins tasks at once, the row may have been had before this returns.
            self._wait_for(row)

    def next(self, row: Row, *, limit: int) -> list[QueuedRequest[A]]:
        """The next requests for this row whose callers still wait."""
        queue = self.rows[row]
        batch: list[QueuedRequest[A]] = []
        while queue and len(batch) < limit:
            request = queue.popleft()
            self._waiting -= 1
            if not request.result.done():
                batch.append(request)
        return batch

    def free(self, row: Row) -> list[QueuedRequest[A]]:
        """Forget this row; returns the requests that still waited for it."""
        left = self.rows.pop(row)
        self._waiting -= len(left)
        self._forget_leads(row)
        return list(left)

    def _forget_leads(self, row: Row) -> None:
        self._leads = {named: locked for named, locked in self._leads.items() if locked != row}

    def _drop_answered(self) -> None:
        for row, queue in self.rows.items():
            self.rows[row] = deque(unresolved(queue))
        self._waiting = sum(map(len, self.rows.values()))


class RequestsWaitingForLockedRows(Generic[A]):
    """Waits for the locked rows that requests of one queue need, and has those decided once their row was had."""

    def __init__(
        self,
        *,
        waits: LockedRowWaits,
        decide: Callable[..., Awaitable[None]],
        run_batch: Callable[..., Awaitable[Collection[Row]]],
        enter_first: Callable[[Sequence[QueuedRequest[A]]], None],
        observe: Callable[[Iterable[QueuedRequest[A]]], AbstractContextManager[object]],
        lock_seconds: Callable[[], float],
        size_max: int,
        waiting_max: int,
    ) -> None:
        self._waits = waits
        self._decide = decide
        """One transaction. Raises `RowBusy`."""
        self._run_batch = run_batch
        """Transactions until all are decided, or wait for the locked rows that it returns."""
        self._enter_first = enter_first
        """Queues requests again, before all others."""
        self._observe = observe
        self._lock_seconds = lock_seconds
        self._size_max = size_max
        self._deciding = asyncio.Semaphore(DECIDED_AT_ONCE_MAX)
        self.tasks: set[asyncio.Task[None]] = set()
        """One for each row that is waited for."""
        self.blocked: BlockedRows[A] = BlockedRows(waiting_max=waiting_max, wait_for=self._start_waiting)

    def _start_waiting(self, row: Row) -> None:
        start_task(self.tasks, self._wait_for_unknown if row == UNKNOWN else partial(self._wait_for_row, row))

    async def _wait_for_row(self, row: Row) -> None:
        """Until its requests met it free, or none of them is left; then it is as any other."""
        logs.request_id.set(None)
        try:
            while await self._have(row):
                async with self._deciding:
                    if row not in await self._run(row):
                        break
        finally:
            self._enter_first(self.blocked.free(row))

    async def _have(self, row: Row) -> bool:
        """Whether the row was had while requests for it were left. Those that waited in vain for long are refused."""
        while unresolved(self.blocked.rows[row]):
            in_vain = await self._waits.have(row, lock_seconds=self._lock_seconds())
            if in_vain is None:
                return True
            for request in self.blocked.rows[row]:
                if request.since <= in_vain.since:
                    request.fail(in_vain.busy)
        return False

    async def _run(self, row: Row) -> Collection[Row]:
        """Decide the next requests for a row that was had; the locked rows that they meet, perhaps the same again."""
        if not (requests := self._in_time(self.blocked.next(row, limit=self._size_max))):
            return ()
        with self._observe(requests):
            return await self._run_batch(requests, lock_seconds=self._patience(requests, self._lock_seconds()), had=row)

    def _in_time(self, requests: Sequence[QueuedRequest[A]]) -> list[QueuedRequest[A]]:
        """Those that can be decided before their time is over; the others are refused, which is certain as yet."""
        now = asyncio.get_running_loop().time()
        in_time = []
        for request in requests:
            if request.deadline - now > LOCK_SECONDS_MIN + DECIDING_SECONDS:
                in_time.append(request)
            else:
                request.fail(Overloaded())
        return in_time

    def _patience(self, requests: Sequence[QueuedRequest[A]], lock_seconds: float) -> float:
        left = min(request.deadline for request in requests) - asyncio.get_running_loop().time()
        return min(lock_seconds, left - DECIDING_SECONDS)

    async def _wait_for_unknown(self) -> None:
        """Where no row can be named, the requests themselves are tried: briefly, and then as one of the long waits."""
        logs.request_id.set(None)
        try:
            async with self._deciding:
                is_free = await self._try_unknown(self._lock_seconds())
            while not is_free:
                is_free = await self._waits.in_turn(partial(self._try_unknown, LOCK_SECONDS_MAX))
        finally:
            self._enter_first(self.blocked.free(UNKNOWN))

    async def _try_unknown(self, lock_seconds: float) -> bool:
        """Whether the next requests met no lock, or none is left."""
        requests = self.blocked.next(UNKNOWN, limit=self._size_max)
        if not (in_time := self._in_time(requests)):
            return not requests
        patience = self._patience(in_time, lock_seconds)
        try:
            with self._observe(in_time):
                # The long wait is not measured: it shows when a row was free, not how quick the database is.
                await self._decide(in_time, lock_seconds=patience, teaches=lock_seconds < LOCK_SECONDS_MAX)
        except RowBusy as busy:
            await self._isolate(unresolved(in_time), busy, for_good=patience >= LOCK_SECONDS_MAX)
            return False
        return True

    async def _isolate(self, requests: Sequence[QueuedRequest[A]], busy: RowBusy, *, for_good: bool) -> None:
        """Run halves with the short wait, until the request that needs what is locked is alone.

        If it has had its long wait it is refused. Where a row can be named by now, those that need it wait for that.
        """
        if busy.rows:
            self._enter_first(self.blocked.part(requests, busy.rows))
            return
        if len(requests) <= 1:
            if for_good:
                for request in requests:
                    request.fail(busy)
            else:
                self.blocked.keep(UNKNOWN, requests, first=True)
            return
        middle = len(requests) // 2
        for half in (requests[:middle], requests[middle:]):
            if not (still := unresolved(half)):
                continue
            try:
                await self._decide(still, lock_seconds=self._lock_seconds(), teaches=False)
            except RowBusy as again:
                await self._isolate(unresolved(still), again, for_good=for_good)
