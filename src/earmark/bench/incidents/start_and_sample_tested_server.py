"""The system under test: one `earmark serve` as an operator runs it, on one or two private PostgreSQL servers.

It is observed from outside: over HTTP, in the tables, and in /proc. So any version of Earmark can be measured, also one
that is installed elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg
import httpx2

from earmark.bench.free_ports import free_port
from earmark.bench.incidents.analysis import SystemSample
from earmark.bench.process_stats import PROC, process_tree
from earmark.bench.server_command_host_and_key import EARMARK, HOST, TOKEN
from earmark.bench.wait_for_and_stop_servers import START_SECONDS_MAX, stop, wait_until_ready
from earmark.errors import SetupError
from earmark.testservers import ServerUnavailable, start_postgres
from earmark.testservers.postgres_standby import make_synchronous, start_standby

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

    from earmark.testservers import Postgres

DATABASE = "incidents"
POOL = "GA"
CAPACITY = 10_000_000
HOLD_SECONDS = 3600
"""Longer than any run, so that no hold ends in the middle of it."""
STOP_SECONDS = 40.0
SAMPLE_AFTER_SECONDS = 0.05
READY_SECONDS_MAX = 0.8
_REDIS = frozenset({"EARMARK_REDIS_URL", "EARMARK_LOCKS_URL", "REDIS_URL", "REDIS_URLS"})
_ESTABLISHED, _CONNECTING = "01", "02"


class SystemUnderTest:
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
        """The primary, and the standby if there is one."""
        return [self.primary, self.standby] if self.standby else [self.primary]

    async def connect(self, database: Postgres) -> Any:
        """A session of the bench, by the Unix socket: the sessions over TCP belong to the server and are counted."""
        place = {"host": str(database.directory), "port": _port(database), "user": urlsplit(database.url()).username}
        return await asyncpg.connect(**place, database=DATABASE, timeout=10)

    async def stop(self) -> None:
        """Stop the server; it finishes or drops its last requests before it ends."""
        await stop(self.process, seconds=STOP_SECONDS)

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

    async def watch(self, samples: list[SystemSample], *, began: float) -> None:
        """Take a sample at the beginning of every second, until cancelled."""
        for number in itertools.count():
            await asyncio.sleep(began + number + SAMPLE_AFTER_SECONDS - time.monotonic())
            samples.append(await self.sample())

    async def sample(self) -> SystemSample:
        """The state of the system now."""
        at, ready = time.monotonic(), await self._readiness()
        ports = [_port(database) for database in self.databases]
        backends = sum(_backends(database.pid) for database in self.databases)
        return SystemSample(at=at, backends=backends, sockets=_sockets(self.process.pid, ports), ready=ready)

    async def _readiness(self) -> str:
        try:
            async with httpx2.AsyncClient(timeout=READY_SECONDS_MAX) as probe:
                return str((await probe.get(f"http://{HOST}:{self.port}/readyz")).status_code)
        except httpx2.TimeoutException:
            return "timeout"
        except httpx2.TransportError:
            return "no connection"


@asynccontextmanager
async def running(command: Sequence[str], *, with_standby: bool, log: Path) -> AsyncIterator[SystemUnderTest]:
    """Start the databases and the server; stop them at the end."""
    async with AsyncExitStack() as stack:
        primary = await asyncio.to_thread(_start_primary)
        stack.push_async_callback(asyncio.to_thread, primary.close)
        await asyncio.to_thread(primary.create_database, DATABASE)
        program = tuple(command) or EARMARK
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
        raise SetupError(problem="The schema could not be created; the error output is above.")


@asynccontextmanager
async def _serving(
    program: Sequence[str], *, primary: Postgres, standby: Postgres | None, log: Path
) -> AsyncIterator[SystemUnderTest]:
    port = free_port()
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
        await wait_until_ready(process, port, log=lambda: log.read_text(errors="replace"))
        yield SystemUnderTest(process, port=port, primary=primary, standby=standby)
    finally:
        await stop(process, seconds=STOP_SECONDS)


def freeze(pid: int) -> None:
    """Stop a process that was started here, and then its children: once it is stopped it makes no more of them."""
    os.kill(pid, signal.SIGSTOP)
    _send(process_tree(pid) - {pid}, signal.SIGSTOP)


def thaw(pid: int) -> None:
    """Continue a frozen process and its children."""
    _send(process_tree(pid), signal.SIGCONT)


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(pid, number)


def _port(database: Postgres) -> int:
    port = urlsplit(database.url()).port
    assert port is not None, "it was started with tcp"
    return port


def _backends(postmaster: int) -> int:
    """Counted by process titles, which can be read even while PostgreSQL is frozen. The bench uses the Unix socket."""
    titles = (_title(pid) for pid in process_tree(postmaster) - {postmaster})
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
