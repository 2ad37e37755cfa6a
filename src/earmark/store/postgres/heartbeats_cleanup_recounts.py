"""Heartbeats and maintenance in PostgreSQL, by the database's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg

from earmark.store.both_databases.heartbeats_cleanup_recounts import RECOUNT_SECONDS_MAX, StoredBeats, StoredUpkeep
from earmark.store.postgres import convert_rows_and_values
from earmark.store.postgres.session_settings import ANY_PLAN

if TYPE_CHECKING:
    from collections.abc import Collection

    from earmark.engine.ports.heartbeats import HeartbeatReport, Process
    from earmark.engine.ports.store import Clock
    from earmark.store.both_databases.named_statement_runner_protocols import StatementStore


class PostgresBeats(StoredBeats):
    """All roles of a process in one statement."""

    def __init__(self, store: StatementStore, *, clock: Clock) -> None:
        super().__init__(store)
        self._clock = clock

    async def write(self, process: Process, reports: Collection[HeartbeatReport]) -> None:
        """By the database's clock."""
        said = sorted((report.role, report.written, report.rounds) for report in reports)
        head = (process.id, process.host, process.version, self._clock.offset)
        await self._store.read_rows("tell_beats", *head, *convert_rows_and_values.columns(said, width=3))


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
