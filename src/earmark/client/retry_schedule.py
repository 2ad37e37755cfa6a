"""Decides when a client sends the same request again, and when it gives up. No I/O here."""

from __future__ import annotations

import math
import random
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from earmark.client.http_messages import AGAIN, error_of
from earmark.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from earmark.client.http_messages import ApiRequest

TIMEOUT_SECONDS = 10.0
DEADLINE_SECONDS = 30.0
RETRIES = 5
PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 5.0
IN_PROGRESS = "idempotency_in_progress"


class RetrySchedule:
    """How often one request is retried, and for how long: bounded, with growing pauses of random length."""

    def __init__(
        self,
        request: ApiRequest,
        *,
        url: str,
        retries: int,
        deadline_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._request = request
        self._url = url
        self._left = retries if request.method == "GET" or request.key is not None else 0
        self._pauses = 0
        self._clock = clock
        self._chance = chance
        self._ends_at = clock() + deadline_seconds

    def seconds(self, timeout_seconds: float) -> float:
        """How long this attempt may take."""
        return max(0.001, min(timeout_seconds, self._ends_at - self._clock()))

    def after_loss(self, lost: Exception) -> float:
        """How long to wait after no response came; raises `Unreachable` when no retry is left."""
        pause = self._pause()
        if pause is None:
            because = str(lost) or type(lost).__name__
            raise Unreachable(url=self._url, because=because, key=self._request.key) from lost
        return pause

    def after(self, status: int, answer_headers: Mapping[str, str], body: bytes) -> float | None:
        """How long to wait after this response; None when it is final."""
        if status not in AGAIN and not (status == HTTPStatus.CONFLICT and error_of(status, body).code == IN_PROGRESS):
            return None
        return self._pause(at_least=_retry_after(answer_headers))

    def _pause(self, *, at_least: float = 0.0) -> float | None:
        self._left -= 1
        if self._left < 0:
            return None
        most = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * 2**self._pauses)
        self._pauses += 1
        pause = at_least + self._chance(0.0, most)
        return pause if self._clock() + pause < self._ends_at else None


def _retry_after(answer_headers: Mapping[str, str]) -> float:
    """The seconds in `Retry-After`; 0 where there are none, or a date."""
    try:
        seconds = float(answer_headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0
