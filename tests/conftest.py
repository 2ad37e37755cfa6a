"""What every folder of tests shares: real servers, started once, and a fresh store for each test."""

from __future__ import annotations

import asyncio
import functools
import gc
import hashlib
import itertools
import os
from typing import TYPE_CHECKING, Any

import asyncpg
import httpcore2
import pytest
from hypothesis import HealthCheck, settings
from tests import skip_summary, xdist_schedule
from tests.pgbouncer import PgBouncer, start_pgbouncer
from tests.sqlite_files import make_migrated

from earmark.clock import MovableClock
from earmark.server import gc_tuning
from earmark.store import postgres
from earmark.store.postgres import PostgresStore
from earmark.store.sqlite import SqliteStore
from earmark.store.sqlite.memory import MemoryStore
from earmark.testservers import Postgres, ServerUnavailable, start_postgres, start_valkey
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from earmark.engine.ports.store import Store

settings.register_profile("earmark", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("earmark")
# Nearly all that is made while tests are collected stays to the end: nothing is found by looking for garbage meanwhile.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait and files that work take turns."""
    turns = xdist_schedule.take_turns(dict.fromkeys(xdist_schedule.group(item.nodeid) for item in items))
    places = {own: number for number, own in enumerate(turns)}
    items.sort(key=lambda item: places[xdist_schedule.group(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files that share servers go to one worker, which starts them once."""
    return xdist_schedule.scheduler(config, log)


pytest_terminal_summary = skip_summary.pytest_terminal_summary


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the garbage collector need not search it again and again."""
    gc_tuning.freeze_startup_objects()
    gc.enable()


STORES = ("memory", "sqlite", "postgres")
STORES_SAMPLED = STORES if os.environ.get("EARMARK_PROOF") else ("memory", "postgres")
"""For folders that need not ask the file of SQLite outside a proof: the store in memory runs the same statements."""
_numbers = itertools.count(1)
TEMPLATE = "earmark_template"
# As a replica the schema checks no guard: they refuse to delete. The lock waits for connections that a test left.
# Statistics are put back to those of the template: by others, a later test would get another plan.
EMPTY = """
SET lock_timeout = '2s';
SET session_replication_role = replica;
DO $$
DECLARE
    own text;
    space regnamespace := 'public'::regnamespace;
BEGIN
    IF EXISTS (SELECT FROM pg_class WHERE relnamespace = space AND relkind = 'r' AND reltuples >= 0) THEN
        DELETE FROM pg_statistic WHERE starelid = ANY (SELECT oid FROM pg_class WHERE relnamespace = space);
        UPDATE pg_class SET relpages = fresh.relpages, reltuples = fresh.reltuples, relallvisible = 0
          FROM json_to_recordset('{fresh}') AS fresh (relname text, relpages int, reltuples real)
         WHERE pg_class.relnamespace = space AND pg_class.relname = fresh.relname;
    END IF;
    FOR own IN SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = 'public' AND c.relkind = 'r' AND c.relname NOT IN ('earmark_migrations', 'marks')
                  AND pg_relation_size(c.oid) > 0 LOOP
        EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', own);
        IF pg_relation_size(own::regclass) > 262144 THEN
            EXECUTE format('TRUNCATE %I CASCADE', own);
        ELSE
            EXECUTE format('DELETE FROM %I', own);
        END IF;
    END LOOP;
END $$;
UPDATE marks SET place = '00000000-0000-0000-0000-000000000000';
"""
"""Few rows are deleted, which takes a fifth of the work of a TRUNCATE; there are thousands of tests."""
FRESH = """
SELECT json_agg(json_build_object('relname', relname, 'relpages', relpages, 'reltuples', reltuples))
  FROM pg_class WHERE relnamespace = 'public'::regnamespace
"""
"""What the planner knows of tables that were never analysed."""


def unavailable(reason: ServerUnavailable) -> Any:
    """A missing be started skips its tests with one loud line, or fails them where it is demanded."""
    skip_summary.missing("NOT TESTED ON A REAL SERVER", reason)


def _remember_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let asyncpg query each database once for its types, and not once per connection: a third of a small test's work.

    A database keeps its name for as long as it exists, and its types with it.
    """
    asked: dict[Any, Any] = {}
    ask = asyncpg.Connection._introspect_types

    async def queried_once(self: Any, typeoids: Any, within: float | None) -> Any:
        key = (self._addr, self._params.database, frozenset(typeoids))
        if key not in asked:
            asked[key] = await ask(self, typeoids, within)
        return asked[key]

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", queried_once)


def _share_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let httpx read the machine's certificates once, and not for each client: most of them speak plain HTTP."""
    read = httpcore2.default_ssl_context

    @functools.cache
    def read_once(trust_env: bool, *_: str | None) -> ssl.SSLContext:  # noqa: FBT001 -- as httpx has it
        return read(_trust_env=trust_env)

    def share(*, _trust_env: bool = True) -> ssl.SSLContext:
        return read_once(_trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    monkeypatch.setattr(httpcore2, "default_ssl_context", share)


@pytest.fixture(scope="session", autouse=True)
def _quick_connections() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        _remember_types(monkeypatch)
        _share_certificates(monkeypatch)
        # Slow on purpose, and the same for each of a thousand servers with one admin key.
        monkeypatch.setattr(hashlib, "scrypt", functools.cache(hashlib.scrypt))
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """One real PostgreSQL for the whole run."""
    try:
        # Automatic statistics, at any moment, make plans that a test did not set up.
        server = start_postgres(settings={"fsync": "off", "max_connections": "300", "autovacuum": "off"})
    except ServerUnavailable as reason:
        unavailable(reason)
    with server:
        yield server
        if not os.environ.get(server.url_variable):
            server.kill()  # its data goes with it: nothing is to be written down in an orderly stop


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """One real Redis for the tests of a file, of its own. A test that kills one starts another."""
    try:
        server = start_valkey()
    except ServerUnavailable as reason:
        unavailable(reason)
    with server:
        yield server.url


@pytest.fixture(scope="session")
def postgres_template(postgres_server: Postgres) -> str:
    """A migrated database that others are cloned from."""
    postgres_server.create_database(TEMPLATE)
    asyncio.run(postgres.migrate(postgres_server.url(TEMPLATE)))
    return TEMPLATE


@pytest.fixture(scope="session")
def spare_databases() -> list[str]:
    """Databases that a test has left and that were emptied: quicker to have again than a new one."""
    return []


@pytest.fixture(scope="session")
def empty_database(postgres_server: Postgres, postgres_template: str) -> str:
    """The statement that makes a database as it was when it was copied from the template."""
    return EMPTY.replace("{fresh}", postgres_server.psql(FRESH, database=postgres_template))


class KeptConnections:
    """One connection for each spare database, open between tests: a new one is ten times the work of emptying it.

    They live in an event loop of their own, which runs only while one of them is asked something.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._of: dict[str, Any] = {}

    def execute(self, url: str, statement: str) -> None:
        """Run this, on a new connection if the one before was ended meanwhile."""
        self._loop.run_until_complete(self._execute(url, statement))

    def close(self) -> None:
        """End all of them."""
        for url in list(self._of):
            self.forget(url)
        # What a transport still has to do is done in the loop's next turn.
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def forget(self, url: str) -> None:
        """End the connection to this database."""
        if (connection := self._of.pop(url, None)) is not None:
            connection.terminate()

    async def _execute(self, url: str, statement: str) -> None:
        if url in self._of:
            try:
                await self._of[url].execute(statement)
            except (
                asyncpg.InterfaceError,
                asyncpg.PostgresConnectionError,
                asyncpg.OperatorInterventionError,
                OSError,
            ):
                self.forget(url)
            else:
                return
        self._of[url] = await asyncpg.connect(url)
        await self._of[url].execute(statement)


@pytest.fixture(scope="session")
def kept_connections(postgres_server: Postgres) -> Iterator[KeptConnections]:  # noqa: ARG001 (it outlives them)
    """To the spare databases."""
    kept = KeptConnections()
    yield kept
    kept.close()


@pytest.fixture
def postgres_url(
    postgres_server: Postgres,
    postgres_template: str,
    spare_databases: list[str],
    empty_database: str,
    kept_connections: KeptConnections,
) -> Iterator[str]:
    """A migrated, empty PostgreSQL database of the test's own."""
    if spare_databases:
        name = spare_databases.pop()
    else:
        name = f"earmark_{os.getpid()}_{next(_numbers)}"
        postgres_server.create_database(name, template=postgres_template)
    url = postgres_server.url(name)
    yield url
    try:
        kept_connections.execute(url, empty_database)
    except asyncpg.PostgresError:
        kept_connections.forget(url)
        postgres_server.drop_database(name)
    else:
        spare_databases.append(name)


@pytest.fixture
def unguarded_postgres_url(postgres_server: Postgres) -> Iterator[str]:
    """A PostgreSQL database without the schema's guards, for controls; still to be migrated by `without`."""
    name = f"earmark_bare_{os.getpid()}_{next(_numbers)}"
    postgres_server.create_database(name)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
def clock() -> MovableClock:
    """Time that a test can push forward."""
    return MovableClock()


@pytest.fixture
def ids() -> Uuid7Ids:
    """New identities."""
    return Uuid7Ids()


@pytest.fixture
async def postgres_store(postgres_url: str, clock: MovableClock) -> AsyncIterator[PostgresStore]:
    """PostgreSQL, migrated and empty."""
    store = await PostgresStore.connect(postgres_url, clock=clock)
    yield store
    await store.close()


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: Postgres) -> Iterator[PgBouncer]:
    """One real PgBouncer for the whole run. A test that kills one starts another."""
    try:
        pgbouncer = start_pgbouncer(postgres_server.url())
    except ServerUnavailable as reason:
        unavailable(reason)
    with pgbouncer:
        yield pgbouncer


@pytest.fixture
async def pooled_store(postgres_url: str, pgbouncer: PgBouncer, clock: MovableClock) -> AsyncIterator[PostgresStore]:
    """PostgreSQL behind PgBouncer, migrated and empty."""
    store = await PostgresStore.connect(pgbouncer.to(postgres_url), clock=clock)
    yield store
    await store.close()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file that others are copies of."""
    path = tmp_path_factory.mktemp("template") / "earmark.sqlite3"
    asyncio.run(make_migrated(path))
    return path


@pytest.fixture
async def sqlite_store(tmp_path: Path, clock: MovableClock) -> AsyncIterator[SqliteStore]:
    """SQLite, migrated and empty."""
    path = tmp_path / "earmark.sqlite3"
    await make_migrated(path)
    store = await SqliteStore.open(path, clock=clock)
    yield store
    await store.close()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, clock: MovableClock) -> Store:
    """Each of the stores in turn."""
    return store_of(request, clock=clock)


def store_of(request: pytest.FixtureRequest, *, clock: MovableClock) -> Store:
    """The store that a parametrised fixture asks for by its name."""
    if request.param == "memory":
        return MemoryStore(clock=clock)
    found: Store = request.getfixturevalue(f"{request.param}_store")
    return found
