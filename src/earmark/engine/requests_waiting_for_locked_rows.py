"""The requests that need a row which another transaction keeps locked.

A batch waits for a row only briefly. Then the requests that need it leave the batch and wait here, together, and so do
those that come after them, until a transaction of their own has had the row. All others go on without them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from earmark.engine.commands_and_results import Command, Row
from earmark.engine.queued_request import unresolved
from earmark.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from earmark.engine.queued_request import QueuedRequest

A = TypeVar("A", bound=Command)

UNKNOWN: Row = ("", None)
"""No row could be named: the lock may have gone, or be on a whole table, or on a row that is being inserted."""


class BlockedRows(Generic[A]):
    """The locked rows that are known, each with the requests that wait for it."""

    def __init__(self, *, waiting_max: int, wait_for: Callable[[Row], None]) -> None:
        self._waiting_max = waiting_max
        self._wait_for = wait_for
        """Told of each row once, when the first request has to wait for it."""
        self.rows: dict[Row, deque[QueuedRequest[A]]] = {}
        """The locked rows, and the requests that wait for each."""
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def take(self, request: QueuedRequest[A]) -> bool:
        """Whether this request needs a row that is known to be locked: it waits for that here."""
        row = next((row for row in request.command.rows if row in self.rows), None)
        if row is not None:
            self._add(row, request)
        return row is not None

    def part(self, requests: Sequence[QueuedRequest[A]], rows: Mapping[Row, Row]) -> list[QueuedRequest[A]]:
        """Keep those that need one of these rows, each under the row that is locked, and return the others."""
        others = []
        for request in requests:
            row = next((rows[row] for row in request.command.rows if row in rows), None)
            if row is None:
                others.append(request)
            else:
                self._add(row, request)
        return others

    def keep(self, row: Row, requests: Sequence[QueuedRequest[A]], *, first: bool = False) -> None:
        """Let these wait for the row; first, if they waited before."""
        for request in reversed(requests) if first else requests:
            self._add(row, request, first=first)

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
        return list(left)

    def _add(self, row: Row, request: QueuedRequest[A], *, first: bool = False) -> None:
        if self._waiting >= self._waiting_max:
            self._drop_answered()
        if self._waiting >= self._waiting_max:
            request.fail(Overloaded())
            return
        is_new = row not in self.rows
        queue = self.rows.setdefault(row, deque())
        (queue.appendleft if first else queue.append)(request)
        self._waiting += 1
        if is_new:
            # The last step: where the event loop begins tasks at once, the row may have been had before this returns.
            self._wait_for(row)

    def _drop_answered(self) -> None:
        for row, queue in self.rows.items():
            self.rows[row] = deque(unresolved(queue))
        self._waiting = sum(map(len, self.rows.values()))
