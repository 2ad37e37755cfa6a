"""The load generator: one process, many connections, and as little work for a request as Python can do.

    python -m earmark.bench.http.load

It reads one job per line from stdin and says what it heard, one line each. Requests are encoded before the clock
starts, answers are taken apart after it has stopped, and in between there is one `recv` and one `send` for each: what
it costs is taken from the cores that the contenders need too.
"""

from __future__ import annotations

import gc
import heapq
import re
import select
import socket
import sys
from collections import Counter
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import msgspec

from earmark.bench.medians import quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ANSWER_BYTES_MAX = 256 * 1024
DRAIN_SECONDS = 60.0
"""How long the last answers are waited for, when no more is asked."""
CREATED, SHED = 201, frozenset({429, 503})
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_ID = re.compile(rb'"id":"([0-9a-f-]{36})"')


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One cell: who asks for what, on how many connections, and for how long."""

    port: int
    connections: int
    seconds: float
    token: str
    event_id: str
    seats_each: int
    requests: int
    """More than can be asked in the time; every one has seats and a key of its own."""
    rest_seconds: float = 0.0
    """How long a connection that was turned away rests before it asks again."""


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What came back."""

    seconds: float
    client_seconds: float
    """Of the generator's core."""
    statuses: dict[int, int]
    p50_ms: float | None
    """Of the holds that were granted."""
    p99_ms: float | None
    shed_p50_ms: float | None
    """Of those who were told to come again."""
    shed_p99_ms: float | None
    no_retry_after: int
    """Answers that turned somebody away and did not say when to come again."""
    unanswered: int
    """Requests whose connection broke, or that nobody answered in the end."""
    ids: list[str]
    """The bookings that were granted."""


def requests(job: Job) -> Iterator[bytes]:
    """Holds of seats that nobody else wants, each with a key of its own."""
    head = (
        "POST /v1/bookings HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {job.token}\r\nIdempotency-Key: "
    )
    for number in range(job.requests):
        first = number * job.seats_each
        names = [f"S{seat}" for seat in range(first, first + job.seats_each)]
        body = msgspec.json.encode({"event_id": job.event_id, "buyer": f"buyer-{number}", "seats": names})
        yield f"{head}{job.event_id}-{number}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Crowd:
    """All connections of one job."""

    def __init__(self, job: Job, *, asks: Iterable[bytes] | None = None) -> None:
        self._job = job
        self._asks = list(requests(job) if asks is None else asks)[::-1]
        self._poll = select.epoll()
        self._lines: dict[int, socket.socket] = {}
        self._asked: dict[int, float] = {}
        """When, for each connection that waits for an answer."""
        self._halves: dict[int, bytes] = {}
        """Answers of which only the beginning is here."""
        self._resting: list[tuple[float, int]] = []
        self._ends = 0.0
        self.answers: list[bytes] = []
        self.waits: list[float] = []
        self.broken = 0

    def run(self) -> Heard:
        """Ask until the time or the requests are over."""
        try:
            for _ in range(self._job.connections):
                self._connect()
            gc.collect()
            gc.freeze()
            began, spent = perf_counter(), process_time()
            self._ends = began + self._job.seconds
            for file in self._lines:
                self._ask(file, began)
            self._listen()
            seconds, spent = perf_counter() - began, process_time() - spent
        finally:
            for line in self._lines.values():
                line.close()
            self._poll.close()
            gc.unfreeze()
        return heard(
            self.answers,
            self.waits,
            seconds=seconds,
            client_seconds=spent,
            unanswered=self.broken + len(self._asked),
        )

    def _connect(self) -> None:
        line = socket.create_connection(("127.0.0.1", self._job.port), timeout=30)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.settimeout(0)
        self._lines[line.fileno()] = line
        self._poll.register(line.fileno(), select.EPOLLIN)

    def _ask(self, file: int, now: float) -> None:
        if now >= self._ends or not self._asks:
            return
        self._asked[file] = now
        # A request is shorter than any send buffer: it leaves whole, or the connection is broken.
        self._lines[file].send(self._asks.pop())

    def _listen(self) -> None:
        last = self._ends + DRAIN_SECONDS
        poll, asked = self._poll.poll, self._asked
        while asked or self._resting:
            now = perf_counter()
            if now >= last:
                return
            pause = 1.0
            if self._resting:
                while self._resting and self._resting[0][0] <= now:
                    self._ask(heapq.heappop(self._resting)[1], now)
                pause = min(max(self._resting[0][0] - now, 0.0), 1.0) if self._resting else 1.0
            for file, _ in poll(pause):
                self._hear(file)

    def _hear(self, file: int) -> None:
        try:
            data = self._lines[file].recv(ANSWER_BYTES_MAX)
        except OSError:
            data = b""
        if not data:
            self._lose(file)
            return
        if file in self._halves:
            data = self._halves.pop(file) + data
        if not whole(data):
            self._halves[file] = data
            return
        now = perf_counter()
        self.waits.append(now - self._asked.pop(file))
        self.answers.append(data)
        rest = self._job.rest_seconds
        if rest and int(data[9:12]) in SHED:
            if now + rest < self._ends:
                heapq.heappush(self._resting, (now + rest, file))
        else:
            self._ask(file, now)

    def _lose(self, file: int) -> None:
        """It broke. What was asked on it is unanswered, and another takes its place."""
        self._poll.unregister(file)
        self._lines.pop(file).close()
        self._halves.pop(file, None)
        if self._asked.pop(file, None) is not None:
            self.broken += 1
        now = perf_counter()
        if now < self._ends:
            self._connect()
            self._ask(next(reversed(self._lines)), now)


def whole(data: bytes) -> bool:
    """Whether an answer is complete. Every answer of every contender says its length."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    length = _LENGTH.search(data, 0, end + 2)
    return length is not None and len(data) >= end + 4 + int(length[1])


def heard(answers: list[bytes], waits: list[float], *, seconds: float, client_seconds: float, unanswered: int) -> Heard:
    """Take the answers apart."""
    statuses = [int(data[9:12]) for data in answers]
    granted = sorted(wait for wait, status in zip(waits, statuses, strict=True) if status == CREATED)
    shed = sorted(wait for wait, status in zip(waits, statuses, strict=True) if status in SHED)
    return Heard(
        seconds=seconds,
        client_seconds=client_seconds,
        statuses=dict(sorted(Counter(statuses).items())),
        p50_ms=quantile(granted, 0.5) * 1000 if granted else None,
        p99_ms=quantile(granted, 0.99) * 1000 if granted else None,
        shed_p50_ms=quantile(shed, 0.5) * 1000 if shed else None,
        shed_p99_ms=quantile(shed, 0.99) * 1000 if shed else None,
        no_retry_after=sum(
            status in SHED and b"\r\nretry-after: " not in data.lower()
            for data, status in zip(answers, statuses, strict=True)
        ),
        unanswered=unanswered,
        ids=[_id(data) for data, status in zip(answers, statuses, strict=True) if status == CREATED],
    )


def _id(data: bytes) -> str:
    found = _ID.search(data)
    return found[1].decode() if found else ""


def main() -> None:
    """Job after job, until nobody gives one."""
    for line in sys.stdin.buffer:
        told = Crowd(msgspec.json.decode(line, type=Job)).run()
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
