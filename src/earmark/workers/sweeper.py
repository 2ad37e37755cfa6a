"""The sweeper: ends holds whose time is over, so that counts and lists are right even where nobody looks.

Nothing depends on it. A seat whose hold ran out can be taken at once, swept or not. Any number of sweepers may run:
each passes over the holds that another is ending.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from earmark import logs
from earmark.errors import Outage, RowBusy
from earmark.workers.standing import RoundFailed, described

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from earmark.domain.booking import Booking
    from earmark.engine.engine import Engine

BATCH_SIZE_MAX = 100
"""Small enough that a hold which meets a sweep waits for tens of milliseconds."""
LEAST_SECONDS = 0.05
ROLLBACKS_MAX = 8
"""How many batches may break in one round: enough to find one hold among a hundred by halves."""
RETRY_SECONDS = 30.0
"""How long a hold that could not be ended is passed over before it is tried again."""

log = logs.get()


class Sweeper:
    """An agent around the verb `expire`."""

    name = "sweeper"

    def __init__(
        self,
        engine: Engine,
        *,
        batch_size_max: int = BATCH_SIZE_MAX,
        interval_seconds_max: float = 1.0,
        retry_seconds: float = RETRY_SECONDS,
        swept: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._engine = engine
        self._batch_size_max = batch_size_max
        self._interval_seconds_max = interval_seconds_max
        self._swept = swept
        self._retry_seconds = retry_seconds
        self._limit = batch_size_max
        self._skip = 0
        """How many holds, of those that are due the longest, could not be ended and are passed over."""
        self._broken: Exception | None = None
        """Why the last batch broke, until all due holds were ended without an error."""
        self._retry_at = 0.0
        self._looked_in_vain = 0

    async def act(self) -> float:
        """One batch. At once again while there is more; else sleep until the next hold is due.

        A batch that breaks is narrowed down, with a bounded number of rollbacks in one round.
        """
        for _ in range(ROLLBACKS_MAX):
            try:
                expired = await self._engine.expire(limit=self._limit, skip=self._skip)
            except RowBusy as busy:
                # A locked pool or total of one event: the holds of the others are still due.
                self._narrow_down(busy)
            except Outage:
                raise
            except Exception as broken:  # noqa: BLE001 (whatever it is, the other holds are still due)
                self._narrow_down(broken)
            else:
                return await self._after(expired)
        raise RoundFailed(self._trouble()) from self._broken

    async def _after(self, expired: Sequence[Booking]) -> float:
        """How long to sleep after a batch that went well; a failed round as long as some hold cannot be ended."""
        if expired:
            self._swept(len(expired))
            log.info("expire", outcome="ok", count=len(expired))
        more = len(expired) == self._limit
        self._limit = min(2 * self._limit, self._batch_size_max)
        seconds = 0.0 if more else await self._until_next(ended=bool(expired))
        if not more and not self._skip:
            self._broken = None
        if not more and self._skip and time.monotonic() >= self._retry_at:
            # From the first hold again, one at a time: what broke it may have been repaired.
            self._limit, self._skip = 1, 0
        if self._broken is not None:
            raise RoundFailed(self._trouble(), seconds=seconds) from self._broken
        return seconds

    async def _until_next(self, *, ended: bool) -> float:
        due_in = await self._engine.store.seconds_to_next_due()
        # A newer hold may be due sooner than any known one, so never sleep for long; jitter keeps sweepers apart.
        longest = self._interval_seconds_max * random.uniform(0.8, 1.0)  # noqa: S311 (jitter, not a secret)
        if due_in is None:
            return longest
        if ended or due_in > 0:
            self._looked_in_vain = 0
        if due_in > 0:
            return min(longest, max(due_in, LEAST_SECONDS))
        # What is due and was left is locked by another transaction, or cannot be ended: look again less and less often.
        self._looked_in_vain = min(self._looked_in_vain + 1, 10)
        return min(longest, LEAST_SECONDS * 2.0**self._looked_in_vain)

    def _narrow_down(self, broken: Exception) -> None:
        """A hold that cannot be ended must not keep the others: find it by halves, then step over it.

        Those that were stepped over are the longest due, so they are the first that the next batches pass over.
        """
        self._broken = broken
        if self._limit > 1:
            self._limit //= 2
            return
        if not self._skip:
            self._retry_at = time.monotonic() + self._retry_seconds
        self._skip += 1

    def _trouble(self) -> str:
        assert self._broken is not None
        skipped = f"{self._skip} due holds cannot be ended" if self._skip else "due holds cannot be ended"
        return f"{skipped}; the last error was {described(self._broken)}"
