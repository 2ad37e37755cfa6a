"""Two kinds of databases: one with the whole schema, and a bare one without its guards, where a mistake shows.

Each kind has one database for the whole run, emptied before each test: there are many tests, and each is short.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import asyncpg
import pytest

from earmark.store import postgres

from .bank import Shop
from .support import RaceDatabase

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
async def database(races_url: str, clock: MovableClock) -> AsyncIterator[RaceDatabase]:
    """As it is in production."""
    database = await RaceDatabase.open(races_url, clock=clock)
    yield database
    await database.close()


@pytest.fixture
async def bare_database(bare_races_url: str, clock: MovableClock) -> AsyncIterator[RaceDatabase]:
    """Without the guards of the schema: only the verbs keep the promises here."""
    database = await RaceDatabase.open(bare_races_url, clock=clock)
    yield database
    await database.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Without the guards only a sample of the files, and all of them in a proof."""
    if "either_database" in metafunc.fixturenames:
        bare = PROOF or metafunc.module.__name__.rpartition(".")[2] in WITHOUT_GUARDS
        metafunc.parametrize("either_database", ["database", *(["bare_database"] if bare else [])], indirect=True)


@pytest.fixture
def either_database(request: pytest.FixtureRequest) -> RaceDatabase:
    """What is built keeps its promises with the schema's guards and, by itself, without them."""
    found: RaceDatabase = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def shop(database: RaceDatabase) -> AsyncIterator[Shop]:
    """As it is in production."""
    shop = await Shop.open(database)
    yield shop
    await shop.close()


@pytest.fixture
async def bare_shop(bare_database: RaceDatabase) -> AsyncIterator[Shop]:
    """Without the guards of the schema."""
    shop = await Shop.open(bare_database)
    yield shop
    await shop.close()


@pytest.fixture
async def either_shop(either_database: RaceDatabase) -> AsyncIterator[Shop]:
    """What is built keeps its promises with the schema's guards and without them."""
    shop = await Shop.open(either_database)
    yield shop
    await shop.close()
