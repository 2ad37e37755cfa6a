"""Child processes that answer each line on stdin with a line on stdout: both sides of that protocol.

Load generators run in processes of their own, so that their work is not done by the event loop that measures.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec

from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

LINE_BYTES_MAX = 1024 * 1024 * 1024
READY = b"ready\n"
T = TypeVar("T")


class LineProcess:
    """The parent's side: one child process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def send(self, line: bytes) -> None:
        """Write a line without waiting for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")

    async def read(self) -> bytes:
        """The next line that the child writes."""
        assert self._process.stdout is not None
        if not (line := await self._process.stdout.readline()):
            raise SetupError(problem="A process of the run ended before it answered; its error output is above.")
        return line

    async def ask(self, job: object, answer: type[T]) -> T:
        """Send a job as JSON and decode the answer."""
        self.send(msgspec.json.encode(job))
        return msgspec.json.decode(await self.read(), type=answer)

    async def expect_ready(self) -> None:
        """Wait until the child has written that it is ready."""
        if (line := await self.read()) != READY:
            raise SetupError(problem=f"A process of the run did not become ready: it wrote {line[:200]!r}.")


@asynccontextmanager
async def line_process(module: str, *arguments: str) -> AsyncIterator[LineProcess]:
    """Run a module in a child process, which is killed at the end."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments), stdin=pipe, stdout=pipe, limit=LINE_BYTES_MAX
    )
    try:
        yield LineProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def write_line(line: bytes) -> None:
    """The child's side: write one line at once."""
    sys.stdout.buffer.write(line.removesuffix(b"\n") + b"\n")
    sys.stdout.buffer.flush()


def answer_jobs(job: type[T], answer: Callable[[T], object]) -> None:
    """The child's side: answer job after job, until stdin ends."""
    for line in sys.stdin.buffer:
        write_line(msgspec.json.encode(answer(msgspec.json.decode(line, type=job))))
