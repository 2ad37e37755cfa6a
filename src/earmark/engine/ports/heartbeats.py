"""Heartbeats: which workers run, on which host, and how the last round of each went. No verb needs them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection

WELL = frozenset({"ok", "starting"})
"""Outcomes that need no operator."""
ALIVE_SECONDS = 30.0
_FAILURE = re.compile(r"\w+ since (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00): (.*)", re.DOTALL)


def alive_seconds(heartbeat_seconds: float) -> float:
    """How long a process that writes its heartbeat so often may be silent and is still taken to be running."""
    return max(ALIVE_SECONDS, 3 * heartbeat_seconds)


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One running process. Its id is random: a process that is started again is another one."""

    id: UUID
    host: str
    version: str


class HeartbeatReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a process reports of one of its roles."""

    role: str
    outcome: str
    """How its last round went: `ok`, `starting`, or the code of what went wrong."""
    rounds: int = 0
    failing_since: datetime | None = None
    """When the first of the rounds began to fail that have failed in a row."""
    because: str | None = None

    @property
    def written(self) -> str:
        """What the row's `outcome` holds: a failure with its reason and its beginning, for any version to read."""
        if self.failing_since is None:
            return self.outcome
        return f"{self.outcome} since {self.failing_since.isoformat(timespec='seconds')}: {self.because or 'unknown'}"


class HeartbeatRow(msgspec.Struct, frozen=True, kw_only=True):
    """The last heartbeat of one role of a process. Its times are the store's clock's."""

    process_id: UUID
    role: str
    host: str
    version: str
    started_at: datetime
    beat_at: datetime
    outcome: str
    """As it is written: see `HeartbeatReport.written`."""
    rounds: int

    @property
    def code(self) -> str:
        """`ok`, `starting`, or the code of what goes wrong."""
        return self.outcome.partition(" ")[0]

    @property
    def failing_since(self) -> datetime | None:
        """By the clock of its process; None where all is well, or where an older version wrote the row."""
        failure = _FAILURE.match(self.outcome)
        return datetime.fromisoformat(failure[1]) if failure else None

    @property
    def because(self) -> str | None:
        """Why the rounds fail, as the last heartbeat says; None where all is well."""
        failure = _FAILURE.match(self.outcome)
        return failure[2] if failure else None


class HeartbeatList(msgspec.Struct, frozen=True, kw_only=True):
    """All heartbeats that are kept, and the moment they were read at."""

    now: datetime
    heartbeats: Sequence[HeartbeatRow]


class Heartbeats(Protocol):
    """Where heartbeats are kept."""

    async def write(self, process: Process, reports: Collection[HeartbeatReport]) -> None:
        """All roles of a process, in one small write."""
        ...

    async def leave(self, process_id: UUID) -> None:
        """Remove the process's heartbeats: it shuts down. One that leaves its rows behind has crashed."""
        ...

    async def read(self, *, limit: int) -> HeartbeatList:
        """By role, the latest first."""
        ...

    async def clear(self, *, seconds: float, limit: int) -> int:
        """Delete heartbeats that were not written for so long; how many those were."""
        ...


class KeepsHeartbeats(Protocol):
    """A store that keeps heartbeats."""

    @property
    def heartbeats(self) -> Heartbeats:
        """The heartbeats of running processes."""
        ...
