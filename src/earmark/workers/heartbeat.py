"""Writes heartbeat rows: every few seconds, that this process runs and how the last round of each of its workers ended.

One small write covers all roles of the process, and no worker waits for it. A failing worker is written with the reason
and the moment it began to fail; a worker whose round does not end is written as `stalled`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from earmark.engine.ports.heartbeats import HeartbeatReport, Process
from earmark.uuids import uuid7
from earmark.version import __version__
from earmark.workers.failed_rounds import RoundStatus, described

if TYPE_CHECKING:
    from earmark.engine.ports.heartbeats import Heartbeats

BEAT_SECONDS = 5.0
WRITE_SECONDS_MAX = 5.0
LEAVE_SECONDS_MAX = 1.0
STALLED_SECONDS = 60.0
"""A round that takes longer is reported as a failure: every step of a round has a deadline far below that."""


class Heartbeat:
    """The heartbeat of one process, for all its roles."""

    def __init__(
        self,
        beats: Heartbeats,
        *,
        interval_seconds: float = BEAT_SECONDS,
        host: str | None = None,
        stalled_seconds: float = STALLED_SECONDS,
    ) -> None:
        self.process = Process(id=uuid7(), host=host or socket.gethostname(), version=__version__)
        self._beats = beats
        self._interval_seconds = interval_seconds
        self._stalled_seconds = stalled_seconds
        self._pulses: dict[str, HeartbeatReport] = {}
        self._under_way: dict[str, tuple[float, datetime]] = {}
        """By role, when the round began that has not ended."""
        self._status = RoundStatus("heartbeat")

    def add_role(self, role: str, *, outcome: str = "starting") -> None:
        """Report this role from now on."""
        self._pulses[role] = HeartbeatReport(role=role, outcome=outcome)

    def round_began(self, role: str) -> None:
        """Note that a round of this role has begun."""
        self._under_way[role] = (time.monotonic(), datetime.now(UTC))

    def round_ended(
        self, role: str, outcome: str, *, failing_since: datetime | None = None, because: str | None = None
    ) -> None:
        """Note how a round of this role ended."""
        self._under_way.pop(role, None)
        before = self._pulses.get(role) or HeartbeatReport(role=role, outcome=outcome)
        self._pulses[role] = msgspec.structs.replace(
            before, outcome=outcome, rounds=before.rounds + 1, failing_since=failing_since, because=because
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Write until `stop` is set, then delete the rows: rows that stay are of processes that were killed or hang."""
        while not stop.is_set():
            await self._write()
            # Jitter, so that many processes do not write in step.
            pause = self._interval_seconds * random.uniform(0.8, 1.0)  # noqa: S311 (jitter, not a secret)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), timeout=pause)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._beats.leave(self.process.id), timeout=LEAVE_SECONDS_MAX)

    async def _write(self) -> None:
        try:
            await asyncio.wait_for(self._beats.write(self.process, self._current_pulses()), timeout=WRITE_SECONDS_MAX)
        except Exception as silence:  # noqa: BLE001 (nothing depends on this write)
            self._status.failed("not_written", described(silence))
        else:
            self._status.succeeded()

    def _current_pulses(self) -> list[HeartbeatReport]:
        """Each role as its last round left it, or `stalled` where a round does not end."""
        return [self._stalled(pulse) or pulse for pulse in self._pulses.values()]

    def _stalled(self, pulse: HeartbeatReport) -> HeartbeatReport | None:
        began = self._under_way.get(pulse.role)
        if began is None or time.monotonic() - began[0] < self._stalled_seconds:
            return None
        because = f"its round has not ended for {time.monotonic() - began[0]:.0f} s"
        return msgspec.structs.replace(pulse, outcome="stalled", failing_since=began[1], because=because)
