"""Webhooks as a store keeps them: which URLs are called, what waits to be delivered, and how deliveries went.

A delivery is written in the transaction that gives its entry a number, so none is lost and none is there twice. A
dispatcher leases a webhook with some of its deliveries; if the lease ends without a result, they are leased again. So a
message is sent at least once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

from earmark.domain.id_types import DeliveryId, EventId, WebhookId
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.domain.webhook import Delivery, DeliveryState, Webhook, delivery_id_of
from earmark.domain.webhook_messages import body_of, type_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from earmark.domain.live_or_test_mode import Mode
    from earmark.engine.ports.number_and_read_journal import Numbered


class WebhookSubscription(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """That a webhook is called about an event, and for which types of message; for all if none is named."""

    webhook_id: WebhookId
    event_id: EventId
    types: tuple[str, ...] = ()


class DeliveryLease(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook to call and its due deliveries, oldest first, leased to one dispatcher."""

    webhook: Webhook
    deliveries: Sequence[Delivery]
    now: datetime


class DeliveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one leased delivery."""

    delivery_id: DeliveryId
    attempt: int
    """Which one it was: if it was given out again meanwhile, only a success still counts."""
    state: DeliveryState
    due_at: datetime
    sent: bool = True
    """Whether it was tried at all."""
    status: int | None = None
    error: str | None = None
    took_ms: int | None = None


class WebhookHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How a webhook itself answered the calls of one lease."""

    ok: bool
    """Whether any call was answered as it should."""
    failed_at: datetime
    """If it was not: when that began, unless it has failed for longer."""
    resting_until: datetime | None = None
    disabled_because: str | None = None
    """Why it is not called any more."""
    unless_well_since: datetime | None = None
    """Disable it only if nothing succeeded from this moment on."""


class WebhookChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a request with an idempotency key did: which webhook it made or changed.

    Its answer is not kept, for there is a secret in it: it is worded anew from the webhook.
    """

    key: IdempotencyKey
    request_hash: bytes
    webhook_id: WebhookId
    status: int
    done_at: datetime


class AlreadyDone(Exception):
    """A request with this key was here before, and nothing was done now."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """What one webhook has not been sent yet."""

    webhook_id: WebhookId
    pending: int
    """Counted up to a limit."""
    due_at: datetime
    """When the first of them is to be tried, or was."""


class Webhooks(Protocol):
    """Where webhooks are kept."""

    async def make(self, new: Webhook, *, limit: int, deed: WebhookChange | None = None) -> bool:
        """A new one; False when there are as many of its kind as there may be. `AlreadyDone` when the deed is."""
        ...

    async def read(self, webhook_id: WebhookId) -> Webhook | None:
        """As the last commit left it."""
        ...

    async def page(self, *, mode: Mode, after: WebhookId | None, limit: int) -> list[Webhook]:
        """By id, which is by age."""
        ...

    async def save(self, after: Webhook, *, deed: WebhookChange | None = None) -> bool:
        """Save it as it now is, if no other request has saved it since it was read: it is then one version on.

        `AlreadyDone` when the deed is. A deed is kept in the transaction of what was done, or not at all.
        """
        ...

    async def look_up_key(self, key: IdempotencyKey) -> WebhookChange | None:
        """What the request with this key did, while that is remembered."""
        ...

    async def forget(self, *, before: datetime, limit: int) -> int:
        """Delete deeds that were done before this moment, so many at most; how many those were."""
        ...

    async def remove(self, webhook_id: WebhookId) -> bool:
        """With its log and whatever waits; False when there is none."""
        ...

    async def queue(self, delivery: Delivery) -> None:
        """Queue a delivery that belongs to no journal entry."""
        ...

    async def log(
        self, webhook_id: WebhookId, *, state: DeliveryState | None, before: int | None, limit: int
    ) -> list[Delivery]:
        """Its deliveries, newest first, those before this number."""
        ...

    async def waiting(self, *, mode: Mode, limit: int) -> list[Waiting]:
        """Of each webhook of this kind for which something waits, by id; counted up to `limit` each."""
        ...

    async def replay(self, webhook_id: WebhookId, delivery_id: DeliveryId) -> Delivery | None:
        """To be delivered once more, from now on, as if for the first time; None when it is not in the log."""
        ...

    async def claim(
        self, *, busy: Collection[WebhookId], webhooks: int, each: int, failing: bool, lease_seconds: float
    ) -> list[DeliveryLease]:
        """What is due, for so many webhooks, the longest due first, and so many deliveries of each, oldest first.

        None for those that are `busy`. With `failing`, those that fail and have rested; else the others, and those that
        are disabled, whose deliveries shall end.
        """
        ...

    async def record(
        self, webhook_id: WebhookId, outcomes: Sequence[DeliveryResult], health: WebhookHealth | None
    ) -> bool:
        """Record the results of a lease in one transaction; True when that has disabled the webhook."""
        ...

    async def prune(self, *, before: datetime, limit: int) -> int:
        """Delete what ended before this moment, delivered or failed, so many at most; how many those were."""
        ...


class KeepsWebhooks(Protocol):
    """A store that keeps webhooks."""

    @property
    def webhooks(self) -> Webhooks:
        """The webhooks of this store, and their deliveries."""
        ...


def deliveries_of(
    numbered: Iterable[Numbered], wanted: Iterable[WebhookSubscription], *, now: datetime
) -> list[Delivery]:
    """One delivery for each entry and each webhook that is called about it, in the order of the entries."""
    by_event: dict[EventId, list[WebhookSubscription]] = {}
    for want in wanted:
        by_event.setdefault(want.event_id, []).append(want)
    return [delivery for one in numbered for delivery in _about(one, by_event, now=now)]


def _about(
    one: Numbered, by_event: Mapping[EventId, Sequence[WebhookSubscription]], *, now: datetime
) -> list[Delivery]:
    kind = type_of(one.entry)
    wants = [want for want in by_event.get(one.entry.event_id, ()) if kind and (not want.types or kind in want.types)]
    if kind is None or not wants:
        return []
    body = body_of(one.entry, kind=kind, sequence=one.sequence)
    return [
        Delivery(
            id=delivery_id_of(want.webhook_id, one.entry.id),
            webhook_id=want.webhook_id,
            entry_id=one.entry.id,
            type=kind,
            body=body,
            created_at=now,
            due_at=now,
        )
        for want in wants
    ]
