"""A database of release 0.1 becomes a current one by `earmark migrate`, with everything that was sold on it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from earmark.domain.live_or_test_mode import Mode
from earmark.library import Earmark
from earmark.store.both_databases import pending_migrations
from earmark.wiring import open_and_maintain_databases

from . import catalog
from .test_newer_schema import execute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.store.both_databases.pending_migrations import Migration
    from earmark.testservers import Postgres

HERE = Path(__file__).parent
RELEASE = HERE / "v0_1"
DIALECTS = ("postgres", "sqlite")
TODAY = {dialect: pending_migrations.migrations(dialect) for dialect in DIALECTS}
SELL_SECONDS_MAX = 120


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    """Which database."""
    name: str = request.param
    return name


@pytest.fixture
def empty_url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with nothing in it."""
    if dialect == "sqlite":
        return f"sqlite:///{tmp_path}/release.sqlite3"
    url: str = request.getfixturevalue("unguarded_postgres_url")
    return url


@pytest.fixture
def fresh_url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database that today's migrations made, and that no other test has changed."""
    if dialect == "sqlite":
        asyncio.run(open_and_maintain_databases.migrate(f"sqlite:///{tmp_path}/fresh.sqlite3"))
        yield f"sqlite:///{tmp_path}/fresh.sqlite3"
        return
    server: Postgres = request.getfixturevalue("postgres_server")
    name = f"earmark_fresh_{os.getpid()}"
    server.create_database(name)
    asyncio.run(open_and_maintain_databases.migrate(server.url(name)))
    yield server.url(name)
    server.drop_database(name)


def released(dialect: str) -> tuple[Migration, ...]:
    """The migrations of the release, from its copy."""
    files = sorted((RELEASE / dialect).glob("*.sql"))
    return tuple(pending_migrations.parse(int(file.name[:4]), file.stem[5:], file.read_text("utf-8")) for file in files)


@pytest.fixture(scope="module")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the release, as its commit has them; without that commit the tests skip with one loud line."""
    commit = (RELEASE / "COMMIT").read_text("utf-8").strip()
    if not re.fullmatch("[0-9a-f]{40}", commit):
        pytest.skip("UPGRADE FROM V0-1 NOT TESTED: tests/migration/v0_1/COMMIT names no commit yet")
    try:
        git = ["git", "archive", commit, "src"]
        packed = subprocess.run(git, cwd=HERE.parents[1], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"UPGRADE FROM V0-1 NOT TESTED: there is no git history with the commit {commit}")
    folder = tmp_path_factory.mktemp("v0_1")
    unpack = ["tar", "-x", "-C", str(folder)]
    subprocess.run(unpack, input=packed, check=True)
    return folder / "src"


def sell(url: str, *, code: Path) -> dict[str, str]:
    """What the release sold on this database: the state of each booking, by id."""
    done = subprocess.run(
        [sys.executable, str(RELEASE / "sell.py"), url],
        env=os.environ | {"PYTHONPATH": str(code)},
        capture_output=True,
        text=True,
        timeout=SELL_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sold: dict[str, str] = json.loads(done.stdout)
    return sold


async def read_catalog(url: str) -> dict[str, str]:
    """Every object of the database."""
    if url.startswith("sqlite"):
        return catalog.of_sqlite(open_and_maintain_databases.sqlite_path(url))
    return await catalog.of_postgres(url)


async def find_flaws(url: str) -> list[Any]:
    """What `earmark verify` finds."""
    store = await open_and_maintain_databases.open_store(url)
    try:
        await store.check()
        return list(await store.find_flaws(limit=10))
    finally:
        await store.close()


def test_a_released_migration_never_changes(dialect: str) -> None:
    """Databases have applied it. Until the release, a change of a migration is copied."""
    copies = released(dialect)
    assert [str(step) for step in copies] == ["0001_tables", "0002_guards", "0003_functions_in_postgresql_only"]
    assert [(step.name, step.checksum) for step in copies] == [
        (step.name, step.checksum) for step in TODAY[dialect][: len(copies)]
    ]


async def test_a_database_of_the_release_becomes_the_current_one(
    dialect: str, empty_url: str, fresh_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every later migration is applied, and then no object differs from those of a new database."""
    with monkeypatch.context() as release:
        release.setattr(pending_migrations, "migrations", released)
        await open_and_maintain_databases.migrate(empty_url)
    assert list(await open_and_maintain_databases.migrate(empty_url)) == list(TODAY[dialect][len(released(dialect)) :])
    assert catalog.differences(await read_catalog(empty_url), await read_catalog(fresh_url)) == []
    assert await find_flaws(empty_url) == []


async def test_a_difference_of_the_catalogs_is_named(empty_url: str, fresh_url: str) -> None:
    """The control: one index and one guard that are missing are found."""
    await open_and_maintain_databases.migrate(empty_url)
    guard = "DROP TRIGGER outside_payment_stays" + ("" if empty_url.startswith("sqlite") else " ON outside_payments")
    await execute(empty_url.replace("sqlite:///", "sqlite:////"), "DROP INDEX bookings_due", guard)
    found = catalog.differences(await read_catalog(empty_url), await read_catalog(fresh_url))
    assert [any(name in line for line in found) for name in ("bookings_due", "outside_payment_stays")] == [True, True]


async def test_what_the_release_sold_is_kept_and_goes_on(empty_url: str, fresh_url: str, old_code: Path) -> None:
    """Each booking is read as it was, no promise is broken, and the hold that the release made is confirmed."""
    sold = sell(empty_url, code=old_code)
    await open_and_maintain_databases.migrate(empty_url)
    assert catalog.differences(await read_catalog(empty_url), await read_catalog(fresh_url)) == []
    async with Earmark.open(empty_url, migrate=False, mode=Mode.TEST) as shop:
        assert {booking: (await shop.booking(booking)).state.value for booking in sold} == sold
        (held,) = (booking for booking, state in sold.items() if state == "held")
        assert (await shop.confirm(held, payment_id="till-later")).state == "confirmed"
        assert len(set(sold.values())) >= 4
    assert await find_flaws(empty_url) == []
