"""Databases for SQL by hand: with the schema's guards and without, on SQLite and on PostgreSQL.

Each is furnished once and then only borrowed: a test undoes what it did, or works on a copy, which is put back.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from earmark.clock import MovableClock
from earmark.store import postgres, sqlite
from earmark.store.postgres import PostgresStore
from earmark.store.sqlite import SqliteStore
from earmark.uuids import Uuid7Ids

from .steps_support import Shop, SqlSession, World, furnish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

    from tests.conftest import KeptConnections

    from earmark.engine.ports.store import Store
    from earmark.testservers import Postgres


class Kind(NamedTuple):
    """Which database, and whether it has the guards."""

    product: str
    guarded: bool

    def __str__(self) -> str:
        return f"{self.product}-{'guarded' if self.guarded else 'bare'}"


in_one_loop = pytest.mark.asyncio(loop_scope="module")
"""For tests that use a connection one after the other: a new one, with its caches, was most of the work of each."""

GUARDED = [Kind("sqlite", guarded=True), Kind("postgres", guarded=True)]
BARE = [Kind("sqlite", guarded=False), Kind("postgres", guarded=False)]

REMEMBER = """
CREATE SCHEMA furnished;
DO $$
DECLARE own text;
BEGIN
    FOR own IN SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('CREATE TABLE furnished.%I AS TABLE public.%I', own, own);
    END LOOP;
END $$;
"""
"""The rows of every table, kept beside it."""
RESTORE = """
SET session_replication_role = replica;
DO $$
DECLARE own regclass; kept regclass;
BEGIN
    FOR own, kept IN SELECT now.oid, was.oid FROM pg_class was JOIN pg_class now USING (relname)
                      WHERE was.relnamespace = 'furnished'::regnamespace AND was.relkind = 'r'
                        AND now.relnamespace = 'public'::regnamespace
                        AND pg_relation_size(was.oid) + pg_relation_size(now.oid) > 0 LOOP
        EXECUTE format('DELETE FROM %s', own);
        EXECUTE format('INSERT INTO %s OVERRIDING SYSTEM VALUE SELECT * FROM %s', own, kept);
    END LOOP;
END $$;
"""
"""The same rows again, without a word from the guards: a tenth of the work of a new database."""


class Worlds:
    """The furnished databases of one test run, made when first asked for."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._request = request
        self._folder = folder
        self._made: dict[Kind, World] = {}
        self._copies = 0

    def of(self, kind: Kind) -> World:
        """A database that the test only reads."""
        if kind not in self._made:
            place: Any = self._folder / f"{kind}.db" if kind.product == "sqlite" else self._new(_name(kind))
            names = asyncio.run(_furnish(place, without=() if kind.guarded else ("guards",)))
            if kind.product == "postgres":
                # At once: a database with connections is no template.
                self._make_own(kind)
            self._made[kind] = World(place=place, names=names, session=SqlSession(place))
        return self._made[kind]

    def copy(self, kind: Kind) -> Iterator[World]:
        """A database that the test may change: a file of its own, or one whose rows are put back."""
        original = self.of(kind)
        self._copies += 1
        if kind.product == "sqlite":
            place: Any = self._folder / f"{kind}-{self._copies}.db"
            shutil.copy(original.place, place)
            yield msgspec.structs.replace(original, place=place, session=None)
            return
        kept: KeptConnections = self._request.getfixturevalue("kept_connections")
        url = self._server.url(_own_name(kind))
        yield msgspec.structs.replace(original, place=url, session=None)
        kept.execute(url, RESTORE)

    async def close(self) -> None:
        """End the connections that tests used one after the other."""
        for world in self._made.values():
            await world.session.close()

    def _make_own(self, kind: Kind) -> None:
        name = _own_name(kind)
        self._server.drop_database(name)
        self._new(name, template=_name(kind))
        self._server.psql(REMEMBER, database=name)

    @property
    def _server(self) -> Postgres:
        server: Postgres = self._request.getfixturevalue("postgres_server")
        return server

    def _new(self, name: str, *, template: str | None = None) -> str:
        if template is None:
            self._server.drop_database(name)
        self._server.create_database(name, template=template)
        return self._server.url(name)


@asynccontextmanager
async def opened(place: Path | str) -> AsyncIterator[Store]:
    """The store over a world's database."""
    clock = MovableClock()
    store: Store
    if isinstance(place, str):
        store = await PostgresStore.connect(place, clock=clock)
    else:
        store = await SqliteStore.open(place, clock=clock)
    try:
        yield store
    finally:
        await store.close()


async def _furnish(place: Path | str, *, without: tuple[str, ...]) -> Mapping[str, str]:
    if isinstance(place, str):
        await postgres.migrate(place, without=without)
    else:
        await sqlite.migrate(place, without=without)
    async with opened(place) as store:
        return await furnish(Shop(store, clock=MovableClock(), ids=Uuid7Ids()))


def _name(kind: Kind) -> str:
    return f"earmark_{kind.product}_{'guarded' if kind.guarded else 'bare'}"


def _own_name(kind: Kind) -> str:
    return f"{_name(kind)}_own"
