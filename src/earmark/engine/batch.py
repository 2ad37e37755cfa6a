"""Group commit: requests that come while a transaction commits travel together in the next one.

There is no timer. A lone request goes at once; under load, batches grow by themselves, up to a cap that keeps them
from marching in step. Within a batch the order of arrival decides. One failing request never fails the others: a
batch that breaks is split and run again, until the one that breaks is alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from earmark import logs
from earmark.engine.asks import Again, Answer, Ask, Outcome
from earmark.engine.observer import Nobody
from earmark.errors import EarmarkError, Outage, OutcomeUnknown, Overloaded, RowBusy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from earmark.engine.observer import Observer

A = TypeVar("A", bound=Ask)

log = logs.get()

TIDY_MIN = 1000
PACE_SECONDS = 0.001
"""What a request is believed to take before anything was seen."""
PACE_WEIGHT = 0.2
"""Of the latest batch, in what is believed."""
PASSED_MAX = 200
"""How many who wait for a rival are passed over for one batch: to look past more of them costs more than it gives."""


class _Answered:
    """What is left of an answer once it was given."""

    def done(self) -> bool:
        """It was."""
        return True


ANSWERED = cast("asyncio.Future[Answer]", _Answered())


class Ticket(Generic[A]):
    """One request's place in the line."""

    __slots__ = ("answer", "ask", "deadline", "in_flight", "mark", "refusal", "relieved", "rounds", "since")

    def __init__(self, ask: A, answer: asyncio.Future[Answer], *, deadline: float, mark: object = None) -> None:
        self.ask = ask
        self.answer = answer
        self.deadline = deadline
        self.mark = mark
        self.since = 0.0
        """When it took its present place."""
        self.in_flight = False
        self.rounds: Counter[str] | None = None
        """How often it had to come again, by reason: waiting for a twin is not being starved."""
        self.relieved: frozenset[object] = frozenset()
        self.refusal: EarmarkError | None = None
        """What to say if its time is over while it still waits; that the line was too long if nothing is known."""


