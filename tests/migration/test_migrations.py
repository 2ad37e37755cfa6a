from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from earmark.config import Settings
from earmark.errors import SetupError
from earmark.store.both_databases import pending_migrations
from earmark.store.both_databases.pending_migrations import Applied, Migration, check_current, pending
from earmark.wiring import open_and_maintain_databases, runtime

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

DIALECTS = ["postgres", "sqlite"]
STEPS = [str(step) for step in pending_migrations.migrations("postgres")]


@pytest.fixture(params=DIALECTS)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with nothing in it."""
    if request.param == "sqlite":
        return f"sqlite:////{str(tmp_path).lstrip('/')}/new.sqlite3"
    url: str = request.getfixturevalue("unguarded_postgres_url")
    return url


def as_applied(steps: Iterable[Migration]) -> dict[int, Applied]:
    """What a database remembers of these."""
    return {
        step.number: Applied(name=step.name, checksum=step.checksum, oldest_code=step.oldest_code) for step in steps
    }


def names(steps: object) -> list[str]:
    return [str(step) for step in steps]  # type: ignore[attr-defined]


async def test_a_database_is_brought_up_to_date_once(empty_url: str) -> None:
    """All steps in order, and then none."""
    assert STEPS[:2] == ["0001_tables", "0002_guards"]
    assert names(await open_and_maintain_databases.migrate(empty_url)) == STEPS
    assert names(await open_and_maintain_databases.migrate(empty_url)) == []
    store = await open_and_maintain_databases.open_store(empty_url)
    await store.check()
    assert await store.find_flaws(limit=1) == []
    await store.close()


async def test_a_dry_run_only_says_what_it_would_do(empty_url: str) -> None:
    """And leaves the database as it found it."""
    assert names(await open_and_maintain_databases.migrate(empty_url, dry_run=True)) == STEPS
    assert names(await open_and_maintain_databases.migrate(empty_url)) == STEPS


async def test_an_empty_database_is_refused_with_the_command_to_run(unguarded_postgres_url: str) -> None:
    """A server on an old schema would fail one request at a time; it refuses to start instead."""
    with pytest.raises(SetupError, match="earmark migrate"):
        await runtime.open_engine(Settings(database_url=unguarded_postgres_url))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_applied_file_may_never_change(dialect: str) -> None:
    """A file that differs from the one that was applied is refused."""
    with pytest.raises(SetupError, match="differs"):
        pending(dialect, {1: Applied(name="tables", checksum="another checksum", oldest_code=1)})


def test_a_schema_that_lacks_a_step_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tomorrow's step is missing from today's database."""
    known = pending_migrations.migrations("postgres")
    tomorrow = Migration(number=9999, name="tomorrow", sql="", checksum="x", oldest_code=1)
    monkeypatch.setattr(pending_migrations, "migrations", lambda _: (*known, tomorrow))
    with pytest.raises(SetupError, match="9999_tomorrow"):
        check_current("postgres", as_applied(known))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_database_has_all_guards_or_none(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guards of an older release would refuse what the rules of this one allow."""
    newest = Migration(number=9999, name="newer_guards", sql="", checksum="x", oldest_code=1)
    steps = (*pending_migrations.migrations(dialect), newest)
    monkeypatch.setattr(pending_migrations, "migrations", lambda _: steps)
    with pytest.raises(SetupError, match=str(newest)):
        check_current(dialect, as_applied(step for step in steps if step is not newest))
    check_current(dialect, as_applied(step for step in steps if not step.name.endswith("guards")))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_migrations_count_without_a_gap(dialect: str) -> None:
    """0001, 0002, …: each number once, the same names in both dialects."""
    known = pending_migrations.migrations(dialect)
    assert [step.number for step in known] == list(range(1, len(known) + 1))
    assert [step.name for step in known] == [step.name for step in pending_migrations.migrations("postgres")]


@pytest.mark.parametrize(
    "url", ["mysql://x/y", "shop.sqlite3", "sqlite://host/x", "sqlite://", "sqlite:///", "", "postgresql"]
)
async def test_an_unknown_database_is_named_with_what_is_known(url: str) -> None:
    """One line that says what to write instead."""
    with pytest.raises(SetupError, match="sqlite:///"):
        await open_and_maintain_databases.open_store(url)
