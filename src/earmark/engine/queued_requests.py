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
    """Stands for the future of a result that the caller has got."""

    def done(self) -> bool:
        """True: the caller has its result."""
        return True


RESOLVED = cast("asyncio.Future[Result]", _Resolved())


class QueuedRequest(Generic[A]):
    """One request in the queue, with its deadline and the future of its result."""

    __slots__ = ("command", "deadline", "dry", "ended", "in_flight", "mark", "refusal", "result", "rounds", "since")

    def __init__(self, command: A, result: asyncio.Future[Result], *, deadline: float, mark: object = None) -> None:
        self.command = command
        self.result = result
        self.deadline = deadline
        self.mark = mark
        self.since = 0.0
        """When it was queued last."""
        self.ended = False
        """Whether its time is over."""
        self.in_flight = False
        """Whether a transaction is deciding it: its outcome is unknown if its time is over meanwhile."""
        self.rounds: Counter[str] | None = None
        """How often it was queued again, by reason: each reason has a limit of its own."""
        self.dry: frozenset[object] = frozenset()
        """The pools and totals in which no lapsed hold was left to end when it was last decided."""
        self.refusal: EarmarkError | None = None
        """What it is refused with if its time is over while it still waits; `Overloaded` if None."""

    def fail(self, error: Exception) -> None:
        """Raise this for its caller, if that still waits."""
        if not self.result.done():
            self.result.set_exception(error)

    def is_over(self) -> bool:
        """Whether its caller has a result, or waits no longer."""
        return self.result.done()

    def expire(self) -> None:
        """Its time is over. A request that still waits is never begun; one under way ends without a caller."""
        # A store may begin with it in a thread of its own at this moment. Each side first sets its own flag, and then
        # reads the other's: so a request that is refused as not begun is never begun.
        self.ended = True
        self.fail(OutcomeUnknown() if self.in_flight else self.refusal or Overloaded())


class SharedTransaction(Generic[A]):
    """The requests that share one transaction."""

    __slots__ = ("requests",)

    def __init__(self, requests: Iterable[QueuedRequest[A]]) -> None:
        self.requests = list(requests)

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


def unresolved(requests: Iterable[QueuedRequest[A]]) -> list[QueuedRequest[A]]:
    """Those whose callers still wait."""
    return [request for request in requests if not request.result.done()]
