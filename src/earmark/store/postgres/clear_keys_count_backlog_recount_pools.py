"""What the janitor forgets, counts and corrects in PostgreSQL: each count under the lock of its row."""

from __future__ import annotations

from typing import Any

import asyncpg

from earmark.store.both_databases.clear_keys_count_backlog_recount_pools import RECOUNT_SECONDS_MAX, StoredUpkeep
from earmark.store.postgres.session_settings import ANY_PLAN


class PostgresUpkeep(StoredUpkeep):
    """Each count under the lock of its row."""

    refused = asyncpg.CheckViolationError
    total_steps = ("lock_total_alone", "recount_total")
    pool_steps = ("lock_pool_alone", "recount_pool")

    async def find_drifted(self, limit: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """In one transaction, which reads whole tables."""

        async def work(transaction: Any) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
            await transaction.connection.execute(ANY_PLAN)
            totals = await transaction.fetch("find_drifted_totals", limit)
            pools = await transaction.fetch("find_drifted_pools", max(limit - len(totals), 0))
            return [tuple(row) for row in totals], [tuple(row) for row in pools]

        return await self._store.transact(work, within=RECOUNT_SECONDS_MAX)
