"""How fast Redis is on this machine when nothing else runs, to see how far a figure is from that limit."""

from __future__ import annotations

import asyncio
import shutil
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

if TYPE_CHECKING:
    from urllib.parse import SplitResult

PIPELINE = 16
CONNECTIONS = 8
PROGRAMS = ("valkey-benchmark", "redis-benchmark")
PROGRAM_REQUESTS = 200_000
PLAIN = "plain sockets"


class RedisLimit(msgspec.Struct, frozen=True, kw_only=True):
    """SETs per second, sixteen to a round trip."""

    sets_per_second: float
    by: str
    """The program that measured it."""


async def measure_redis(url: str, *, seconds: float) -> RedisLimit | None:
    """By the server's own benchmark if there is one, else by plain sockets. None where neither can reach it."""
    parts = urlsplit(url)
    if parts.scheme != "redis" or parts.username or parts.password:
        return None
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program and (rate := await _by_program(program, parts)):
        return RedisLimit(sets_per_second=rate, by=program.rpartition("/")[2])
    return RedisLimit(sets_per_second=await _by_sockets(parts, seconds=seconds), by=PLAIN)


async def _by_program(program: str, parts: SplitResult) -> float | None:
    process = await asyncio.create_subprocess_exec(
        *(program, "-h", parts.hostname or "localhost", "-p", str(parts.port or 6379), "--csv", "-t", "set"),
        *("-n", str(PROGRAM_REQUESTS), "-P", str(PIPELINE), "-c", str(CONNECTIONS)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await process.communicate()
    for line in output.decode(errors="replace").splitlines():
        name, _, rest = line.partition(",")
        if name.strip('"') == "SET":
            return float(rest.split(",")[0].strip('"'))
    return None


async def _by_sockets(parts: SplitResult, *, seconds: float) -> float:
    ends = perf_counter() + seconds
    began = perf_counter()
    counts = await asyncio.gather(*(_sender(parts, number, ends=ends) for number in range(CONNECTIONS)))
    return sum(counts) / (perf_counter() - began)


async def _sender(parts: SplitResult, number: int, *, ends: float) -> int:
    """Send the same bytes again and again: building commands would cost the client, not the server."""
    reader, writer = await asyncio.open_connection(unquote(parts.hostname or "localhost"), parts.port or 6379)
    try:
        key = f"earmark-bench-limit:{number}".encode()
        one = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$1\r\n1\r\n$2\r\nPX\r\n$5\r\n10000\r\n" % (len(key), key)
        pipeline, answer, done = one * PIPELINE, len(b"+OK\r\n") * PIPELINE, 0
        while not done or perf_counter() < ends:
            writer.write(pipeline)
            await reader.readexactly(answer)
            done += PIPELINE
        return done
    finally:
        writer.close()
        await writer.wait_closed()
