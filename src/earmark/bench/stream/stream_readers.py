"""The readers, in a process of their own.

    python -m earmark.bench.stream.stream_readers PORT EVENT COUNT < the key

It writes `ready` once all readers have the first map. Then it reads one line of JSON with the time at which each seat
was held, by the clock that all processes of a machine share, waits until all readers have seen all changes, and writes
the delays.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.bench.child_process_protocol import READY, write_line
from earmark.bench.report.quantiles_and_ratios import quantile
from earmark.bench.server_command_host_and_key import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping

OPENING_AT_ONCE = 50
LINE_BYTES_MAX = 64 * 1024 * 1024
SEEN_SECONDS_MAX = 30.0
"""No measurement: a change that a reader has not seen by then counts as missing."""


class ReaderFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The delays of all readers."""

    readers: int
    frames: int
    """How many events were received, over all readers."""
    samples: int
    missing: int
    """Seats that a reader was never shown as held, over all readers."""
    median_ms: float
    p99_ms: float
    max_ms: float


class StreamReaders:
    """All readers of one event's stream."""

    def __init__(self, *, port: int, event: str, key: str) -> None:
        self._port = port
        self._request = (
            f"GET /v1/events/{event}/stream HTTP/1.1\r\nHost: readers\r\nAuthorization: Bearer {key}\r\n\r\n"
        ).encode()
        self._turns = asyncio.Semaphore(OPENING_AT_ONCE)
        self._seats: dict[bytes, tuple[str, ...]] = {}
        """The seats that a frame shows as held: all readers get the same bytes, so that each is decoded once."""
        self._received: dict[bytes, list[float]] = defaultdict(list)
        self.frames = 0
        self.samples = 0

    async def read(self, opened: asyncio.Future[None]) -> None:
        """One reader, until cancelled."""
        async with self._turns:
            reader, writer = await asyncio.open_connection(HOST, self._port, limit=LINE_BYTES_MAX)
            writer.write(self._request)
            while not (await reader.readline()).startswith(b"data: "):
                assert not reader.at_eof(), "the stream was refused"
            opened.set_result(None)
        try:
            while line := await reader.readline():
                if line.startswith(b"data: "):
                    self._take(line, time.monotonic())
        finally:
            writer.close()

    def _take(self, line: bytes, now: float) -> None:
        seats = self._seats.get(line)
        if seats is None:
            frame: dict[str, Any] = msgspec.json.decode(line[len("data: ") :])
            seats = tuple(seat["id"] for seat in frame.get("seats", ()) if seat["state"] == "held")
            self._seats[line] = seats
        self.frames += 1
        self.samples += len(seats)
        self._received[line].append(now)

    def figures(self, sent: Mapping[str, float], *, readers: int) -> ReaderFigures:
        """The delay of each change to each reader."""
        delays = sorted(
            at - sent[seat] for line, times in self._received.items() for seat in self._seats[line] for at in times
        )
        return ReaderFigures(
            readers=readers,
            frames=self.frames,
            samples=len(delays),
            missing=len(sent) * readers - len(delays),
            median_ms=round(quantile(delays, 0.5) * 1000, 1) if delays else 0.0,
            p99_ms=round(quantile(delays, 0.99) * 1000, 1) if delays else 0.0,
            max_ms=round(delays[-1] * 1000, 1) if delays else 0.0,
        )


async def run(*, port: int, event: str, count: int) -> None:
    """Read until the times of the changes arrive on stdin, and write the figures."""
    ask = asyncio.to_thread(sys.stdin.readline)
    readers = StreamReaders(port=port, event=event, key=(await ask).strip())
    opened = [asyncio.get_running_loop().create_future() for _ in range(count)]
    reading = [asyncio.create_task(readers.read(one)) for one in opened]
    await asyncio.gather(*opened)
    write_line(READY)
    sent: dict[str, float] = msgspec.json.decode(await asyncio.to_thread(sys.stdin.readline))
    ends = time.monotonic() + SEEN_SECONDS_MAX
    while readers.samples < len(sent) * count and time.monotonic() < ends:  # noqa: ASYNC110 (a bound on all, not on one)
        await asyncio.sleep(0.05)
    write_line(msgspec.json.encode(readers.figures(sent, readers=count)))
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(run(port=int(sys.argv[1]), event=sys.argv[2], count=int(sys.argv[3])))
