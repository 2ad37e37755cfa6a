"""The load of the memory bench: holds of ever new buyers over HTTP, on events that open and close on the way.

    python -m earmark.bench.booking.measure.server_memory_load_generator

The process reads one turn per line from stdin and answers each with a line. The event of a hold, and the seat or unit
that it takes there, follow from its number alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.bench.child_process_protocol import answer_jobs
from earmark.bench.http.load_generator import HttpAnswers, HttpJob, LoadGenerator

if TYPE_CHECKING:
    from collections.abc import Iterator

TURN_SECONDS_MAX = 600.0
REST_SECONDS = 0.05
POOL_EVERY = 4
"""One hold in so many takes a unit of the pool, the others a seat of their own."""
CLOSED = b'{"sale_closes_at":"2020-01-01T00:00:00Z"}'


class EventCalendar(msgspec.Struct, frozen=True, kw_only=True):
    """Which event is on sale when.

    `at_once` events are on sale at once; each takes `each` holds and is then replaced. They are not all replaced at the
    same time.
    """

    at_once: int
    each: int

    @classmethod
    def of(cls, holds: int) -> EventCalendar:
        """Two hundred at once, each for a quarter of the time; of few holds, fewer."""
        at_once = min(max(holds // 50, 1), 200)
        return cls(at_once=at_once, each=max(holds // at_once // 4, 1))

    def place(self, number: int) -> tuple[str, int]:
        """The event of a hold, and its number there."""
        turn, slot = divmod(number, self.at_once)
        generation, nth = divmod(turn + slot * self.each // self.at_once, self.each)
        return f"weigh-{slot}-{generation}", nth

    def on_sale(self, first: int, last: int) -> set[str]:
        """The events of these holds."""
        return {self.place(number)[0] for number in range(first, last)}


class HoldTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Some holds, one after the other, on several connections."""

    port: int
    token: str
    connections: int
    calendar: EventCalendar
    first: int
    holds: int
    over: list[str] = []
    """Events whose sale ends now: each is read once more and then closed."""


def requests(turn: HoldTurn) -> Iterator[bytes]:
    """Each request has a buyer and a key that were never used before."""
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


def run_turn(turn: HoldTurn) -> HttpAnswers:
    """Send all requests of the turn. The ids of the bookings are left out, because nothing uses them."""
    job = HttpJob(
        port=turn.port,
        connections=turn.connections,
        seconds=TURN_SECONDS_MAX,
        token=turn.token,
        event_id="",
        seats_each=1,
        requests=0,
        rest_seconds=REST_SECONDS,
    )
    return msgspec.structs.replace(LoadGenerator(job, prepared=requests(turn)).run(), ids=[])


def main() -> None:
    """Run the turns of the parent process."""
    answer_jobs(HoldTurn, run_turn)


if __name__ == "__main__":
    main()
