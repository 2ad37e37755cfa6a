"""What the clients do: each sends a request, waits for the answer, and sends the next, until time or requests run out.

A client is a task. Its answers are kept, and compared with the tables afterwards.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from operator import itemgetter
from time import perf_counter, process_time
from typing import TYPE_CHECKING

from earmark.bench.booking.strategy_protocol import Want

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from earmark.bench.booking.strategy_protocol import Strategy

ERRORS_TOLERATED = 0.5
"""Of all answers. A contender that fails more often is not measured: the run ends with an error."""
DEADLOCK = "deadlock"
DRAWS = 4096


class ClientTally:
    """The answers to the clients of one measurement."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.client_seconds = 0.0
        """CPU time of this process."""
        self.waits: list[float] = []
        """The seconds that each hold took, whatever its answer: a slow refusal counts, too."""
        self.moments: list[float] = []
        """When each hold was answered, in seconds from the start."""
        self.held: list[UUID] = []
        self.confirmed: list[UUID] = []
        self.refused = 0
        self.errors: Counter[str] = Counter()
        self.first_error: BaseException | None = None

    @property
    def answered(self) -> int:
        """Holds that were granted or refused."""
        return len(self.held) + self.refused

    def failed(self, error: Exception) -> None:
        """A client got an error in place of an answer."""
        self.errors[DEADLOCK if is_deadlock(error) else type(error).__name__] += 1
        self.first_error = self.first_error or error

    @property
    def broken(self) -> bool:
        """Whether most answers of this contender were errors."""
        return self.errors.total() > ERRORS_TOLERATED * max(self.answered, 1)


async def run_clients(
    strategy: Strategy,
    wants: Iterator[Want],
    *,
    clients: int,
    seconds: float | None,
    confirm: bool = True,
    granted: Callable[[Want], object] = lambda _want: None,
) -> ClientTally:
    """Run all clients at once, until the time is over. `granted` is called with each want that was granted."""
    tally = ClientTally()
    spent = process_time()
    began = perf_counter()
    ends = began + seconds if seconds is not None else float("inf")

    async def client() -> None:
        for want in wants:
            asked = perf_counter()
            try:
                try:
                    booking_id = await strategy.hold(want)
                finally:
                    answered = perf_counter()
                    tally.waits.append(answered - asked)
                tally.moments.append(answered - began)
                if booking_id is None:
                    tally.refused += 1
                else:
                    tally.held.append(booking_id)
                    granted(want)
                    if confirm and await strategy.confirm(
                        booking_id, payment_id=f"{want.key}-paid", key=f"{want.key}-confirm"
                    ):
                        tally.confirmed.append(booking_id)
            except Exception as error:  # noqa: BLE001 (an error of a contender is counted, and the run goes on)
                tally.failed(error)
                await asyncio.sleep(0)
            if perf_counter() >= ends:
                break

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    tally.seconds = perf_counter() - began
    tally.client_seconds = process_time() - spent
    return tally


def apart(event_id: str, *, flows: int, seats_each: int, first: int = 0) -> Iterator[Want]:
    """Flows that each want seats of their own."""
    for number in range(first, first + flows):
        start = number * seats_each
        seats = tuple(f"S{seat}" for seat in range(start, start + seats_each))
        yield Want(event_id=event_id, buyer=f"buyer-{number}", seats=seats, key=f"{event_id}-{number}")


def units(event_id: str, *, flows: int, first: int = 0) -> Iterator[Want]:
    """Flows that each want one unit of the one pool."""
    for number in range(first, first + flows):
        yield Want(event_id=event_id, buyer=f"buyer-{number}", pools={"GA": 1}, key=f"{event_id}-{number}")


def flash(event_id: str, *, seats: int, per_seat: int) -> Iterator[Want]:
    """Each seat several times, in a random order that is the same for all contenders."""
    order = [seat for seat in range(seats) for _ in range(per_seat)]
    random.Random(seats).shuffle(order)  # noqa: S311 -- the same for every contender, on purpose
    for number, seat in enumerate(order):
        yield Want(event_id=event_id, buyer=f"buyer-{number}", seats=(f"S{seat}",), key=f"{event_id}-{number}")


class SeatBlocks:
    """Hot seats: all clients want seats of the same block, until most of it is sold and the next block is on sale."""

    def __init__(self, event_id: str, *, block: int, blocks: int, share: float, seats_each: int) -> None:
        assert seats_each > 1, "`flash` has flows of one seat"
        self._event_id = event_id
        self._block = block
        self._blocks = blocks
        self._enough = int(block * share)
        self._seats_each = seats_each
        self._current = 0
        self._given = 0

    def wants(self) -> Iterator[Want]:
        """At random, the same for every contender that gives the same answers."""
        chance = random.Random(self._block)  # noqa: S311 -- as above
        # Drawn beforehand: drawing costs as much as a refusal, and is not what is measured.
        draws = [itemgetter(*chance.sample(range(self._block), self._seats_each)) for _ in range(DRAWS)]
        number = 0
        while (block := self._current) < self._blocks:
            names = [f"S{seat}" for seat in range(block * self._block, (block + 1) * self._block)]
            for draw in draws:
                number += 1
                yield Want(
                    event_id=self._event_id,
                    buyer=f"buyer-{number}",
                    seats=draw(names),
                    key=f"{self._event_id}-{number}",
                )
                if self._current != block:
                    break

    def granted(self, want: Want) -> None:
        """Count seats that were granted. A late answer about an earlier block does not count for this one."""
        if int(want.seats[0][1:]) // self._block != self._current:
            return
        self._given += len(want.seats)
        if self._given >= self._enough:
            self._current += 1
            self._given = 0


def is_deadlock(error: BaseException) -> bool:
    """Whether the database ended a deadlock, however the driver and the engine have wrapped the error."""
    seen: BaseException | None = error
    while seen is not None:
        if DEADLOCK in f"{type(seen).__name__} {seen}".lower():
            return True
        seen = seen.__cause__ or seen.__context__
    return False
