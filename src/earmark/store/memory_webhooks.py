"""Webhooks in memory. Nothing here waits, so whoever works is alone."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.webhook import Delivery, DeliveryState, Webhook
from earmark.engine.ports.webhooks import AlreadyDone, DeliveryLease, Waiting, WebhookSubscription, deliveries_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime

    from earmark.domain.event import Event
    from earmark.domain.ids import DeliveryId, EventId, WebhookId
    from earmark.domain.journal import IdempotencyKey
    from earmark.engine.ports.outbox import Numbered
    from earmark.engine.ports.store import Clock
    from earmark.engine.ports.webhooks import DeliveryResult, WebhookChange, WebhookHealth

replace = msgspec.structs.replace


class MemoryWebhooks:
    """Three dictionaries, and the queue's numbers."""

    def __init__(self, clock: Clock, *, events: Callable[[], Mapping[EventId, Event]]) -> None:
        self._clock = clock
        self._events = events
        self._webhooks: dict[WebhookId, Webhook] = {}
        self._deliveries: dict[DeliveryId, Delivery] = {}
        self._deeds: dict[IdempotencyKey, WebhookChange] = {}
        self._numbers = itertools.count(1)

    def queue_entries(self, numbered: Sequence[Numbered]) -> None:
        """As they are numbered."""
        known = self._events()
        events = [known[event_id] for event_id in {one.entry.event_id for one in numbered} & known.keys()]
        wanted = [
            WebhookSubscription(webhook_id=webhook.id, event_id=event.id, types=webhook.types)
            for webhook in self._webhooks.values()
            for event in events
            if webhook.disabled_at is None and webhook.live == event.live and webhook.event_id in {None, event.id}
        ]
        for delivery in deliveries_of(numbered, wanted, now=self._clock.now()):
            self._add(delivery)

    async def make(self, new: Webhook, *, limit: int, deed: WebhookChange | None = None) -> bool:
        """Counted at once."""
        self._check_new(deed)
        if sum(webhook.live == new.live for webhook in self._webhooks.values()) >= limit:
            return False
        self._webhooks[new.id] = new
        self._keep(deed)
        return True

    async def read(self, webhook_id: WebhookId) -> Webhook | None:
        """By id."""
        return self._webhooks.get(webhook_id)

    async def page(self, *, live: bool, after: WebhookId | None, limit: int) -> list[Webhook]:
        """By id."""
        own = sorted((one for one in self._webhooks.values() if one.live == live), key=lambda one: one.id)
        return [one for one in own if after is None or one.id > after][:limit]

    async def save(self, after: Webhook, *, deed: WebhookChange | None = None) -> bool:
        """If it is as it was read."""
        self._check_new(deed)
        known = self._webhooks.get(after.id)
        if known is None or known.version != after.version - 1:
            return False
        self._webhooks[after.id] = after
        self._keep(deed)
        return True

    async def look_up_key(self, key: IdempotencyKey) -> WebhookChange | None:
        """By key."""
        return self._deeds.get(key)

    async def forget(self, *, before: datetime, limit: int) -> int:
        """The oldest first."""
        old = sorted((deed for deed in self._deeds.values() if deed.done_at <= before), key=lambda deed: deed.done_at)
        for deed in old[:limit]:
            del self._deeds[deed.key]
        return len(old[:limit])

    def _check_new(self, deed: WebhookChange | None) -> None:
        if deed is not None and deed.key in self._deeds:
            raise AlreadyDone

    def _keep(self, deed: WebhookChange | None) -> None:
        if deed is not None:
            self._deeds[deed.key] = deed

    async def remove(self, webhook_id: WebhookId) -> bool:
        """With its deliveries."""
        self._deliveries = {one.id: one for one in self._deliveries.values() if one.webhook_id != webhook_id}
        return self._webhooks.pop(webhook_id, None) is not None

    async def queue(self, delivery: Delivery) -> None:
        """At the end of the line."""
        self._add(delivery)

    async def log(
        self, webhook_id: WebhookId, *, state: DeliveryState | None, before: int | None, limit: int
    ) -> list[Delivery]:
        """Newest first."""
        own = (one for one in self._deliveries.values() if one.webhook_id == webhook_id and state in {None, one.state})
        found = [one for one in own if before is None or one.number < before]
        return sorted(found, key=lambda one: -one.number)[:limit]

    async def waiting(self, *, live: bool, limit: int) -> list[Waiting]:
        """Over all deliveries."""
        due: dict[WebhookId, list[datetime]] = {}
        for one in self._deliveries.values():
            if one.state is DeliveryState.PENDING and self._webhooks[one.webhook_id].live is live:
                due.setdefault(one.webhook_id, []).append(one.due_at)
        waits = sorted(due.items())
        return [Waiting(webhook_id=own, pending=min(len(dates), limit), due_at=min(dates)) for own, dates in waits]

    async def replay(self, webhook_id: WebhookId, delivery_id: DeliveryId) -> Delivery | None:
        """From now on."""
        known = self._deliveries.get(delivery_id)
        if known is None or known.webhook_id != webhook_id:
            return None
        now = self._clock.now()
        again = replace(known, state=DeliveryState.PENDING, due_at=now, attempts=0, first_at=None, ended_at=None)
        self._deliveries[delivery_id] = again
        return again

    async def claim(
        self, *, busy: Collection[WebhookId], webhooks: int, each: int, failing: bool, lease_seconds: float
    ) -> list[DeliveryLease]:
        """The longest due first."""
        now = self._clock.now()
        due: dict[WebhookId, list[Delivery]] = {}
        for one in sorted(self._deliveries.values(), key=lambda one: one.number):
            if one.state is DeliveryState.PENDING and one.due_at <= now and one.webhook_id not in busy:
                due.setdefault(one.webhook_id, []).append(one)
        ready = [self._webhooks[own] for own in due if _is_ready(self._webhooks[own], failing=failing, now=now)]
        ready.sort(key=lambda webhook: min(one.due_at for one in due[webhook.id]))
        return [
            DeliveryLease(
                webhook=webhook,
                deliveries=[self._lease(one, now=now, seconds=lease_seconds) for one in due[webhook.id][:each]],
                now=now,
            )
            for webhook in ready[:webhooks]
        ]

    async def record(
        self, webhook_id: WebhookId, outcomes: Sequence[DeliveryResult], health: WebhookHealth | None
    ) -> bool:
        """At once."""
        now = self._clock.now()
        for outcome in outcomes:
            known = self._deliveries.get(outcome.delivery_id)
            counts = known and (outcome.state is DeliveryState.DELIVERED or known.attempts == outcome.attempt)
            if known and counts and known.state is DeliveryState.PENDING:
                self._deliveries[known.id] = _after(known, outcome, now=now)
        webhook = self._webhooks.get(webhook_id)
        if health is None or webhook is None:
            return False
        since = None if health.ok else webhook.failing_since or health.failed_at
        webhook = replace(webhook, failing_since=since, resting_until=None if health.ok else health.resting_until)
        ends = health.disabled_because is not None and webhook.disabled_at is None
        if ends and health.unless_well_since is not None:
            ends = since is not None and since <= health.unless_well_since
        if ends:
            webhook = replace(webhook, disabled_at=now, disabled_because=health.disabled_because)
        self._webhooks[webhook_id] = webhook
        return ends

    async def prune(self, *, before: datetime, limit: int) -> int:
        """The oldest first."""
        ended = [one for one in self._deliveries.values() if one.ended_at is not None and one.ended_at < before]
        old = sorted(ended, key=lambda one: one.ended_at or before)[:limit]
        for one in old:
            del self._deliveries[one.id]
        return len(old)

    def _add(self, delivery: Delivery) -> None:
        if delivery.id not in self._deliveries:
            self._deliveries[delivery.id] = replace(delivery, number=next(self._numbers))

    def _lease(self, delivery: Delivery, *, now: datetime, seconds: float) -> Delivery:
        leased = replace(
            delivery,
            due_at=now + timedelta(seconds=seconds),
            attempts=delivery.attempts + 1,
            tried_at=now,
            first_at=delivery.first_at or now,
        )
        self._deliveries[delivery.id] = leased
        return leased


def _is_ready(webhook: Webhook, *, failing: bool, now: datetime) -> bool:
    if not failing:
        return webhook.disabled_at is not None or webhook.failing_since is None
    rested = webhook.resting_until is None or webhook.resting_until <= now
    return webhook.disabled_at is None and webhook.failing_since is not None and rested


def _after(known: Delivery, outcome: DeliveryResult, *, now: datetime) -> Delivery:
    ended = outcome.state is not DeliveryState.PENDING
    after = replace(known, state=outcome.state, due_at=outcome.due_at, ended_at=now if ended else None)
    if outcome.sent:
        return replace(after, status=outcome.status, error=outcome.error, took_ms=outcome.took_ms)
    return replace(
        after,
        attempts=known.attempts - 1,
        first_at=known.first_at if known.attempts > 1 else None,
        error=outcome.error if ended else known.error,
    )
