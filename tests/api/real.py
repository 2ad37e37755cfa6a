"""The API over real HTTP, in this process: a real server and a real socket, with services that the test controls."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import httpx2

from earmark.config import Settings
from earmark.server.serve_in_one_process import first_free_port, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from earmark.api.open_services_for_handlers import Services

HOST = "127.0.0.1"
# Plain HTTP; an empty context spares every client the reading of certificate bundles.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@asynccontextmanager
async def served(services: Services) -> AsyncIterator[str]:
    """The URL of a server with these services."""
    settings = Settings(host=HOST, port=first_free_port(HOST, first=21000 + id(services) % 20000))
    async with serving(services, settings, asyncio.Event()):
        yield f"http://{HOST}:{settings.port}"


@asynccontextmanager
async def calling(url: str, key: str | None) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with this key, or with none."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False, verify=NO_TLS) as client:
        yield client


@contextmanager
def running(make: Callable[[], Awaitable[Services]]) -> Iterator[str]:
    """A real server in a thread of its own, until the block is left."""
    opened = threading.Event()
    ready: dict[str, Any] = {}

    async def serve() -> None:
        services, ready["loop"], ready["stop"] = await make(), asyncio.get_running_loop(), asyncio.Event()
        async with served(services) as url:
            ready["url"] = url
            opened.set()
            await ready["stop"].wait()
        if services.hub:
            await services.hub.close()
        await services.payments.close()
        await services.engine.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert opened.wait(timeout=60), "the server did not open"
        yield ready["url"]
    finally:
        ready["loop"].call_soon_threadsafe(ready["stop"].set)
        thread.join()
