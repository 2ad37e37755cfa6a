"""The probe, in a process of its own: it requests `/healthz` every 5 ms over one persistent connection.

    python -m earmark.bench.attacks.health_probe PORT

For each line on stdin it writes what it has measured since the line before: when each request was sent, by the clock
that all processes of a machine share, and how long its answer took.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import sys
import time

import msgspec

from earmark.bench.child_process_protocol import READY, write_line
from earmark.bench.http_bytes import is_complete, request
from earmark.bench.server_command_host_and_key import HOST

EVERY_SECONDS = 0.005
ANSWER_SECONDS_MAX = 10.0
"""An answer that takes longer counts as that long, and as a broken connection."""
_ASK = request("GET", "/healthz")


class ProbeSamples(msgspec.Struct, kw_only=True):
    """The samples since the last report."""

    samples: list[tuple[float, float]] = []
    """The time of each request, and how many seconds its answer took."""
    broken: int = 0
    """How often the connection ended and another was opened; a sample includes the time of both."""


class HealthProbe:
    """One connection, one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._line = self._connect()
        self.probed = ProbeSamples()

    def probe(self) -> None:
        """Send one request, and keep its time."""
        sent = time.monotonic()
        if not self._answered():
            self.probed.broken += 1
            self._line.close()
            self._line = self._connect()
        self.probed.samples.append((sent, time.monotonic() - sent))

    def close(self) -> None:
        """Close the connection to the server under test."""
        self._line.close()

    def _connect(self) -> socket.socket:
        line = socket.create_connection((HOST, self._port), timeout=ANSWER_SECONDS_MAX)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return line

    def _answered(self) -> bool:
        try:
            self._line.sendall(_ASK)
            received = b""
            while not is_complete(received):
                if not (data := self._line.recv(4096)):
                    return False
                received += data
        except OSError:
            return False
        return True


def main() -> None:
    """Probe until stdin ends."""
    prober = HealthProbe(int(sys.argv[1]))
    gc.disable()
    write_line(READY)
    due = time.monotonic()
    while True:
        pause = max(0.0, due - time.monotonic())
        if select.select([sys.stdin], [], [], pause)[0]:
            if not os.read(sys.stdin.fileno(), 4096):
                return
            write_line(msgspec.json.encode(prober.probed))
            prober.probed = ProbeSamples()
        if time.monotonic() >= due:
            prober.probe()
            due = max(due + EVERY_SECONDS, time.monotonic())


if __name__ == "__main__":
    main()