class Deadlines(Generic[A]):
    """Tells each ticket when its time is over.

    With one timer for all: `asyncio.wait` or a timer for each costs more than everything else that a line does.
    """

    def __init__(self) -> None:
        self._watched: deque[Ticket[A]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._tidy_at = TIDY_MIN

    def watch(self, ticket: Ticket[A]) -> None:
        """Until it is answered."""
        watched = self._watched
        while watched and watched[0].answer.done():
            watched.popleft()
        if watched and ticket.deadline < watched[-1].deadline:
            # Somebody with less patience than those before: rare enough for a timer of its own.
            asyncio.get_running_loop().call_at(ticket.deadline, _too_late, ticket)
            return
        watched.append(ticket)
        if len(watched) >= self._tidy_at:
            # One that waits long keeps those behind it, who were answered long ago.
            self._watched = watched = deque(one for one in watched if not one.answer.done())
            self._tidy_at = max(TIDY_MIN, 2 * len(watched))
        if self._timer is None:
            self._set(watched[0])

    def _set(self, ticket: Ticket[A]) -> None:
        self._timer = asyncio.get_running_loop().call_at(ticket.deadline, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now, watched = asyncio.get_running_loop().time(), self._watched
        while watched and (watched[0].answer.done() or watched[0].deadline <= now):
            _too_late(watched.popleft())
        if watched:
            self._set(watched[0])


class Batcher(Generic[A]):
    """A line of requests for one verb, and a few lanes that carry batches of them to the store."""

    def __init__(
        self,
        run: Callable[[Sequence[A]], Awaitable[list[Outcome]]],
        *,
        relieve: Callable[[object], Awaitable[None]],
        claims: Callable[[A], Collection[object]] = lambda _: (),
        lanes: int = 3,
        lane_min: int = 32,
        size_max: int = 100,
        waiting_max: int = 5000,
        waiting_seconds_max: float = 15.0,
        verb: str = "",
        observer: Observer | None = None,
    ) -> None:
        self._run = run
        self._verb = verb
        self._observer: Observer = observer or Nobody()
        self._relieve = relieve
        self._claims = claims
        self._claimed: set[object] = set()
        """What the batches under way are deciding about. Whoever wants the same waits, and is then told at once."""
        self._lanes = lanes
        self._lane_min = lane_min
        self._size_max = size_max
        self._waiting_max = waiting_max
        self._waiting_seconds_max = waiting_seconds_max
        self._flying = 0
        """Requests that are under way."""
        self._pace = PACE_SECONDS
        """Seconds per request while there are many."""
        self._line: deque[Ticket[A]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._later: dict[Ticket[A], asyncio.TimerHandle] = {}
        self._deadlines: Deadlines[A] = Deadlines()
        self._closing = False

    @property
    def waiting(self) -> int:
        """How many stand in line, or wait to stand in it again."""
        return len(self._line) + len(self._later)

    @property
    def in_flight(self) -> int:
        """How many batches are under way."""
        return len(self._running)

    async def submit(self, ask: A, *, within: float) -> Answer:
        """Stand in line, and return the answer once its transaction is certain."""
        if self.is_full:
            raise Overloaded
        loop = asyncio.get_running_loop()
        ticket = Ticket(ask, loop.create_future(), deadline=loop.time() + within, mark=self._observer.mark())
        self._deadlines.watch(ticket)
        self._enter(ticket)
        try:
            return await ticket.answer
        finally:
            # Whoever still has the ticket would keep what was raised here, and with it every frame that it has passed.
            ticket.answer = ANSWERED

    @property
    def is_full(self) -> bool:
        """Whether newcomers are turned away.

        A newcomer waits as long as the first in line has waited, at least, and as those before it will take. So a
        burst is taken in as far as it can be carried away in time, and nobody is let in only to hear of it too late.
        """
        line = self._line
        if not line:
            return False
        waited = asyncio.get_running_loop().time() - line[0].since
        ahead = (len(line) + self._flying) * self._pace
        return max(waited, ahead) > self._waiting_seconds_max or len(line) >= self._waiting_max

    async def close(self) -> None:
        """Finish what was accepted; whoever waits for a twin elsewhere is told so."""
        self._closing = True
        for ticket, handle in self._later.items():
            handle.cancel()
            _fail(ticket, ticket.refusal or Overloaded())
        self._later.clear()
        while self._running:
            await asyncio.wait(self._running)

    def _enter(self, ticket: Ticket[A], *, first: bool = False) -> None:
        if ticket.answer.done():
            return
        ticket.since = asyncio.get_running_loop().time()
        (self._line.appendleft if first else self._line.append)(ticket)
        # A few are not worth a transaction of their own while one is under way: they will be the next.
        if len(self._running) < self._lanes and (not self._running or len(self._line) >= self._lane_min):
            self._running.add(asyncio.get_running_loop().create_task(self._drive()))

    async def _drive(self) -> None:
        """One lane: batch after batch until the line is empty."""
        lane, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert lane is not None
        # The one who came first made this task, but it serves all: their id is not for the lines of others.
        logs.request_id.set(None)
        try:
            while batch := self._gather():
                claimed = {claim for ticket in batch for claim in self._claims(ticket.ask)}
                self._claimed |= claimed
                self._flying += len(batch)
                began = loop.time()
                try:
                    with self._observer.batch(self._verb, [ticket.mark for ticket in batch]):
                        await self._carry(batch)
                finally:
                    self._flying -= len(batch)
                    self._claimed -= claimed
                self._learn(len(batch), loop.time() - began)
        finally:
            # At once, and not by a callback: a request that came in between would find a lane that never comes.
            self._running.discard(lane)

    def _learn(self, requests: int, seconds: float) -> None:
        """How quick it goes, from batches of some size: a lone request says nothing about a crowd."""
        if requests * 2 >= self._lane_min:
            pace = seconds / requests / len(self._running)
            self._pace += (pace - self._pace) * PACE_WEIGHT

    def _gather(self) -> list[Ticket[A]]:
        """The next batch: first come, first served, but for those whose rivals are being decided at this moment.

        They keep their places, and nobody behind them gets what they want.
        """
        batch: list[Ticket[A]] = []
        passed: list[Ticket[A]] = []
        wanted = set(self._claimed)
        while self._line and len(batch) < self._size_max and len(passed) < PASSED_MAX:
            ticket = self._line.popleft()
            if ticket.answer.done():
                continue
            if wanted and not wanted.isdisjoint(claims := self._claims(ticket.ask)):
                wanted.update(claims)
                passed.append(ticket)
                continue
            ticket.in_flight = True
            batch.append(ticket)
        self._line.extendleft(reversed(passed))
        return batch

    async def _carry(self, batch: list[Ticket[A]]) -> None:
        try:
            outcomes = await self._run([ticket.ask for ticket in batch])
        except RowBusy as busy:
            await self._split(batch, busy)
            return
        except Outage as outage:
            for ticket in batch:
                _fail(ticket, outage)
            return
        except Exception as broken:  # noqa: BLE001 (whatever broke must reach its own caller, and nobody else)
            await self._split(batch, broken)
            return
        told = zip(batch, outcomes, strict=True)
        again = [(ticket, outcome) for ticket, outcome in told if self._settle(ticket, outcome)]
        await self._retry(again)

    async def _split(self, batch: list[Ticket[A]], broken: Exception) -> None:
        if len(batch) == 1:
            _fail(batch[0], broken)
            return
        middle = len(batch) // 2
        await self._carry(batch[:middle])
        await self._carry(batch[middle:])

    def _settle(self, ticket: Ticket[A], outcome: Outcome) -> bool:
        """Answer the ticket; True when it shall be decided again instead."""
        if isinstance(outcome, Again):
            reason = outcome.refusal.code
            ticket.rounds = ticket.rounds or Counter()
            ticket.rounds[reason] += 1
            ticket.refusal = outcome.refusal
            if ticket.rounds[reason] < outcome.rounds_max and outcome.relief not in ticket.relieved:
                ticket.in_flight = False
                self._observer.again(self._verb, reason)
                return True
            outcome = outcome.refusal
        if isinstance(outcome, EarmarkError):
            _fail(ticket, outcome)
        elif not ticket.answer.done():
            ticket.answer.set_result(outcome)
        return False

    async def _retry(self, again: Sequence[tuple[Ticket[A], Outcome]]) -> None:
        """Those that moved go first in the next batch; those that were starved go there once room was made."""
        reliefs = {outcome.relief for _, outcome in again if isinstance(outcome, Again) and outcome.relief is not None}
        for relief in reliefs:
            await self._make_room(relief)
        for ticket, outcome in reversed(again):
            assert isinstance(outcome, Again)
            if outcome.relief is not None:
                ticket.relieved |= {outcome.relief}
            if outcome.delay_seconds and not self._closing:
                self._enter_later(ticket, seconds=outcome.delay_seconds)
            else:
                self._enter(ticket, first=True)

    async def _make_room(self, relief: object) -> None:
        """A courtesy: when it fails, the starved one is refused, and the line moves on."""
        try:
            await self._relieve(relief)
        except Exception as broken:  # noqa: BLE001 (whatever it is, nobody in this line asked for it)
            log.warning("expire", outcome="failed", relief=repr(relief), because=repr(broken))

    def _enter_later(self, ticket: Ticket[A], *, seconds: float) -> None:
        def enter() -> None:
            del self._later[ticket]
            self._enter(ticket)

        self._later[ticket] = asyncio.get_running_loop().call_later(seconds, enter)


def _too_late(ticket: Ticket[A]) -> None:
    """From here on nobody listens: what still waits is never begun, what is under way ends unheard."""
    _fail(ticket, OutcomeUnknown() if ticket.in_flight else ticket.refusal or Overloaded())


def _fail(ticket: Ticket[A], error: Exception) -> None:
    if not ticket.answer.done():
        ticket.answer.set_exception(error)
