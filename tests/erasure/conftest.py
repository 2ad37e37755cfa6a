"""Fixtures of the erasure tests: a shop whose rows name a buyer wherever rows can, over both databases."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx2
import pytest
from tests.api.conftest import KEY, house_over
from tests.webhooks.conftest import relay

from earmark.api.app import create_app
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.engine import Engine
from earmark.library import Earmark
from earmark.uuids import Uuid7Ids
from earmark.wiring import open_and_maintain_databases

from .kept_rows import rows_of, write_rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store
    from earmark.store.both_databases.replace_buyer_name_in_texts import Erasure
    from earmark.store.postgres import PostgresStore
    from earmark.store.sqlite import SqliteStore

    from .kept_rows import KeptRows

ANN = "ann.lee@example.com"
HOURS = 3600.0
TABLES = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = current_schema() AND c.relkind = 'r' ORDER BY 1
"""


@dataclass
class Place:
    """A database, and its store as a server has it open."""

    url: str
    store: Store
    clock: MovableClock
    file: Path | None = None

    async def erase(self, buyer: str = ANN, **more: Any) -> Erasure:
        """As the command does."""
        return await open_and_maintain_databases.erase_buyer(self.url, buyer, clock=self.clock, **more)

    async def mentions(self, name: str = ANN) -> list[str]:
        """Where the name is: rows as text, or files beside each other."""
        if self.file is not None:
            return [
                file.name
                for file in self.file.parent.iterdir()
                if file.name.startswith(self.file.name) and name.encode() in file.read_bytes()
            ]
        return [row for row in await self.rows() if name in row or name.encode().hex() in row]

    async def run(self, statement: str) -> None:
        """Directly, as an operator with the owner's rights."""
        if self.file is not None:
            with closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
                connection.execute(statement)
            return
        connection = await asyncpg.connect(self.url)
        await connection.execute(statement)
        await connection.close()

    async def rows(self) -> list[str]:
        """All rows of all tables, as PostgreSQL writes them."""
        connection = await asyncpg.connect(self.url)
        try:
            tables = [row[0] for row in await connection.fetch(TABLES)]
            return [
                f"{table}: {row[0]}"
                for table in tables
                for row in await connection.fetch(f'SELECT t::text FROM "{table}" t')
            ]
        finally:
            await connection.close()


def place_of(store: SqliteStore, clock: MovableClock) -> Place:
    """The place that a SQLite store has opened."""
    return Place(url=f"sqlite:///{store.access.file}", store=store, clock=clock, file=store.access.file)


@pytest.fixture(params=["postgres", "sqlite"])
def place(request: pytest.FixtureRequest, clock: MovableClock) -> Place:
    """Each database in turn."""
    if request.param == "sqlite":
        return place_of(request.getfixturevalue("sqlite_store"), clock)
    own: Place = request.getfixturevalue("postgres_place")
    return own


@pytest.fixture
def postgres_place(postgres_url: str, postgres_store: PostgresStore, clock: MovableClock) -> Place:
    """PostgreSQL, as the role that owns its tables."""
    return Place(url=postgres_url, store=postgres_store, clock=clock)


class ShopApi:
    """A shop over HTTP, in test mode: requests by its key, and by a buyer's token."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self.answers: dict[str, dict[str, Any]] = {}

    async def post(
        self, path: str, body: dict[str, Any] | None = None, *, key: str, token: str = KEY
    ) -> dict[str, Any]:
        """A request that succeeds, with an idempotency key."""
        headers = {"Idempotency-Key": key, "Authorization": f"Bearer {token}"}
        answer = await self._client.post(f"/v1/{path}", json=body or {}, headers=headers)
        assert answer.status_code in {200, 201, 202, 402}, answer.text
        told: dict[str, Any] = answer.json()
        self.answers[key] = told
        return told

    async def get(self, path: str) -> dict[str, Any]:
        """A read that succeeds, by the shop's key."""
        answer = await self._client.get(f"/v1/{path}", headers={"Authorization": f"Bearer {KEY}"})
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    async def token(self, buyer: str = ANN) -> str:
        """The buyer's token."""
        answer = await self._client.post(
            "/v1/tokens", json={"buyer": buyer}, headers={"Authorization": f"Bearer {KEY}"}
        )
        token: str = answer.json()["token"]
        return token


