"""The prober, in a process of its own: it asks `/healthz` every 5 ms over one connection that it keeps.

    python -m earmark.bench.attacks.prober PORT

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

from earmark.bench.attacks.wire import HOST, is_whole, request

EVERY_SECONDS = 0.005
ANSWER_SECONDS_MAX = 10.0
"""An answer that takes longer counts as that long, and as a broken connection."""
_ASK = request("GET", "/healthz")


class Probed(msgspec.Struct, kw_only=True):
    """What was measured since it was last asked for."""

    samples: list[tuple[float, float]] = []
    """When it was sent, and how many seconds its answer took."""
    broken: int = 0
    """How often the connection ended or was given up, and another was opened; a sample has the time of both."""


class Prober:
    """One connection, one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._line = self._connect()
        self.probed = Probed()

    def probe(self) -> None:
        """Ask once."""
        sent = time.monotonic()
        if not self._answered():
            self.probed.broken += 1
            self._line.close()
            self._line = self._connect()
        self.probed.samples.append((sent, time.monotonic() - sent))

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    def _connect(self) -> socket.socket:
        line = socket.create_connection((HOST, self._port), timeout=ANSWER_SECONDS_MAX)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return line

    def _answered(self) -> bool:
        try:
            self._line.sendall(_ASK)
            received = b""
            while not is_whole(received):
                if not (data := self._line.recv(4096)):
                    return False
                received += data
        except OSError:
            return False
        return True


def main() -> None:
    """Probe until stdin ends."""
    prober = Prober(int(sys.argv[1]))
    gc.disable()
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    due = time.monotonic()
    while True:
        pause = max(0.0, due - time.monotonic())
        if select.select([sys.stdin], [], [], pause)[0]:
            if not os.read(sys.stdin.fileno(), 4096):
                return
            sys.stdout.buffer.write(msgspec.json.encode(prober.probed) + b"\n")
            sys.stdout.buffer.flush()
            prober.probed = Probed()
        if time.monotonic() >= due:
            prober.probe()
            due = max(due + EVERY_SECONDS, time.monotonic())


if __name__ == "__main__":
    main()
