"""The application in process, over the memory store: for what needs no server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2
import pytest

from earmark.api.app import create_app
from earmark.api.door import House
from earmark.api.events import draw
from earmark.api.identity import Identity
from earmark.api.metrics import Metrics
from earmark.engine.engine import Engine
from earmark.engine.till import Till
from earmark.publish.availability import Availability
from earmark.store.memory import MemoryStore
from earmark.wiring import open_sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.clock import MovableClock
    from earmark.uuids import Uuid7Ids

KEY = "ek_test_0123456789abcdef"


@pytest.fixture
def identity() -> Identity:
    return Identity(admin_key=KEY)


@pytest.fixture
def house(clock: MovableClock, ids: Uuid7Ids, identity: Identity) -> House:
    engine = Engine(MemoryStore(clock=clock), ids=ids)
    return House(
        engine=engine,
        identity=identity,
        metrics=Metrics(version="test"),
        clock=clock,
        guests=True,
        availability=Availability(engine, clock=clock, word=draw),
        till=Till(engine, open_sandbox(clock)),
    )


@pytest.fixture
async def stranger(house: House) -> AsyncIterator[httpx2.AsyncClient]:
    """Somebody without a key."""
    transport = httpx2.ASGITransport(app=create_app(house), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client


@pytest.fixture
async def shop(house: House) -> AsyncIterator[httpx2.AsyncClient]:
    """The admin."""
    transport = httpx2.ASGITransport(app=create_app(house), raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
        yield client


@pytest.fixture
async def event(shop: httpx2.AsyncClient) -> str:
    """A small house."""
    body = {
        "id": "concert",
        "name": "A concert",
        "currency": "EUR",
        "layout": {"rows": 2, "seats_per_row": 3, "price": 4500},
        "pools": [{"id": "GA", "capacity": 10, "price": 2500}],
    }
    answer = await shop.post("/v1/events", json=body)
    assert answer.status_code == 201, answer.text
    return "concert"
