"""Idempotency keys, strictly: the same call again is answered as the first was, and another call is refused."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.sandbox.model import Intent, Kind, Problem, Refund, Refused

if TYPE_CHECKING:
    from earmark.engine.ports.store import Clock

REMEMBERED_FOR = timedelta(hours=24)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the bank answered: a value, or a no."""

    value: Intent | Refund | None = None
    refused: Refused | None = None


class _Entry(msgspec.Struct, kw_only=True):
    fingerprint: bytes
    at: datetime
    answer: Answer | None = None


class Keys:
    """What was asked with which key in the last 24 hours, and what was answered; of the newest `keys_max`, if given."""

    def __init__(self, clock: Clock, *, keys_max: int | None = None) -> None:
        self._clock = clock
        self._keys_max = keys_max
        self._entries: dict[str, _Entry] = {}
        """The oldest first."""

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._entries)

    def begin(self, key: str, fingerprint: bytes) -> Answer | None:
        """The earlier answer; None when this is the first such call, which is then in progress."""
        now = self._clock.now()
        self._forget(now)
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(fingerprint=fingerprint, at=now)
            if self._keys_max is not None and len(self._entries) > self._keys_max:
                del self._entries[next(iter(self._entries))]
            return None
        if entry.fingerprint != fingerprint:
            message = f"The idempotency key '{key}' was used with other parameters."
            raise Refused(Kind.IDEMPOTENCY, Problem(code="idempotency_error", message=message))
        if entry.answer is None:
            message = f"Another call with the idempotency key '{key}' is in progress."
            raise Refused(Kind.IN_PROGRESS, Problem(code="idempotency_key_in_use", message=message))
        return entry.answer

    def finish(self, key: str, answer: Answer) -> None:
        """From now on this is the answer."""
        if key in self._entries:
            self._entries[key].answer = answer

    def abandon(self, key: str) -> None:
        """Nothing came of the call: the key is free again, unless there is an answer."""
        entry = self._entries.get(key)
        if entry is not None and entry.answer is None:
            del self._entries[key]

    def _forget(self, now: datetime) -> None:
        while self._entries:
            oldest = next(iter(self._entries))
            if now < self._entries[oldest].at + REMEMBERED_FOR:
                break
            del self._entries[oldest]
