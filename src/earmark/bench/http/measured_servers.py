"""The servers that are measured, each in its own processes and on its own port, all of them on granian."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from earmark.bench.free_ports import free_ports
from earmark.bench.http import fastapi_app
from earmark.bench.server_command_host_and_key import EARMARK, HOST, TOKEN
from earmark.bench.wait_for_and_stop_servers import stop, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

OURS, PEER, EMPTY = "earmark", "fastapi_for_update", "empty"
PEER_CONNECTIONS = 32
"""In all its processes: the number that suits `FOR UPDATE` best on two cores."""
STOP_SECONDS = 10.0


def commands(*, database: str, workers: int) -> Mapping[str, Callable[[int], list[str]]]:
    """The command that starts each server on a given port."""
    granian = [sys.executable, "-m", "granian", "--host", HOST, "--workers", str(workers), "--log-level", "warning"]

    def ours(port: int) -> list[str]:
        # The workers are off: they would load the database, and the peer has none.
        options = [
            "--host",
            HOST,
            "--port",
            str(port),
            "--processes",
            str(workers),
            "--database",
            database,
            "--no-embedded-workers",
        ]
        return [*EARMARK, "serve", *options]

    def peer(port: int) -> list[str]:
        return [*granian, "--port", str(port), "--interface", "asgi", "--factory", f"{fastapi_app.__name__}:create"]

    def empty(port: int) -> list[str]:
        return [*granian, "--port", str(port), "--interface", "asginl", "earmark.bench.http.fixed_response_app:app"]

    return {OURS: ours, PEER: peer, EMPTY: empty}


@asynccontextmanager
async def serving(database: str, *, workers: int, names: Sequence[str]) -> AsyncIterator[dict[str, int]]:
    """Start all servers; those that are not measured stay idle. The ports, by name."""
    environment = {
        **os.environ,
        "EARMARK_ADMIN_KEY": TOKEN,
        fastapi_app.TOKEN: TOKEN,
        fastapi_app.DATABASE: database,
        fastapi_app.CONNECTIONS: str(max(PEER_CONNECTIONS // workers, 1)),
    }
    known, ports = commands(database=database, workers=workers), dict(zip(names, free_ports(len(names)), strict=True))
    started: list[asyncio.subprocess.Process] = []
    try:
        for name, port in ports.items():
            process = await asyncio.create_subprocess_exec(
                *known[name](port), env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
            )
            started.append(process)
        for process, (name, port) in zip(started, ports.items(), strict=True):
            await wait_until_ready(process, port, name=name, path="/healthz", status=b"HTTP/")
        yield ports
    finally:
        await asyncio.gather(*(stop(process, seconds=STOP_SECONDS) for process in started))
