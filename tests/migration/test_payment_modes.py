"""Migration 0017: references of payments that were unique over both modes become unique within each."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import AsyncMock, Mock

import asyncpg
import pytest
from tests.conformance.conftest import SHOP, Shop

from earmark.engine.commands import Actor
from earmark.errors import PaymentUsed
from earmark.store import migrations
from earmark.store.postgres.migrate import _Runner
from earmark.uuids import Uuid7Ids
from earmark.wiring import databases

from .test_newer_schema import execute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from earmark.domain.booking import Booking

KNOWN = {dialect: migrations.migrations(dialect) for dialect in ("postgres", "sqlite")}
BEFORE = 16
STEPS = ["0017_payment_modes", "0018_payment_mode_guards"]
TESTER = Actor(name="tester", live=False)
TAKE = "INSERT INTO outside_payments (payment_id, booking_id) VALUES ('{payment}', '{booking}') ON CONFLICT DO NOTHING"
"""As the code before 0017 does it, under locks and in a draft."""
ROWS = "SELECT payment_id, CAST(booking_id AS text), live FROM outside_payments ORDER BY payment_id, live"
NO_FILLING = {
    "sqlite": ["DROP TRIGGER outside_payment_gives_way", "DROP TRIGGER outside_payment_gets_its_mode"],
    "postgres": ["DROP TRIGGER outside_payment_gets_its_mode ON outside_payments"],
}


class Kind(NamedTuple):
    """Which database, and whether the law stands in it."""

    dialect: str
    without: Sequence[str]

    def __str__(self) -> str:
        return f"{self.dialect}-{'bare' if self.without else 'guarded'}"


KINDS = [Kind(dialect, without) for dialect in KNOWN for without in ((), ("guards",))]


class Older(NamedTuple):
    """A database as the code before 0017 left it."""

    url: str
    kind: Kind
    tried: Booking
    """In test mode; it has `till-1`."""
    sold: Booking
    """Live; it has `till-2`."""

    async def migrate(self) -> list[str]:
        """With the code of today."""
        return [str(step) for step in await databases.migrate(self.url, without=self.kind.without)]

    @asynccontextmanager
    async def shop(self) -> AsyncIterator[Shop]:
        """A server of today."""
        async with opened(self.url) as shop:
            yield shop

    async def take(self, payment: str, booking: Booking) -> int:
        """What a server from before 0017 does at a confirm: how many rows it wrote."""
        statement = TAKE.format(payment=payment, booking=booking.id)
        if self.kind.dialect == "sqlite":
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)) as file:
                return file.execute(statement).rowcount
        server = await asyncpg.connect(self.url)
        try:
            return int((await server.execute(statement)).split()[-1])
        finally:
            await server.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Shop]:
    store = await databases.open_store(url)
    try:
        yield Shop(store, ids=Uuid7Ids())
    finally:
        await store.close()


async def hold(shop: Shop, actor: Actor, *seats: str) -> Booking:
    return await shop.hold("ada", *seats, event_id="concert" if actor.live else "rehearsal", actor=actor)


@pytest.fixture(params=KINDS, ids=str)
async def older(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Older:
    """One reference in each mode, written before 0017."""
    kind: Kind = request.param
    url = f"sqlite:///{tmp_path}/shop.db"
    if kind.dialect == "postgres":
        url = request.getfixturevalue("unguarded_postgres_url")
    with monkeypatch.context() as old_code:
        old_code.setattr(migrations, "migrations", lambda dialect: KNOWN[dialect][:BEFORE])
        # Nor did the old code seal the codes of accounts.
        old_code.setattr(_Runner, "seal", AsyncMock())
        old_code.setattr(import_module("earmark.store.sqlite.migrate"), "_seal", Mock(return_value=0))
        await databases.migrate(url, without=kind.without)
    async with opened(url) as shop:
        await shop.create()
        await shop.create("rehearsal", live=False)
        tried, sold = await hold(shop, TESTER, "A1"), await hold(shop, SHOP, "A1")
    older = Older(url=url, kind=kind, tried=tried, sold=sold)
    assert [await older.take("till-1", tried), await older.take("till-2", sold)] == [1, 1]
    return older


async def rows(older: Older) -> list[tuple[Any, ...]]:
    found = await execute(older.url, ROWS)
    return [(payment, booking, bool(live) if live is not None else None) for payment, booking, live in found]


async def test_the_references_that_were_there_get_the_mode_of_their_booking(older: Older) -> None:
    """Under the guards, which allow no change, and without them; and no promise is broken."""
    steps = STEPS[: 1 if older.kind.without else 2]
    assert (await older.migrate())[: len(steps)] == steps
    assert await rows(older) == [("till-1", str(older.tried.id), False), ("till-2", str(older.sold.id), True)]
    async with older.shop() as shop:
        assert await shop.store.find_flaws(limit=10) == []


async def test_a_reference_from_before_is_free_in_the_other_mode_only(older: Older) -> None:
    """What blocked the live reference for good blocks it no more."""
    await older.migrate()
    async with older.shop() as shop:
        for actor, blocked, free in ((SHOP, "till-2", "till-1"), (TESTER, "till-1", "till-2")):
            held = await hold(shop, actor, "A2")
            with pytest.raises(PaymentUsed):
                await shop.confirm(held, blocked, actor=actor)
            assert (await shop.confirm(held, free, actor=actor)).payment_id == free


async def test_before_the_migration_a_test_blocks_the_live_reference(older: Older) -> None:
    """The control: the old key knows no mode."""
    assert await older.take("till-1", older.sold) == 0


async def test_an_older_server_is_right_on_the_new_schema(older: Older) -> None:
    """It leaves the mode out: that is filled in, and the second booking of a mode is refused as before."""
    await older.migrate()
    async with older.shop() as shop:
        live, second = await hold(shop, SHOP, "A2"), await hold(shop, SHOP, "A3")
        tried = await hold(shop, TESTER, "A2")
    asks = [("till-9", live), ("till-9", second), ("till-9", tried), ("till-1", live), ("till-2", second)]
    assert [await older.take(*ask) for ask in asks] == [1, 0, 1, 1, 0]
    found = {(payment, live_): booking for payment, booking, live_ in await rows(older)}
    assert found == {
        ("till-1", False): str(older.tried.id),
        ("till-1", True): str(live.id),
        ("till-2", True): str(older.sold.id),
        ("till-9", True): str(live.id),
        ("till-9", False): str(tried.id),
    }


async def test_control_without_the_filling_an_older_server_would_go_wrong(older: Older) -> None:
    """PostgreSQL would refuse its confirm; SQLite would let one reference confirm two bookings."""
    await older.migrate()
    await execute(older.url, *NO_FILLING[older.kind.dialect])
    if older.kind.dialect == "postgres":
        with pytest.raises(asyncpg.NotNullViolationError):
            await older.take("till-2", older.sold)
    else:
        assert await older.take("till-2", older.tried) == 1
        assert await older.take("till-2", older.sold) == 1
