"""Clients in a process of their own: they send prepared bytes at an even rate, and report the answers.

    python -m earmark.bench.attacks.request_sender

It reads one job per line from stdin and answers each with one line. Honest buyers, harmless requests and attacks are
all sent by this program, so that a phase with an attack costs the machine no more clients than one without.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import select
import socket
import time
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from earmark.bench.child_process_protocol import answer_jobs
from earmark.bench.http_bytes import describe_answer, is_complete
from earmark.bench.server_command_host_and_key import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable

ANSWER_BYTES_MAX = 256 * 1024
SPARE_FILES = 64
NO_ANSWER, CLOSED = "no answer", "closed"
"""In place of a status where there is none."""


class RequestJob(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """Requests, each sent once, in order, over persistent connections."""

    port: int
    requests: list[bytes]
    per_second: float
    connections: int
    seconds_max: float = 20.0
    """From the first request: a request that is not answered by then counts as without an answer."""


class ConnectionJob(msgspec.Struct, frozen=True, kw_only=True, tag="occupy"):
    """Connections that send something and then stay open, whatever the server does."""

    port: int
    words: list[bytes]
    """What each connection sends first."""
    per_second: float
    """How many are opened in a second."""
    seconds: float
    """From the first connection to the end."""
    drip: bytes = b""
    """What each connection sends every `drip_seconds`."""
    drip_seconds: float = 0.2


class JobAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to one job."""

    sent: int
    seconds: float
    answers: list[tuple[str, float]]
    """In the order of the requests: the status with its code, and after how many seconds."""

    @property
    def counts(self) -> dict[str, int]:
        """How often each answer came."""
        return counted([self])


def counted(answers: Iterable[JobAnswers]) -> dict[str, int]:
    """How often each answer came, over all jobs."""
    return dict(sorted(Counter(text for one in answers for text, _ in one.answers).items()))


class _KeptConnection:
    """One connection and its current request."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number, self.sent = -1, 0.0
        self.received = b""


class RequestSender:
    """All connections of one job, in one thread."""

    def __init__(self, job: RequestJob) -> None:
        self._job = job
        self._poll = select.epoll()
        self._lines: dict[int, _KeptConnection] = {}
        self._free: list[_KeptConnection] = []
        self._answers: list[tuple[str, float]] = [(NO_ANSWER, 0.0)] * len(job.requests)
        self._open = 0

    def run(self) -> JobAnswers:
        """Send each when it is due and a connection is free; then wait for the last answers."""
        job, began, following = self._job, time.monotonic(), 0
        for _ in range(min(job.connections, len(job.requests))):
            self._connect()
        try:
            while following < len(job.requests) or self._open:
                now = time.monotonic()
                if now - began > job.seconds_max:
                    break
                while following < len(job.requests) and self._free and began + following / job.per_second <= now:
                    self._send(self._free.pop(), following)
                    following += 1
                self._listen(self._pause(began + following / job.per_second - now, following))
        finally:
            for line in self._lines.values():
                line.socket.close()
            self._poll.close()
        return JobAnswers(sent=following, seconds=time.monotonic() - began, answers=self._answers[:following])

    def _pause(self, until_due: float, following: int) -> float:
        return max(until_due, 0.0) if self._free and following < len(self._job.requests) else 0.05

    def _connect(self) -> None:
        line = _KeptConnection(self._job.port)
        self._lines[line.socket.fileno()] = line
        self._poll.register(line.socket.fileno(), select.EPOLLIN)
        self._free.append(line)

    def _send(self, line: _KeptConnection, number: int) -> None:
        line.number, line.sent = number, time.monotonic()
        self._open += 1
        with contextlib.suppress(OSError):  # a server that refuses a head reads no body; its answer may have arrived
            line.socket.sendall(self._job.requests[number])

    def _listen(self, pause: float) -> None:
        for file, _ in self._poll.poll(pause):
            line = self._lines[file]
            try:
                data = line.socket.recv(ANSWER_BYTES_MAX)
            except OSError:
                data = b""
            line.received += data
            if line.number >= 0 and is_complete(line.received):
                self._note(line, describe_answer(line.received))
                if b"\r\nconnection: close" in line.received.lower():
                    self._replace(line)
                else:
                    line.received = b""
                    self._free.append(line)
            elif not data:
                if line.number >= 0:
                    self._note(line, CLOSED)
                self._replace(line)

    def _note(self, line: _KeptConnection, text: str) -> None:
        self._answers[line.number] = (text, time.monotonic() - line.sent)
        self._open -= 1
        line.number = -1

    def _replace(self, line: _KeptConnection) -> None:
        self._poll.unregister(line.socket.fileno())
        del self._lines[line.socket.fileno()]
        line.socket.close()
        if line in self._free:
            self._free.remove(line)
        self._connect()


def occupy(job: ConnectionJob) -> JobAnswers:
    """Open the connections and keep them; the last answer of each: a status, `closed`, or no answer."""
    began, lines = time.monotonic(), []
    with contextlib.ExitStack() as stack:
        for number, words in enumerate(job.words):
            time.sleep(max(0.0, began + number / job.per_second - time.monotonic()))
            line = stack.enter_context(socket.create_connection((HOST, job.port), timeout=10))
            with contextlib.suppress(OSError):
                line.sendall(words)
            lines.append(line)
        while (left := began + job.seconds - time.monotonic()) > 0:
            time.sleep(min(left, job.drip_seconds))
            for line in lines if job.drip else ():
                with contextlib.suppress(OSError):  # the server has closed it, which is counted below
                    line.sendall(job.drip)
        answers = [(_answer_on(line), job.seconds) for line in lines]
    return JobAnswers(sent=len(lines), seconds=time.monotonic() - began, answers=answers)


def _answer_on(line: socket.socket) -> str:
    line.settimeout(0)
    try:
        data = line.recv(ANSWER_BYTES_MAX)
    except BlockingIOError:
        return NO_ANSWER
    except OSError:
        return CLOSED
    return describe_answer(data) if data.startswith(b"HTTP/") else CLOSED if not data else "other"


def main() -> None:
    """Run the jobs of the parent process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 65_536), hard))
    gc.disable()  # a collection would look like a slow answer
    answer_jobs(RequestJob | ConnectionJob, _run)  # type: ignore[arg-type] # mypy: a union is no type[T]


def _run(job: RequestJob | ConnectionJob) -> JobAnswers:
    answers = RequestSender(job).run() if isinstance(job, RequestJob) else occupy(job)
    gc.collect()
    return answers


if __name__ == "__main__":
    main()
