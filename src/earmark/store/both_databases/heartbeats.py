"""Writes, lists and clears the heartbeats of workers in either database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING

from earmark.engine.ports.heartbeats import HeartbeatList, HeartbeatRow
from earmark.store.both_databases.named_statement_runner_protocols import execute_alone, from_row

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from earmark.engine.ports.heartbeats import HeartbeatReport, Process
    from earmark.store.both_databases.named_statement_runner_protocols import StatementStore


class StoredBeats(ABC):
    """The heartbeats: one row for each role of each process."""

    def __init__(self, store: StatementStore) -> None:
        self._store = store

    @abstractmethod
    async def write(self, process: Process, reports: Collection[HeartbeatReport]) -> None:
        """Write how the roles of a process are."""

    async def leave(self, process_id: UUID) -> None:
        """Remove the rows of a process that stops."""
        await execute_alone(self._store, "leave_beats", process_id)

    async def read(self, *, limit: int) -> HeartbeatList:
        """A handful of rows."""
        now = await self._store.now()
        return HeartbeatList(
            now=now,
            heartbeats=[from_row(row, HeartbeatRow) for row in await self._store.read_rows("read_beats", limit)],
        )

    async def clear(self, *, seconds: float, limit: int) -> int:
        """A handful of rows."""
        before = await self._store.now() - timedelta(seconds=seconds)
        return await execute_alone(self._store, "clear_beats", before, limit)
