"""A database whose schema is newer than the code: which code goes on, and which is refused."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from earmark import config
from earmark.cli.commands import doctor
from earmark.cli.doctor import database as checkup
from earmark.errors import SetupError
from earmark.library import Earmark
from earmark.store.both_databases.pending_migrations import migrations
from earmark.wiring import open_and_maintain_databases, runtime

if TYPE_CHECKING:
    from pathlib import Path

DIALECTS = ["postgres", "sqlite"]
NEWEST = len(migrations("postgres"))
ANY_CODE = 1


@pytest.fixture(params=DIALECTS)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with nothing in it."""
    if request.param == "sqlite":
        return f"sqlite:////{str(tmp_path).lstrip('/')}/new.sqlite3"
    url: str = request.getfixturevalue("unguarded_postgres_url")
    return url


async def execute(url: str, *statements: str) -> list[Any]:
    """By hand, as another version of Earmark would; the rows of the last one."""
    found: list[Any] = []
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(urlsplit(url).path[1:], isolation_level=None)) as file:
            for statement in statements:
                found = file.execute(statement).fetchall()
        return found
    server = await asyncpg.connect(url)
    try:
        for statement in statements:
            found = await server.fetch(statement)
    finally:
        await server.close()
    return found


async def apply_tomorrow(url: str, *, oldest_code: int | None) -> None:
    """What the `migrate` of a newer Earmark leaves behind."""
    said = "NULL" if oldest_code is None else oldest_code
    await execute(
        url,
        "ALTER TABLE bookings ADD COLUMN note text",
        f"INSERT INTO earmark_migrations (number, name, checksum, oldest_code) VALUES (9999, 'tomorrow', 'x', {said})",
    )


async def test_an_older_server_stays_ready_and_restarts_over_an_expand(empty_url: str) -> None:
    """The newer Earmark migrates first; a server that still runs the older one, or goes back to it, goes on selling."""
    await open_and_maintain_databases.migrate(empty_url)
    async with Earmark.open(empty_url, migrate=False) as running:
        await running.create_event("play", name="A play", currency="EUR", seats={"A1": 100, "A2": 100})
        await apply_tomorrow(empty_url, oldest_code=ANY_CODE)
        await running.engine.store.check()
        held = await running.hold("play", buyer="b", seats=["A1"])
    # `migrate=True`, the default: a deployment of the older version runs its `migrate`, too.
    async with Earmark.open(empty_url) as restarted:
        assert (await restarted.confirm(held.id, payment_id="p")).state == "confirmed"
        assert (await restarted.hold("play", buyer="b", seats=["A2"])).state == "held"


@pytest.mark.parametrize("oldest_code", [NEWEST, NEWEST - 1])
async def test_a_contract_lets_the_code_run_that_it_names(empty_url: str, oldest_code: int) -> None:
    """What it took away was not used any more by the code of that number."""
    await open_and_maintain_databases.migrate(empty_url)
    await apply_tomorrow(empty_url, oldest_code=oldest_code)
    store = await open_and_maintain_databases.open_store(empty_url)
    await store.check()
    await store.close()
    assert await open_and_maintain_databases.migrate(empty_url) == []


@pytest.mark.parametrize(
    "oldest_code, why", [(NEWEST + 1, f"no code older than migration {NEWEST + 1:04}"), (None, "no older code")]
)
async def test_code_that_is_not_allowed_is_refused_with_what_to_do(
    empty_url: str, oldest_code: int | None, why: str
) -> None:
    """By a contract that names newer code, and where nothing is said: it neither starts, nor is ready, nor migrates."""
    await open_and_maintain_databases.migrate(empty_url)
    await apply_tomorrow(empty_url, oldest_code=oldest_code)
    refused = rf"9999_tomorrow, which is newer than this Earmark and allows {why}: upgrade Earmark on this machine"
    store = await open_and_maintain_databases.open_store(empty_url)
    with pytest.raises(SetupError, match=refused):
        await store.check()
    await store.close()
    with pytest.raises(SetupError, match=refused):
        await runtime.open_engine(config.Settings(database_url=empty_url))
    with pytest.raises(SetupError, match=refused):
        await open_and_maintain_databases.migrate(empty_url)


async def test_what_a_file_says_is_recorded_for_code_that_has_not_got_it(empty_url: str) -> None:
    """Each row has the number that its file's first line means."""
    await open_and_maintain_databases.migrate(empty_url)
    rows = await execute(empty_url, "SELECT number, oldest_code FROM earmark_migrations ORDER BY number")
    dialect = "sqlite" if empty_url.startswith("sqlite") else "postgres"
    assert [tuple(row) for row in rows] == [(step.number, step.oldest_code) for step in migrations(dialect)]


async def test_a_newer_schema_is_noted_by_the_doctor_and_by_migrate(empty_url: str) -> None:
    """An operator sees that the machine is behind, and that nothing is wrong."""
    await open_and_maintain_databases.migrate(empty_url)
    await apply_tomorrow(empty_url, oldest_code=ANY_CODE)
    told: list[str] = []
    assert await open_and_maintain_databases.migrate(empty_url, tell=told.append) == []
    assert told == ["The database has migration 9999_tomorrow, which is newer than this Earmark and allows it to run."]
    vitals = await open_and_maintain_databases.examine(empty_url)
    found = checkup.schema(vitals)
    assert (found.level, "9999_tomorrow" in found.said) == ("note", True)
    settings = config.Settings(database_url=empty_url)
    checks = {finding.check async for finding in doctor.examine(settings)}
    assert {"schema", "workers", "money"} <= checks, "what else is wrong is looked for all the same"
