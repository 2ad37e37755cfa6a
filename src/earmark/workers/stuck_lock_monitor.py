"""The lock monitor: checks about once a minute for locks that are held longer than any step should take.

The locks of a shop's own programs are visible in Redis, whichever process holds them. Stuck locks are logged, and the
metrics of this process count them. So it runs in the process that exports metrics, not with the other workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.errors import StoreUnavailable
from earmark.locks.errors import LocksUnavailable

if TYPE_CHECKING:
    from earmark.locks import Locks


class LockMonitor:
    """A worker that looks for stuck locks."""

    name = "lock_monitor"

    def __init__(self, locks: Locks, *, stuck_seconds: float = 60.0, interval_seconds: float = 60.0) -> None:
        self._locks = locks
        self._stuck_seconds = stuck_seconds
        self._interval_seconds = interval_seconds

    async def act(self) -> float:
        """Check once. While the lock server does not answer, the last known count stays."""
        try:
            await self._locks.stuck(older_than=self._stuck_seconds)
        except LocksUnavailable as silent:
            raise StoreUnavailable(because=silent.because) from silent
        return self._interval_seconds
