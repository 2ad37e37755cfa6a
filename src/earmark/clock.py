"""Where time comes from.

PostgreSQL keeps its own clock, and only that one judges expiry there: it takes just the `offset`
from here, which is zero in production and is the tests' handle on time. SQLite and memory live in
one process and ask `now()`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial


class SystemClock:
    """The machine's clock, in aware UTC."""

    offset = timedelta(0)

    now = staticmethod(partial(datetime.now, UTC))
    """This moment."""


class MovableClock(SystemClock):
    """A clock that a test can push forward: real time plus an offset."""

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass at once."""
        self.offset += timedelta(seconds=seconds)

    def now(self) -> datetime:
        """This moment, as far as the test is concerned."""
        return super().now() + self.offset
