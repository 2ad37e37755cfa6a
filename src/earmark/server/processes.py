"""Supervises several server processes on one port (`earmark serve --processes N`).

    parent ──(stdin: settings, then "run_workers")──▶ process 1 ──┐
       │                                              process 2 ──┼── one port: the kernel distributes the connections
       └──────◀──(stdout: "ready")──────────────────    …       ──┘

Each process is a complete server with its own event loop, engine and connections; it runs `run.serve`. The parent
serves no requests. A process that ends is restarted, after a pause that doubles while it keeps ending. The workers
(sweeper, reconciler, relay) run in one process, the first that is ready. When that one ends, another process runs them.

No process outlives its parent: a process shuts down gracefully when its stdin closes, and the kernel closes it however
the parent ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from prometheus_client.multiprocess import mark_process_dead

from earmark.config import Settings
from earmark.errors import SetupError
from earmark.observability import logs
from earmark.server import serve_in_one_process as server
from earmark.wiring import open_and_maintain_databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

METRICS_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
READY, RUN_WORKERS = b"ready\n", b"run_workers\n"
STOP_SECONDS = 30.0
"""How long a process may take to finish the requests that it accepted, once it accepts no more; then it is killed."""
RESTART_SECONDS_MIN = 0.05
RESTART_SECONDS_MAX = 10.0
DOUBLINGS_MAX = 20
STEADY_SECONDS = 60.0
"""A process that ran this long is restarted after the shortest pause: it ended for a new reason."""
SETTINGS_BYTES_MAX = 1024 * 1024

log = logs.get()


async def serve(settings: Settings, *, ready: Callable[[str], None], command: Sequence[str]) -> None:
    """Serve until SIGINT or SIGTERM, with as many processes as the settings say.

    `command` starts one process; `ready` is called with the URL once all of them serve.
    """
    if settings.processes == 1:
        await server.serve(settings, ready=ready)
        return
    refuse(settings)
    server.check_free(settings.host, settings.port)
    # Checked by the parent, so that an error of the database is reported once and not by every process.
    store = await open_and_maintain_databases.open_store(settings.database_url)
    try:
        await store.check()
    finally:
        await store.close()
    with (
        _reserved(settings.host, settings.port) as port,
        tempfile.TemporaryDirectory(prefix="earmark-metrics-") as kept,
    ):
        supervised = ServerProcesses(msgspec.structs.replace(settings, port=port), command=command, metrics=kept)
        async with server.signals(supervised.stop):
            await supervised.run(ready)


def refuse(settings: Settings) -> None:
    """Raise `SetupError` for several processes on a platform or a database that only one process can use."""
    scheme = urlsplit(settings.database_url).scheme
    if settings.processes == 1 or scheme in open_and_maintain_databases.POSTGRES:
        why = (
            None
            if sys.platform == "linux" or settings.processes == 1
            else "Several processes share a port only on Linux"
        )
    elif scheme == "memory":
        why = "A database in memory belongs to one process, and cannot be shared"
    else:
        why = "SQLite has one writer at a time, so several processes would only wait for each other"
    if why:
        raise SetupError(problem=f"{why}: use PostgreSQL, or set --processes (EARMARK_PROCESSES) to 1.")


def pause_seconds(exit_count: int) -> float:
    """How long to wait before restarting a process that ended so many times in a row."""
    return min(RESTART_SECONDS_MIN * 2.0 ** min(exit_count - 1, DOUBLINGS_MAX), RESTART_SECONDS_MAX)


def stop_seconds(settings: Settings) -> float:
    """How long a process may run after SIGTERM: it goes on accepting for `drain_seconds` before it finishes."""
    return settings.drain_seconds + STOP_SECONDS


class ServerProcess:
    """One process, as its parent sees it: the OS process, and whether it has reported that it serves."""

    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.number = number
        self.process = process
        self.is_ready = False

    async def wait_until_ready(self) -> bool:
        """Wait until the process serves; False if it ends before."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            if line == READY:
                self.is_ready = True
                return True
        return False

    def send(self, line: bytes) -> None:
        """Write a line to the stdin of the process. A process that has just ended is ignored."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(line)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process. A process that has just ended is ignored."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


class ServerProcesses:
    """Starts the processes, restarts those that end, and chooses the one that runs the workers."""

    def __init__(self, settings: Settings, *, command: Sequence[str], metrics: str) -> None:
        self.stop = asyncio.Event()
        self._settings = settings
        self._command = command
        self._metrics = metrics
        self._processes: dict[int, ServerProcess] = {}
        self._worker_process: ServerProcess | None = None
        self._waiting = settings.processes
        self._up = asyncio.Event()

    async def run(self, ready: Callable[[str], None]) -> None:
        """Run until `stop` is set. Raises `SetupError` when a process ends before all of them were ready."""
        supervisors = [asyncio.create_task(self._supervise(number)) for number in range(self._settings.processes)]
        ending = asyncio.create_task(self.stop.wait())
        starting = asyncio.create_task(self._up.wait())
        try:
            await asyncio.wait({ending, starting, *supervisors}, return_when=asyncio.FIRST_COMPLETED)
            if self._up.is_set() and not self.stop.is_set():
                ready(server.shown_url(self._settings))
                await asyncio.wait({ending, *supervisors}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.stop.set()
            starting.cancel()
            await self._stop_all()
            ended = await asyncio.gather(*supervisors, ending, return_exceptions=True)
        for failure in (one for one in ended if isinstance(one, BaseException)):
            raise failure

    async def _supervise(self, number: int) -> None:
        """Keep one process running: start it, wait until it ends, restart it after a pause."""
        running, exit_count = asyncio.get_running_loop(), 0
        while not self.stop.is_set():
            began = running.time()
            end = await self._run_until_it_ends(number)
            if self.stop.is_set():
                return
            if not self._up.is_set():
                raise SetupError(problem="A server process ended before it could serve; its error is above.")
            exit_count = 1 if running.time() - began >= STEADY_SECONDS else exit_count + 1
            pause = pause_seconds(exit_count)
            log.warning("process", **end, number=number, pause_seconds=pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), timeout=pause)

    async def _run_until_it_ends(self, number: int) -> dict[str, Any]:
        """Start a process and wait until it ends; what the log says of that. A restart that fails is such an end.

        The system may lack a process or memory for a moment: the processes that serve must not end for it. Python 3.11
        raises `RuntimeError` where no thread is left: its event loop waits for each child process in one.
        """
        try:
            child = await self._start(number)
        except (OSError, RuntimeError) as refused:
            if not self._up.is_set():
                raise
            return {"outcome": "not_started", "error": str(refused)}
        if self.stop.is_set():
            # `_stop_all` may have run while this process was being started.
            child.signal(signal.SIGTERM)
        if await child.wait_until_ready():
            self._process_ready(child)
        code = await child.process.wait()
        self._process_ended(child)
        return {"outcome": "ended", "pid": child.process.pid, "code": code}

    async def _start(self, number: int) -> ServerProcess:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, METRICS_DIRECTORY: self._metrics},
        )
        child = self._processes[number] = ServerProcess(number, process)
        # Through a pipe and not as arguments, which other users of the machine can read: the settings contain secrets.
        child.send(msgspec.json.encode(self._settings) + b"\n")
        return child

    def _process_ready(self, child: ServerProcess) -> None:
        if self._worker_process is None:
            self._run_workers_in(child)
        if not self._up.is_set():
            self._waiting -= 1
            if not self._waiting:
                self._up.set()

    def _process_ended(self, child: ServerProcess) -> None:
        """Remove the metrics of an ended process, and start the workers in another process if they ran in this one."""
        assert child.process.stdin is not None
        child.process.stdin.close()
        del self._processes[child.number]
        mark_process_dead(child.process.pid, self._metrics)  # type: ignore[no-untyped-call]
        if self._worker_process is child:
            self._worker_process = None
            if successor := next((one for one in self._processes.values() if one.is_ready), None):
                self._run_workers_in(successor)

    def _run_workers_in(self, child: ServerProcess) -> None:
        self._worker_process = child
        child.send(RUN_WORKERS)

    async def _stop_all(self) -> None:
        """SIGTERM to all processes, and SIGKILL to those that still run after `stop_seconds`."""
        for child in self._processes.values():
            child.signal(signal.SIGTERM)
        exits = [asyncio.create_task(child.process.wait()) for child in self._processes.values()]
        if exits:
            await asyncio.wait(exits, timeout=stop_seconds(self._settings))
        for child in list(self._processes.values()):
            if child.process.returncode is None:
                log.warning("process", outcome="killed", number=child.number, pid=child.process.pid)
                child.signal(signal.SIGKILL)
        if exits:
            await asyncio.wait(exits)


async def run_process() -> None:
    """Run one server process: read the settings from stdin, serve, and stop when stdin closes."""
    running, run_workers = asyncio.get_running_loop(), asyncio.Event()
    orders = asyncio.StreamReader(limit=SETTINGS_BYTES_MAX)
    # The descriptor is the transport's from here on, which closes it.
    pipe, _ = await running.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), os.fdopen(os.dup(0), "rb"))
    try:
        settings = msgspec.json.decode(await orders.readline(), type=Settings)
        reading = running.create_task(_read_orders(orders, run_workers))
        try:
            await server.serve(settings, ready=lambda _: _report(READY), run_workers=run_workers)
        finally:
            reading.cancel()
    finally:
        pipe.close()


async def _read_orders(orders: asyncio.StreamReader, run_workers: asyncio.Event) -> None:
    while line := await orders.readline():
        if line == RUN_WORKERS:
            run_workers.set()
    # The parent has ended. SIGTERM to itself takes the same way out as a stop that the parent orders.
    os.kill(os.getpid(), signal.SIGTERM)


def _report(line: bytes) -> None:
    # The pipe is broken when the parent has ended; `_read_orders` then stops this process.
    with contextlib.suppress(BrokenPipeError):
        os.write(1, line)


@contextlib.contextmanager
def _reserved(host: str, port: int) -> Iterator[int]:
    """Keep the port bound while all processes are being restarted. The socket never listens."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((host, port))
        yield reserved.getsockname()[1]
