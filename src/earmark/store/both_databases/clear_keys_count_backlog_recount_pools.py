"""What the janitor forgets, counts and corrects in either database, in short transactions, each by itself."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from earmark.engine.ports.clear_keys_count_backlog_recount_pools import BACKLOG_COUNTED_MAX, Backlog, Forgetting, Holds
from earmark.store.both_databases.named_statement_runner_protocols import SECONDS_MAX, execute_alone, from_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.domain.live_or_test_mode import Mode
    from earmark.store.both_databases.named_statement_runner_protocols import StatementStore, StatementTransaction

KEYS = "keys"
FIRST = UUID(int=0)
RECOUNT_SECONDS_MAX = 60.0


class StoredUpkeep(ABC):
    """What the janitor does in a store."""

    refused: type[Exception]
    """What the database raises when a count would break a limit."""
    total_steps: tuple[str, ...]
    """The statements that count one buyer's total anew."""
    pool_steps: tuple[str, ...]
    """The statements that count one pool anew."""

    def __init__(self, store: StatementStore) -> None:
        self._store = store

    async def forget_keys(self, *, seconds: float, limit: int, from_start: bool = False) -> Forgetting:
        """Walk on from the mark, which is locked, so that no two janitors walk at once."""

        async def work(transaction: StatementTransaction) -> Forgetting:
            before = (await transaction.begin([])).now - timedelta(seconds=seconds)
            marks = await transaction.fetch("take_mark", KEYS)
            if not marks:
                return Forgetting()
            mark = marks[0]["place"]
            found = await transaction.fetch("walk_journal", FIRST if from_start else mark, before, limit)
            over = until_not_over(found)
            if not over:
                return Forgetting()
            keyed = [row["id"] for row in over if row["keyed"]]
            if keyed:
                await transaction.execute("clear_keys", keyed)
            await transaction.execute("move_mark", KEYS, max(mark, over[-1]["id"]))
            return Forgetting(cleared=len(keyed), more=len(over) == limit)

        return await self._store.transact(work, within=SECONDS_MAX)

    async def forget_payment_keys(self, *, seconds: float, limit: int) -> int:
        """Remove which requests opened payments, the oldest first."""
        before = await self._store.now() - timedelta(seconds=seconds)
        return await execute_alone(self._store, "forget_payment_keys", before, limit)

    async def forget_payers(self, *, seconds: float, limit: int) -> int:
        """By their last try."""
        before = await self._store.now() - timedelta(seconds=seconds)
        return await execute_alone(self._store, "forget_payers", before, limit)

    async def backlog(self) -> Backlog:
        """By the indexes of the sweeper and the relay."""
        now = await self._store.now()
        (due,) = await self._store.read_rows("count_due", now, BACKLOG_COUNTED_MAX)
        (unsent,) = await self._store.read_rows("count_unsent", BACKLOG_COUNTED_MAX)
        return from_row(due, Backlog, now=now, **dict(unsent))

    async def holds(self, *, mode: Mode, limit: int) -> Holds:
        """By the index of the sweeper."""
        now = await self._store.now()
        (found,) = await self._store.read_rows("count_holds", now, mode, limit)
        return from_row(found, Holds, now=now)

    async def recount(self, *, limit: int) -> int:
        """One count per transaction: no other verb waits for more than one."""
        totals, pools = await self.find_drifted(limit)
        corrected = 0
        for ref in totals:
            corrected += await self._recount(self.total_steps, ref)
        for ref in pools:
            corrected += await self._recount(self.pool_steps, ref)
        return corrected

    @abstractmethod
    async def find_drifted(self, limit: int) -> tuple[Sequence[tuple[str, str]], Sequence[tuple[str, str]]]:
        """The totals and the pools that do not count what bookings have."""

    async def _recount(self, steps: Sequence[str], ref: tuple[str, str]) -> bool:
        async def work(transaction: StatementTransaction) -> bool:
            changed = 0
            for name in steps:
                changed = await transaction.execute(name, *ref)
            transaction.wrote = changed > 0
            return changed > 0

        with contextlib.suppress(self.refused):
            return await self._store.transact(work, within=RECOUNT_SECONDS_MAX)
        return False


def until_not_over(found: list[Any]) -> list[Any]:
    """Entries up to the first whose time is not over: the walk stops in front of that one."""
    for place, row in enumerate(found):
        if not row["over"]:
            return found[:place]
    return found
