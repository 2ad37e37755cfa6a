"""A database that a development version from before 0.1 made is refused with one sentence that says the way out."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.acceptance.support import earmark as command

from earmark import config
from earmark.cli.commands import doctor
from earmark.config import Settings
from earmark.errors import SetupError
from earmark.store.both_databases import pending_migrations
from earmark.store.both_databases.pending_migrations import UNRELEASED, WAY_OUT
from earmark.wiring import open_and_maintain_databases, runtime

from .test_newer_schema import execute

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("tables", "guards", "drafts")
"""The first of the 27 migrations that such a database lists."""
KEY = "ek_test_0123456789abcdef0123456789abcdef"


@pytest.fixture(params=["postgres", "sqlite"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with nothing in it."""
    if request.param == "sqlite":
        return f"sqlite:////{str(tmp_path).lstrip('/')}/old.sqlite3"
    url: str = request.getfixturevalue("unguarded_postgres_url")
    return url


async def make_unreleased(url: str, *, oldest_code: bool) -> None:
    """List the migrations as such a version did; the first of those versions had no column `oldest_code`."""
    checksum = UNRELEASED["sqlite" if url.startswith("sqlite") else "postgres"]
    column, value = (", oldest_code integer", ", 1") if oldest_code else ("", "")
    await execute(
        url,
        f"CREATE TABLE earmark_migrations (number integer PRIMARY KEY, name text, checksum text{column})",
        *(
            f"INSERT INTO earmark_migrations VALUES ({number}, '{name}', '{checksum if number == 1 else 'x'}'{value})"
            for number, name in enumerate(NAMES, start=1)
        ),
    )


async def tables(url: str) -> list[str]:
    """Every table of the database."""
    listed = "SELECT name FROM sqlite_master WHERE type = 'table'"
    if not url.startswith("sqlite"):
        listed = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    return [row[0] for row in await execute(url, listed)]


@pytest.mark.parametrize("oldest_code", [True, False])
async def test_servers_workers_and_migrate_refuse_it_and_change_nothing(empty_url: str, *, oldest_code: bool) -> None:
    """Nothing could use its tables, and no step of today's migrations fits them."""
    await make_unreleased(empty_url, oldest_code=oldest_code)
    with pytest.raises(SetupError) as dry:
        await open_and_maintain_databases.migrate(empty_url, dry_run=True)
    with pytest.raises(SetupError) as migrating:
        await open_and_maintain_databases.migrate(empty_url)
    with pytest.raises(SetupError) as serving:
        await runtime.open_engine(Settings(database_url=empty_url))
    assert {refused.value.problem for refused in (dry, migrating, serving)} == {WAY_OUT}
    assert await tables(empty_url) == ["earmark_migrations"]


async def test_the_doctor_names_the_way_out_once(empty_url: str) -> None:
    """As the schema's illness, and it looks no further into that database."""
    await make_unreleased(empty_url, oldest_code=True)
    findings = [finding async for finding in doctor.examine(config.Settings(database_url=empty_url))]
    (schema,) = (finding for finding in findings if finding.check == "schema")
    assert (schema.level, schema.said, schema.advice) == ("problem", WAY_OUT, "Start with a new database.")
    assert not [finding for finding in findings if finding.check == "workers"]


async def test_without_the_rule_the_advice_would_be_wrong(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the file differs indeed, but there is none to restore."""
    await make_unreleased(empty_url, oldest_code=True)
    monkeypatch.setattr(pending_migrations, "UNRELEASED", dict.fromkeys(UNRELEASED, ""))
    with pytest.raises(SetupError, match="0001_tables differs from the one that was applied: restore the file"):
        await open_and_maintain_databases.migrate(empty_url)


@pytest.mark.parametrize("arguments", [["migrate"], ["serve"], ["worker"], ["doctor"]], ids=" ".join)
async def test_each_command_exits_with_the_sentence(tmp_path: Path, arguments: list[str]) -> None:
    """And with code 1, without a traceback."""
    url = f"sqlite:///{tmp_path}/old.sqlite3"
    await make_unreleased(url, oldest_code=True)
    done = command(*arguments, "--database", url, EARMARK_ADMIN_KEY=KEY)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert WAY_OUT in said
    assert "Traceback" not in said


async def test_a_new_database_beside_it_is_the_way_out(tmp_path: Path) -> None:
    """The control of the refusal: what it advises works."""
    url = f"sqlite:///{tmp_path}/new.sqlite3"
    assert next(str(step) for step in await open_and_maintain_databases.migrate(url)) == "0001_tables"
    with closing(sqlite3.connect(tmp_path / "new.sqlite3")) as file:
        assert file.execute("SELECT count(*) FROM bookings").fetchone() == (0,)
