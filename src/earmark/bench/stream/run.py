"""A run of the stream bench: one server, many readers, one reader that stops reading, and changes at a steady rate.

Server and readers are processes of their own. A delay is the time from the sending of a hold, which is before its
commit, to the moment a reader has received the event that shows it. From the commit it is less.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.bench.child_process_protocol import line_process
from earmark.bench.free_ports import free_port
from earmark.bench.process_stats import cpu_seconds, resident_bytes
from earmark.bench.report.machine import describe_machine
from earmark.bench.server_command_host_and_key import EARMARK, HOST
from earmark.bench.stream.stream_readers import ReaderFigures
from earmark.bench.wait_for_and_stop_servers import stop, wait_until_ready
from earmark.errors import SetupError
from earmark.testservers import ServerUnavailable, start_postgres
from earmark.wiring import open_and_maintain_databases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

MEDIAN_MS_MAX = 250.0
RATE_SHARE_MIN = 0.9
"""Of the planned rate: below it the machine was too busy to make the changes, and the delays say nothing."""
RSS_GROWTH_MB_MAX = 64.0
"""From the middle of a run to its end: memory that grows with every change would exceed it."""
STALL_SECONDS = 2.0
DROP_SECONDS_MAX = 30.0
STOP_SECONDS = 20.0
WRITERS = 8
SEATS_MIN = 500
"""A map of so many seats exceeds a client's buffer, so that the server notices a reader that stops."""
EVENT = "rush"
RECEIVE_BYTES = 4096


class StreamPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How many readers, at which rate, for how long."""

    readers: int = 1000
    rate: float = 200.0
    """Changes per second."""
    seconds: float = 10.0

    @property
    def changes(self) -> int:
        """How many seats are held, one in each change."""
        return round(self.rate * self.seconds)


class StreamResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run."""

    plan: StreamPlan
    told: ReaderFigures
    rate: float
    """Changes per second that were made."""
    cpu: float
    """The share of one core that the server used."""
    rss_mb: tuple[float, float, float]
    """The server's memory with all readers connected, in the middle, and at the end."""
    dropped: bool
    """Whether the server has closed the connection of the reader that stopped reading."""
    dropped_after_seconds: float | None

    @property
    def flaws(self) -> list[str]:
        """Floors that were missed."""
        told, [_, middle, end] = self.told, self.rss_mb
        checks = {
            f"{told.missing} changes were missed by a reader": told.missing == 0,
            f"only {self.rate:g} changes were made per second": self.rate >= RATE_SHARE_MIN * self.plan.rate,
            f"half of all changes took longer than {told.median_ms} ms to be seen": told.median_ms < MEDIAN_MS_MAX,
            f"the server grew from {middle} to {end} MB": end - middle < RSS_GROWTH_MB_MAX,
            "the reader that stopped reading was not dropped": self.dropped,
        }
        return [flaw for flaw, holds in checks.items() if not holds]

    def plain(self) -> dict[str, Any]:
        """The same as plain values, which JSON can hold."""
        return {"machine": describe_machine(), **msgspec.to_builtins(self), "flaws": self.flaws}


async def run(plan: StreamPlan, *, database: str | None, watch: Callable[[str], None]) -> StreamResult:
    """Measure, on an empty database."""
    key = f"ek_test_{secrets.token_hex(16)}"
    async with AsyncExitStack() as stack:
        url = database if database is not None else await stack.enter_async_context(_private())
        await open_and_maintain_databases.migrate(url)
        port = free_port()
        server = await stack.enter_async_context(_serve(url, port=port, key=key, readers=plan.readers))
        shop = await stack.enter_async_context(_shop(port, key=key))
        await shop.create(max(plan.changes, SEATS_MIN))
        watch(f"{plan.readers} readers connect …")
        arguments = (str(port), EVENT, str(plan.readers))
        readers = await stack.enter_async_context(line_process("earmark.bench.stream.stream_readers", *arguments))
        readers.send(key.encode())
        await readers.expect_ready()
        stalled = _stop_reading(port, key=key)
        stack.callback(stalled.close)
        memory = [_rss_mb(server)]
        watch(f"{plan.changes} changes, {plan.rate:g} per second …")
        began, spent = time.monotonic(), cpu_seconds(server)
        dropping = asyncio.create_task(_dropped(stalled, port=port, began=began))
        sent = await shop.hold_all(plan, halfway=lambda: memory.append(_rss_mb(server)))
        took = time.monotonic() - began
        spent = cpu_seconds(server) - spent
        told = await readers.ask(sent, ReaderFigures)
        memory.append(_rss_mb(server))
        watch("waiting for the reader that stopped reading …")
        after = await dropping
    start, middle, end = memory
    return StreamResult(
        plan=plan,
        told=told,
        rate=round(len(sent) / took, 1),
        cpu=round(spent / took, 2),
        rss_mb=(start, middle, end),
        dropped=after is not None,
        dropped_after_seconds=after,
    )


