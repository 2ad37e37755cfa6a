"""One request's place in a queue."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from earmark.engine.commands_and_results import Command, Result
from earmark.errors import EarmarkError, OutcomeUnknown, Overloaded

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

A = TypeVar("A", bound=Command)


class _Resolved:
    """Stands for the future of a result that the caller has got."""

    def done(self) -> bool:
        """True: the caller has its result."""
        return True


RESOLVED = cast("asyncio.Future[Result]", _Resolved())


class QueuedRequest(msgspec.Struct, Generic[A], eq=False):
    """One request's place in the queue."""

    command: A
    result: Any
    """The future of its result."""
    deadline: float
    mark: object = None
    since: float = 0.0
    """When it was queued last."""
    is_over: bool = False
    """Whether its caller has a result, or waits no longer."""
    ended: bool = False
    """Whether its time is over."""
    in_flight: bool = False
    """Whether a transaction is deciding it: its outcome is unknown if its time is over meanwhile."""
    rounds: Counter[str] | None = None
    """How often it was queued again, by reason: each reason has a limit of its own."""
    nothing_due_in: frozenset[object] = frozenset()
    """The pools and totals in which no lapsed hold was left to end when it was last decided.

    That is forgotten where it waits before it is decided again: holds lapse meanwhile.
    """
    refusal: EarmarkError | None = None
    """What it is refused with if its time is over while it still waits; `Overloaded` if None."""

    def fail(self, error: Exception) -> None:
        """Raise this for its caller, if that still waits."""
        if not self.result.done():
            self.result.set_exception(error)

    def expire(self) -> None:
        """Its time is over. A request that still waits is never begun; one under way ends without a caller."""
        # A store may begin with it in a thread of its own at this moment. Each side first sets its own flag, and then
        # reads the other's: so a request that is refused as not begun is never begun.
        self.ended = True
        self.fail(OutcomeUnknown() if self.in_flight else self.refusal or Overloaded())


def unresolved(requests: Iterable[QueuedRequest[A]]) -> list[QueuedRequest[A]]:
    """Those whose callers still wait."""
    return [request for request in requests if not request.result.done()]
