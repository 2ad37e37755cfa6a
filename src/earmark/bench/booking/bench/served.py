"""One real `earmark serve` in a process of its own, and what it weighs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOKEN = "ek_test_only-for-this-measurement"  # noqa: S105 (of a server that lives for minutes, on loopback)
PROGRAM = "from earmark.cli import main; main()"
HOST = "127.0.0.1"
START_SECONDS_MAX = 60.0
STOP_SECONDS = 20.0
PROC = Path("/proc")


class Served:
    """A server that answers, seen from the outside."""

    def __init__(self, process: asyncio.subprocess.Process, *, port: int) -> None:
        self._process = process
        self.port = port

    def megabytes(self) -> float:
        """What it and whatever it started have in memory now."""
        if self._process.returncode is not None:
            raise SetupError(problem="The server ended while it was weighed; what it said is above.")
        return sum(map(_resident, family(self._process.pid))) / 1e6


@asynccontextmanager
async def serving(database: str, *, redis: str, program: str = PROGRAM) -> AsyncIterator[Served]:
    """As an operator starts it: one process, with its workers, and Redis in front."""
    if not PROC.joinpath("self", "statm").exists():
        raise SetupError(problem="A process is weighed by what /proc says of it, and this system has none.")
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    options = ["--host", HOST, "--port", str(port), "--processes", "1", "--database", database, "--redis", redis]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, "serve", *options),
        env={**os.environ, "EARMARK_ADMIN_KEY": TOKEN, "EARMARK_LOG": "warning"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        await _answers(process, port)
        yield Served(process, port=port)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), timeout=STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


def family(pid: int) -> set[int]:
    """A process, its children, and theirs."""
    parents: dict[int, int] = {}
    for told in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # The name stands in brackets and may have anything in it; after it come the state and the parent.
            parents[int(told.parent.name)] = int(told.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    found, grown = {pid}, True
    while grown:
        children = {child for child, parent in parents.items() if parent in found} - found
        found |= children
        grown = bool(children)
    return found


def _resident(pid: int) -> int:
    """In bytes; nothing, of one that has ended."""
    try:
        return int((PROC / str(pid) / "statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


async def _answers(process: asyncio.subprocess.Process, port: int) -> None:
    """Wait for the fact that it serves."""
    ends = asyncio.get_running_loop().time() + START_SECONDS_MAX
    while asyncio.get_running_loop().time() < ends:
        if process.returncode is not None:
            raise SetupError(problem="The server ended before it could be weighed; what it said is above.")
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
            said = await reader.readline()
            writer.close()
            if b" 200 " in said:
                return
        await asyncio.sleep(0.05)
    raise SetupError(problem=f"The server was not ready within {START_SECONDS_MAX:g} seconds.")
