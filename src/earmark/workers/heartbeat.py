"""The heart: says every few seconds that this process lives, and how its workers fare.

One small write for all of them, which no worker waits for. A worker that fails is told of with the reason and the
moment it began to fail; one whose round does not end is told of as `stalled`.
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
from earmark.workers.round_status import RoundStatus, described

if TYPE_CHECKING:
    from earmark.engine.ports.heartbeats import Heartbeats

BEAT_SECONDS = 5.0
TELL_SECONDS_MAX = 5.0
LEAVE_SECONDS_MAX = 1.0
STALLED_SECONDS = 60.0
"""A round that takes longer is reported as a failure: every step of a round has a deadline far below that."""


class Heartbeat:
    """One per process."""

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

    def takes(self, role: str, *, outcome: str = "starting") -> None:
        """This process has that role from now on."""
        self._pulses[role] = HeartbeatReport(role=role, outcome=outcome)

    def began(self, role: str) -> None:
        """A round of it has begun."""
        self._under_way[role] = (time.monotonic(), datetime.now(UTC))

    def felt(
        self, role: str, outcome: str, *, failing_since: datetime | None = None, because: str | None = None
    ) -> None:
        """A round of it has ended so."""
        self._under_way.pop(role, None)
        before = self._pulses.get(role) or HeartbeatReport(role=role, outcome=outcome)
        self._pulses[role] = msgspec.structs.replace(
            before, outcome=outcome, rounds=before.rounds + 1, failing_since=failing_since, because=because
        )

    async def beat(self, stop: asyncio.Event) -> None:
        """Until told to stop; then the rows go, so that only those are missed who did not stop by themselves."""
        while not stop.is_set():
            await self._tell()
            # Jitter, so that many processes do not write in step.
            pause = self._interval_seconds * random.uniform(0.8, 1.0)  # noqa: S311 (jitter, not a secret)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), timeout=pause)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._beats.leave(self.process.id), timeout=LEAVE_SECONDS_MAX)

    async def _tell(self) -> None:
        try:
            await asyncio.wait_for(self._beats.write(self.process, self._told()), timeout=TELL_SECONDS_MAX)
        except Exception as silence:  # noqa: BLE001 (whatever it is, nobody depends on it)
            self._status.failed("not_written", described(silence))
        else:
            self._status.went_well()

    def _told(self) -> list[HeartbeatReport]:
        """Each role as its last round left it, or `stalled` where a round does not end."""
        return [self._stalled(pulse) or pulse for pulse in self._pulses.values()]

    def _stalled(self, pulse: HeartbeatReport) -> HeartbeatReport | None:
        began = self._under_way.get(pulse.role)
        if began is None or time.monotonic() - began[0] < self._stalled_seconds:
            return None
        because = f"its round has not ended for {time.monotonic() - began[0]:.0f} s"
        return msgspec.structs.replace(pulse, outcome="stalled", failing_since=began[1], because=because)
