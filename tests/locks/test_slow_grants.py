"""The warning about an acquisition that took over 100 ms: above it, and not at it or below."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.mutation import mutated

from earmark.locks import Locks
from earmark.locks import acquire_checks_and_stats as noting
from earmark.locks import lock_manager as for_tasks
from earmark.locks import sync_locks as for_threads
from earmark.locks.backend_protocol import Grant

if TYPE_CHECKING:
    from earmark.locks import Claim

KEYS = ("invoice:1", "invoice:2")
LIMIT = 0.1


class Clock:
    """Stands still until the backend is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """The time that the test has set."""
        return self.now


class Backend:
    """Grants everything after so many seconds by the clock."""

    def __init__(self, clock: Clock, *, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    def grant(self, claim: Claim) -> Grant:
        """Grant the claim after some time on the test's clock."""
        self._clock.now += self._seconds
        return Grant(claim, self, 1, self._clock.now + claim.ttl)


class TaskBackend(Backend):
    """A backend for tasks that grants after some time."""

    async def acquire(self, claim: Claim) -> Grant:
        """Grant the claim after some time on the test's clock."""
        return self.grant(claim)


class ThreadBackend(Backend):
    """A backend for threads that grants after some time."""

    def acquire(self, claim: Claim) -> Grant:
        """Grant the claim after some time on the test's clock."""
        return self.grant(claim)


async def take(patch: pytest.MonkeyPatch, *, seconds: float, wait: float, plain: bool) -> None:
    """Take two locks, which takes so long by an injected clock."""
    clock = Clock()
    patch.setattr(for_tasks, "time", clock)
    patch.setattr(for_threads, "time", clock)
    locks = Locks.from_url("memory://")
    if plain:
        direct: Any = ThreadBackend(clock, seconds=seconds)
        patch.setattr(locks.sync, "_direct_backend", lambda: direct)
        locks.sync.acquire(*KEYS, ttl=60, wait=wait)
    else:
        patch.setattr(locks, "backend", lambda: TaskBackend(clock, seconds=seconds))
        await locks.acquire(*KEYS, ttl=60, wait=wait)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("plain", [False, True], ids=["task", "thread"])
@pytest.mark.parametrize("wait", [0.0, 5.0], ids=["at once", "waiting"])
@pytest.mark.parametrize("seconds, said", [(0.101, "101"), (0.25, "250"), (3.0, "3000")])
async def test_an_acquisition_over_100_ms_is_one_warning_with_its_keys_and_its_time(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    plain: bool,
    wait: float,
    seconds: float,
    said: str,
) -> None:
    """Waiting included, for tasks and for threads."""
    await take(monkeypatch, seconds=seconds, wait=wait, plain=plain)
    assert warnings(caplog) == [f"acquiring the lock on invoice:1, invoice:2 took {said} ms"]


@pytest.mark.parametrize("plain", [False, True], ids=["task", "thread"])
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.099, LIMIT])
async def test_an_acquisition_within_100_ms_is_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, plain: bool, seconds: float
) -> None:
    """A log that always warns is not read."""
    await take(monkeypatch, seconds=seconds, wait=0.0, plain=plain)
    assert warnings(caplog) == []


@pytest.mark.parametrize("change", ["seconds > 10 * SLOW_SECONDS", "seconds > 0"])
async def test_another_limit_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    """The control: with each of these one of the two tests above is wrong."""
    other = mutated(noting.note_grant, "seconds > SLOW_SECONDS", change)
    monkeypatch.setattr(for_tasks, "note_grant", other)
    await take(monkeypatch, seconds=0.101, wait=0.0, plain=False)
    await take(monkeypatch, seconds=0.05, wait=0.0, plain=False)
    right = ["acquiring the lock on invoice:1, invoice:2 took 101 ms"]
    assert warnings(caplog) != right
