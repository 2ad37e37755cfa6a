"""The reconciler: completes every payment whose process died, hung or got no answer.

A payment's row says when it is due for a check. Any number of reconcilers may run: each leases payments that no other
has, and two that drive the same payment do no harm. A gateway that does not answer delays no other.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from earmark.observability import logs
from earmark.workers.failed_rounds import RoundFailed

if TYPE_CHECKING:
    from collections.abc import Collection

    from earmark.payments.drive_payment_to_its_end import PaymentDriver

BATCH_SIZE_MAX = 50
LEAST_SECONDS = 0.1
ROUND_SECONDS_MAX = 1.0
"""How long a round waits for gateways. Payments of one that takes longer go on beside the next rounds."""

log = logs.get()


class Reconciler:
    """Drives due payments, of all gateways or of some."""

    def __init__(
        self,
        driver: PaymentDriver,
        *,
        name: str = "reconciler",
        gateways: Collection[str] | None = None,
        batch_size_max: int = BATCH_SIZE_MAX,
        interval_seconds_max: float = 1.0,
    ) -> None:
        self.name = name
        self._driver = driver
        self._gateways = gateways
        self._batch_size_max = batch_size_max
        self._interval_seconds_max = interval_seconds_max

    async def act(self) -> float:
        """Drive one batch of each gateway. Run again at once while there is more; else when the next payment is due."""
        found = await self._driver.reconcile(
            limit=self._batch_size_max, within=ROUND_SECONDS_MAX, gateways=self._gateways
        )
        if found:
            log.info("reconcile", outcome="ok", count=found)
        seconds = 0.0 if found >= self._batch_size_max else await self._until_next()
        silent = [name for name in self._driver.silent_gateways if self._gateways is None or name in self._gateways]
        if silent:
            raise RoundFailed(f"no answer from gateway {', '.join(silent)}", code="gateway_silent", seconds=seconds)
        return seconds

    async def _until_next(self) -> float:
        due_in = await self._driver.seconds_to_next(self._gateways)
        longest = self._interval_seconds_max * random.uniform(0.8, 1.0)  # noqa: S311 (jitter, not a secret)
        return min(longest, max(due_in, LEAST_SECONDS)) if due_in is not None else longest
