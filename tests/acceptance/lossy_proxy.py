"""A line to a server on which answers get lost: the server has done what it was asked, and nobody hears of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from tests.socket_server import listening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Lossy:
    """A proxy that passes questions on, waits for the answer, and hangs up instead of passing it back."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.url = ""
        """The same server, over this line."""
        self.to_lose = 0
        self.lost = 0

    def lose(self, answers: int) -> None:
        """The next so many answers get lost."""
        self.to_lose = answers

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side hangs up or an answer is lost."""
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        asking = asyncio.create_task(_pass_on(reader, there_writer))
        try:
            while answer := await there_reader.read(65536):
                if self.lost < self.to_lose:
                    self.lost += 1
                    writer.transport.abort()
                    return
                writer.write(answer)
        finally:
            asking.cancel()
            await asyncio.wait({asking})
            there_writer.close()
            with suppress(OSError):
                await there_writer.wait_closed()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while said := await reader.read(65536):
            writer.write(said)
    writer.close()


@asynccontextmanager
async def lossy(target: int) -> AsyncIterator[Lossy]:
    """A line to the server on a port."""
    line = Lossy(target)
    async with listening(line.carry) as port:
        line.url = f"http://127.0.0.1:{port}"
        yield line
