"""Two kinds of houses: one with the whole schema, and a bare one without its guards, where a mistake shows.

Each kind has one database for the whole run, emptied before each test: there are many tests, and each is short.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import asyncpg
import pytest

from earmark.store import postgres

from .bank import MoneyHouse
from .support import House

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from earmark.clock import MovableClock
    from earmark.testservers import Postgres

PROOF = bool(os.environ.get("EARMARK_PROOF"))
WITHOUT_GUARDS = ("test_seats", "test_takeovers", "test_hot_seat")
# One entry per version of a booking is the journal's own guard: it too would hide what a shortcut breaks.
_NO_JOURNAL_GUARD = "DROP INDEX journal_by_booking; CREATE INDEX journal_by_booking ON journal (booking_id, version)"


@pytest.fixture(scope="session")
def races_url(postgres_server: Postgres, postgres_template: str) -> Iterator[str]:
    """A database with the whole schema."""
    name = f"earmark_races_{os.getpid()}"
    postgres_server.create_database(name, template=postgres_template)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def bare_races_url(postgres_server: Postgres) -> Iterator[str]:
    """A database with the tables alone."""
    name = f"earmark_bare_races_{os.getpid()}"
    postgres_server.create_database(name)
    url = postgres_server.url(name)
    asyncio.run(_migrate_bare(url))
    yield url
    postgres_server.drop_database(name)


async def _migrate_bare(url: str) -> None:
    await postgres.migrate(url, without={"guards"})
    connection = await asyncpg.connect(url)
    await connection.execute(_NO_JOURNAL_GUARD)
    await connection.close()


@pytest.fixture
async def services(races_url: str, clock: MovableClock) -> AsyncIterator[House]:
    """As it is in production."""
    services = await House.open(races_url, clock=clock)
    yield services
    await services.close()


@pytest.fixture
async def bare_house(bare_races_url: str, clock: MovableClock) -> AsyncIterator[House]:
    """Without the guards of the schema: only the verbs keep the promises here."""
    services = await House.open(bare_races_url, clock=clock)
    yield services
    await services.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Without the guards only a sample of the files, and all of them in a proof."""
    if "either_house" in metafunc.fixturenames:
        bare = PROOF or metafunc.module.__name__.rpartition(".")[2] in WITHOUT_GUARDS
        metafunc.parametrize("either_house", ["services", *(["bare_house"] if bare else [])], indirect=True)


@pytest.fixture
def either_house(request: pytest.FixtureRequest) -> House:
    """What is built keeps its promises with the schema's guards and, by itself, without them."""
    found: House = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def shop(services: House) -> AsyncIterator[MoneyHouse]:
    """As it is in production."""
    shop = await MoneyHouse.open(services)
    yield shop
    await shop.close()


@pytest.fixture
async def bare_shop(bare_house: House) -> AsyncIterator[MoneyHouse]:
    """Without the guards of the schema."""
    shop = await MoneyHouse.open(bare_house)
    yield shop
    await shop.close()


@pytest.fixture
async def either_shop(either_house: House) -> AsyncIterator[MoneyHouse]:
    """What is built keeps its promises with the schema's guards and without them."""
    shop = await MoneyHouse.open(either_house)
    yield shop
    await shop.close()
