"""A run: one server, a crowd of readers, somebody who stops reading, and changes at a steady pace.

Server and readers are processes of their own. A delay is the time from the moment a hold was sent, which is before its
commit, to the moment a reader had the event that shows it. From the commit it is less.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import socket
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.bench.stream.crowd import Told
from earmark.errors import SetupError
from earmark.testservers import ServerUnavailable, start_postgres
from earmark.wiring import databases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

MEDIAN_MS_MAX = 250.0
RATE_SHARE_MIN = 0.9
"""Of the pace that was asked for: a machine that is too busy to make the changes measures itself."""
RSS_GROWTH_MB_MAX = 64.0
"""From the middle of a run to its end: what grows with every change would grow on."""
STALL_SECONDS = 2.0
DROP_SECONDS_MAX = 30.0
START_SECONDS_MAX = 60.0
WRITERS = 8
SEATS_MIN = 500
"""So many make a map that is more than a client's buffer takes: who reads nothing shows."""
EVENT = "rush"
RECEIVE_BYTES = 4096


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How many, how fast, how long."""

    readers: int = 1000
    rate: float = 200.0
    """Changes per second."""
    seconds: float = 10.0

    @property
    def changes(self) -> int:
        """One seat is held in each."""
        return round(self.rate * self.seconds)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    plan: Plan
    told: Told
    rate: float
    """Changes per second, as they came to be."""
    cpu: float
    """How much of one core the server took."""
    rss_mb: tuple[float, float, float]
    """The server's memory with all readers there, in the middle, and at the end."""
    dropped: bool
    """Whether the reader that stopped reading was sent away."""
    dropped_after_seconds: float | None

    @property
    def flaws(self) -> list[str]:
        """Floors that were missed."""
        told, [_, middle, end] = self.told, self.rss_mb
        checks = {
            f"{told.missing} changes were never seen by somebody": told.missing == 0,
            f"only {self.rate:g} changes were made per second": self.rate >= RATE_SHARE_MIN * self.plan.rate,
            f"half of all changes took longer than {told.median_ms} ms to be seen": told.median_ms < MEDIAN_MS_MAX,
            f"the server grew from {middle} to {end} MB": end - middle < RSS_GROWTH_MB_MAX,
            "the reader that stopped reading was not dropped": self.dropped,
        }
        return [flaw for flaw, holds in checks.items() if not holds]

    def plain(self) -> dict[str, Any]:
        """Ready for JSON."""
        machine = {"python": platform.python_version(), "cores": os.cpu_count(), "system": platform.system()}
        return {"machine": machine, **msgspec.to_builtins(self), "flaws": self.flaws}


