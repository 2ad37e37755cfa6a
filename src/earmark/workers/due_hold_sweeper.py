"""The sweeper: expires due holds, so that counts and lists are right even for events without requests.

Nothing depends on it. A seat whose hold ran out can be taken at once, swept or not. Any number of sweepers may run:
each passes over the holds that another is ending.
"""

from __future__ import annotations

import math
import random
import time
from typing import TYPE_CHECKING

from earmark.errors import Outage, RowBusy
from earmark.observability import logs
from earmark.workers.failed_rounds import RoundFailed, described

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
BUSY_RETRY_SECONDS = (1.0, 2.0)
"""The same, between these two, where a row was locked: that ends by itself, and soon."""
BUSY_RETRIES_MAX = 4
"""How many of the holds that are passed over are tried each time: each may cost a wait for a lock."""

log = logs.get()


class Skip:
    """How many of the longest-due holds are passed over.

    They are those that could not be ended, and neighbours that were not tried. A locked pool may have a thousand due
    holds in a row. Steps over them double, until a hold can be ended or none is left; then the last step is halved,
    until the first hold behind them is found.
    """

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self._stuck_at = count - 1
        """The last hold that could not be ended, by its place in the list."""
        self._behind: int | None = None
        """While the last step is halved: the first place that is known to be behind them."""
        self._step = 1

    def step_over(self, *, busy: bool) -> None:
        """The hold at this place could not be ended; its neighbours probably neither, if a row was busy."""
        self._stuck_at = self.count
        if not busy:
            self.count += 1
            self._settle()
        elif self._behind is None:
            # Not always the same places, or holds of other events between them would never be tried.
            self.count += random.randint((self._step + 1) // 2, self._step)  # noqa: S311 (jitter, not a secret)
            self._step *= 2
        else:
            self._halve(self._behind)

    def step_back(self) -> bool:
        """The hold at this place was ended, or there is none.

        Go back if holds before this place were not tried; return whether it went back.
        """
        if self.count - self._stuck_at > 1:
            self._halve(self.count)
            return True
        self._settle()
        return False

    def _halve(self, behind: int) -> None:
        self._behind = behind
        self.count = (self._stuck_at + behind + 1) // 2
        if self.count == behind:
            self._settle()

    def _settle(self) -> None:
        self._behind, self._step, self._stuck_at = None, 1, self.count - 1


class Sweeper:
    """A worker that runs the verb `expire`."""

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
        self._skip = Skip()
        self._skip_aside: Skip | None = None
        """What is passed over, while a few of those holds are tried again."""
        self._retried = 0
        """How many were tried so far; it says whose turn is next, for holds of other events may be among them."""
        self._broken: Exception | None = None
        """Why the last batch broke, until all due holds were ended without an error."""
        self._retry_at = 0.0
        """When all that is passed over is tried again, from the first hold on."""
        self._retry_busy_at = math.inf
        """When a few (`BUSY_RETRIES_MAX`) of those holds are tried again, because a row was busy."""
        self._looked_in_vain = 0

    async def act(self) -> float:
        """Expire one batch. Run again at once while there is more; else when the next hold is due.

        A batch that breaks is narrowed down, with a bounded number of rollbacks in one round.
        """
        for _ in range(ROLLBACKS_MAX):
            try:
                expired = await self._engine.expire(limit=self._limit, skip=self._skip.count)
            except RowBusy as busy:
                # A locked pool or total of one event: the holds of the others are still due.
                self._narrow_down(busy)
            except Outage:
                raise
            except Exception as broken:  # noqa: BLE001 (the other holds are still due)
                self._narrow_down(broken)
            else:
                return await self._after(expired)
        raise RoundFailed(self._trouble()) from self._broken

    async def _after(self, expired: Sequence[Booking]) -> float:
        """Return how long to sleep after a batch that succeeded; raise while some hold cannot be ended."""
        if expired:
            self._swept(len(expired))
            log.info("expire", outcome="ok", count=len(expired))
        more = len(expired) == self._limit
        if self._skip_aside is not None:
            # What was passed over can be ended again, or some of it: from the first hold on.
            self._skip, self._skip_aside, more = Skip(), None, True
        elif self._skip.step_back():
            more = True
        else:
            self._limit = min(2 * self._limit, self._batch_size_max)
        seconds = 0.0 if more else await self._until_next(ended=bool(expired))
        if not more and not self._skip.count:
            self._broken = None
        if not more and self._skip.count:
            self._try_again()
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
        busy, now = isinstance(broken, RowBusy), time.monotonic()
        if busy or self._skip_aside is not None:
            self._retry_busy_at = now + random.uniform(*BUSY_RETRY_SECONDS)  # noqa: S311 (jitter, not a secret)
        if self._skip_aside is not None:
            self._retried += 1
            if self._retried % BUSY_RETRIES_MAX:
                self._skip = Skip(self._retried % self._skip_aside.count)
            else:
                self._skip, self._skip_aside = self._skip_aside, None
            return
        if not self._skip.count:
            self._retry_at = now + self._retry_seconds
        self._skip.step_over(busy=busy)

    def _try_again(self) -> None:
        """Retry the skipped holds once it is time: what broke them may be repaired, or the lock released."""
        now = time.monotonic()
        if now >= self._retry_at:
            self._limit, self._skip, self._retry_busy_at = 1, Skip(), math.inf
        elif now >= self._retry_busy_at:
            # A few of them: a new search for the first hold behind them would wait for the lock twenty times.
            self._limit, self._skip, self._skip_aside = 1, Skip(self._retried % self._skip.count), self._skip

    def _trouble(self) -> str:
        assert self._broken is not None
        count = (self._skip_aside or self._skip).count
        skipped = f"{count} due holds are passed over" if count else "due holds cannot be ended"
        return f"{skipped}; the last error was {described(self._broken)}"