@asynccontextmanager
async def shop_api_over(place: Place) -> AsyncIterator[ShopApi]:
    """The whole application, in process."""
    house = house_over(place.store, place.clock)
    transport = httpx2.ASGITransport(app=create_app(house), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield ShopApi(client)
    await house.payments.close()
    assert house.hub is not None
    await house.hub.close()


def later(place: Place, *, hours: float) -> datetime:
    """A moment to come."""
    return place.clock.now() + timedelta(hours=hours)


def event_body(place: Place, event_id: str, **terms: Any) -> dict[str, Any]:
    """A show that begins in an hour."""
    starts_at = later(place, hours=1).isoformat()
    seats = [{"id": f"A{n}", "price": 4500} for n in range(1, 13)]
    pools = [{"id": "GA", "capacity": 50, "price": 1200}]
    return (
        {"id": event_id, "name": "A show", "currency": "EUR", "starts_at": starts_at}
        | {"seats": seats, "pools": pools}
        | terms
    )


async def live_shop(place: Place) -> Earmark:
    """The same database, in live mode."""
    return Earmark(Engine(place.store, ids=Uuid7Ids()), mode=Mode.LIVE)


async def _name(place: Place) -> ShopApi:
    async with shop_api_over(place) as shop_api:
        await fill(place, shop_api)
    await relay(place.store)
    return shop_api


@pytest.fixture
async def named_anew(place: Place) -> ShopApi:
    """A buyer who is named in every table that can name one, and a second buyer who must not be touched."""
    shop_api = await _name(place)
    place.clock.advance(2 * HOURS)
    return shop_api


@pytest.fixture(scope="session")
def kept() -> dict[bool, tuple[KeptRows, ShopApi]]:
    """What `named` made first: for a file, and for a server."""
    return {}


@pytest.fixture
async def named(place: Place, kept: dict[bool, tuple[KeptRows, ShopApi]]) -> ShopApi:
    """The same two buyers: the requests are made once for each database, and later tests are given their rows."""
    is_file = place.file is not None
    if is_file in kept:
        rows, shop_api = kept[is_file]
        await write_rows(rows, place.file or place.url)
    else:
        shop_api = await _name(place)
        kept[is_file] = await rows_of(place.file or place.url), shop_api
    place.clock.advance(2 * HOURS)
    return shop_api


async def fill(place: Place, shop_api: ShopApi) -> None:
    """Every verb, by the shop and by the buyer, with the name in every free text."""
    await shop_api.post("webhooks", {"url": "http://127.0.0.1:9/"}, key="hook")
    await shop_api.post("events", event_body(place, "show", per_buyer_max=9), key="show")
    token = await shop_api.token()
    mine = await shop_api.post("bookings", {"event_id": "show", "seats": ["A1"]}, key="mine", token=token)
    await shop_api.post(f"bookings/{mine['id']}/release", key="let-go", token=token)
    await shop_api.post(f"bookings/{mine['id']}/release", key="let-go-again", token=token)
    await shop_api.post(f"bookings/{mine['id']}/release", key="shop-again")
    hold = {"event_id": "show", "buyer": ANN, "seats": ["A2", "A3"], "pools": {"GA": 2}}
    paid = await shop_api.post("bookings", hold, key=f"hold-{ANN}-1")
    back = f"https://shop.example/thanks/{ANN}"
    pay = {"method": "pm_card_visa_chargeDeclined", "return_url": back}
    await shop_api.post(f"bookings/{paid['id']}/pay", pay, key="declined", token=token)
    await shop_api.post(f"bookings/{paid['id']}/pay", {"method": "pm_card_visa", "return_url": back}, key=f"pay:{ANN}")
    await shop_api.post(f"bookings/{paid['id']}/refunds", {"amount": 100, "reason": f"for {ANN}"}, key="refund")
    await shop_api.post(f"bookings/{paid['id']}/cancel", {"seats": ["A3"], "reason": f"{ANN} is ill"}, key="cancel")
    payments = await shop_api.post("bookings", {"event_id": "show", "buyer": ANN, "seats": ["A4"]}, key="till")
    money = {"payment_id": f"till {ANN} 7", "payment_method": f"cash of {ANN}"}
    await shop_api.post(f"bookings/{payments['id']}/confirm", money, key="till-paid")
    bob = await shop_api.post("bookings", {"event_id": "show", "buyer": "bob", "seats": ["A5"]}, key="bob")
    await shop_api.post(f"bookings/{bob['id']}/confirm", {"payment_id": "till bob"}, key="bob-paid")
    shop = await live_shop(place)
    gala = event_body(place, "gala")
    await shop.create_event(
        "gala", name="A gala", currency="EUR", starts_at=gala["starts_at"], seats={"A1": 500, "A2": 500}
    )
    sold = await shop.hold("gala", buyer=ANN, seats=["A1"], key="gala")
    await shop.confirm(sold.id, payment_id="till gala", key="gala-paid")
