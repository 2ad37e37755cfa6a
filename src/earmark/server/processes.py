"""A crew: several serving processes on one port, and a parent that keeps them there.

    parent ──(stdin: settings, then orders)──▶ hand 1 ──┐
       │                                       hand 2 ──┼── one port: the kernel shares the connections out
       └──────◀──(stdout: ready)─────────────    …    ──┘

A hand is a whole server: a process with its own event loop, engine and connections, which runs `server.serve`. The
parent serves nothing. A hand that dies is started again, at once the first time and ever more slowly while it keeps
dying. The workers (sweeper, reconciler, relay) run in one hand: the first that is ready. When it dies, another is told
to take over.

Nobody is left behind: a hand whose stdin closes stops politely, and it closes however the parent ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from prometheus_client.multiprocess import mark_process_dead

from earmark.config import Settings
from earmark.errors import SetupError
from earmark.observability import logs
from earmark.server import run as server
from earmark.wiring import databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

METRICS_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
READY, DUTY = b"ready\n", b"duty\n"
STOP_SECONDS = 30.0
"""How long a hand may take to finish what it accepted, before it is killed."""
AGAIN_SECONDS_MIN = 0.05
AGAIN_SECONDS_MAX = 10.0
DOUBLINGS_MAX = 20
STEADY_SECONDS = 60.0
"""Whoever has lived this long is started again at once: its death has a new cause."""
SETTINGS_BYTES_MAX = 1024 * 1024

log = logs.get()


async def serve(settings: Settings, *, ready: Callable[[str], None], command: Sequence[str]) -> None:
    """Serve until SIGINT or SIGTERM, with as many processes as the settings say.

    `command` starts a hand; `ready` is told the URL once all of them serve.
    """
    if settings.processes == 1:
        await server.serve(settings, ready=ready)
        return
    refuse(settings)
    server.check_free(settings.host, settings.port)
    # What is wrong with the database is said once, and by whoever was asked to serve.
    store = await databases.open_store(settings.database_url)
    try:
        await store.check()
    finally:
        await store.close()
    with (
        _reserved(settings.host, settings.port) as port,
        tempfile.TemporaryDirectory(prefix="earmark-metrics-") as kept,
    ):
        crew = ServerProcesses(msgspec.structs.replace(settings, port=port), command=command, metrics=kept)
        async with server.signals(crew.stop):
            await crew.run(ready)


def refuse(settings: Settings) -> None:
    """Several processes need a database that several processes can write to."""
    scheme = urlsplit(settings.database_url).scheme
    if settings.processes == 1 or scheme in databases.POSTGRES:
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


def pause_seconds(deaths: int) -> float:
    """How long a place stays empty after so many deaths in a row."""
    return min(AGAIN_SECONDS_MIN * 2.0 ** min(deaths - 1, DOUBLINGS_MAX), AGAIN_SECONDS_MAX)


class ServerProcess:
    """One process of the crew."""

    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.number = number
        self.process = process
        self.is_ready = False

    async def listen(self) -> bool:
        """Wait until it serves; False if it ends before."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            if line == READY:
                self.is_ready = True
                return True
        return False

    def order(self, line: bytes) -> None:
        """Tell it something; whoever has just died hears nothing."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(line)

    def signal(self, number: signal.Signals) -> None:
        """As above."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


