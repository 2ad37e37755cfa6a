"""What is put to the test: one `earmark serve` as an operator runs it, on a PostgreSQL of our own, or on two.

It is seen from outside alone: over HTTP, in the tables, and in what the system says of the processes. So any version
of Earmark can be measured, also one that is installed elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg
import httpx2

from earmark.bench.booking.bench.served import PROC, family
from earmark.bench.incidents.figures import Sample
from earmark.errors import SetupError
from earmark.testservers import ServerUnavailable, start_postgres
from earmark.testservers.postgres_standby import make_synchronous, start_standby

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

    from earmark.testservers import Postgres

HOST = "127.0.0.1"
DATABASE = "incidents"
POOL = "GA"
CAPACITY = 10_000_000
TOKEN = "ek_test_only-for-this-measurement"  # noqa: S105 (of a server that lives for minutes, on loopback)
HOLD_SECONDS = 3600
"""Longer than any run, so that no hold ends in the middle of it."""
START_SECONDS_MAX = 60.0
STOP_SECONDS = 40.0
SAMPLE_AFTER_SECONDS = 0.05
READY_SECONDS_MAX = 0.8
_REDIS = frozenset({"EARMARK_REDIS_URL", "EARMARK_LOCKS_URL", "REDIS_URL", "REDIS_URLS"})
_ESTABLISHED, _CONNECTING = "01", "02"


class System:
    """A server and its databases."""

    def __init__(
        self, process: asyncio.subprocess.Process, *, port: int, primary: Postgres, standby: Postgres | None
    ) -> None:
        self.process = process
        self.port = port
        self.primary = primary
        self.standby = standby
        self.events: list[str] = []

    @property
    def databases(self) -> list[Postgres]:
        """All that were started."""
        return [self.primary, self.standby] if self.standby else [self.primary]

    async def connect(self, database: Postgres) -> Any:
        """A session of the lab's own, by the Unix socket: those over TCP are the server's, and are counted."""
        place = {"host": str(database.directory), "port": _port(database), "user": urlsplit(database.url()).username}
        return await asyncpg.connect(**place, database=DATABASE, timeout=10)

    async def stop(self) -> None:
        """Stop the server; whatever it still had in hand has been done or dropped by then."""
        await _stop(self.process)

    async def create_events(self, count: int) -> None:
        """Each with one pool, larger than the clients can empty."""
        async with httpx2.AsyncClient(base_url=f"http://{HOST}:{self.port}", timeout=START_SECONDS_MAX) as shop:
            for number in range(count):
                event = {"id": f"event-{number}", "name": "An event", "currency": "EUR"}
                pools = [{"id": POOL, "capacity": CAPACITY, "price": 1000}]
                body = {**event, "hold_ttl_seconds": HOLD_SECONDS, "pools": pools}
                answer = await shop.post("/v1/events", json=body, headers={"Authorization": f"Bearer {TOKEN}"})
                if answer.is_error:
                    raise SetupError(problem=f"The server refused to make an event: {answer.text}")
                self.events.append(event["id"])

    async def watch(self, samples: list[Sample], *, began: float) -> None:
        """Look at the beginning of every second, until cancelled."""
        for number in itertools.count():
            await asyncio.sleep(began + number + SAMPLE_AFTER_SECONDS - time.monotonic())
            samples.append(await self.sample())

    async def sample(self) -> Sample:
        """What is to be seen now."""
        at, ready = time.monotonic(), await self._readiness()
        ports = [_port(database) for database in self.databases]
        backends = sum(_backends(database.pid) for database in self.databases)
        return Sample(at=at, backends=backends, sockets=_sockets(self.process.pid, ports), ready=ready)

    async def _readiness(self) -> str:
        try:
            async with httpx2.AsyncClient(timeout=READY_SECONDS_MAX) as probe:
                return str((await probe.get(f"http://{HOST}:{self.port}/readyz")).status_code)
        except httpx2.TimeoutException:
            return "timeout"
        except httpx2.TransportError:
            return "no connection"


@asynccontextmanager
async def running(command: Sequence[str], *, with_standby: bool, log: Path) -> AsyncIterator[System]:
    """Databases, the schema, the server; all gone at the end."""
    async with AsyncExitStack() as stack:
        primary = await asyncio.to_thread(_start_primary)
        stack.push_async_callback(asyncio.to_thread, primary.close)
        await asyncio.to_thread(primary.create_database, DATABASE)
        program = list(command) or [sys.executable, "-c", "from earmark.cli import main; main()"]
        await _migrate(program, primary.url(DATABASE))
        standby = None
        if with_standby:
            standby = await asyncio.to_thread(start_standby, primary)
            stack.push_async_callback(asyncio.to_thread, standby.close)
            await asyncio.to_thread(make_synchronous, primary)
        yield await stack.enter_async_context(_serving(program, primary=primary, standby=standby, log=log))


def _start_primary() -> Postgres:
    try:
        primary = start_postgres(settings={"fsync": "on", "synchronous_commit": "on"}, tcp=True)
    except ServerUnavailable as reason:
        raise SetupError(problem=f"There is no PostgreSQL to measure on: {reason}") from reason
    if not primary.is_ours:
        raise SetupError(problem=f"Unset {primary.url_variable}: only a server that was started here may be broken.")
    return primary


async def _migrate(program: Sequence[str], url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *program, "migrate", "--database", url, stdout=asyncio.subprocess.DEVNULL
    )
    if await process.wait():
        raise SetupError(problem="The schema could not be made; what the command said is above.")


@asynccontextmanager
async def _serving(
    program: Sequence[str], *, primary: Postgres, standby: Postgres | None, log: Path
) -> AsyncIterator[System]:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    url = primary.url(DATABASE)
    if standby:
        places = f"{HOST}:{_port(primary)},{HOST}:{_port(standby)}"
        url = f"postgresql://{urlsplit(url).username}@{places}/{DATABASE}?target_session_attrs=read-write"
    kept = {name: value for name, value in os.environ.items() if name not in _REDIS}
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *(*program, "serve", "--host", HOST, "--port", str(port), "--processes", "1", "--database", url),
            env={**kept, "EARMARK_ADMIN_KEY": TOKEN, "EARMARK_LOG": "warning"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=written,
        )
    try:
        await _wait_until_ready(process, port, log=log)
        yield System(process, port=port, primary=primary, standby=standby)
    finally:
        await _stop(process)


async def _wait_until_ready(process: asyncio.subprocess.Process, port: int, *, log: Path) -> None:
    ends = time.monotonic() + START_SECONDS_MAX
    async with httpx2.AsyncClient(timeout=START_SECONDS_MAX) as probe:
        while time.monotonic() < ends:
            if process.returncode is not None:
                said = await asyncio.to_thread(log.read_text, errors="replace")
                raise SetupError(problem=f"The server ended before it was ready: {said}")
            with contextlib.suppress(httpx2.TransportError):
                if (await probe.get(f"http://{HOST}:{port}/readyz")).is_success:
                    return
            await asyncio.sleep(0.05)
    raise SetupError(problem=f"The server was not ready within {START_SECONDS_MAX:g} seconds.")


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), timeout=STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


def freeze(pid: int) -> None:
    """Stop a process that was started here, and then its children: once it is stopped it makes no more of them."""
    os.kill(pid, signal.SIGSTOP)
    _send(family(pid) - {pid}, signal.SIGSTOP)


def thaw(pid: int) -> None:
    """Let a frozen process and its children go on."""
    _send(family(pid), signal.SIGCONT)


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(pid, number)


def _port(database: Postgres) -> int:
    port = urlsplit(database.url()).port
    assert port is not None, "it was started with tcp"
    return port


def _backends(postmaster: int) -> int:
    """By their titles, which the system shows even while they are frozen. The lab itself comes by the Unix socket."""
    titles = (_title(pid) for pid in family(postmaster) - {postmaster})
    return sum(f" {DATABASE} {HOST}(" in title for title in titles)


def _title(pid: int) -> str:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _sockets(pid: int, ports: Sequence[int]) -> int:
    """Connections of this process to these ports that are open, or being opened."""
    own = set()
    for file in (PROC / str(pid) / "fd").glob("*"):
        with contextlib.suppress(OSError):
            own.add(os.readlink(file))  # noqa: PTH115 (what it says is no path)
    rows = [line.split() for line in (PROC / "net" / "tcp").read_text(encoding="ascii").splitlines()[1:]]
    return sum(
        int(row[2].partition(":")[2], 16) in ports
        and row[3] in {_ESTABLISHED, _CONNECTING}
        and f"socket:[{row[9]}]" in own
        for row in rows
    )
