"""Heartbeats and upkeep in SQLite: a reader looks first, so that the writer is asked only when there is work."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from earmark.engine.ports.heartbeats import HeartbeatList, HeartbeatRow
from earmark.engine.ports.maintenance import BACKLOG_COUNTED_MAX, Backlog, Forgetting, Holds
from earmark.store import queries
from earmark.store.sqlite import rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from earmark.engine.ports.heartbeats import HeartbeatReport, Process
    from earmark.engine.ports.store import Clock

KEYS = "keys"
FIRST = str(UUID(int=0))
SECONDS_MAX = 10.0
RECOUNT_SECONDS_MAX = 60.0


class _Part:
    """Writing in the writer's thread, reading in a reader's."""

    def __init__(
        self, transact: Callable[..., Awaitable[Any]], *, look: Callable[..., Awaitable[Any]], clock: Clock
    ) -> None:
        self._transact = transact
        self._look = look
        self._clock = clock
        self._sql = queries.sql("sqlite", "upkeep.sql")

    async def _fetch(self, name: str, *arguments: object, within: float = SECONDS_MAX) -> list[Any]:
        def look(connection: sqlite3.Connection) -> list[Any]:
            return connection.execute(self._sql[name], arguments).fetchall()

        found: list[Any] = await self._look(look, within=within)
        return found

    async def _write(self, *statements: tuple[str, tuple[object, ...]]) -> int:
        """All of them in one transaction; how many rows that were."""

        async def work(transaction: Any) -> int:
            execute = transaction._connection.execute  # noqa: SLF001 (the store's own transaction)
            changed = sum(execute(self._sql[name], arguments).rowcount for name, arguments in statements)
            transaction.wrote = changed > 0
            return int(changed)

        written: int = await self._transact(work, within=SECONDS_MAX)
        return written


class SqliteBeats(_Part):
    """By this process's clock: all who write here are on one machine."""

    async def write(self, process: Process, reports: Collection[HeartbeatReport]) -> None:
        """One short transaction."""
        now = rows.to_moment(self._clock.now())
        head = (process.host, process.version, now)
        said = [(str(process.id), report.role, *head, report.written, report.rounds) for report in reports]
        await self._write(*(("tell_beats", row) for row in said))

    async def leave(self, process_id: UUID) -> None:
        """By primary key."""
        await self._write(("leave_beats", (str(process_id),)))

    async def read(self, *, limit: int) -> HeartbeatList:
        """A handful of rows."""
        return HeartbeatList(
            now=self._clock.now(), heartbeats=[_beat(row) for row in await self._fetch("read_beats", limit)]
        )

    async def clear(self, *, seconds: float, limit: int) -> int:
        """A handful of rows."""
        before = rows.to_moment(self._clock.now() - timedelta(seconds=seconds))
        return await self._write(("clear_beats", (before, limit)))


class SqliteUpkeep(_Part):
    """One writer: whoever counts or walks is alone."""

    async def forget_keys(self, *, seconds: float, limit: int, from_start: bool = False) -> Forgetting:
        """A reader looks at the next entry first: mostly its time is not over."""
        before = rows.to_moment(self._clock.now() - timedelta(seconds=seconds))
        (mark,) = (await self._fetch("take_mark", KEYS))[0]
        if not _until_not_over(await self._fetch("walk_journal", FIRST if from_start else mark, before, 1)):
            return Forgetting()

        async def work(transaction: Any) -> Forgetting:
            execute = transaction._connection.execute  # noqa: SLF001 (the store's own transaction)
            (mark,) = execute(self._sql["take_mark"], (KEYS,)).fetchone()
            begin = FIRST if from_start else mark
            over = _until_not_over(execute(self._sql["walk_journal"], (begin, before, limit)).fetchall())
            if not over:
                return Forgetting()
            keyed = [row["id"] for row in over if row["keyed"]]
            execute(self._sql["clear_keys"], (rows.to_json(keyed),))
            execute(self._sql["move_mark"], (KEYS, max(mark, over[-1]["id"])))
            transaction.wrote = True
            return Forgetting(cleared=len(keyed), more=len(over) == limit)

        forgetting: Forgetting = await self._transact(work, within=SECONDS_MAX)
        return forgetting

    async def forget_payment_keys(self, *, seconds: float, limit: int) -> int:
        """By their age."""
        before = rows.to_moment(self._clock.now() - timedelta(seconds=seconds))
        return await self._write(("forget_payment_keys", (before, limit)))

    async def forget_payers(self, *, seconds: float, limit: int) -> int:
        """By their last try."""
        before = rows.to_moment(self._clock.now() - timedelta(seconds=seconds))
        return await self._write(("forget_payers", (before, limit)))

    async def backlog(self) -> Backlog:
        """By the indexes of the sweeper and the relay."""
        now = self._clock.now()
        (due,) = await self._fetch("count_due", rows.to_moment(now), BACKLOG_COUNTED_MAX)
        (unsent,) = await self._fetch("count_unsent", BACKLOG_COUNTED_MAX)
        return Backlog(
            now=now,
            due=due["due"],
            due_since=rows.moment_or_none(due["due_since"]),
            unsent=unsent["unsent"],
            unsent_since=rows.moment_or_none(unsent["unsent_since"]),
        )

    async def holds(self, *, live: bool, limit: int) -> Holds:
        """By the index of the sweeper."""
        now = self._clock.now()
        (found,) = await self._fetch("count_holds", rows.to_moment(now), live, limit)
        moments = {name: rows.moment_or_none(found[name]) for name in ("next_at", "due_since")}
        return Holds(now=now, held=found["held"], due=found["due"], **moments)

    async def recount(self, *, limit: int) -> int:
        """One count per transaction, so that those who book wait for one."""
        totals = await self._fetch("find_drifted_totals", limit, within=RECOUNT_SECONDS_MAX)
        left = max(limit - len(totals), 0)
        pools = await self._fetch("find_drifted_pools", left, within=RECOUNT_SECONDS_MAX)
        set_ = 0
        for ref in map(tuple, totals):
            set_ += await self._recount(("make_total", ref), ("recount_total", ref))
        for ref in map(tuple, pools):
            set_ += await self._recount(("recount_pool", ref))
        return set_

    async def _recount(self, *statements: tuple[str, tuple[object, ...]]) -> bool:
        with contextlib.suppress(sqlite3.IntegrityError):
            return await self._write(*statements) > 0
        return False


def _until_not_over(found: list[Any]) -> list[Any]:
    """Entries up to the first whose time is not over: behind that one the walk goes on another day."""
    for place, row in enumerate(found):
        if not row["over"]:
            return found[:place]
    return found


def _beat(row: sqlite3.Row) -> HeartbeatRow:
    typed = {"process_id": UUID(row["process_id"])}
    moments = {name: rows.moment(row[name]) for name in ("started_at", "beat_at")}
    return HeartbeatRow(**dict(row) | typed | moments)