@asynccontextmanager
async def _private() -> AsyncIterator[str]:
    try:
        server = await asyncio.to_thread(start_postgres)
    except ServerUnavailable as reason:
        raise SetupError(problem=f"There is no PostgreSQL to measure on: {reason}") from reason
    with server:
        server.create_database("rush")
        yield server.url("rush")


@asynccontextmanager
async def _serve(database: str, *, port: int, key: str, readers: int) -> AsyncIterator[int]:
    """`earmark serve`, as an operator runs it; its process id."""
    settings = {
        "EARMARK_ADMIN_KEY": key,
        "EARMARK_DATABASE_URL": database,
        "EARMARK_PORT": str(port),
        "EARMARK_STREAM_READERS_MAX": str(readers + 10),
        "EARMARK_STREAM_READERS_PER_KEY_MAX": "0",
        "EARMARK_STREAM_READERS_PER_ADDRESS_MAX": "0",
        "EARMARK_STREAM_STALL_SECONDS": str(STALL_SECONDS),
    }
    process = await asyncio.create_subprocess_exec(
        *(*EARMARK, "serve"), env={**os.environ, **settings}, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await wait_until_ready(process, port)
        yield process.pid
    finally:
        await stop(process, seconds=STOP_SECONDS)


class StreamShop:
    """The client that makes the changes, on a few connections."""

    def __init__(self, port: int, *, key: str) -> None:
        self._port = port
        self._key = key
        self._idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def open(self) -> None:
        """Open the connections to the server under test."""
        for _ in range(WRITERS):
            self._idle.put_nowait(await asyncio.open_connection(HOST, self._port))

    def close(self) -> None:
        """Close the connections to the servers under test."""
        while not self._idle.empty():
            self._idle.get_nowait()[1].close()

    async def create(self, seats: int) -> None:
        """Create an event with as many seats as will be held."""
        named = [{"id": f"S{number}", "price": 1000} for number in range(seats)]
        await self._post("/v1/events", {"id": EVENT, "name": "A rush", "currency": "EUR", "seats": named})

    async def hold_all(self, plan: StreamPlan, *, halfway: Callable[[], object]) -> dict[str, float]:
        """Hold one seat after the other, at the rate of the plan; the time when each was sent."""
        sent: dict[str, float] = {}

        async def hold(seat: str) -> None:
            body = {"event_id": EVENT, "buyer": f"buyer-{seat}", "seats": [seat]}
            sent[seat] = await self._post("/v1/bookings", body)

        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(plan.changes):
                await asyncio.sleep(began + number / plan.rate - time.monotonic())
                group.create_task(hold(f"S{number}"))
                if number == plan.changes // 2:
                    halfway()
        return sent

    async def _post(self, path: str, body: object) -> float:
        """Send a request and wait for its answer; the time when it was sent."""
        reader, writer = await self._idle.get()
        content = msgspec.json.encode(body)
        head = f"POST {path} HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer {self._key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        # Before the answer: when it arrives, a reader may already have seen the change.
        sent = time.monotonic()
        writer.write(head.encode() + content)
        answered = await reader.readuntil(b"\r\n\r\n")
        status = answered.split(b" ", 2)[1]
        lengths = [line for line in answered.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body_of_answer = await reader.readexactly(int(lengths[0].split(b":")[1]))
        self._idle.put_nowait((reader, writer))
        if status != b"201":
            raise SetupError(problem=f"The server refused: {body_of_answer.decode(errors='replace')}")
        return sent


@asynccontextmanager
async def _shop(port: int, *, key: str) -> AsyncIterator[StreamShop]:
    shop = StreamShop(port, key=key)
    await shop.open()
    try:
        yield shop
    finally:
        shop.close()


def _stop_reading(port: int, *, key: str) -> socket.socket:
    """A client that requests the stream and then reads nothing."""
    stalled = socket.socket()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    stalled.connect((HOST, port))
    said = f"GET /v1/events/{EVENT}/stream HTTP/1.1\r\nHost: stalled\r\nAuthorization: Bearer {key}\r\n\r\n"
    stalled.sendall(said.encode())
    return stalled


async def _dropped(stalled: socket.socket, *, port: int, began: float) -> float | None:
    """After how many seconds the server has closed that connection; None if it has not. The client cannot see it."""
    while time.monotonic() - began < DROP_SECONDS_MAX:
        if not _is_connected(port, stalled.getsockname()[1]):
            return round(time.monotonic() - began, 1)
        await asyncio.sleep(0.1)
    return None


def _is_connected(port: int, theirs: int) -> bool:
    """Whether the server has an established connection to this port."""
    rows = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    wanted = (f":{port:04X}", f":{theirs:04X}", "01")
    return any((here[-5:], there[-5:], state) == wanted for _, here, there, state, *_ in map(str.split, rows))


def _rss_mb(pid: int) -> float:
    return round(resident_bytes(pid) / 1024**2, 1)
