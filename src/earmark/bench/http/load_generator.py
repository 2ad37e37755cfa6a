"""The load generator: one process, many connections, and as little work for a request as Python can do.

    python -m earmark.bench.http.load_generator

It reads one job per line from stdin and answers each with a line. Requests are encoded before the time is taken and
answers are parsed afterwards; in between there is one `recv` and one `send` for each request, because the generator
shares its cores with the contenders.
"""

from __future__ import annotations

import gc
import heapq
import re
import select
import socket
from collections import Counter
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import msgspec

from earmark.bench.child_process_protocol import answer_jobs
from earmark.bench.http_bytes import is_complete
from earmark.bench.report.quantiles_and_ratios import quantile_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ANSWER_BYTES_MAX = 256 * 1024
DRAIN_SECONDS = 60.0
"""How long the generator waits for the last answers."""
CREATED, SHED = 201, frozenset({429, 503})
_ID = re.compile(rb'"id":"([0-9a-f-]{36})"')


class HttpJob(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement: the requests, the number of connections, and the time."""

    port: int
    connections: int
    seconds: float
    token: str
    event_id: str
    seats_each: int
    requests: int
    """More than can be sent in the time; each has its own seats and key."""
    rest_seconds: float = 0.0
    """How long a connection pauses after a refusal."""


class HttpAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to one job."""

    seconds: float
    client_seconds: float
    """CPU time of the generator."""
    statuses: dict[int, int]
    p50_ms: float | None
    """Of the holds that were granted."""
    p99_ms: float | None
    shed_p50_ms: float | None
    """Of the refusals because of overload."""
    shed_p99_ms: float | None
    no_retry_after: int
    """Refusals without a Retry-After."""
    unanswered: int
    """Requests whose connection broke, or that got no answer in the end."""
    ids: list[str]
    """The bookings that were granted."""


def requests(job: HttpJob) -> Iterator[bytes]:
    """Holds of different seats, each with its own key."""
    head = (
        "POST /v1/bookings HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {job.token}\r\nIdempotency-Key: "
    )
    for number in range(job.requests):
        first = number * job.seats_each
        names = [f"S{seat}" for seat in range(first, first + job.seats_each)]
        body = msgspec.json.encode({"event_id": job.event_id, "buyer": f"buyer-{number}", "seats": names})
        yield f"{head}{job.event_id}-{number}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class LoadGenerator:
    """All connections of one job."""

    def __init__(self, job: HttpJob, *, prepared: Iterable[bytes] | None = None) -> None:
        self._job = job
        self._requests = list(requests(job) if prepared is None else prepared)[::-1]
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._sent_at: dict[int, float] = {}
        """When the request was sent, for each connection that waits for an answer."""
        self._partial: dict[int, bytes] = {}
        """Answers of which only the beginning has arrived."""
        self._pausing: list[tuple[float, int]] = []
        self._ends = 0.0
        self.answers: list[bytes] = []
        self.waits: list[float] = []
        self.broken = 0

    def run(self) -> HttpAnswers:
        """Send until the time or the requests are over."""
        try:
            for _ in range(self._job.connections):
                self._connect()
            gc.collect()
            gc.freeze()
            began, spent = perf_counter(), process_time()
            self._ends = began + self._job.seconds
            for file in self._sockets:
                self._send(file, began)
            self._listen()
            seconds, spent = perf_counter() - began, process_time() - spent
        finally:
            for line in self._sockets.values():
                line.close()
            self._poll.close()
            gc.unfreeze()
        return summarise(
            self.answers,
            self.waits,
            seconds=seconds,
            client_seconds=spent,
            unanswered=self.broken + len(self._sent_at),
        )

    def _connect(self) -> None:
        line = socket.create_connection(("127.0.0.1", self._job.port), timeout=30)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.settimeout(0)
        self._sockets[line.fileno()] = line
        self._poll.register(line.fileno(), select.EPOLLIN)

    def _send(self, file: int, now: float) -> None:
        if now >= self._ends or not self._requests:
            return
        self._sent_at[file] = now
        # A request is shorter than any send buffer: it leaves whole, or the connection is broken.
        self._sockets[file].send(self._requests.pop())

    def _listen(self) -> None:
        last = self._ends + DRAIN_SECONDS
        poll, waiting = self._poll.poll, self._sent_at
        while waiting or self._pausing:
            now = perf_counter()
            if now >= last:
                return
            pause = 1.0
            if self._pausing:
                while self._pausing and self._pausing[0][0] <= now:
                    self._send(heapq.heappop(self._pausing)[1], now)
                pause = min(max(self._pausing[0][0] - now, 0.0), 1.0) if self._pausing else 1.0
            for file, _ in poll(pause):
                self._receive(file)

    def _receive(self, file: int) -> None:
        try:
            data = self._sockets[file].recv(ANSWER_BYTES_MAX)
        except OSError:
            data = b""
        if not data:
            self._replace(file)
            return
        if file in self._partial:
            data = self._partial.pop(file) + data
        if not is_complete(data):
            self._partial[file] = data
            return
        now = perf_counter()
        self.waits.append(now - self._sent_at.pop(file))
        self.answers.append(data)
        rest = self._job.rest_seconds
        if rest and int(data[9:12]) in SHED:
            if now + rest < self._ends:
                heapq.heappush(self._pausing, (now + rest, file))
        else:
            self._send(file, now)

    def _replace(self, file: int) -> None:
        """Replace a broken connection. Its request counts as unanswered."""
        self._poll.unregister(file)
        self._sockets.pop(file).close()
        self._partial.pop(file, None)
        if self._sent_at.pop(file, None) is not None:
            self.broken += 1
        now = perf_counter()
        if now < self._ends:
            self._connect()
            self._send(next(reversed(self._sockets)), now)


def summarise(
    answers: list[bytes], waits: list[float], *, seconds: float, client_seconds: float, unanswered: int
) -> HttpAnswers:
    """The statuses, latencies and ids of raw answers."""
    statuses = [int(data[9:12]) for data in answers]
    granted = sorted(wait for wait, status in zip(waits, statuses, strict=True) if status == CREATED)
    shed = sorted(wait for wait, status in zip(waits, statuses, strict=True) if status in SHED)
    return HttpAnswers(
        seconds=seconds,
        client_seconds=client_seconds,
        statuses=dict(sorted(Counter(statuses).items())),
        p50_ms=quantile_ms(granted, 0.5),
        p99_ms=quantile_ms(granted, 0.99),
        shed_p50_ms=quantile_ms(shed, 0.5),
        shed_p99_ms=quantile_ms(shed, 0.99),
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
    """Run the jobs of the parent process."""
    answer_jobs(HttpJob, lambda job: LoadGenerator(job).run())


if __name__ == "__main__":
    main()
