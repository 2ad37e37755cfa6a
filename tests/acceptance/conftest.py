"""Real servers for the acceptance tests, started once and shared.

    sqlite    one server
    postgres  two servers on one PostgreSQL
    redis     the same with one Redis, as it is shipped; callers of "the server" alternate between both

With Redis only the files in `WITH_REDIS` are run, and all of them with the long proofs.

Every test makes events of its own, so that tests can share a server. No sweeper runs: what is promised
about expired holds must be true before a worker writes it down.
"""

from __future__ import annotations

import os
import resource
import shutil
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests import skip_summary
from tests.xdist_schedule import WITH_REDIS

from earmark.testservers import Postgres, ServerUnavailable, Valkey, start_postgres, start_valkey

from .support import LIVE, Caller, Service, become_guest, calling, migrate, serve, unique

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator
    from pathlib import Path

LOG_LINES_SHOWN = 60
OPEN_FILES = 4096
PROOF = bool(os.environ.get("EARMARK_PROOF"))
KINDS = {"service": ("sqlite", "postgres"), "services": ("postgres",), "fleet": ("sqlite", "postgres")}
"""On which databases the fixtures are without Redis."""
BEFORE_THE_STORE = ("test_abuse",)
"""Files whose requests are mostly refused before a store is asked: outside a proof one database is enough."""
NAMES = {"sqlite": "one-on-sqlite", "postgres": "two-on-postgres", "redis": "two-on-postgres-and-redis"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test on every set-up that its servers come in."""
    for fixture, kinds in KINDS.items():
        if fixture in metafunc.fixturenames:
            file = metafunc.module.__name__.rpartition(".")[2]
            redis = ("redis",) if PROOF or file in WITH_REDIS else ()
            asked = kinds if PROOF or file not in BEFORE_THE_STORE else kinds[:1]
            names = [NAMES[kind] if fixture == "fleet" else kind for kind in (*asked, *redis)]
            metafunc.parametrize(fixture, (*asked, *redis), ids=names, indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failing test shows what the servers wrote."""
    report = yield
    if report.failed and call.when == "call" and item.fspath.dirpath().basename == "acceptance":
        for service in LIVE:
            tail = "\n".join(service.log().splitlines()[-LOG_LINES_SHOWN:])
            report.sections.append((f"log of {service.url} on {service.database}", tail))
    return report


@pytest.fixture(scope="session", autouse=True)
def _room_for_connections() -> Iterator[None]:
    """Many clients need more open files than some machines allow by default; the servers inherit this limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        wanted = soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    try:
        server = start_postgres(settings={"max_connections": "100"})
    except ServerUnavailable as error:
        skip_summary.missing("NOTHING IS ACCEPTED ON POSTGRESQL HERE", error)
    with server:
        yield server


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that the command has migrated, and that others are copies of."""
    path = tmp_path_factory.mktemp("template") / "earmark.sqlite3"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres: Postgres) -> str:
    """A database that the command has migrated, and that others are copies of."""
    postgres.create_database("earmark_template")
    migrate(postgres.url("earmark_template"))
    return "earmark_template"


@pytest.fixture(scope="session")
def new_postgres_database(postgres: Postgres, postgres_template: str) -> Iterator[Callable[[], str]]:
    with ExitStack() as undo:

        def make() -> str:
            name = unique("earmark").replace("-", "_")
            postgres.create_database(name, template=postgres_template)
            undo.callback(postgres.drop_database, name)
            return postgres.url(name)

        yield make


@pytest.fixture(scope="session")
def new_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Makes an empty, migrated database of the named kind and says its URL."""

    def make(kind: str) -> str:
        if kind == "sqlite":
            path = tmp_path_factory.mktemp("database") / "earmark.sqlite3"
            shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
            return f"sqlite:///{path}"
        url: str = request.getfixturevalue("new_postgres_database")()
        return url

    return make


@pytest.fixture(scope="session")
def log_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def on_sqlite(new_database: Callable[[str], str], log_directory: Path) -> Iterator[tuple[Service, ...]]:
    service = serve("--no-embedded-workers", database=new_database("sqlite"), directory=log_directory)
    yield (service,)
    service.stop()


@pytest.fixture(scope="session")
def on_postgres(new_database: Callable[[str], str], log_directory: Path) -> Iterator[tuple[Service, ...]]:
    url = new_database("postgres")
    with ExitStack() as stack:
        first = serve("--no-embedded-workers", database=url, directory=log_directory)
        stack.callback(first.stop)
        second = serve("--no-embedded-workers", database=url, directory=log_directory, key=first.key)
        stack.callback(second.stop)
        yield (first, second)


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    try:
        server = start_valkey()
    except ServerUnavailable as error:
        skip_summary.missing("NOTHING IS ACCEPTED WITH REDIS HERE", error)
    with server:
        yield server


@pytest.fixture(scope="session")
def on_redis(new_database: Callable[[str], str], valkey: Valkey, log_directory: Path) -> Iterator[tuple[Service, ...]]:
    url = new_database("postgres")
    settings: dict[str, Any] = {
        "EARMARK_REDIS_URL": valkey.url,
        # A map shows another server's change after a quarter of a second, which alternating callers would notice.
        "EARMARK_MAP_CACHE_SECONDS": "0",
    }
    with ExitStack() as stack:
        first = serve("--no-embedded-workers", database=url, directory=log_directory, **settings)
        stack.callback(first.stop)
        second = serve("--no-embedded-workers", database=url, directory=log_directory, key=first.key, **settings)
        stack.callback(second.stop)
        yield (first, second)


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Service:
    """One server, on each database in turn; with Redis two that look like one."""
    first, *others = _servers(request)
    return replace(first, other_ports=tuple(one.port for one in others)) if request.param == "redis" else first


@pytest.fixture
def services(request: pytest.FixtureRequest) -> tuple[Service, ...]:
    """Two server processes that share one PostgreSQL."""
    return _servers(request)


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> tuple[Service, ...]:
    """All servers of a database: one process on SQLite, two on PostgreSQL."""
    return _servers(request)


def _servers(request: pytest.FixtureRequest) -> tuple[Service, ...]:
    found: tuple[Service, ...] = request.getfixturevalue(f"on_{request.param}")
    return found


@pytest.fixture
async def shop(service: Service) -> AsyncIterator[Caller]:
    """The shop's own back end: it may do everything."""
    async with calling(service) as caller:
        yield caller


@pytest.fixture
async def guests(service: Service) -> AsyncIterator[list[tuple[str, Caller]]]:
    """Two anonymous buyers, each with its name and its own token."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(2):
            anonymous = await stack.enter_async_context(calling(service, token=""))
            buyer, token = await become_guest(anonymous)
            caller = await stack.enter_async_context(calling(service, token=token))
            found.append((buyer, caller))
        yield found


@pytest.fixture
async def callers(fleet: tuple[Service, ...]) -> AsyncIterator[list[Caller]]:
    """Clients of the shop's back end with enough connections for 500 buyers; the first calls the first server."""
    # Several small clients: one with five hundred connections spends its time looking through them.
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(calling(one, connections=100)) for _ in range(5) for one in fleet]


@pytest.fixture
async def two_callers(services: tuple[Service, ...]) -> AsyncIterator[list[Caller]]:
    """The shop's back end at two servers that share one PostgreSQL."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(calling(one, connections=100)) for one in services]
