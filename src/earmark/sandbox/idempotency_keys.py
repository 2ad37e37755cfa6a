"""The bank's idempotency keys: the same call again gets the first answer, another call with the same key is refused."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.sandbox.model import BankIntent, BankRefund, BankRefusal, Problem, RefusalKind

if TYPE_CHECKING:
    from earmark.engine.ports.store import Clock

REMEMBERED_FOR = timedelta(hours=24)


class BankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The bank's answer to a call: a value or a refusal."""

    value: BankIntent | BankRefund | None = None
    refused: BankRefusal | None = None


class _KeyRecord(msgspec.Struct, kw_only=True):
    fingerprint: bytes
    at: datetime
    answer: BankAnswer | None = None


class BankIdempotencyKeys:
    """The calls and answers of the last 24 hours by key; at most the newest `keys_max`, if given."""

    def __init__(self, clock: Clock, *, keys_max: int | None = None) -> None:
        self._clock = clock
        self._keys_max = keys_max
        self._entries: dict[str, _KeyRecord] = {}
        """By key, the oldest first."""

    def __len__(self) -> int:
        """How many keys are stored."""
        return len(self._entries)

    def begin(self, key: str, fingerprint: bytes) -> BankAnswer | None:
        """The stored answer; None for the first call with this key, which is then in progress."""
        now = self._clock.now()
        self._delete_old(now)
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _KeyRecord(fingerprint=fingerprint, at=now)
            if self._keys_max is not None and len(self._entries) > self._keys_max:
                del self._entries[next(iter(self._entries))]
            return None
        if entry.fingerprint != fingerprint:
            message = f"The idempotency key '{key}' was used with other parameters."
            raise BankRefusal(RefusalKind.IDEMPOTENCY, Problem(code="idempotency_error", message=message))
        if entry.answer is None:
            message = f"Another call with the idempotency key '{key}' is in progress."
            raise BankRefusal(RefusalKind.IN_PROGRESS, Problem(code="idempotency_key_in_use", message=message))
        return entry.answer

    def finish(self, key: str, answer: BankAnswer) -> None:
        """Store the answer of the call in progress."""
        if key in self._entries:
            self._entries[key].answer = answer

    def abandon(self, key: str) -> None:
        """Free the key of a call that ended without an answer."""
        entry = self._entries.get(key)
        if entry is not None and entry.answer is None:
            del self._entries[key]

    def _delete_old(self, now: datetime) -> None:
        while self._entries:
            oldest = next(iter(self._entries))
            if now < self._entries[oldest].at + REMEMBERED_FOR:
                break
            del self._entries[oldest]
