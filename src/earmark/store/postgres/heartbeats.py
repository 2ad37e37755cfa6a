"""Writes the heartbeats of workers to PostgreSQL, by the database's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.store.both_databases.heartbeats import StoredBeats
from earmark.store.postgres import convert_rows_and_values

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
