"""The clients, in a process of their own: each holds one unit, waits for the answer, and holds the next.

    python -m earmark.bench.incidents.clients

It reads a job from stdin, writes `ready`, and sends holds until it reads another line. Then it waits for the last
answers, and writes every answer with its times, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import gc
import select
import socket
import sys
import time
from typing import NamedTuple

import msgspec

from earmark.bench.child_process_protocol import READY, write_line
from earmark.bench.http_bytes import answer_code, is_complete, request

OK = "ok"
TIMEOUT, CLOSED, REFUSED = "client timeout", "connection closed", "no connection"
"""The codes of requests without an answer."""
ANSWER_BYTES_MAX = 64 * 1024
CONNECT_SECONDS_MAX = 1.0
TICK_SECONDS = 0.02
"""How often pauses and timeouts are checked."""
STDIN = 0
_CREATED = "201"


class ClientsJob(msgspec.Struct, frozen=True, kw_only=True):
    """The requests, their clients, and the server."""

    port: int
    token: str
    events: list[str]
    """The clients use them in turn."""
    pool: str
    clients: int
    timeout_seconds: float
    """How long a client waits for an answer before it closes the connection and opens another."""
    pause_seconds: float
    """How long a client pauses after a refusal."""


class ClientAnswer(NamedTuple):
    """One request and its answer."""

    buyer: str
    """Unique to this request."""
    event: int
    sent: float
    heard: float
    code: str
    """`ok`, the code of a problem, or one of the three for no answer."""


class LoadClient:
    """One connection, with another buyer for each request."""

    def __init__(self, number: int, *, event: int) -> None:
        self.number = number
        self.event = event
        self.socket: socket.socket | None = None
        self.requests = 0
        self.sent = 0.0
        self.is_waiting = False
        self.sends_again_at = 0.0
        self.received = b""

    @property
    def buyer(self) -> str:
        """The buyer of the current request."""
        return f"{self.number}-{self.requests}"


class LoadClients:
    """All clients, in one thread."""

    def __init__(self, job: ClientsJob, *, stop: int = STDIN) -> None:
        self._job = job
        self._stop = stop
        self._poll = select.epoll()
        self._clients = [LoadClient(number, event=number % len(job.events)) for number in range(job.clients)]
        self._by_file: dict[int, LoadClient] = {}
        self._stopping = False
        self.answers: list[ClientAnswer] = []

    def run(self) -> list[ClientAnswer]:
        """Send requests until there is something to read on `stop`."""
        self._poll.register(self._stop, select.EPOLLIN | select.EPOLLHUP)
        try:
            next_tick = 0.0
            while not self._stopping or any(client.is_waiting for client in self._clients):
                now = time.monotonic()
                if now >= next_tick:
                    next_tick = now + TICK_SECONDS
                    self._tick(now)
                for file, _ in self._poll.poll(max(next_tick - time.monotonic(), 0.0)):
                    self._react(file)
        finally:
            for client in self._clients:
                self._close(client)
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
            if client.is_waiting:
                if now - client.sent >= self._job.timeout_seconds:
                    self._close(client)
                    self._note(client, TIMEOUT)
            elif not self._stopping and now >= client.sends_again_at:
                self._send(client)

    def _send(self, client: LoadClient) -> None:
        client.requests += 1
        client.sent = time.monotonic()
        if client.socket is None and not self._connect(client):
            self._note(client, REFUSED)
            return
        assert client.socket is not None
        client.is_waiting = True
        try:
            # A request is shorter than any send buffer: it leaves whole, or the connection is broken.
            client.socket.send(self._request(client))
        except OSError:
            self._close(client)
            self._note(client, CLOSED)

    def _request(self, client: LoadClient) -> bytes:
        body = {"event_id": self._job.events[client.event], "buyer": client.buyer, "pools": {self._job.pool: 1}}
        key = f"hold-{client.buyer}"
        return request("POST", "/v1/bookings", bearer=self._job.token, key=key, json=body)

    def _connect(self, client: LoadClient) -> bool:
        try:
            connection = socket.create_connection(("127.0.0.1", self._job.port), timeout=CONNECT_SECONDS_MAX)
        except OSError:
            return False
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(0)
        client.socket = connection
        self._by_file[connection.fileno()] = client
        self._poll.register(connection.fileno(), select.EPOLLIN)
        return True

    def _close(self, client: LoadClient) -> None:
        if client.socket is None:
            return
        self._poll.unregister(client.socket.fileno())
        del self._by_file[client.socket.fileno()]
        client.socket.close()
        client.socket, client.received = None, b""

    def _read(self, client: LoadClient) -> None:
        assert client.socket is not None
        try:
            received = client.socket.recv(ANSWER_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._close(client)
            if client.is_waiting:
                self._note(client, CLOSED)
            return
        client.received += received
        if client.is_waiting and is_complete(client.received):
            answer, client.received = client.received, b""
            self._note(client, answer_text(answer))

    def _note(self, client: LoadClient, code: str) -> None:
        """Keep the answer, and send the next request at once, or after a pause if it was refused."""
        now = time.monotonic()
        client.is_waiting = False
        self.answers.append(ClientAnswer(client.buyer, client.event, client.sent, now, code))
        if code != OK:
            client.sends_again_at = now + self._job.pause_seconds
        elif not self._stopping:
            self._send(client)


def answer_text(answer: bytes) -> str:
    """`ok`, or the code of the refusal."""
    status, code = answer_code(answer)
    return OK if status == _CREATED else code or f"status {status}"


def main() -> None:
    """Run the one job of the parent process."""
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=ClientsJob)
    write_line(READY)
    gc.disable()  # nothing here makes cycles, and a collection would count as a slow answer
    write_line(msgspec.json.encode(LoadClients(job).run()))


if __name__ == "__main__":
    main()
