"""The queries of webhook workers and relays stay quick on PostgreSQL, however long the queue and the log are."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
from tests.webhooks.conftest import PLAY, log, now_of, open_play, subscribe

from earmark.store import load_named_sql
from earmark.store.postgres.session_settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.store.postgres import PostgresStore
    from earmark.uuids import Uuid7Ids

SQL = load_named_sql.sql("postgres", "webhooks.sql")
FILL = """
INSERT INTO deliveries (id, webhook_id, entry_id, type, body, created_at, due_at, state, ended_at)
SELECT gen_random_uuid(), $1::uuid, gen_random_uuid(), 'booking.held', 'x', $2::timestamptz, $2, $3::text,
       CASE WHEN $3 <> 'pending' THEN $2 END
  FROM generate_series(1, 2000)
"""
ASKED = {
    "claim_deliveries": (
        "timestamptz, uuid[], boolean, bigint, bigint, interval",
        "now() + interval '1 day', '{}', false, 10, 10, '1 minute'",
    ),
    "prune_deliveries": ("timestamptz, bigint", "now() + interval '1 day', 10"),
    "count_waiting": ("text, bigint", "'live', 10"),
    "find_wanted": ("text[]", f"ARRAY['{PLAY}']"),
}


async def test_the_plans_stop_at_the_limit(postgres_store: PostgresStore, postgres_url: str, ids: Uuid7Ids) -> None:
    """Neither a long queue nor a long log is scanned, though the plans were made when both were empty."""
    await open_play(postgres_store, ids)
    connection = await asyncpg.connect(postgres_url, server_settings=SETTINGS)
    for name, (types, _) in ASKED.items():
        await connection.execute(f"PREPARE {name} ({types}) AS {SQL[name]}")
    webhook = await subscribe(postgres_store, "https://shop.example/")
    for state in ("pending", "delivered"):
        await connection.execute(FILL, webhook.id, await now_of(postgres_store) - timedelta(hours=1), state)
    assert len(await log(postgres_store, webhook)) == 4000
    for name, (_, given) in ASKED.items():
        explained = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {name} ({given})")
        assert max(_touched(msgspec.json.decode(explained)[0]["Plan"])) < 100, explained
    await connection.close()


def _touched(plan: dict[str, Any]) -> Iterator[float]:
    """How many rows each step of a plan has looked at."""
    removed = sum(value for name, value in plan.items() if name.startswith("Rows Removed"))
    yield plan["Actual Loops"] * (plan["Actual Rows"] + removed)
    for part in plan.get("Plans", []):
        yield from _touched(part)
