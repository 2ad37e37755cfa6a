"""The bench of the live stream, as small as it can be: it measures what it says, and its floors can be missed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from earmark.bench.stream.run import StreamPlan, StreamResult, StreamShop
from earmark.bench.stream.stream_readers import ReaderFigures, StreamReaders

EARMARK = str(Path(sys.executable).with_name("earmark"))
TOLD = ReaderFigures(readers=2, frames=4, samples=8, missing=0, median_ms=100.0, p99_ms=200.0, max_ms=300.0)
FINE = StreamResult(
    plan=StreamPlan(readers=2, rate=4, seconds=1),
    told=TOLD,
    rate=4.0,
    cpu=0.1,
    rss_mb=(60.0, 61.0, 62.0),
    dropped=True,
    dropped_after_seconds=2.1,
)


def test_a_small_run_shows_every_change_to_every_reader_and_drops_a_reader_that_stops(tmp_path: Path) -> None:
    """Server, readers and writer are separate processes; no time is judged here."""
    tiny = ("--readers", "3", "--rate", "20", "--seconds", "0.5", "--database", f"sqlite:///{tmp_path}/rush.sqlite3")
    command = [EARMARK, "bench", "stream", "--json", *tiny]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    figures: dict[str, Any] = json.loads(done.stdout)
    assert (figures["told"]["samples"], figures["told"]["missing"]) == (30, 0)
    assert figures["dropped"], done.stderr
    assert len(figures["rss_mb"]) == 3
    assert done.returncode == (1 if figures["flaws"] else 0)


def test_a_run_that_is_fine_has_no_flaw() -> None:
    """The control of the floors."""
    assert FINE.flaws == []
    assert FINE.plain()["told"]["median_ms"] == 100.0


@pytest.mark.parametrize(
    "worse",
    [
        {"told": msgspec.structs.replace(TOLD, missing=1)},
        {"told": msgspec.structs.replace(TOLD, median_ms=250.0)},
        {"rss_mb": (60.0, 61.0, 161.0)},
        {"dropped": False},
        {"rate": 3.0},
    ],
    ids=lambda worse: next(iter(worse)),
)
def test_each_floor_can_be_missed(worse: dict[str, Any]) -> None:
    """And is named alone."""
    assert len(msgspec.structs.replace(FINE, **worse).flaws) == 1


async def test_a_change_is_timed_from_before_it_is_sent() -> None:
    """A reader may see it before its maker is answered: no delay is negative, and none is too small."""
    arrived: list[float] = []
    serving: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.extend(filter(None, [asyncio.current_task()]))
        while (head := await reader.readline()) != b"":
            while (line := await reader.readline()) != b"\r\n":
                head += line
            await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split()[0]))
            arrived.append(time.monotonic())
            writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        shop = StreamShop(server.sockets[0].getsockname()[1], key="k")
        await shop.open()
        plan = StreamPlan(readers=1, rate=50, seconds=0.1)
        sent = await shop.hold_all(plan, halfway=lambda: None)
        shop.close()
        await asyncio.gather(*serving)
    assert list(sent) == ["S0", "S1", "S2", "S3", "S4"]
    assert all(one <= other for one, other in zip(sorted(sent.values()), arrived, strict=True)), (sent, arrived)


async def test_a_delay_is_from_the_sending_to_each_reader() -> None:
    """A reader that never saw the change counts as missing."""
    readers = StreamReaders(port=0, event="rush", key="")
    line = b'data: {"seats":[{"id":"S0","state":"held"},{"id":"S1","state":"available"}],"pools":[]}\n'
    for at in (10.1, 10.3):
        readers._take(line, at)
    told = readers.figures({"S0": 10.0, "S9": 10.0}, readers=2)
    assert (told.samples, told.missing, told.median_ms, told.max_ms) == (2, 2, 300.0, 300.0)
