"""Waits until a server that a bench has started is ready, and stops it at the end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from earmark.bench.server_command_host_and_key import HOST
from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

START_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05


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
