"""Calls made in the same tick travel together.

A call through redis-py costs the same whether it carries one lock or fifty, so that cost is paid once for many: at
most two flights are under way, and what is asked meanwhile gathers for the next. A lone caller goes at once, in its
own task, and pays nothing for this. Measured: see docs/explanation/locks.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from earmark.locks.errors import LocksNotAsked, LocksUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from earmark.locks.breaker import Breaker
    from earmark.locks.redis.script import Call
    from earmark.locks.redis.wire import Wire

    Passenger: TypeAlias = tuple[Call, asyncio.Future[Any] | None, float, Call | None]
    """A call, who waits for its answer (nobody, for one that was posted), when it came, and what makes amends."""

FLIGHTS_MAX = 2
CALLS_PER_FLIGHT_MIN = 8  # Fewer are not worth a second flight.
CALLS_PER_FLIGHT_MAX = 128
OWED_MAX = 10_000
GROUND_SHARE_MAX = 2 / 3  # Of a caller's patience: the rest is for the flight.


class Flights:
    """Gathers calls and sends them over a wire, past a circuit breaker.

    With `patience` nobody waits longer than that, the time before take-off included. With `whole`, a flight that one
    of several servers did not answer counts as a failure, though the others did.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        breaker: Breaker,
        patience: float | None = None,
        whole: bool = False,
        owed_max: int = OWED_MAX,
    ) -> None:
        self._wire = wire
        self._breaker = breaker
        self._patience = patience
        self._whole = whole
        self._loop = asyncio.get_running_loop()
        self._flying = 0
        self._aloft = 0
        self._gathered: deque[Passenger] = deque()
        self._owed: deque[Call] = deque(maxlen=owed_max)
        self._paying = False
        self._pay_again = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._lone_landed = asyncio.Event()
        self.on_paid: Callable[[], None] = lambda: None
        """Told when calls have got through whose answers nobody read."""

    def ask(self, call: Call, *, amends: Call | None = None) -> Awaitable[Any]:
        """The script's answer to this call. No coroutine of its own: this is where every call passes.

        If the call is made and its answer not heard, for whoever asked has gone or the server is silent, then `amends`
        are owed. They follow when the call is over: by another connection, they could arrive before it.
        """
        self._check()
        if self._flying < FLIGHTS_MAX and not self._gathered:
            return self._alone(call, amends)
        future = self._loop.create_future()
        self._gathered.append((call, future, self._loop.time() if self._patience else 0.0, amends))
        return future

    def post(self, call: Call) -> None:
        """A call whose answer nobody waits for. It travels with the others; if it does not get through, it is owed."""
        if not self._breaker.allow():
            self._owed.append(call)
            return
        self._gathered.append((call, None, 0.0, None))
        if len(self._gathered) == 1 and self._flying < FLIGHTS_MAX:
            self._depart()

    def owe(self, call: Call) -> None:
        """A call that must get through, though nobody waits for its answer: now, or when the server answers again."""
        self._owed.append(call)
        self.pay()

    def pay(self) -> None:
        """Try to make the calls that are owed; if that is being tried already, once more after it."""
        self._pay_again = True
        if self._owed and not self._paying:
            self._paying = True
            self._keep(self._loop.create_task(self._pay()))

    async def close(self) -> None:
        """Wait for what is under way."""
        while self._tasks or self._flying:
            if self._tasks:
                await asyncio.wait(self._tasks)
            else:
                self._lone_landed.clear()
                await self._lone_landed.wait()

    async def _pay(self) -> None:
        try:
            while self._pay_again and self._owed:
                self._pay_again = False
                await self._wire.settle()
                owed = list(self._owed)
                self._owed.clear()
                answers = await asyncio.gather(*map(self._try, owed))
                self._owed.extend(call for call, heard in zip(owed, answers, strict=True) if not heard)
                if any(answers):
                    self.on_paid()
        finally:
            self._paying = False

    async def _try(self, call: Call) -> bool:
        try:
            await self.ask(call)
        except LocksUnavailable:
            return False
        return True

    def _check(self) -> None:
        if not self._breaker.allow():
            seconds = self._breaker.retry_after_seconds
            raise LocksUnavailable(because=f"Redis did not answer lately; asked again in {seconds:.1f} s")

    async def _alone(self, call: Call, amends: Call | None) -> Any:
        self._flying += 1
        try:
            answers = await self._send([call], self._deadline())
        except LocksUnavailable as outage:
            self._amend(amends)
            self._ground(outage)
            raise
        except asyncio.CancelledError:
            self._amend(amends)
            raise
        finally:
            self._flying -= 1
            self._lone_landed.set()
            if self._gathered:
                self._depart()
        answer = answers[0]
        if isinstance(answer, LocksUnavailable):
            self._amend(amends)
            raise answer
        return answer

    def _depart(self) -> None:
        self._flying += 1
        self._keep(self._loop.create_task(self._shuttle()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _shuttle(self) -> None:
        """Fly as long as somebody waits."""
        try:
            while self._gathered:
                await self._fly()
                # Those who were answered run now, and what they ask next is on board.
                await asyncio.sleep(0)
        finally:
            self._flying -= 1
            # After a bug of ours: whoever was not aboard must not wait for a flight that never comes.
            if self._gathered and not self._flying:
                self._depart()

    async def _fly(self) -> None:
        aboard = self._board()
        if not aboard:
            return
        try:
            answers = await self._send([call for call, *_ in aboard], self._deadline(aboard))
        except LocksUnavailable as outage:
            for *_, amends in aboard:
                self._amend(amends)
            self._fail(aboard, outage)
            self._ground(outage)
            return
        except BaseException as bug:
            for _, future, _, amends in aboard:
                self._amend(amends)
                if future is not None and not future.done():
                    future.set_exception(bug)
            raise
        self._land(aboard, answers)

    def _land(self, aboard: list[Passenger], answers: list[Any]) -> None:
        for (call, future, _, amends), answer in zip(aboard, answers, strict=True):
            if future is None:
                if isinstance(answer, BaseException):
                    self._owed.append(call)
            elif future.done():
                self._amend(amends)
            elif isinstance(answer, BaseException):
                self._amend(amends)
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _amend(self, amends: Call | None) -> None:
        if amends is not None:
            self.owe(amends)

    def _board(self) -> list[Passenger]:
        """An equal share of all who are under way.

        One flight is prepared while the other is answered. If each took whoever waits, one would soon carry them all,
        and the other a single caller; then server and client only ever wait for each other.
        """
        waiting = len(self._gathered)
        share = max(CALLS_PER_FLIGHT_MIN, -(-(waiting + self._aloft) // FLIGHTS_MAX))
        seats = min(waiting, share, CALLS_PER_FLIGHT_MAX)
        if seats < waiting and self._flying < FLIGHTS_MAX:
            self._depart()
        aboard = [self._gathered.popleft() for _ in range(seats)]
        if self._patience is not None:
            self._refuse_late(aboard, late_since=self._loop.time() - self._patience * GROUND_SHARE_MAX)
        # Whoever gave up before take-off stays behind: its call was never made.
        return [passenger for passenger in aboard if passenger[1] is None or not passenger[1].done()]

    def _refuse_late(self, passengers: list[Passenger], *, late_since: float) -> None:
        """Who waited too long to fly is sent home, and the server is not blamed for it: this process was busy."""
        for _, future, asked, _ in passengers:
            if future is None or asked > late_since:
                continue
            if not future.done():
                future.set_exception(LocksNotAsked(because="it took too long before Redis was asked"))

    def _deadline(self, aboard: Sequence[Passenger] = ()) -> float | None:
        """When the first of those aboard loses patience. Whoever waits on the ground came later than all of them."""
        if self._patience is None:
            return None
        waiting = next((asked for _, future, asked, _ in aboard if future is not None), None)
        return (self._loop.time() if waiting is None else waiting) + self._patience

    async def _send(self, calls: list[Call], deadline: float | None) -> list[Any]:
        self._aloft += len(calls)
        try:
            answers = await self._wire.send(calls, deadline=deadline)
        except LocksUnavailable:
            self._breaker.failed()
            raise
        finally:
            self._aloft -= len(calls)
        if self._whole and any(isinstance(answer, LocksUnavailable) for answer in answers):
            self._breaker.failed()
            return answers
        self._breaker.succeeded()
        if self._owed and not self._paying:
            self.pay()
        return answers

    def _ground(self, outage: LocksUnavailable) -> None:
        """A server that did not answer these will not answer those who wait behind them either."""
        waiting = list(self._gathered)
        self._gathered.clear()
        self._fail(waiting, outage)

    def _fail(self, passengers: list[Passenger], outage: LocksUnavailable) -> None:
        for call, future, *_ in passengers:
            if future is None:
                self._owed.append(call)
            elif not future.done():
                future.set_exception(LocksUnavailable(because=outage.because))
