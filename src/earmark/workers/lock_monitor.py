"""The watchman: looks every minute or so whether somebody holds a lock for longer than anything should take.

Locks of a shop's own programs are in Redis for all to see, whichever process holds them. What is found is said in the
log, and the metrics of this process show how many there were: so it runs beside the metrics, and not beside the rest
of the crew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.errors import StoreUnavailable
from earmark.locks.errors import LocksUnavailable

if TYPE_CHECKING:
    from earmark.locks import Locks


class LockMonitor:
    """A worker around somebody's locks."""

    name = "watchman"

    def __init__(self, locks: Locks, *, stuck_seconds: float = 60.0, interval_seconds: float = 60.0) -> None:
        self._locks = locks
        self._stuck_seconds = stuck_seconds
        self._interval_seconds = interval_seconds

    async def act(self) -> float:
        """One look. While the lock server is silent nothing is known, and what was seen last stands."""
        try:
            await self._locks.stuck(older_than=self._stuck_seconds)
        except LocksUnavailable as silent:
            raise StoreUnavailable(because=silent.because) from silent
        return self._interval_seconds
