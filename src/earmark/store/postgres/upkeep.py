"""Heartbeats and upkeep in PostgreSQL: short statements, each under locks of its own."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg

from earmark.engine.ports.heartbeats import HeartbeatList, HeartbeatRow
from earmark.engine.ports.maintenance import BACKLOG_COUNTED_MAX, Backlog, Forgetting, Holds
from earmark.store import queries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from earmark.engine.ports.heartbeats import HeartbeatReport, Process
    from earmark.engine.ports.store import Clock

KEYS = "keys"
FIRST = UUID(int=0)
SECONDS_MAX = 10.0
RECOUNT_SECONDS_MAX = 60.0
RESTRAINED = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "enable_bitmapscan", "enable_material")
"""What a plan on the way of a booking does without."""
# What reads whole tables may plan as it likes.
ANY_PLAN = "; ".join(
    [*(f"SET LOCAL {name} = on" for name in RESTRAINED), "SET LOCAL max_parallel_workers_per_gather = 2"]
)


class PostgresBeats:
    """Single statements over the store's connections."""

    def __init__(self, read: Callable[..., Awaitable[list[Any]]], *, clock: Clock) -> None:
        self._read = read
        self._clock = clock

    async def write(self, process: Process, reports: Collection[HeartbeatReport]) -> None:
        """By the database's clock."""
        said = sorted((report.role, report.written, report.rounds) for report in reports)
        columns = [list(column) for column in zip(*said, strict=True)] or [[], [], []]
        await self._read("tell_beats", process.id, process.host, process.version, self._clock.offset, *columns)

    async def leave(self, process_id: UUID) -> None:
        """By primary key."""
        await self._read("leave_beats", process_id)

    async def read(self, *, limit: int) -> HeartbeatList:
        """A handful of rows."""
        now = (await self._read("begin", self._clock.offset))[0][0]
        return HeartbeatList(now=now, heartbeats=[HeartbeatRow(**row) for row in await self._read("read_beats", limit)])

    async def clear(self, *, seconds: float, limit: int) -> int:
        """A handful of rows."""
        now = (await self._read("begin", self._clock.offset))[0][0]
        return len(await self._read("clear_beats", now - timedelta(seconds=seconds), limit))


class PostgresUpkeep:
    """In transactions of the store."""

    def __init__(
        self,
        transact: Callable[..., Awaitable[Any]],
        *,
        read: Callable[..., Awaitable[list[Any]]],
        clock: Clock,
    ) -> None:
        self._transact = transact
        self._read = read
        self._clock = clock
        self._sql = queries.sql("postgres", "upkeep.sql")

    async def forget_keys(self, *, seconds: float, limit: int, from_start: bool = False) -> Forgetting:
        """Under the lock of the mark, so that what one walk gives up no other has passed."""

        async def work(transaction: Any) -> Forgetting:
            connection, sql = transaction._connection, self._sql  # noqa: SLF001 (the store's own transaction)
            opening = await transaction.begin([])
            mark = await connection.fetchval(sql["take_mark"], KEYS)
            if mark is None:
                return Forgetting()
            before = opening.now - timedelta(seconds=seconds)
            found = await connection.fetch(sql["walk_journal"], FIRST if from_start else mark, before, limit)
            over = _until_not_over(found)
            if not over:
                return Forgetting()
            keyed = [row["id"] for row in over if row["keyed"]]
            if keyed:
                await connection.execute(sql["clear_keys"], keyed)
            await connection.execute(sql["move_mark"], KEYS, max(mark, over[-1]["id"]))
            transaction.wrote = True
            return Forgetting(cleared=len(keyed), more=len(over) == limit)

        forgetting: Forgetting = await self._transact(work, within=SECONDS_MAX)
        return forgetting

    async def forget_payment_keys(self, *, seconds: float, limit: int) -> int:
        """By their age."""
        return await self._forget("forget_payment_keys", seconds=seconds, limit=limit)

    async def forget_payers(self, *, seconds: float, limit: int) -> int:
        """By their last try."""
        return await self._forget("forget_payers", seconds=seconds, limit=limit)

    async def _forget(self, name: str, *, seconds: float, limit: int) -> int:
        async def work(transaction: Any) -> int:
            opening = await transaction.begin([])
            connection = transaction._connection  # noqa: SLF001 (the store's own transaction)
            gone = await connection.fetch(self._sql[name], opening.now - timedelta(seconds=seconds), limit)
            transaction.wrote = bool(gone)
            return len(gone)

        forgot: int = await self._transact(work, within=SECONDS_MAX)
        return forgot

    async def backlog(self) -> Backlog:
        """By the indexes of the sweeper and the relay."""
        now = (await self._read("begin", self._clock.offset))[0][0]
        due = (await self._read("count_due", now, BACKLOG_COUNTED_MAX))[0]
        return Backlog(now=now, **due, **(await self._read("count_unsent", BACKLOG_COUNTED_MAX))[0])

    async def holds(self, *, live: bool, limit: int) -> Holds:
        """By the index of the sweeper."""
        now = (await self._read("begin", self._clock.offset))[0][0]
        return Holds(now=now, **(await self._read("count_holds", now, live, limit))[0])

    async def recount(self, *, limit: int) -> int:
        """One count per transaction: none is held while another is waited for."""
        totals, pools = await self._drifted(limit)
        set_ = 0
        for ref in totals:
            set_ += await self._recount("lock_total_alone", "recount_total", ref)
        for ref in pools:
            set_ += await self._recount("lock_pool_alone", "recount_pool", ref)
        return set_

    async def _drifted(self, limit: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        async def work(transaction: Any) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
            connection = transaction._connection  # noqa: SLF001 (the store's own transaction)
            await connection.execute(ANY_PLAN)
            totals = await connection.fetch(self._sql["find_drifted_totals"], limit)
            pools = await connection.fetch(self._sql["find_drifted_pools"], max(limit - len(totals), 0))
            return [tuple(row) for row in totals], [tuple(row) for row in pools]

        found: tuple[list[tuple[str, str]], list[tuple[str, str]]]
        found = await self._transact(work, within=RECOUNT_SECONDS_MAX)
        return found

    async def _recount(self, lock: str, count: str, ref: tuple[str, str]) -> bool:
        async def work(transaction: Any) -> bool:
            connection = transaction._connection  # noqa: SLF001 (the store's own transaction)
            await connection.execute(self._sql[lock], *ref)
            moved = await connection.fetch(self._sql[count], *ref)
            transaction.wrote = bool(moved)
            return bool(moved)

        with contextlib.suppress(asyncpg.CheckViolationError):
            counted: bool = await self._transact(work, within=RECOUNT_SECONDS_MAX)
            return counted
        return False


def _until_not_over(found: list[Any]) -> list[Any]:
    """Entries up to the first whose time is not over: behind that one the walk goes on another day."""
    for place, row in enumerate(found):
        if not row["over"]:
            return found[:place]
    return found
