"""One request's place in a queue."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from earmark.engine.commands import Command, Result
from earmark.errors import EarmarkError, OutcomeUnknown, Overloaded

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

A = TypeVar("A", bound=Command)


class _Answered:
    """What is left of an answer once it was given."""

    def done(self) -> bool:
        """Always."""
        return True


ANSWERED = cast("asyncio.Future[Result]", _Answered())


class QueuedRequest(msgspec.Struct, Generic[A], eq=False):
    """One request's place in the queue."""

    command: A
    answer: Any
    """The future of its result."""
    deadline: float
    mark: object = None
    since: float = 0.0
    """When it took its present place."""
    is_over: bool = False
    """Whether its caller has an answer, or waits no longer."""
    ended: bool = False
    """Whether its time is over."""
    in_flight: bool = False
    """Whether a transaction is deciding it: its outcome is unknown if its time is over meanwhile."""
    rounds: Counter[str] | None = None
    """How often it had to come again, by reason: waiting for a twin is not being starved."""
    dry: frozenset[object] = frozenset()
    """The pools and totals in which no lapsed hold was left to end when it was last decided."""
    refusal: EarmarkError | None = None
    """What to say if its time is over while it still waits; that the queue was too long if nothing is known."""

    def fail(self, error: Exception) -> None:
        """Tell its caller, if that still waits."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def expire(self) -> None:
        """Its time is over. What still waits is never begun; what is under way ends without a listener."""
        # A store may begin with it in a thread of its own at this moment. Each side says first what it does, and then
        # looks at the other: so a request that is told that it was not begun is never begun.
        self.ended = True
        self.fail(OutcomeUnknown() if self.in_flight else self.refusal or Overloaded())


def unanswered(requests: Iterable[QueuedRequest[A]]) -> list[QueuedRequest[A]]:
    """Those whose callers still wait."""
    return [request for request in requests if not request.answer.done()]
