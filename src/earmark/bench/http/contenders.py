"""The servers that are measured, each in processes of its own and on a port of its own, all of them on granian."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from earmark.bench.http import fastapi_peer
from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

OURS, PEER, EMPTY = "earmark", "fastapi_for_update", "empty"
TOKEN = "ek_test_only-for-this-measurement"  # noqa: S105 (of a server that lives for a minute, on loopback)
PEER_CONNECTIONS = 32
"""Of all its processes: as many as suit `FOR UPDATE` best where this was measured."""
START_SECONDS_MAX = 60.0
STOP_SECONDS = 10.0
HOST = "127.0.0.1"


def commands(*, database: str, workers: int) -> Mapping[str, Callable[[int], list[str]]]:
    """How each is started, on a given port."""
    granian = [sys.executable, "-m", "granian", "--host", HOST, "--workers", str(workers), "--log-level", "warning"]

    def ours(port: int) -> list[str]:
        # The workers are off: what they do costs the database, and the peer has nobody who does it.
        options = [
            "--host",
            HOST,
            "--port",
            str(port),
            "--processes",
            str(workers),
            "--database",
            database,
        ]
        return [
            sys.executable,
            "-c",
            "from earmark.cli import main; main()",
            "serve",
            *options,
        ]

    def peer(port: int) -> list[str]:
        return [*granian, "--port", str(port), "--interface", "asgi", "--factory", f"{fastapi_peer.__name__}:create"]

    def empty(port: int) -> list[str]:
        return [*granian, "--port", str(port), "--interface", "asginl", "earmark.bench.http.empty:app"]

    return {OURS: ours, PEER: peer, EMPTY: empty}


@asynccontextmanager
async def serving(database: str, *, workers: int, names: Sequence[str]) -> AsyncIterator[dict[str, int]]:
    """All of them, side by side; whoever is not measured waits for requests that do not come. Their ports, by name."""
    environment = {
        **os.environ,
        "EARMARK_ADMIN_KEY": TOKEN,
        fastapi_peer.TOKEN: TOKEN,
        fastapi_peer.DATABASE: database,
        fastapi_peer.CONNECTIONS: str(max(PEER_CONNECTIONS // workers, 1)),
    }
    known, ports = commands(database=database, workers=workers), dict(zip(names, _free_ports(len(names)), strict=True))
    started: list[asyncio.subprocess.Process] = []
    try:
        for name, port in ports.items():
            process = await asyncio.create_subprocess_exec(
                *known[name](port), env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
            )
            started.append(process)
        for process, (name, port) in zip(started, ports.items(), strict=True):
            await _answers(name, process, port)
        yield ports
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in started:
            await _gone(process)


async def _answers(name: str, process: asyncio.subprocess.Process, port: int) -> None:
    """Wait for the fact that it serves: every one of them answers something to any request."""
    ends = asyncio.get_running_loop().time() + START_SECONDS_MAX
    while asyncio.get_running_loop().time() < ends:
        if process.returncode is not None:
            raise SetupError(problem=f"{name} ended before it could serve; what it said is above.")
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
            said = await reader.readline()
            writer.close()
            await writer.wait_closed()
            if said:
                return
        await asyncio.sleep(0.05)
    raise SetupError(problem=f"{name} did not serve within {START_SECONDS_MAX:g} seconds.")


async def _gone(process: asyncio.subprocess.Process) -> None:
    try:
        await asyncio.wait_for(process.wait(), timeout=STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
