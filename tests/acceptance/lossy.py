"""A line to a server on which answers get lost: the server has done what it was asked, and nobody hears of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Lossy:
    """A proxy that passes questions on, waits for the answer, and hangs up instead of passing it back."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.to_lose = 0
        self.lost = 0

    @property
    def url(self) -> str:
        """The same server, over this line."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def lose(self, answers: int) -> None:
        """The next so many answers get lost."""
        self.to_lose = answers

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        asking = asyncio.create_task(self._pass_on(reader, there_writer))
        try:
            with suppress(OSError):
                while answer := await there_reader.read(65536):
                    if self.lost < self.to_lose:
                        self.lost += 1
                        writer.transport.abort()
                        return
                    writer.write(answer)
        finally:
            asking.cancel()
            await asyncio.wait({asking})
            for end in (writer, there_writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()
            self._tasks.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while said := await reader.read(65536):
                writer.write(said)
        writer.close()
