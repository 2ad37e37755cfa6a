"""The status of a worker: how its last round ended, since when it fails, how long to pause, and what is logged.

A failure is logged when it begins, when its kind changes, and then at most once a minute with the number of failed
rounds; its end is logged too. Pauses grow with each failed round, up to `PAUSE_SECONDS_MAX`.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from earmark.observability import logs, redaction

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE_SECONDS_MIN = 0.1
PAUSE_SECONDS_MAX = 2.0
"""A failed round costs about one short transaction, so one in a second does no harm. A longer pause would only delay
the worker after the database answers again."""
LOG_SECONDS = 60.0
BECAUSE_MAX = 200

log = logs.get()


class RoundFailed(Exception):
    """A round that did what it could, and could not do the rest.

    `seconds` is the pause until the next round where the worker knows it; without it the pause grows with each failure.
    """

    def __init__(self, because: str, *, code: str = "incomplete", seconds: float | None = None) -> None:
        super().__init__(because)
        self.because = because
        self.code = code
        self.seconds = seconds


class RoundStatus:
    """Counts the failed rounds of one worker, and logs and paces them."""

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.outcome = "starting"
        self.failing_since: datetime | None = None
        self.because: str | None = None
        self.failures = 0
        """How many rounds in a row have failed."""
        self._name = name
        self._clock = clock
        self._log_at = 0.0

    def succeeded(self) -> None:
        """Note that the last round succeeded; the end of a failure is logged."""
        if self.failures:
            log.info(self._name, outcome="ok", after_failures=self.failures)
        self.outcome, self.failing_since, self.because, self.failures = "ok", None, None, 0

    def failed(self, code: str, because: str, *, error: BaseException | None = None) -> float:
        """Note that the last round failed; return how long to pause. An `error` is logged with its traceback."""
        self.failures += 1
        changed = self.outcome != code
        self.outcome, self.because = code, _short(because)
        self.failing_since = self.failing_since or datetime.now(UTC)
        # Full jitter, so that many workers do not retry in step.
        pause = random.uniform(PAUSE_SECONDS_MIN, min(PAUSE_SECONDS_MAX, 0.5 * 2.0 ** min(self.failures, 10)))  # noqa: S311 (jitter, not a secret)
        if changed or self._clock() >= self._log_at:
            self._log_at = self._clock() + LOG_SECONDS
            write = log.warning if error is None else log.error
            write(self._name, outcome=code, because=self.because, failures=self.failures, exc_info=error)
        return pause


def described(error: BaseException) -> str:
    """An error's type and message, in one line."""
    return f"{type(error).__name__}: {error}"


def _short(because: str) -> str:
    lines = redaction.redact(because, most=10 * BECAUSE_MAX).splitlines()
    return lines[0][:BECAUSE_MAX] if lines else ""
