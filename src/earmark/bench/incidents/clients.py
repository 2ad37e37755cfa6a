"""The clients, in a process of their own: each holds one unit, hears the answer, and holds the next.

    python -m earmark.bench.incidents.clients

It reads a job from stdin, says `ready` once it begins, goes on until it reads another line, waits for the answers that
are still out, and then writes every answer with its times, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import gc
import re
import select
import socket
import sys
import time
from typing import NamedTuple

import msgspec

from earmark.bench.http.load import whole

OK = "ok"
TIMEOUT, CLOSED, REFUSED = "client timeout", "connection closed", "no connection"
"""What a client hears when it hears no answer."""
ANSWER_BYTES_MAX = 64 * 1024
CONNECT_SECONDS_MAX = 1.0
TICK_SECONDS = 0.02
"""How often the clients that rest or wait are looked at."""
STDIN = 0
_CODE = re.compile(rb'"code": ?"(\w+)"')
_CREATED = 201


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks for what, and where."""

    port: int
    token: str
    events: list[str]
    """Client by client, in turn."""
    pool: str
    clients: int
    timeout_seconds: float
    """How long a client waits for an answer before it gives up and connects anew."""
    rest_seconds: float
    """How long a client that was granted nothing rests before it asks again."""


class Answer(NamedTuple):
    """One request and what became of it."""

    buyer: str
    """Of this request alone."""
    event: int
    sent: float
    heard: float
    code: str
    """`ok`, the code of a problem, or one of the three for no answer."""


class Client:
    """One buyer after the other on one connection."""

    def __init__(self, number: int, *, event: int) -> None:
        self.number = number
        self.event = event
        self.line: socket.socket | None = None
        self.asked = 0
        self.sent = 0.0
        self.waits = False
        self.asks_again_at = 0.0
        self.received = b""

    @property
    def buyer(self) -> str:
        """Whom the request that is out is for."""
        return f"{self.number}-{self.asked}"


class Clients:
    """All of them, in one thread."""

    def __init__(self, job: Job, *, stop: int = STDIN) -> None:
        self._job = job
        self._stop = stop
        self._poll = select.epoll()
        self._clients = [Client(number, event=number % len(job.events)) for number in range(job.clients)]
        self._by_file: dict[int, Client] = {}
        self._stopping = False
        self.answers: list[Answer] = []

    def run(self) -> list[Answer]:
        """Ask until there is something to read on `stop`."""
        self._poll.register(self._stop, select.EPOLLIN | select.EPOLLHUP)
        try:
            next_tick = 0.0
            while not self._stopping or any(client.waits for client in self._clients):
                now = time.monotonic()
                if now >= next_tick:
                    next_tick = now + TICK_SECONDS
                    self._tick(now)
                for file, _ in self._poll.poll(max(next_tick - time.monotonic(), 0.0)):
                    self._react(file)
        finally:
            for client in self._clients:
                self._hang_up(client)
            self._poll.close()
        return self.answers

    def _react(self, file: int) -> None:
        if file == self._stop:
            self._stopping = True
            self._poll.unregister(file)
        elif client := self._by_file.get(file):
            self._read(client)

    def _tick(self, now: float) -> None:
        for client in self._clients:
            if client.waits:
                if now - client.sent >= self._job.timeout_seconds:
                    self._hang_up(client)
                    self._note(client, TIMEOUT)
            elif not self._stopping and now >= client.asks_again_at:
                self._ask(client)

    def _ask(self, client: Client) -> None:
        client.asked += 1
        client.sent = time.monotonic()
        if client.line is None and not self._connect(client):
            self._note(client, REFUSED)
            return
        assert client.line is not None
        client.waits = True
        try:
            # A request is shorter than any send buffer: it leaves whole, or the connection is broken.
            client.line.send(self._request(client))
        except OSError:
            self._hang_up(client)
            self._note(client, CLOSED)

    def _request(self, client: Client) -> bytes:
        body = msgspec.json.encode(
            {"event_id": self._job.events[client.event], "buyer": client.buyer, "pools": {self._job.pool: 1}}
        )
        head = (
            "POST /v1/bookings HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self._job.token}\r\nIdempotency-Key: hold-{client.buyer}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def _connect(self, client: Client) -> bool:
        try:
            line = socket.create_connection(("127.0.0.1", self._job.port), timeout=CONNECT_SECONDS_MAX)
        except OSError:
            return False
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.settimeout(0)
        client.line = line
        self._by_file[line.fileno()] = client
        self._poll.register(line.fileno(), select.EPOLLIN)
        return True

    def _hang_up(self, client: Client) -> None:
        if client.line is None:
            return
        self._poll.unregister(client.line.fileno())
        del self._by_file[client.line.fileno()]
        client.line.close()
        client.line, client.received = None, b""

    def _read(self, client: Client) -> None:
        assert client.line is not None
        try:
            received = client.line.recv(ANSWER_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._hang_up(client)
            if client.waits:
                self._note(client, CLOSED)
            return
        client.received += received
        if client.waits and whole(client.received):
            answer, client.received = client.received, b""
            self._note(client, code(answer))

    def _note(self, client: Client, said: str) -> None:
        """Keep what was heard, and ask for the next at once, or after a rest where nothing was granted."""
        now = time.monotonic()
        client.waits = False
        self.answers.append(Answer(client.buyer, client.event, client.sent, now, said))
        if said != OK:
            client.asks_again_at = now + self._job.rest_seconds
        elif not self._stopping:
            self._ask(client)


def code(answer: bytes) -> str:
    """`ok`, or why nothing was granted."""
    status = int(answer[9:12])
    if status == _CREATED:
        return OK
    found = _CODE.search(answer)
    return found[1].decode() if found else f"status {status}"


def main() -> None:
    """One job."""
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    gc.disable()  # nothing here makes cycles, and a search in the middle would count as a slow answer
    sys.stdout.buffer.write(msgspec.json.encode(Clients(job).run()) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
