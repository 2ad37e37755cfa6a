"""What the clients do: each asks, waits for its answer, and asks for the next thing, until time or wants run out.

A client is a task. What it is told is written down as it hears it, and compared with the tables afterwards.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from operator import itemgetter
from time import perf_counter, process_time
from typing import TYPE_CHECKING

from earmark.bench.booking.ports import Want

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from earmark.bench.booking.ports import Strategy

ERRORS_TOLERATED = 0.5
"""Of all answers. A contender that fails more often is not measured: the run says so and ends."""
DEADLOCK = "deadlock"
DRAWS = 4096


class Tally:
    """What the clients of one cell heard."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.client_seconds = 0.0
        """Of this process's own core."""
        self.waits: list[float] = []
        """The seconds that each hold took, whatever came of it: who gives up late is not the quicker for it."""
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
        """A client heard neither yes nor no."""
        self.errors[DEADLOCK if is_deadlock(error) else type(error).__name__] += 1
        self.first_error = self.first_error or error

    @property
    def broken(self) -> bool:
        """Whether errors are what this contender mostly gives."""
        return self.errors.total() > ERRORS_TOLERATED * max(self.answered, 1)


async def crowd(
    strategy: Strategy,
    wants: Iterator[Want],
    *,
    clients: int,
    seconds: float | None,
    confirm: bool = True,
    heard: Callable[[Want], object] = lambda _want: None,
) -> Tally:
    """Everybody at once. Each wants at least once more while there is time; `heard` is told what was granted."""
    tally = Tally()
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
                    heard(want)
                    if confirm and await strategy.confirm(
                        booking_id, payment_id=f"{want.key}-paid", key=f"{want.key}-confirm"
                    ):
                        tally.confirmed.append(booking_id)
            except Exception as error:  # noqa: BLE001 (whatever a contender does, it is counted and told)
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
    """Seats that nobody else wants, flow by flow."""
    for number in range(first, first + flows):
        start = number * seats_each
        seats = tuple(f"S{seat}" for seat in range(start, start + seats_each))
        yield Want(event_id=event_id, buyer=f"buyer-{number}", seats=seats, key=f"{event_id}-{number}")


def units(event_id: str, *, flows: int, first: int = 0) -> Iterator[Want]:
    """One unit of the one pool, flow by flow."""
    for number in range(first, first + flows):
        yield Want(event_id=event_id, buyer=f"buyer-{number}", pools={"GA": 1}, key=f"{event_id}-{number}")


def flash(event_id: str, *, seats: int, per_seat: int) -> Iterator[Want]:
    """Every seat so many times, in an order that is random and the same for all."""
    order = [seat for seat in range(seats) for _ in range(per_seat)]
    random.Random(seats).shuffle(order)  # noqa: S311 -- the same for every contender is the point
    for number, seat in enumerate(order):
        yield Want(event_id=event_id, buyer=f"buyer-{number}", seats=(f"S{seat}",), key=f"{event_id}-{number}")


class Blocks:
    """The hot seats: all clients want some of the same block, until most of it is gone and the next is on sale."""

    def __init__(self, event_id: str, *, block: int, blocks: int, share: float, seats_each: int) -> None:
        assert seats_each > 1, "flows of one seat are what `flash` is for"
        self._event_id = event_id
        self._block = block
        self._blocks = blocks
        self._enough = int(block * share)
        self._seats_each = seats_each
        self._current = 0
        self._given = 0

    def wants(self) -> Iterator[Want]:
        """At random, the same for every contender that hears the same answers."""
        chance = random.Random(self._block)  # noqa: S311 -- as above
        # Drawn beforehand: a client that draws lots costs as much as a refusal, and is not what is measured.
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

    def heard(self, want: Want) -> None:
        """Seats are gone. Late news of an earlier block does not count for this one."""
        if int(want.seats[0][1:]) // self._block != self._current:
            return
        self._given += len(want.seats)
        if self._given >= self._enough:
            self._current += 1
            self._given = 0


def is_deadlock(error: BaseException) -> bool:
    """Whether the database cut a deadlock, whoever worded it in between."""
    seen: BaseException | None = error
    while seen is not None:
        if DEADLOCK in f"{type(seen).__name__} {seen}".lower():
            return True
        seen = seen.__cause__ or seen.__context__
    return False
