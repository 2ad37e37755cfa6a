"""A migration that needs a lock waits for it briefly and tries again: nothing queues behind it, and nothing hangs."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from earmark.errors import SetupError, StoreUnavailable
from earmark.library import Earmark
from earmark.store.both_databases import pending_migrations
from earmark.store.both_databases.pending_migrations import LockPatience, Migration
from earmark.store.postgres.migrate import LOCK
from earmark.wiring import open_and_maintain_databases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

FACT_SECONDS_MAX = 30.0
BRIEF = LockPatience(lock_seconds=0.1, seconds_max=600)
GIVES_UP = LockPatience(lock_seconds=0.1, seconds_max=0)
WITHOUT_LIMIT = LockPatience(lock_seconds=600, seconds_max=600)
ADDS_A_COLUMN = "-- expand\nALTER TABLE bookings ADD COLUMN note text;\n"
KNOWN = {dialect: pending_migrations.migrations(dialect) for dialect in ("postgres", "sqlite")}
NUMBER = len(KNOWN["postgres"]) + 1
TOMORROW = f"{NUMBER:04}_tomorrow"


@pytest.fixture
def tomorrow(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Migration]:
    """Gives this program one more migration, of the given text."""

    def have(text: str) -> Migration:
        step = pending_migrations.parse(NUMBER, "tomorrow", text)
        monkeypatch.setattr(pending_migrations, "migrations", lambda dialect: (*KNOWN[dialect], step))
        return step

    return have


@pytest.fixture
async def shop(unguarded_postgres_url: str) -> AsyncIterator[Earmark]:
    """A running server's engine, from before tomorrow's migration."""
    async with Earmark.open(unguarded_postgres_url) as shop:
        await shop.create_event("play", name="A play", currency="EUR", pools={"GA": (1000, 100)})
        yield shop


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def long_report(url: str) -> AsyncIterator[int]:
    """A session reads the bookings in a transaction that does not end: that blocks no hold, but an ALTER TABLE."""
    async with session(url) as connection, connection.transaction():
        await connection.fetch("SELECT count(*) FROM bookings")
        yield connection.get_server_pid()


async def until(fact: Callable[[], Any]) -> Any:
    """Wait for it, within a bound."""
    async with asyncio.timeout(FACT_SECONDS_MAX):
        while not (found := fact()):  # noqa: ASYNC110 (a program tells when it does)
            await asyncio.sleep(0.01)
        return found


async def blocked_by(connection: Any, pid: int) -> list[Any]:
    """Which sessions wait for that one."""
    async with asyncio.timeout(FACT_SECONDS_MAX):
        while True:
            found: list[Any] = await connection.fetch(
                "SELECT pid, application_name FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))", pid
            )
            if found:
                return found
            await asyncio.sleep(0.01)


async def test_holds_go_on_while_a_migration_waits_for_a_lock(
    unguarded_postgres_url: str, shop: Earmark, tomorrow: Callable[[str], Migration]
) -> None:
    """It steps back each time, says who is in its way, and has its turn when the report is done."""
    told: list[str] = []
    step = tomorrow(ADDS_A_COLUMN)
    async with asyncio.TaskGroup() as group:
        async with long_report(unguarded_postgres_url) as pid:
            migrating = group.create_task(
                open_and_maintain_databases.migrate(unguarded_postgres_url, patience=BRIEF, tell=told.append)
            )
            for tries in (1, 2, 3):
                await until(lambda tries=tries: len(told) >= tries)  # type: ignore[misc]
                assert (await shop.hold("play", buyer=f"b{tries}", pools={"GA": 1})).state == "held"
            named = f"{TOMORROW} waits for a lock that pid {pid} (unnamed, idle in transaction for "
            said = await until(lambda: [one for one in told if one.startswith(named)])
            assert "SELECT count(*) FROM bookings) holds; trying again in " in said[0]
            assert not migrating.done()
        assert await migrating == [step]
    assert (await shop.hold("play", buyer="later", pools={"GA": 1})).state == "held"


async def test_without_a_limit_holds_queue_behind_a_migration(
    unguarded_postgres_url: str, shop: Earmark, tomorrow: Callable[[str], Migration]
) -> None:
    """The control: PostgreSQL lets no statement pass a waiting ALTER TABLE, though only a report blocks it."""
    step = tomorrow(ADDS_A_COLUMN)
    async with asyncio.TaskGroup() as group, session(unguarded_postgres_url) as looking:
        async with long_report(unguarded_postgres_url) as pid:
            migrating = group.create_task(
                open_and_maintain_databases.migrate(unguarded_postgres_url, patience=WITHOUT_LIMIT)
            )
            [waits] = await blocked_by(looking, pid)
            holding = group.create_task(shop.hold("play", buyer="b", pools={"GA": 1}))
            assert {row["application_name"] for row in await blocked_by(looking, waits["pid"])} == {"earmark"}
            assert not holding.done()
        assert await migrating == [step]
        assert (await holding).state == "held"


async def test_a_migration_that_gets_no_lock_gives_up_and_keeps_nothing(
    unguarded_postgres_url: str, shop: Earmark, tomorrow: Callable[[str], Migration]
) -> None:
    """With the sentence of what was in its way; the next run begins where this one ended."""
    step = tomorrow(f"-- expand\nCREATE TABLE notes (id integer);\n{ADDS_A_COLUMN}")
    async with long_report(unguarded_postgres_url), session(unguarded_postgres_url) as looking:
        with pytest.raises(StoreUnavailable) as gave_up:
            await open_and_maintain_databases.migrate(unguarded_postgres_url, patience=GIVES_UP)
        assert gave_up.value.because.startswith(f"{TOMORROW} waits for a lock")
        assert "gave up after 0 s and kept nothing of it" in gave_up.value.because
        assert await looking.fetchval("SELECT to_regclass('notes')") is None
    assert (await shop.hold("play", buyer="b", pools={"GA": 1})).state == "held"
    assert await open_and_maintain_databases.migrate(unguarded_postgres_url) == [step]


async def test_a_migration_does_not_wait_for_another_one_for_ever(unguarded_postgres_url: str) -> None:
    """The other may hang: the error says so, and no step is begun."""
    async with session(unguarded_postgres_url) as hanging:
        await hanging.execute("SELECT pg_advisory_lock($1)", LOCK)
        with pytest.raises(StoreUnavailable, match="the list of migrations waits for a lock"):
            await open_and_maintain_databases.migrate(unguarded_postgres_url, patience=GIVES_UP)
        assert await hanging.fetchval("SELECT to_regclass('earmark_migrations')") is None


async def test_two_migrations_at_once_apply_each_step_once(unguarded_postgres_url: str) -> None:
    """They take turns, step by step."""
    done = await asyncio.gather(
        *(open_and_maintain_databases.migrate(unguarded_postgres_url, patience=BRIEF) for _ in range(2))
    )
    assert sorted(step.number for steps in done for step in steps) == [step.number for step in KNOWN["postgres"]]


async def test_a_step_that_fails_leaves_those_before_it(
    unguarded_postgres_url: str, tomorrow: Callable[[str], Migration]
) -> None:
    """Each step is whole or not there, and the sentence says which one it was."""
    tomorrow("-- expand\nCREATE TABLE notes (id integer);\nCREATE TABLE (;\n")
    with pytest.raises(SetupError, match=f"Migration {TOMORROW} failed, and nothing of it was kept: syntax error"):
        await open_and_maintain_databases.migrate(unguarded_postgres_url)
    async with session(unguarded_postgres_url) as looking:
        assert await looking.fetchval("SELECT max(number) FROM earmark_migrations") == NUMBER - 1
        assert await looking.fetchval("SELECT to_regclass('notes')") is None


async def test_servers_stay_ready_while_a_step_takes_its_time(
    unguarded_postgres_url: str, shop: Earmark, tomorrow: Callable[[str], Migration]
) -> None:
    """Readiness reads the list of migrations, which a step that waits for its lock does not lock."""
    async with asyncio.TaskGroup() as group, session(unguarded_postgres_url) as looking:
        async with long_report(unguarded_postgres_url) as pid:
            with pytest.MonkeyPatch.context() as only_there:
                step = tomorrow(ADDS_A_COLUMN)
                migrating = group.create_task(
                    open_and_maintain_databases.migrate(unguarded_postgres_url, patience=WITHOUT_LIMIT)
                )
                await blocked_by(looking, pid)
                only_there.setattr(pending_migrations, "migrations", lambda dialect: KNOWN[dialect])
                await asyncio.wait_for(shop.engine.store.check(), FACT_SECONDS_MAX)
                assert not migrating.done()
        assert await migrating == [step]


async def test_a_locked_list_of_migrations_would_keep_servers_from_being_ready(
    unguarded_postgres_url: str, shop: Earmark
) -> None:
    """The control: were the list changed in the step's own transaction, readiness would wait for its end."""
    async with asyncio.TaskGroup() as group, session(unguarded_postgres_url) as looking:
        async with session(unguarded_postgres_url) as step, step.transaction():
            await step.execute("ALTER TABLE earmark_migrations ADD COLUMN more integer")
            checking = group.create_task(shop.engine.store.check())
            await blocked_by(looking, step.get_server_pid())
            assert not checking.done()
        await checking


async def test_a_file_that_another_process_writes_to_is_tried_again(tmp_path: Path) -> None:
    """SQLite has one writer, and lets others wait without a queue."""
    file, told = tmp_path / "shop.db", list[str]()
    url = f"sqlite:////{str(file).lstrip('/')}"
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            await open_and_maintain_databases.migrate(url, patience=GIVES_UP)
        migrating = asyncio.create_task(open_and_maintain_databases.migrate(url, patience=BRIEF, tell=told.append))
        await until(lambda: told)
        assert told[0].startswith("Another process writes to shop.db; trying again in ")
        writer.execute("COMMIT")
        assert await migrating == list(KNOWN["sqlite"])
