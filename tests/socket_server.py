"""A server of a few lines, on a real socket, that leaves nothing open behind it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable

_TURNS = 10
"""Of the loop, in which it accepts the connections made by then: three would do."""


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """The port on which every connection is served until it is over, or until this ends, which cuts what is left.

    The tasks are ours and not the stream's, which in some Pythons calls the end of a cancelled one an error; and the
    socket is closed only when every connection is accepted, as asyncio drops one between the two.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def serve_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                await serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(serve_and_close(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
