"""A PostgreSQL database that a test has left is given to another test: emptied, and as if it were new."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:
    from earmark.testservers import Postgres

KNOWN = """
SELECT relname, relpages, reltuples, relallvisible FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i') ORDER BY relname
"""
COLUMNS = "SELECT count(*) FROM pg_stats WHERE schemaname = 'public'"


async def test_what_a_test_has_analysed_gives_no_later_test_another_plan(
    postgres_server: Postgres, postgres_template: str, postgres_url: str, empty_database: str
) -> None:
    """By statistics of rows that are gone the planner would choose other plans. The control: it had them before."""
    template = await asyncpg.connect(postgres_server.url(postgres_template))
    new = await template.fetch(KNOWN)
    await template.close()
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("VACUUM ANALYZE")
    assert await connection.fetch(KNOWN) != new
    assert await connection.fetchval(COLUMNS) > 0

    await connection.execute(empty_database)

    assert await connection.fetch(KNOWN) == new
    assert await connection.fetchval(COLUMNS) == 0
    await connection.close()
