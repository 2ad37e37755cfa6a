"""Statements that stay prepared on a connection, while tables change underneath."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from earmark.store.postgres.connections import PostgresConnections
from earmark.store.postgres.driver_errors import SILENT
from earmark.store.postgres.optimistic_transaction_connections import IdleConnections, PreparedConnection

from .commands import a_confirm, a_hold
from .support import SQL, granted, in_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .support import RaceDatabase

QUERY = "SELECT * FROM mine"
ON_CONNECTION = "SELECT statement FROM pg_prepared_statements WHERE statement = $1"


class StaleStatement:
    """A statement whose tables have changed since it was prepared."""

    async def fetch(self, *_: object, timeout: float) -> list[Any]:  # noqa: ASYNC109
        """Fails as PostgreSQL does, before anything is done."""
        raise asyncpg.InvalidCachedStatementError(f"cached plan must not change result type ({timeout})")


def in_seconds(seconds: float) -> float:
    """By the clock of the event loop."""
    return asyncio.get_running_loop().time() + seconds


@pytest.fixture
async def pool(postgres_url: str) -> AsyncIterator[PostgresConnections]:
    """Two connections."""
    connections = PostgresConnections(postgres_url, connections_max=2)
    await connections.open()
    yield connections
    await connections.pool.close()


async def test_a_statement_is_prepared_once_for_each_connection(pool: Any) -> None:
    """However often it is called."""
    idle = IdleConnections(pool)
    async with idle.connection(until=in_seconds(5)) as connection:
        for number in range(3):
            assert await connection.fetch("SELECT $1::int", number) == [(number,)]
        assert len(await connection.bare.fetch(ON_CONNECTION, "SELECT $1::int")) == 1
    await idle.close()


async def test_a_statement_whose_tables_changed_fails_once(pool: Any) -> None:
    """The error is raised, so that the optimistic write is decided anew; and then the statement is prepared anew."""
    async with pool.borrow() as bare:
        await bare.execute("CREATE TEMP TABLE mine (a int)")
        await bare.execute("INSERT INTO mine VALUES (1)")
        connection = PreparedConnection(bare)
        assert await connection.fetch(QUERY) == [(1,)]
        await bare.execute("ALTER TABLE mine ADD COLUMN b int")
        with pytest.raises(asyncpg.InvalidCachedStatementError):
            await connection.fetch(QUERY)
        assert await connection.fetch(QUERY) == [(1, None)]


async def test_a_statement_that_fails_is_as_good_as_before(pool: Any) -> None:
    """A refusal of the database says nothing about the statement."""
    async with pool.borrow() as bare:
        connection = PreparedConnection(bare)
        for _ in range(2):
            with pytest.raises(asyncpg.DivisionByZeroError):
                await connection.fetch("SELECT 1 / $1::int", 0)
            assert await connection.fetch("SELECT 1 / $1::int", 1) == [(1,)]


async def test_a_call_that_takes_too_long_is_cut_by_the_loans_own_timer(pool: Any) -> None:
    """There is no other."""
    idle = IdleConnections(pool)

    async def delay() -> None:
        async with idle.connection(until=in_seconds(0.1)) as connection:
            await connection.fetch("SELECT pg_sleep(60)")

    with pytest.raises(SILENT):
        await in_time(delay())
    assert idle.waiting == []
    async with asyncio.timeout(5), idle.connection(until=in_seconds(5)) as another:
        assert await another.fetch("SELECT 1") == [(1,)]
    await idle.close()


async def test_optimistic_writes_go_on_after_their_tables_changed(database: RaceDatabase) -> None:
    """The buyer does not notice."""
    server = await database.server(drafts=True)
    server.store.tries_again = 2
    held = granted(await server.submit(a_hold("A1")).outcome())
    (connection,) = server.store._idle.waiting
    connection._statements = dict.fromkeys(SQL.values(), StaleStatement())
    server.store.ran.clear()
    assert granted(await server.submit(a_confirm(held)).outcome()).state == "confirmed"
    assert server.store.ran == ["look", "look"]
