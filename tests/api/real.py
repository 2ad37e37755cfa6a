"""The door over real HTTP, in this process: a real server and a real socket, with everything behind it in our hands."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2

from earmark.api.server import _door, first_free_port
from earmark.config import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.api.door import House

HOST = "127.0.0.1"


@asynccontextmanager
async def served(house: House) -> AsyncIterator[str]:
    """The URL of a server in front of this house."""
    settings = Settings(host=HOST, port=first_free_port(HOST, first=21000 + id(house) % 20000))
    async with _door(house, settings, asyncio.Event()):
        yield f"http://{HOST}:{settings.port}"


@asynccontextmanager
async def calling(url: str, key: str | None) -> AsyncIterator[httpx2.AsyncClient]:
    """Somebody with this key, or with none."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
        yield client
