"""The janitor: deletes old rows in small batches.

It deletes idempotency records, the logs of webhook deliveries and of mails when their time is over, heartbeats of
processes that ended long ago, which requests opened payments, and who tried to pay lately. It never deletes a journal
entry: the journal is outbox and audit log in one. Any number of janitors may run: one of them walks through the journal
at a time, and the others skip that step.
"""

from __future__ import annotations

import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from earmark.clock import SystemClock
from earmark.domain.decline_limits import WINDOW_SECONDS
from earmark.domain.mail import KEPT_SECONDS
from earmark.domain.payment import KEY_SECONDS_MIN
from earmark.errors import Outage
from earmark.observability import logs
from earmark.workers.failed_rounds import RoundFailed, described

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from earmark.engine.ports.store import Clock, Store

BATCH_SIZE_MAX = 500
"""Small enough that a request that waits behind it for SQLite's one writer waits for tens of milliseconds."""
BEATS_SECONDS = 86_400.0
"""Long enough for an operator to see in the morning which process ended in the night."""
KEYS_SECONDS = 86_400.0
DELIVERIES_SECONDS = 7 * 86_400.0
MAILS_SECONDS = KEPT_SECONDS
"""Long enough for an operator to see after a weekend which mails were given up."""

log = logs.get()


class Janitor:
    """A worker that runs each cleaning step of the store, one batch at a time."""

    name = "janitor"

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        keys_seconds: float = KEYS_SECONDS,
        deliveries_seconds: float = DELIVERIES_SECONDS,
        batch_size_max: int = BATCH_SIZE_MAX,
        interval_seconds_max: float = 60.0,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._keys_seconds = keys_seconds
        self._deliveries_seconds = deliveries_seconds
        self._batch_size_max = batch_size_max
        self._interval_seconds_max = interval_seconds_max

    async def act(self) -> float:
        """Run one batch of each step. While there is more, run again soon, but at most half of the time."""
        began = time.monotonic()
        cleared, more = await self.tidy()
        if any(cleared.values()):
            log.info("tidy", outcome="ok", **cleared)
        # Jitter keeps janitors apart.
        longest = self._interval_seconds_max * random.uniform(0.8, 1.0)  # noqa: S311 (jitter, not a secret)
        return min(time.monotonic() - began, longest) if more else longest

    async def tidy(self, *, from_start: bool = False) -> tuple[Mapping[str, int], bool]:
        """Run one batch of each step; return how many rows each deleted, and whether more is left.

        A step that fails does not stop the others; the failure is raised at the end.
        """
        steps: dict[str, Callable[[], Awaitable[tuple[int, bool]]]] = {
            "keys": lambda: self._forget_keys(from_start=from_start),
            "beats": self._clear_beats,
            "deliveries": self._prune_deliveries,
            "mails": self._prune_mails,
            "payment_keys": self._forget_payment_keys,
            "payers": self._forget_payers,
        }
        cleared: dict[str, int] = {}
        more = False
        broken: dict[str, Exception] = {}
        for what, step in steps.items():
            try:
                cleared[what], left = await step()
            except Outage:
                raise
            except Exception as failure:  # noqa: BLE001 (the other steps still have to run)
                broken[what] = failure
            else:
                more = more or left
        for what, error in broken.items():
            raise RoundFailed(f"{what} cannot be cleared; the error was {described(error)}") from error
        return cleared, more

    async def _forget_keys(self, *, from_start: bool) -> tuple[int, bool]:
        done = await self._store.upkeep.forget_keys(
            seconds=self._keys_seconds, limit=self._batch_size_max, from_start=from_start
        )
        # Webhooks keep idempotency records of their own. A full batch may have left some.
        before = self._clock.now() - timedelta(seconds=self._keys_seconds)
        forgot = await self._store.webhooks.forget(before=before, limit=self._batch_size_max)
        return done.cleared + forgot, done.more or forgot == self._batch_size_max

    async def _forget_payment_keys(self) -> tuple[int, bool]:
        seconds = max(self._keys_seconds, KEY_SECONDS_MIN)
        deleted = await self._store.upkeep.forget_payment_keys(seconds=seconds, limit=self._batch_size_max)
        return deleted, deleted == self._batch_size_max

    async def _forget_payers(self) -> tuple[int, bool]:
        deleted = await self._store.upkeep.forget_payers(seconds=WINDOW_SECONDS, limit=self._batch_size_max)
        return deleted, deleted == self._batch_size_max

    async def _clear_beats(self) -> tuple[int, bool]:
        cleared = await self._store.heartbeats.clear(seconds=BEATS_SECONDS, limit=self._batch_size_max)
        return cleared, cleared == self._batch_size_max

    async def _prune_deliveries(self) -> tuple[int, bool]:
        before = self._clock.now() - timedelta(seconds=self._deliveries_seconds)
        pruned = await self._store.webhooks.prune(before=before, limit=self._batch_size_max)
        return pruned, pruned == self._batch_size_max

    async def _prune_mails(self) -> tuple[int, bool]:
        before = self._clock.now() - timedelta(seconds=MAILS_SECONDS)
        pruned = await self._store.mails.prune(before=before, limit=self._batch_size_max)
        return pruned, pruned == self._batch_size_max
