"""What the janitor forgets, counts and corrects in SQLite: the one writer is used only when there is work."""

from __future__ import annotations

import sqlite3
from datetime import timedelta

from earmark.engine.ports.clear_keys_count_backlog_recount_pools import Forgetting
from earmark.store.both_databases.clear_keys_count_backlog_recount_pools import (
    FIRST,
    KEYS,
    StoredUpkeep,
    until_not_over,
)


class SqliteUpkeep(StoredUpkeep):
    """One writer: a janitor that counts or walks is alone."""

    refused = sqlite3.IntegrityError
    total_steps = ("make_total", "recount_total")
    pool_steps = ("recount_pool",)

    async def forget_keys(self, *, seconds: float, limit: int, from_start: bool = False) -> Forgetting:
        """A reader looks at the next entry first: mostly its time is not over."""
        before = await self._store.now() - timedelta(seconds=seconds)
        (mark,) = await self._store.read_rows("take_mark", KEYS)
        begin = FIRST if from_start else mark["place"]
        if not until_not_over(await self._store.read_rows("walk_journal", begin, before, 1)):
            return Forgetting()
        return await super().forget_keys(seconds=seconds, limit=limit, from_start=from_start)

    async def find_drifted(self, limit: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """By a reader, while the writer goes on."""
        totals = await self._store.read_rows("find_drifted_totals", limit)
        pools = await self._store.read_rows("find_drifted_pools", max(limit - len(totals), 0))
        return [(row["event_id"], row["buyer"]) for row in totals], [(row["event_id"], row["id"]) for row in pools]
