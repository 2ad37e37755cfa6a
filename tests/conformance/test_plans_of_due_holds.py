"""Whether a pool or a buyer has lapsed holds is found without reading those of other events, on PostgreSQL.

Making room asks it within the transaction that has the pool's row locked.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
import pytest

from earmark.store import load_named_sql
from earmark.store.postgres.session_settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from earmark.testservers import Postgres

SQL = load_named_sql.sql("postgres", "transaction_reads_and_locks.sql")
AS_IT_WAS = {
    "find_buyers_with_due": """
        SELECT r.n FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS r (event_id, buyer, n)
         WHERE ((r.event_id, r.buyer) IN (SELECT b.event_id, b.buyer FROM bookings b
                                           WHERE b.state = 'held' AND b.expires_at <= $1)) IS TRUE""",
    "find_pools_with_due": """
        WITH due AS MATERIALIZED (
            SELECT DISTINCT b.event_id, line ->> 'id' AS id
              FROM bookings b CROSS JOIN LATERAL jsonb_array_elements(b.lines -> 'pools') AS line
             WHERE b.state = 'held' AND b.expires_at <= $1
        )
        SELECT r.n FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS r (event_id, id, n)
         WHERE ((r.event_id, r.id) IN (SELECT due.event_id, due.id FROM due)) IS TRUE""",
}
FILL = """
    SET session_replication_role = replica;
    INSERT INTO bookings (id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at)
    SELECT gen_random_uuid(), CASE WHEN n <= 20000 THEN 'other-' || n % 1000 ELSE 'mine' END,
           CASE WHEN n <= 20000 THEN 'b-' || n ELSE 'mine-' || n - 20000 END, 'live', 'held',
           jsonb_build_object('seats', '[]'::jsonb, 'pools', jsonb_build_array(jsonb_build_object(
               'id', 'P' || n % 20, 'units', 1, 'price', 100))), 100, 'EUR', now(),
           now() + CASE WHEN n <= 20000 THEN interval '-10 minutes' ELSE interval '10 minutes' END
      FROM generate_series(1, 20200) n;
    RESET session_replication_role;
    VACUUM ANALYZE bookings"""
"""20,000 lapsed holds of other events, which no sweeper ended; none of the 200 holds of `mine` has lapsed."""
NAMES = {"find_buyers_with_due": "mine-", "find_pools_with_due": "P"}
BLOCKS_OF_ONE_MAX = 250
"""A pool's question reads the index and the row of each of its event's 200 bookings; a buyer's reads one."""
BLOCKS_OF_ALL_MIN = 400
"""What reading all that is due costs at least."""


@pytest.fixture(scope="module")
def filled_url(postgres_server: Postgres, postgres_template: str) -> Iterator[str]:
    """A database with these holds, for tests that only read."""
    name = f"earmark_due_{os.getpid()}"
    postgres_server.create_database(name, template=postgres_template)
    postgres_server.psql(FILL, database=name)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
async def connection(filled_url: str) -> AsyncIterator[asyncpg.Connection]:
    """With the settings of the store's own."""
    connection = await asyncpg.connect(filled_url, server_settings=SETTINGS)
    yield connection
    await connection.close()


async def explain(connection: asyncpg.Connection, name: str, text: str, *, count: int) -> dict[str, Any]:
    """How so many pools, or buyers, of one event were looked up."""
    await connection.execute(f"PREPARE {name}_{count} (timestamptz, text[], text[]) AS {text}")
    events, names = ["mine"] * count, [f"{NAMES[name]}{n}" for n in range(1, count + 1)]
    arrays = ", ".join(f"'{{{','.join(one)}}}'" for one in (events, names))
    told = await connection.fetchval(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name}_{count} (now(), {arrays})"
    )
    plan: dict[str, Any] = msgspec.json.decode(told)[0]["Plan"]
    return plan


def blocks(plan: dict[str, Any]) -> int:
    """How many were read."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def scans_of_what_is_due(plan: dict[str, Any]) -> Iterator[float]:
    """How often the index of all lapsed holds was read, for each place in the plan that does."""
    if plan.get("Index Name") == "bookings_due":
        yield plan["Actual Loops"]
    for part in plan.get("Plans", []):
        yield from scans_of_what_is_due(part)


@pytest.mark.parametrize("name", NAMES)
async def test_what_is_due_in_other_events_is_not_read(connection: asyncpg.Connection, name: str) -> None:
    """Neither for one pool or buyer, nor for many: and each event is read once for all its pools."""
    one = await explain(connection, name, SQL[name], count=1)
    assert blocks(one) <= BLOCKS_OF_ONE_MAX
    many = await explain(connection, name, SQL[name], count=20)
    assert blocks(many) <= BLOCKS_OF_ONE_MAX
    assert [*scans_of_what_is_due(one), *scans_of_what_is_due(many)] == []


@pytest.mark.parametrize("name", NAMES)
async def test_control_as_it_was_all_that_is_due_was_read(connection: asyncpg.Connection, name: str) -> None:
    """For one pool or buyer too."""
    plan = await explain(connection, name, AS_IT_WAS[name], count=1)
    assert blocks(plan) >= BLOCKS_OF_ALL_MIN
    assert list(scans_of_what_is_due(plan)) == [1]


@pytest.mark.parametrize("name", NAMES)
async def test_a_plan_made_on_an_empty_table_reads_what_is_due_once(postgres_url: str, name: str) -> None:
    """PostgreSQL keeps such a plan until the table is analyzed: not once for each pool or buyer."""
    connection = await asyncpg.connect(postgres_url, server_settings=SETTINGS)
    await explain(connection, name, SQL[name], count=20)
    for part in FILL.split(";")[:-1]:
        await connection.execute(part)
    events, names = ",".join(["mine"] * 20), ",".join(f"{NAMES[name]}{n}" for n in range(1, 21))
    told = await connection.fetchval(
        f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {name}_20 (now(), '{{{events}}}', '{{{names}}}')"
    )
    assert sum(scans_of_what_is_due(msgspec.json.decode(told)[0]["Plan"])) <= 1
    await connection.close()
