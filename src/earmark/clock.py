"""Where time comes from.

PostgreSQL keeps its own clock, and only that one decides expiry there: it takes just the `offset`
from here, which is zero in production and moved by tests. SQLite and the memory store run in one
process and call `now()`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial


class SystemClock:
    """The machine's clock, in aware UTC."""

    offset = timedelta(0)

    now = staticmethod(partial(datetime.now, UTC))
    """The current time."""


class MovableClock(SystemClock):
    """A clock that a test can move forward: real time plus an offset."""

    def advance(self, seconds: float) -> None:
        """Move the clock forward by `seconds`."""
        self.offset += timedelta(seconds=seconds)

    def now(self) -> datetime:
        """The current time plus what the test has advanced."""
        return super().now() + self.offset
