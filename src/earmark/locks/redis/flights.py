"""Calls made in the same tick travel together.

A call through redis-py costs the same whether it carries one lock or fifty, so that cost is paid once for many: at
most two flights are under way, and what is asked meanwhile gathers for the next. A lone caller goes at once, in its
own task, and pays nothing for this. Measured: see docs/explanation/locks.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from earmark.locks.errors import LocksUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.locks.breaker import Breaker
    from earmark.locks.redis.script import Call
    from earmark.locks.redis.wire import Wire

FLIGHTS_MAX = 2
CALLS_PER_FLIGHT_MIN = 8  # Fewer are not worth a second flight.
CALLS_PER_FLIGHT_MAX = 128
OWED_MAX = 10_000


class Flights:
    """Gathers calls and sends them over a wire, past a circuit breaker."""

    def __init__(self, wire: Wire, *, breaker: Breaker) -> None:
        self._wire = wire
        self._breaker = breaker
        self._loop = asyncio.get_running_loop()
        self._flying = 0
        self._aloft = 0
        self._gathered: deque[tuple[Call, asyncio.Future[Any]]] = deque()
        self._owed: deque[Call] = deque(maxlen=OWED_MAX)
        self._paying = False
        self._pay_again = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_paid: Callable[[], None] = lambda: None
        """Told when calls have got through whose answers nobody read."""

    def ask(self, call: Call) -> Awaitable[Any]:
        """The script's answer to this call. No coroutine of its own: this is where every call passes."""
        self._check()
        if self._flying < FLIGHTS_MAX and not self._gathered:
            return self._alone(call)
        future = self._loop.create_future()
        self._gathered.append((call, future))
        return future

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
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _pay(self) -> None:
        try:
            while self._pay_again and self._owed:
                self._pay_again = False
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

    async def _alone(self, call: Call) -> Any:
        self._flying += 1
        try:
            answers = await self._send([call])
        except LocksUnavailable as outage:
            self._ground(outage)
            raise
        finally:
            self._flying -= 1
            if self._gathered:
                self._depart()
        return answers[0]

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

    async def _fly(self) -> None:
        aboard = self._board()
        if not aboard:
            return
        try:
            answers = await self._send([call for call, _ in aboard])
        except LocksUnavailable as outage:
            _fail(aboard, outage)
            self._ground(outage)
            return
        except BaseException as bug:
            for _, future in aboard:
                if not future.done():
                    future.set_exception(bug)
            raise
        for (_, future), answer in zip(aboard, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _board(self) -> list[tuple[Call, asyncio.Future[Any]]]:
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
        # Whoever gave up before take-off stays behind: its call was never made.
        return [passenger for passenger in aboard if not passenger[1].done()]

    async def _send(self, calls: list[Call]) -> list[Any]:
        self._aloft += len(calls)
        try:
            answers = await self._wire.send(calls)
        except LocksUnavailable:
            self._breaker.failed()
            raise
        finally:
            self._aloft -= len(calls)
        self._breaker.succeeded()
        if self._owed and not self._paying:
            self.pay()
        return answers

    def _ground(self, outage: LocksUnavailable) -> None:
        """A server that did not answer these will not answer those who wait behind them either."""
        waiting = list(self._gathered)
        self._gathered.clear()
        _fail(waiting, outage)


def _fail(passengers: list[tuple[Call, asyncio.Future[Any]]], outage: LocksUnavailable) -> None:
    for _, future in passengers:
        if not future.done():
            future.set_exception(LocksUnavailable(because=outage.because))