async def run(plan: Plan, *, database: str | None, watch: Callable[[str], None]) -> Result:
    """Everything, from an empty database to the figures."""
    key = f"ek_test_{secrets.token_hex(16)}"
    async with AsyncExitStack() as stack:
        url = database if database is not None else await stack.enter_async_context(_private())
        await databases.migrate(url)
        port = _free_port()
        server = await stack.enter_async_context(_serve(url, port=port, key=key, readers=plan.readers))
        shop = await stack.enter_async_context(_shop(port, key=key))
        await shop.create(max(plan.changes, SEATS_MIN))
        watch(f"{plan.readers} readers come in …")
        crowd = await stack.enter_async_context(_crowd(port, count=plan.readers, key=key))
        stalled = _stop_reading(port, key=key)
        stack.callback(stalled.close)
        memory = [_rss_mb(server)]
        watch(f"{plan.changes} changes, {plan.rate:g} per second …")
        began, spent = time.monotonic(), _cpu_seconds(server)
        dropping = asyncio.create_task(_dropped(stalled, port=port, began=began))
        sent = await shop.hold_all(plan, halfway=lambda: memory.append(_rss_mb(server)))
        took = time.monotonic() - began
        spent = _cpu_seconds(server) - spent
        told = await crowd(sent)
        memory.append(_rss_mb(server))
        watch("waiting for the one who stopped reading …")
        after = await dropping
    start, middle, end = memory
    return Result(
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
    """`earmark serve`, as anybody would run it; its process id."""
    settings = {
        "EARMARK_ADMIN_KEY": key,
        "EARMARK_DATABASE_URL": database,
        "EARMARK_PORT": str(port),
        "EARMARK_STREAM_READERS_MAX": str(readers + 10),
        "EARMARK_STREAM_READERS_PER_KEY_MAX": "0",
        "EARMARK_STREAM_READERS_PER_ADDRESS_MAX": "0",
        "EARMARK_STREAM_STALL_SECONDS": str(STALL_SECONDS),
    }
    command = (str(Path(sys.executable).with_name("earmark")), "serve")
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **settings}, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            line = await process.stdout.readline()
        if not line.startswith(b"Earmark serves"):
            raise SetupError(problem=f"The server did not start: {line.decode(errors='replace')}")
        yield process.pid
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@asynccontextmanager
async def _crowd(port: int, *, count: int, key: str) -> AsyncIterator[Callable[[Mapping[str, float]], Any]]:
    """The readers, once all have the first map; to be told what was sent, they tell what they saw."""
    command = (sys.executable, "-m", "earmark.bench.stream.crowd", str(port), EVENT, str(count))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def ask(said: bytes) -> bytes:
        stdin.write(said + b"\n")
        await stdin.drain()
        async with asyncio.timeout(START_SECONDS_MAX):
            return await stdout.readline()

    async def tell(sent: Mapping[str, float]) -> Told:
        return msgspec.json.decode(await ask(msgspec.json.encode(sent)), type=Told)

    try:
        if await ask(key.encode()) != b"ready\n":
            raise SetupError(problem="The readers did not come in.")
        yield tell
    finally:
        stdin.close()
        if process.returncode is None:
            process.terminate()
        await process.wait()


class Shop:
    """Whoever sells: a few connections that are kept."""

    def __init__(self, port: int, *, key: str) -> None:
        self._port = port
        self._key = key
        self._idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def open(self) -> None:
        """Connect."""
        for _ in range(WRITERS):
            self._idle.put_nowait(await asyncio.open_connection("127.0.0.1", self._port))

    def close(self) -> None:
        """Hang up."""
        while not self._idle.empty():
            self._idle.get_nowait()[1].close()

    async def create(self, seats: int) -> None:
        """An event with as many seats as will be held."""
        named = [{"id": f"S{number}", "price": 1000} for number in range(seats)]
        await self._post("/v1/events", {"id": EVENT, "name": "A rush", "currency": "EUR", "seats": named})

    async def hold_all(self, plan: Plan, *, halfway: Callable[[], object]) -> dict[str, float]:
        """One seat after the other, at the pace of the plan; when each was sent."""
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
        """When it was sent; by the end of this it has been granted."""
        reader, writer = await self._idle.get()
        content = msgspec.json.encode(body)
        head = f"POST {path} HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer {self._key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        # Before, and not once it is answered: by then some reader may have seen it.
        sent = time.monotonic()
        writer.write(head.encode() + content)
        answered = await reader.readuntil(b"\r\n\r\n")
        status = answered.split(b" ", 2)[1]
        lengths = [line for line in answered.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        told = await reader.readexactly(int(lengths[0].split(b":")[1]))
        self._idle.put_nowait((reader, writer))
        if status != b"201":
            raise SetupError(problem=f"The server refused: {told.decode(errors='replace')}")
        return sent


@asynccontextmanager
async def _shop(port: int, *, key: str) -> AsyncIterator[Shop]:
    shop = Shop(port, key=key)
    await shop.open()
    try:
        yield shop
    finally:
        shop.close()


def _stop_reading(port: int, *, key: str) -> socket.socket:
    """Somebody who asks for the stream, and then reads nothing of it."""
    stalled = socket.socket()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    stalled.connect(("127.0.0.1", port))
    said = f"GET /v1/events/{EVENT}/stream HTTP/1.1\r\nHost: stalled\r\nAuthorization: Bearer {key}\r\n\r\n"
    stalled.sendall(said.encode())
    return stalled


async def _dropped(stalled: socket.socket, *, port: int, began: float) -> float | None:
    """When the server let go of them; None when it did not. They themselves would notice only if they read on."""
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
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1024**2, 1)


def _cpu_seconds(pid: int) -> float:
    told = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
