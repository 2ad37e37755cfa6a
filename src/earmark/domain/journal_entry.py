"""A journal entry: one change, recorded as audit entry, outbox row and idempotency record in one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from earmark.domain.id_types import BookingId, EntryId, EventId
from earmark.domain.idempotency_record import IdempotencyKey, IdempotencyRecord


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