class ServerProcesses:
    """The parent's view: who is there, who is on duty, and what to do when somebody dies."""

    def __init__(self, settings: Settings, *, command: Sequence[str], metrics: str) -> None:
        self.stop = asyncio.Event()
        self._settings = settings
        self._command = command
        self._metrics = metrics
        self._hands: dict[int, ServerProcess] = {}
        self._on_duty: ServerProcess | None = None
        self._waiting = settings.processes
        self._up = asyncio.Event()

    async def run(self, ready: Callable[[str], None]) -> None:
        """Until told to stop; raises when the crew never came up."""
        keepers = [asyncio.create_task(self._keep(number)) for number in range(self._settings.processes)]
        ending = asyncio.create_task(self.stop.wait())
        rising = asyncio.create_task(self._up.wait())
        try:
            await asyncio.wait({ending, rising, *keepers}, return_when=asyncio.FIRST_COMPLETED)
            if self._up.is_set() and not self.stop.is_set():
                ready(server.shown_url(self._settings))
                await asyncio.wait({ending, *keepers}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.stop.set()
            rising.cancel()
            await self._dismiss()
            ended = await asyncio.gather(*keepers, ending, return_exceptions=True)
        for failure in (one for one in ended if isinstance(one, BaseException)):
            raise failure

    async def _keep(self, number: int) -> None:
        """One place in the crew, which is never empty for long."""
        running, deaths = asyncio.get_running_loop(), 0
        while not self.stop.is_set():
            began = running.time()
            hand = await self._start(number)
            if self.stop.is_set():
                # Whoever was sent away meanwhile, this one was not among them.
                hand.signal(signal.SIGTERM)
            if await hand.listen():
                self._welcome(hand)
            code = await hand.process.wait()
            self._forget(hand)
            if self.stop.is_set():
                return
            if not self._up.is_set():
                raise SetupError(problem="A worker ended before it could serve; what it said is above.")
            deaths = 1 if running.time() - began >= STEADY_SECONDS else deaths + 1
            pause = pause_seconds(deaths)
            log.warning("worker", outcome="ended", number=number, pid=hand.process.pid, code=code, pause_seconds=pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), timeout=pause)

    async def _start(self, number: int) -> ServerProcess:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, METRICS_DIRECTORY: self._metrics},
        )
        hand = self._hands[number] = ServerProcess(number, process)
        # Through a pipe, and not as arguments: there are secrets among them.
        hand.order(msgspec.json.encode(self._settings) + b"\n")
        return hand

    def _welcome(self, hand: ServerProcess) -> None:
        if self._on_duty is None:
            self._appoint(hand)
        if not self._up.is_set():
            self._waiting -= 1
            if not self._waiting:
                self._up.set()

    def _forget(self, hand: ServerProcess) -> None:
        """It is gone: so are the gauges that only the living show, and its duty is another's."""
        assert hand.process.stdin is not None
        hand.process.stdin.close()
        del self._hands[hand.number]
        mark_process_dead(hand.process.pid, self._metrics)  # type: ignore[no-untyped-call]
        if self._on_duty is hand:
            self._on_duty = None
            if heir := next((one for one in self._hands.values() if one.is_ready), None):
                self._appoint(heir)

    def _appoint(self, hand: ServerProcess) -> None:
        self._on_duty = hand
        hand.order(DUTY)

    async def _dismiss(self) -> None:
        """Everybody is asked, and whoever does not hear is killed."""
        for hand in self._hands.values():
            hand.signal(signal.SIGTERM)
        leaving = [asyncio.create_task(hand.process.wait()) for hand in self._hands.values()]
        if leaving:
            await asyncio.wait(leaving, timeout=STOP_SECONDS)
        for hand in list(self._hands.values()):
            if hand.process.returncode is None:
                log.warning("worker", outcome="killed", number=hand.number, pid=hand.process.pid)
                hand.signal(signal.SIGKILL)
        if leaving:
            await asyncio.wait(leaving)


async def work() -> None:
    """What a hand does: read the settings from stdin, serve, and stop when stdin closes."""
    running, duty = asyncio.get_running_loop(), asyncio.Event()
    orders = asyncio.StreamReader(limit=SETTINGS_BYTES_MAX)
    # The descriptor is the transport's from here on, which closes it.
    pipe, _ = await running.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), os.fdopen(os.dup(0), "rb"))
    try:
        settings = msgspec.json.decode(await orders.readline(), type=Settings)
        hearing = running.create_task(_hear(orders, duty))
        try:
            await server.serve(settings, ready=lambda _: _say(READY), duty=duty)
        finally:
            hearing.cancel()
    finally:
        pipe.close()


async def _hear(orders: asyncio.StreamReader, duty: asyncio.Event) -> None:
    while line := await orders.readline():
        if line == DUTY:
            duty.set()
    # The parent is gone. To stop as if it had asked is one way to stop less.
    os.kill(os.getpid(), signal.SIGTERM)


def _say(line: bytes) -> None:
    # A parent that is gone does not hear it, and its end has been heard of already.
    with contextlib.suppress(BrokenPipeError):
        os.write(1, line)


@contextlib.contextmanager
def _reserved(host: str, port: int) -> Iterator[int]:
    """Keep the port for this crew, also while all of it is being started again. The socket never listens."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as berth:
        berth.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        berth.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        berth.bind((host, port))
        yield berth.getsockname()[1]
