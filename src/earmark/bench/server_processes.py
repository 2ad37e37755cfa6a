"""Servers as child processes: free ports, waiting until a server is ready, and stopping it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from typing import TYPE_CHECKING

from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"
EARMARK = (sys.executable, "-c", "from earmark.cli import main; main()")
"""The command line of this very installation."""
TOKEN = "ek_test_only-for-this-measurement"  # noqa: S105 (of a server that runs for minutes, on loopback)
START_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05


def free_ports(count: int) -> list[int]:
    """Different ports on loopback on which no process listens."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]


def free_port() -> int:
    """A port on loopback on which no process listens."""
    return free_ports(1)[0]


async def wait_until_ready(
    process: asyncio.subprocess.Process,
    port: int,
    *,
    name: str = "The server",
    path: str = "/readyz",
    status: bytes = b" 200 ",
    log: Callable[[], str] = lambda: "its error output is above",
) -> None:
    """Wait until an answer to `path` has the given text in its status line."""
    ends = asyncio.get_running_loop().time() + START_SECONDS_MAX
    while asyncio.get_running_loop().time() < ends:
        if process.returncode is not None:
            raise SetupError(problem=f"{name} ended before it was ready: {log()}")
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n".encode())
            line = await reader.readline()
            writer.close()
            await writer.wait_closed()
            if status in line:
                return
        await asyncio.sleep(POLL_SECONDS)
    raise SetupError(problem=f"{name} was not ready within {START_SECONDS_MAX:g} seconds.")


async def stop(process: asyncio.subprocess.Process, *, seconds: float) -> None:
    """Terminate a process that was started here; kill it if it has not ended in time."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), timeout=seconds)
    except TimeoutError:
        process.kill()
        await process.wait()
