"""The application in process, over the memory store: for what needs no server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2
import pytest

from earmark.api.app import create_app
from earmark.api.auth.api_keys import Identity
from earmark.api.endpoint import House
from earmark.api.routes.events import draw
from earmark.engine.engine import Engine
from earmark.observability.metrics.metrics import Metrics
from earmark.payments.service import Till
from earmark.schemas.seat_map import Words
from earmark.seatmap.cache import Availability
from earmark.seatmap.entry_feed import Feed
from earmark.seatmap.followers import Hub
from earmark.store.memory import MemoryStore
from earmark.uuids import Uuid7Ids
from earmark.webhooks.targets import Targets
from earmark.wiring import open_sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store

KEY = "ek_test_0123456789abcdef"


async def _nowhere(_host: str, _port: int) -> list[str]:
    """A name server that sends everybody home."""
    return ["127.0.0.1"]


@pytest.fixture
def identity() -> Identity:
    return Identity(admin_key=KEY)


def house_over(store: Store, clock: MovableClock) -> House:
    """A whole shop over one store, for whoever serves it from another thread."""
    return _house(store, Uuid7Ids(), clock, Identity(admin_key=KEY))


@pytest.fixture
def house(clock: MovableClock, ids: Uuid7Ids, identity: Identity) -> House:
    return _house(MemoryStore(clock=clock), ids, clock, identity)


def _house(store: Store, ids: Uuid7Ids, clock: MovableClock, identity: Identity) -> House:
    metrics = Metrics(version="test")
    engine = Engine(store, ids=ids, observer=metrics.tally)
    return House(
        engine=engine,
        identity=identity,
        metrics=metrics,
        clock=clock,
        guests=True,
        availability=Availability(engine, clock=clock, word=draw),
        till=Till(engine, open_sandbox(clock)),
        targets=Targets(private=True, resolve=_nowhere),
        # A stream ends soon, so that whoever tries every call comes to an end.
        hub=Hub(store, clock=clock, brush=Words(), feed=Feed(), life_seconds_max=0.0, tick_seconds=0.02),
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
