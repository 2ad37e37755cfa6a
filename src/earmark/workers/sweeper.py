"""The sweeper: ends holds whose time is over, so that counts and lists are right even where nobody looks.

Nothing depends on it. A seat whose hold ran out can be taken at once, swept or not. Any number of sweepers may run:
each passes over the holds that another is ending.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from earmark import logs
from earmark.errors import Outage

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.engine.engine import Engine

BATCH_SIZE_MAX = 100
"""Small enough that a hold which meets a sweep waits for tens of milliseconds."""
LEAST_SECONDS = 0.05

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
        swept: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._engine = engine
        self._batch_size_max = batch_size_max
        self._interval_seconds_max = interval_seconds_max
        self._swept = swept
        self._limit = batch_size_max
        self._skip = 0

    async def act(self) -> float:
        """One batch. At once again while there is more; else sleep until the next hold is due."""
        try:
            expired = await self._engine.expire(limit=self._limit, skip=self._skip)
        except Outage:
            raise
        except Exception as broken:  # noqa: BLE001 (whatever it is, the other holds are still due)
            self._narrow_down(broken)
            return 0.0
        if expired:
            self._swept(len(expired))
            log.info("expire", outcome="ok", count=len(expired))
        if len(expired) == self._limit:
            return 0.0
        self._limit, self._skip = self._batch_size_max, 0
        due_in = await self._engine.store.seconds_to_next_due()
        # A newer hold may be due sooner than any known one, so never sleep for long; jitter keeps sweepers apart.
        longest = self._interval_seconds_max * random.uniform(0.8, 1.0)  # noqa: S311 (jitter, not a secret)
        return min(longest, max(due_in, LEAST_SECONDS)) if due_in is not None else longest

    def _narrow_down(self, broken: Exception) -> None:
        """A hold that cannot be ended must not keep the others: find it by halves, then step over it, loudly."""
        if self._limit > 1:
            self._limit //= 2
            return
        log.error("expire", outcome="stepped over", skipped=self._skip + 1, exc_info=broken)
        self._skip += 1
        self._limit = self._batch_size_max
