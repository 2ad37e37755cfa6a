"""The heart: says every few seconds that this process lives, and how its agents fare.

One small write for all of them. Nobody waits for it, and a store that does not answer is no error: whoever is missed
then is missed by right.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from typing import TYPE_CHECKING

import msgspec

from earmark import logs
from earmark.engine.beats import Process, Pulse
from earmark.uuids import uuid7
from earmark.version import __version__

if TYPE_CHECKING:
    from earmark.engine.beats import Beats

BEAT_SECONDS = 5.0
TELL_SECONDS_MAX = 5.0
LEAVE_SECONDS_MAX = 1.0

log = logs.get()


class Heart:
    """One per process."""

    def __init__(self, beats: Beats, *, interval_seconds: float = BEAT_SECONDS, host: str | None = None) -> None:
        self.process = Process(id=uuid7(), host=host or socket.gethostname(), version=__version__)
        self._beats = beats
        self._interval_seconds = interval_seconds
        self._pulses: dict[str, Pulse] = {}

    def takes(self, role: str, *, outcome: str = "starting") -> None:
        """This process has that role from now on."""
        self._pulses[role] = Pulse(role=role, outcome=outcome)

    def felt(self, role: str, outcome: str) -> None:
        """A round of it has ended so."""
        before = self._pulses.get(role) or Pulse(role=role, outcome=outcome)
        self._pulses[role] = msgspec.structs.replace(before, outcome=outcome, rounds=before.rounds + 1)

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
            await asyncio.wait_for(self._beats.tell(self.process, self._pulses.values()), timeout=TELL_SECONDS_MAX)
        except Exception as silence:  # noqa: BLE001 (whatever it is, nobody depends on it)
            log.debug("beat", outcome="failed", because=repr(silence))
