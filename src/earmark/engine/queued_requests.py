"""One request's place in a queue, and the timer that tells requests when their time is over."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from earmark.engine.commands import Command, Result
from earmark.errors import EarmarkError, OutcomeUnknown, Overloaded

if TYPE_CHECKING:
    from collections.abc import Iterable

A = TypeVar("A", bound=Command)

TIDY_MIN = 1000


class _Answered:
    """What is left of an answer once it was given."""

    def done(self) -> bool:
        """Always."""
        return True


ANSWERED = cast("asyncio.Future[Result]", _Answered())


class QueuedRequest(Generic[A]):
    """One request's place in the queue."""

    __slots__ = ("answer", "command", "deadline", "dry", "ended", "in_flight", "mark", "refusal", "rounds", "since")

    def __init__(self, command: A, answer: asyncio.Future[Result], *, deadline: float, mark: object = None) -> None:
        self.command = command
        self.answer = answer
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
        if not self.answer.done():
            self.answer.set_exception(error)

    def end(self) -> None:
        """Its time is over. What still waits is never begun; what is under way ends without a listener."""
        # A store may begin with it in a thread of its own at this moment. Each side says first what it does, and then
        # looks at the other: so a request that is told that it was not begun is never begun.
        self.ended = True
        self.fail(OutcomeUnknown() if self.in_flight else self.refusal or Overloaded())


class Shared(Generic[A]):
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
        self.requests = [request for request in self.requests if not (request.ended or request.answer.done())]
        return [request.command for request in self.requests]

    def undo(self) -> None:
        """The transaction was rolled back for certain."""
        for request in self.requests:
            request.in_flight = False


def unanswered(requests: Iterable[QueuedRequest[A]]) -> list[QueuedRequest[A]]:
    """Those whose callers still wait."""
    return [request for request in requests if not request.answer.done()]


class Deadlines(Generic[A]):
    """Tells each request when its time is over.

    With one timer for all: `asyncio.wait` or a timer for each costs more than everything else that a queue does.
    """

    def __init__(self) -> None:
        self._watched: deque[QueuedRequest[A]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._tidy_at = TIDY_MIN

    def watch(self, request: QueuedRequest[A]) -> None:
        """Until it is answered."""
        watched = self._watched
        while watched and watched[0].answer.done():
            watched.popleft()
        if watched and request.deadline < watched[-1].deadline:
            # A request with less time than those before it: rare enough for a timer of its own.
            asyncio.get_running_loop().call_at(request.deadline, request.end)
            return
        watched.append(request)
        if len(watched) >= self._tidy_at:
            # One that waits long keeps those behind it, which were answered long ago.
            self._watched = watched = deque(unanswered(watched))
            self._tidy_at = max(TIDY_MIN, 2 * len(watched))
        if self._timer is None:
            self._set(watched[0])

    def _set(self, request: QueuedRequest[A]) -> None:
        self._timer = asyncio.get_running_loop().call_at(request.deadline, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now, watched = asyncio.get_running_loop().time(), self._watched
        while watched and (watched[0].answer.done() or watched[0].deadline <= now):
            watched.popleft().end()
        if watched:
            self._set(watched[0])
