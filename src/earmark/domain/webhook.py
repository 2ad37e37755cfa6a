"""A webhook: where a shop wants to be called and about what, and what is kept of every call.

    pending ──2xx──► delivered
       │ ▲
       │ └── anything else: again, later and later, until the span is over
       └──► failed ──replay──► pending

Nothing here changes anything; now and chance arrive as arguments.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID, uuid5

import msgspec

from earmark.domain.id_types import DeliveryId, EntryId, EventId, WebhookId
from earmark.domain.live_or_test_mode import Mode

WEBHOOKS_MAX = 100
"""Of each kind, test and live: every one of them is looked at whenever something happens."""
GRACE_SECONDS = 86_400
"""How long the old secret signs too after a rotation."""
WAIT_SECONDS_MIN = 1.0
WAIT_SECONDS_FIRST = 5.0
WAIT_SECONDS_MAX = 4 * 3_600.0
ASKED_SECONDS_MAX = 3_600.0
"""How long a receiver may ask us to wait."""
REST_SECONDS_MAX = 60.0
_DOUBLINGS_MAX = 16


class DeliveryState(StrEnum):
    """Where a delivery stands."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


class Webhook(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where to call, about what, and how that goes."""

    id: WebhookId
    mode: Mode
    url: str
    secret: str
    created_at: datetime
    types: tuple[str, ...] = ()
    """Nothing but these; empty is everything."""
    event_id: EventId | None = None
    """About this event alone."""
    description: str | None = None
    old_secret: str | None = None
    old_secret_until: datetime | None = None
    disabled_at: datetime | None = None
    disabled_because: str | None = None
    failing_since: datetime | None = None
    """Since when no call has been answered as it should; None while they are."""
    resting_until: datetime | None = None
    """Until when it is left alone, after a call that failed."""
    version: int = 1

    def secrets(self, *, now: datetime) -> tuple[str, ...]:
        """What signs: after a rotation two, for a while, so that a receiver may change over in its own time."""
        if self.old_secret and self.old_secret_until and now < self.old_secret_until:
            return (self.secret, self.old_secret)
        return (self.secret,)


class Delivery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message to one webhook, and what became of it. The id is the message's own, at every try."""

    id: DeliveryId
    webhook_id: WebhookId
    type: str
    body: bytes
    created_at: datetime
    due_at: datetime
    number: int = 0
    """Its place in the queue and in the log, from the store."""
    entry_id: EntryId | None = None
    state: DeliveryState = DeliveryState.PENDING
    attempts: int = 0
    first_at: datetime | None = None
    tried_at: datetime | None = None
    ended_at: datetime | None = None
    status: int | None = None
    error: str | None = None
    took_ms: int | None = None


def delivery_id_of(webhook_id: WebhookId, entry_id: EntryId) -> DeliveryId:
    """One id for one entry at one webhook, the same in every process that computes it."""
    return DeliveryId(uuid5(UUID(str(webhook_id)), str(entry_id)))


def rotated(webhook: Webhook, *, secret: str, now: datetime) -> Webhook:
    """A new secret; the one before it signs too, for a day."""
    return msgspec.structs.replace(
        webhook,
        secret=secret,
        old_secret=webhook.secret,
        old_secret_until=now + timedelta(seconds=GRACE_SECONDS),
        version=webhook.version + 1,
    )


def enabled(webhook: Webhook) -> Webhook:
    """As if it had never failed."""
    return msgspec.structs.replace(
        webhook, disabled_at=None, disabled_because=None, failing_since=None, resting_until=None
    )


def next_try(
    delivery: Delivery, *, now: datetime, span_seconds: float, chance: float, asked_seconds: float | None = None
) -> datetime | None:
    """When to try again after a failure: exponential, with full jitter; None when the span is over.

    The last try is at the end of the span. `chance` is from 0 to 1, and `asked_seconds` is what the receiver asked for.
    """
    end = (delivery.first_at or now) + timedelta(seconds=span_seconds)
    if now >= end:
        return None
    doublings = min(max(delivery.attempts - 1, 0), _DOUBLINGS_MAX)
    wait = max(WAIT_SECONDS_MIN, chance * min(WAIT_SECONDS_MAX, WAIT_SECONDS_FIRST * 2**doublings))
    if asked_seconds is not None:
        wait = max(wait, min(asked_seconds, ASKED_SECONDS_MAX))
    return min(now + timedelta(seconds=wait), end)


def rest_seconds(*, failing_since: datetime, now: datetime, asked_seconds: float | None = None) -> float:
    """How long a webhook that fails is left alone: the longer it has failed, the longer."""
    rest = min(max((now - failing_since).total_seconds() / 10, WAIT_SECONDS_MIN), REST_SECONDS_MAX)
    return max(rest, min(asked_seconds or 0.0, ASKED_SECONDS_MAX))
