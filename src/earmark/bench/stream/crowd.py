"""The readers, in a process of their own: `python -m earmark.bench.stream.crowd port event count`, the key on stdin.

It says `ready` once everybody has the first map. Then it is told, in one line of JSON, when which seat was held by the
clock that all processes of a machine share, waits until everybody has seen all of that, and says how long it took.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.bench.medians import quantile

if TYPE_CHECKING:
    from collections.abc import Mapping

OPENING_AT_ONCE = 50
LINE_BYTES_MAX = 64 * 1024 * 1024
SEEN_SECONDS_MAX = 30.0
"""Not a measurement: who has not seen everything by then never will."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the crowd saw."""

    readers: int
    frames: int
    """How many were received, over all readers."""
    samples: int
    missing: int
    """Seats that a reader was never shown as held, over all readers."""
    median_ms: float
    p99_ms: float
    max_ms: float


class Crowd:
    """Everybody who reads one event's stream."""

    def __init__(self, *, port: int, event: str, key: str) -> None:
        self._port = port
        self._request = (
            f"GET /v1/events/{event}/stream HTTP/1.1\r\nHost: crowd\r\nAuthorization: Bearer {key}\r\n\r\n"
        ).encode()
        self._turns = asyncio.Semaphore(OPENING_AT_ONCE)
        self._seats: dict[bytes, tuple[str, ...]] = {}
        """Which seats a frame shows as held: all readers get the same bytes, so each is read once."""
        self._received: dict[bytes, list[float]] = defaultdict(list)
        self.frames = 0
        self.samples = 0

    async def read(self, opened: asyncio.Future[None]) -> None:
        """One reader, until cancelled."""
        async with self._turns:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=LINE_BYTES_MAX)
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
            told: dict[str, Any] = msgspec.json.decode(line[len("data: ") :])
            seats = tuple(seat["id"] for seat in told.get("seats", ()) if seat["state"] == "held")
            self._seats[line] = seats
        self.frames += 1
        self.samples += len(seats)
        self._received[line].append(now)

    def tell(self, sent: Mapping[str, float], *, readers: int) -> Told:
        """How long each change took to each reader."""
        delays = sorted(
            at - sent[seat] for line, times in self._received.items() for seat in self._seats[line] for at in times
        )
        return Told(
            readers=readers,
            frames=self.frames,
            samples=len(delays),
            missing=len(sent) * readers - len(delays),
            median_ms=round(quantile(delays, 0.5) * 1000, 1) if delays else 0.0,
            p99_ms=round(quantile(delays, 0.99) * 1000, 1) if delays else 0.0,
            max_ms=round(delays[-1] * 1000, 1) if delays else 0.0,
        )


async def run(*, port: int, event: str, count: int) -> None:
    """Read along until the log of changes comes, and say how it went."""
    ask = asyncio.to_thread(sys.stdin.readline)
    crowd = Crowd(port=port, event=event, key=(await ask).strip())
    opened = [asyncio.get_running_loop().create_future() for _ in range(count)]
    reading = [asyncio.create_task(crowd.read(one)) for one in opened]
    await asyncio.gather(*opened)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sent: dict[str, float] = msgspec.json.decode(await asyncio.to_thread(sys.stdin.readline))
    ends = time.monotonic() + SEEN_SECONDS_MAX
    while crowd.samples < len(sent) * count and time.monotonic() < ends:  # noqa: ASYNC110 (a bound on all, not on one)
        await asyncio.sleep(0.05)
    sys.stdout.write(msgspec.json.encode(crowd.tell(sent, readers=count)).decode() + "\n")
    sys.stdout.flush()
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(run(port=int(sys.argv[1]), event=sys.argv[2], count=int(sys.argv[3])))
