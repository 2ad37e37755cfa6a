"""The journal: one row per change, that is audit entry, outbox row and idempotency record in one."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from earmark.domain.id_types import BookingId, EntryId, EventId


class IdempotencyKey(NamedTuple):
    """An idempotency key, in the scope of the caller who chose it."""

    caller: str
    key: str


class IdempotencyRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a key remembers: which request it was, and the answer to give again, byte for byte."""

    request_hash: bytes
    status: int
    body: bytes


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing that happened."""

    id: EntryId
    event_id: EventId
    verb: str
    at: datetime
    actor: str
    facts: dict[str, Any]
    """By name. Values of the domain; a store keeps them as JSON."""
    booking_id: BookingId | None = None
    version: int = 1
    before: str | None = None
    after: str | None = None
    reason: str | None = None
    key: IdempotencyKey | None = None
    memory: IdempotencyRecord | None = None
