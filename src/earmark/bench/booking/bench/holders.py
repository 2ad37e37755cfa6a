"""Buyers who never come twice: holds over HTTP by the load generator, on events that open and close on the way.

    python -m earmark.bench.booking.bench.holders

The process reads one turn per line from stdin and says what it heard, one line each. Which event a hold is of, and what
it takes there, follows from its number alone.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from earmark.bench.http.load import Crowd, Heard, Job
from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    Ask = Callable[["Turn"], Awaitable[Heard]]

TURN_SECONDS_MAX = 600.0
REST_SECONDS = 0.05
POOL_EVERY = 4
"""So often a hold takes a unit of the pool, and else a seat of its own."""
MODULE = "earmark.bench.booking.bench.holders"
LINE_MAX = 16 * 1024 * 1024
CLOSED = b'{"sale_closes_at":"2020-01-01T00:00:00Z"}'


class Calendar(msgspec.Struct, frozen=True, kw_only=True):
    """Which event is on sale when.

    So many are on sale at once, and so many holds each of them takes; then another stands in its place. They do not
    change all at the same time.
    """

    at_once: int
    each: int

    @classmethod
    def of(cls, holds: int) -> Calendar:
        """Two hundred at once, each for a quarter of the time; of few holds, fewer."""
        at_once = min(max(holds // 50, 1), 200)
        return cls(at_once=at_once, each=max(holds // at_once // 4, 1))

    def place(self, number: int) -> tuple[str, int]:
        """The event that a hold is of, and the how-manieth of it it is."""
        turn, stand = divmod(number, self.at_once)
        generation, nth = divmod(turn + stand * self.each // self.at_once, self.each)
        return f"weigh-{stand}-{generation}", nth

    def on_sale(self, first: int, last: int) -> set[str]:
        """The events of these holds."""
        return {self.place(number)[0] for number in range(first, last)}


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """Some holds, one after the other, on so many connections."""

    port: int
    token: str
    connections: int
    calendar: Calendar
    first: int
    holds: int
    over: list[str] = []
    """Events whose sale ends now: somebody looks at the house once more, and then it is closed."""


def requests(turn: Turn) -> Iterator[bytes]:
    """Each with a buyer and a key that were never seen before."""
    tail = f"HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {turn.token}\r\n".encode()
    for event_id in turn.over:
        path = b"/v1/events/" + event_id.encode()
        yield b"GET %b %b\r\n" % (path, tail)
        yield _with_body(b"PATCH " + path, tail, key=f"close-{event_id}", body=CLOSED)
    for number in range(turn.first, turn.first + turn.holds):
        event_id, nth = turn.calendar.place(number)
        wants = '"pools":{"GA":1}' if number % POOL_EVERY == 0 else f'"seats":["S{nth}"]'
        body = f'{{"event_id":"{event_id}","buyer":"buyer-{number}",{wants}}}'.encode()
        yield _with_body(b"POST /v1/bookings", tail, key=f"hold-{number}", body=body)


def _with_body(start: bytes, tail: bytes, *, key: str, body: bytes) -> bytes:
    head = b"%b %bContent-Type: application/json\r\nIdempotency-Key: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (start, tail, key.encode(), len(body)) + body


@asynccontextmanager
async def holding() -> AsyncIterator[Ask]:
    """A generator in a process of its own; what it is given to do, and what it heard."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", MODULE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_MAX,
    )

    async def ask(turn: Turn) -> Heard:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(turn) + b"\n")
        told = await process.stdout.readline()
        if not told:
            raise SetupError(problem="The load generator ended in the middle of a turn; what it said is above.")
        return msgspec.json.decode(told, type=Heard)

    try:
        yield ask
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def hear(turn: Turn) -> Heard:
    """Ask for all of it. Nobody wants to know which bookings those are."""
    job = Job(
        port=turn.port,
        connections=turn.connections,
        seconds=TURN_SECONDS_MAX,
        token=turn.token,
        event_id="",
        seats_each=1,
        requests=0,
        rest_seconds=REST_SECONDS,
    )
    return msgspec.structs.replace(Crowd(job, asks=requests(turn)).run(), ids=[])


def main() -> None:
    """Turn after turn, until nobody gives one."""
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(hear(msgspec.json.decode(line, type=Turn))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
