"""One request's place in a queue, and the requests that share a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

from earmark.engine.commands import Command, Result
from earmark.errors import EarmarkError, OutcomeUnknown, Overloaded

if TYPE_CHECKING:
    import asyncio
    from collections import Counter
    from collections.abc import Iterable

A = TypeVar("A", bound=Command)


class _Resolved:
    """What is left of an answer once it was given."""

    def done(self) -> bool:
        """Always."""
        return True


RESOLVED = cast("asyncio.Future[Result]", _Resolved())


class QueuedRequest(Generic[A]):
    """One request's place in the queue."""

    __slots__ = ("command", "deadline", "dry", "ended", "in_flight", "mark", "refusal", "result", "rounds", "since")

    def __init__(self, command: A, result: asyncio.Future[Result], *, deadline: float, mark: object = None) -> None:
        self.command = command
        self.result = result
        self.deadline = deadline
        self.mark = mark
        self.since = 0.0
        """When it took its present place."""
        self.ended = False
        """Whether its time is over."""
        self.in_flight = False
        """Whether a transaction is deciding it: its outcome is unknown if its time is over meanwhile."""
        self.rounds: Counter[str] | None = None
        """How often it had to come again, by reason: waiting for a twin is not being starved."""
        self.dry: frozenset[object] = frozenset()
        """The pools and totals in which no lapsed hold was left to end when it was last decided."""
        self.refusal: EarmarkError | None = None
        """What to say if its time is over while it still waits; that the queue was too long if nothing is known."""

    def fail(self, error: Exception) -> None:
        """Tell its caller, if that still waits."""
        if not self.result.done():
            self.result.set_exception(error)

    def is_over(self) -> bool:
        """Whether its caller has an answer, or waits no longer."""
        return self.result.done()

    def expire(self) -> None:
        """Its time is over. What still waits is never begun; what is under way ends without a listener."""
        # A store may begin with it in a thread of its own at this moment. Each side says first what it does, and then
        # looks at the other: so a request that is told that it was not begun is never begun.
        self.ended = True
        self.fail(OutcomeUnknown() if self.in_flight else self.refusal or Overloaded())


class SharedTransaction(Generic[A]):
    """The requests that share one transaction."""

    __slots__ = ("requests",)

    def __init__(self, requests: Iterable[QueuedRequest[A]]) -> None:
        self.requests = list(requests)

    def begin(self) -> list[A]:
        """Those whose callers still wait, in the moment in which the store is ready to decide about them.

        A store may run a transaction again, and asks again each time.
        """
        for request in self.requests:
            request.in_flight = True
        self.requests = [request for request in self.requests if not (request.ended or request.result.done())]
        return [request.command for request in self.requests]

    def undo(self) -> None:
        """The transaction was rolled back for certain."""
        for request in self.requests:
            request.in_flight = False


def unresolved(requests: Iterable[QueuedRequest[A]]) -> list[QueuedRequest[A]]:
    """Those whose callers still wait."""
    return [request for request in requests if not request.result.done()]
