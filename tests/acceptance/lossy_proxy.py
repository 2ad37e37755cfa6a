"""A proxy that loses responses: the server carries the request out, the client gets no response."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from tests.socket_server import listening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class LossyProxy:
    """Passes requests on, waits for the response, and closes the connection instead of passing the response back."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.url = ""
        """The same server, through this proxy."""
        self.to_lose = 0
        self.lost = 0

    def lose(self, answers: int) -> None:
        """Lose the next so many responses."""
        self.to_lose = answers

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side closes it or a response is lost."""
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
async def lossy_proxy(target: int) -> AsyncIterator[LossyProxy]:
    """A proxy in front of the server on a port."""
    proxy = LossyProxy(target)
    async with listening(proxy.carry) as port:
        proxy.url = f"http://127.0.0.1:{port}"
        yield proxy
