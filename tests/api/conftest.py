"""The application in process, over the memory store: for what needs no server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2
import pytest

from earmark.api.app import create_app
from earmark.api.auth.keys_and_tokens import Authenticator
from earmark.api.open_services_for_handlers import Services
from earmark.clock import MovableClock
from earmark.engine.engine import Engine
from earmark.observability.metrics.metrics_page import Metrics
from earmark.payments.choose_gateway_and_pay import PaymentService
from earmark.schemas.render_seat_map import SeatMapRenderer, render_map
from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
from earmark.seatmap.rendered_seat_map_cache import SeatMapCache
from earmark.seatmap.stream_hub import StreamHub
from earmark.store.sqlite.memory import MemoryStore
from earmark.uuids import Uuid7Ids
from earmark.webhooks.check_target_addresses import Targets
from earmark.wiring.gateways import open_sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from earmark.engine.ports.store import Store

KEY = "ek_test_0123456789abcdef"


async def _nowhere(_host: str, _port: int) -> list[str]:
    """A resolver that resolves no name."""
    return ["127.0.0.1"]


class FixedClock(MovableClock):
    """A clock that stands still."""

    def __init__(self, moment: datetime) -> None:
        self._moment = moment

    def now(self) -> datetime:
        """Always the same."""
        return self._moment


@pytest.fixture
def authenticator() -> Authenticator:
    return Authenticator(admin_key=KEY)


def house_over(store: Store, clock: MovableClock) -> Services:
    """All services over one store, for tests that serve them from another thread."""
    return _house(store, Uuid7Ids(), clock, Authenticator(admin_key=KEY))


@pytest.fixture
def services(clock: MovableClock, ids: Uuid7Ids, authenticator: Authenticator) -> Services:
    return _house(MemoryStore(clock=clock), ids, clock, authenticator)


def _house(store: Store, ids: Uuid7Ids, clock: MovableClock, authenticator: Authenticator) -> Services:
    metrics = Metrics(version="test")
    engine = Engine(store, ids=ids, observer=metrics.recorder)
    return Services(
        engine=engine,
        authenticator=authenticator,
        metrics=metrics,
        clock=clock,
        guests=True,
        seat_map_cache=SeatMapCache(engine, clock=clock, render=render_map),
        payments=PaymentService(engine, open_sandbox(clock)),
        targets=Targets(private=True, resolve=_nowhere),
        # A stream ends soon, so that tests of every call come to an end.
        hub=StreamHub(
            store, clock=clock, renderer=SeatMapRenderer(), feed=EntryFeed(), life_seconds_max=0.0, tick_seconds=0.02
        ),
    )


@pytest.fixture
async def stranger(services: Services) -> AsyncIterator[httpx2.AsyncClient]:
    """A client without a key."""
    transport = httpx2.ASGITransport(app=create_app(services), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client


@pytest.fixture
async def shop(services: Services) -> AsyncIterator[httpx2.AsyncClient]:
    """The admin."""
    transport = httpx2.ASGITransport(app=create_app(services), raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
        yield client


@pytest.fixture
async def event(shop: httpx2.AsyncClient) -> str:
    """A small event."""
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
