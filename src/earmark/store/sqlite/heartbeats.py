"""Writes the heartbeats of workers to SQLite, by this process's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.store.both_databases.heartbeats import StoredBeats
from earmark.store.both_databases.named_statement_runner_protocols import SECONDS_MAX

if TYPE_CHECKING:
    from collections.abc import Collection

    from earmark.engine.ports.heartbeats import HeartbeatReport, Process


class SqliteBeats(StoredBeats):
    """By this process's clock: all processes that write to a file are on one machine."""

    async def write(self, process: Process, reports: Collection[HeartbeatReport]) -> None:
        """Write all roles of the process in one short transaction."""
        head = (process.host, process.version, await self._store.now())

        async def work(transaction: Any) -> None:
            for report in reports:
                await transaction.execute("tell_beats", process.id, report.role, *head, report.written, report.rounds)

        await self._store.transact(work, within=SECONDS_MAX)
