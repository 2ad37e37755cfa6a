"""Webhooks, their deliveries, and what requests about them were answered.

A transaction that changes a webhook and deliveries of it takes the webhook first. Each database claims, queues and
records deliveries in its own way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any
from uuid import UUID

from earmark.domain.webhook import Delivery, Webhook
from earmark.engine.ports.webhook_storage import AlreadyDone, Waiting, WebhookChange, WebhookSubscription, deliveries_of
from earmark.store.both_databases.named_statement_runner_protocols import SECONDS_MAX, from_row

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from earmark.domain.id_types import DeliveryId, WebhookId
    from earmark.domain.idempotency_record import IdempotencyKey
    from earmark.domain.live_or_test_mode import Mode
    from earmark.domain.webhook import DeliveryState
    from earmark.engine.ports.number_and_read_journal import Numbered
    from earmark.engine.ports.webhook_storage import DeliveryLease, DeliveryResult, WebhookHealth
    from earmark.store.both_databases.named_statement_runner_protocols import StatementStore, StatementTransaction

FIRST = UUID(int=0)
LAST = 2**63 - 1


class StoredWebhooks(ABC):
    """The webhooks of a store."""

    removed_max: int
    """How many deliveries one transaction removes at most."""

    def __init__(self, store: StatementStore) -> None:
        self._store = store

    async def make(self, new: Webhook, *, limit: int, deed: WebhookChange | None = None) -> bool:
        """False where there are as many as there may be."""
        n = new
        what = (n.id, n.mode, n.url, list(n.types), n.event_id, n.description, n.secret, n.created_at)
        return bool(await self._write("make_webhook", *what, limit, deed=deed))

    async def read(self, webhook_id: WebhookId) -> Webhook | None:
        """A webhook by its id."""
        found = await self._store.read_rows("read_webhooks", [webhook_id])
        return from_row(found[0], Webhook) if found else None

    async def page(self, *, mode: Mode, after: WebhookId | None, limit: int) -> list[Webhook]:
        """A page of webhooks of one mode, by id."""
        found = await self._store.read_rows("page_webhooks", mode, after or FIRST, limit)
        return [from_row(row, Webhook) for row in found]

    async def save(self, after: Webhook, *, deed: WebhookChange | None = None) -> bool:
        """By one guarded update: False where another request has saved it meanwhile."""
        a = after
        secrets = (a.secret, a.old_secret, a.old_secret_until)
        health = (a.disabled_at, a.disabled_because, a.failing_since, a.resting_until)
        what = (a.url, list(a.types), a.event_id, a.description)
        return bool(await self._write("save_webhook", a.id, a.version, *what, *secrets, *health, deed=deed))

    async def look_up_key(self, key: IdempotencyKey) -> WebhookChange | None:
        """What a request with this key was answered, if one was."""
        found = await self._store.read_rows("read_deed", *key)
        return from_row(found[0], WebhookChange, key=(found[0]["caller"], found[0]["key"])) if found else None

    async def forget(self, *, before: datetime, limit: int) -> int:
        """By the index of when they were done."""
        return await self._write("forget_deeds", before, limit)

    async def remove(self, webhook_id: WebhookId) -> bool:
        """A bounded number of deliveries at a time, then the webhook."""
        while await self._write("remove_deliveries", webhook_id, self.removed_max) == self.removed_max:
            continue
        return bool(await self._write("remove_webhook", webhook_id))

    async def queue(self, delivery: Delivery) -> None:
        """Behind all that are queued."""

        async def work(transaction: StatementTransaction) -> None:
            await self.queue_all(transaction, [delivery])

        await self._store.transact(work, within=SECONDS_MAX)

    async def find_wanted(
        self, transaction: StatementTransaction, events: Collection[str]
    ) -> list[WebhookSubscription]:
        """The webhooks that want deliveries about these events."""
        return [from_row(row, WebhookSubscription) for row in await transaction.fetch("find_wanted", sorted(events))]

    async def queue_entries(
        self, transaction: StatementTransaction, numbered: Sequence[Numbered], wanted: Sequence[WebhookSubscription]
    ) -> None:
        """Queue the deliveries about these entries, in the transaction that has numbered them."""
        opening = await transaction.begin([])
        await self.queue_all(transaction, deliveries_of(numbered, wanted, now=opening.now))

    async def log(
        self, webhook_id: WebhookId, *, state: DeliveryState | None, before: int | None, limit: int
    ) -> list[Delivery]:
        """By the index of the log."""
        end = LAST if before is None else before
        state_or_any = state.value if state else None
        found = await self._store.read_rows("log_deliveries", webhook_id, end, state_or_any, limit)
        return [from_row(row, Delivery) for row in found]

    async def waiting(self, *, mode: Mode, limit: int) -> list[Waiting]:
        """By the index of what is due."""
        return [from_row(row, Waiting) for row in await self._store.read_rows("count_waiting", mode, limit)]

    async def replay(self, webhook_id: WebhookId, delivery_id: DeliveryId) -> Delivery | None:
        """Queue a delivery again, with its bytes and its id."""

        async def work(transaction: StatementTransaction) -> list[Any]:
            now = (await transaction.begin([])).now
            transaction.wrote = True
            return await transaction.fetch("replay_delivery", webhook_id, delivery_id, now)

        found = await self._store.transact(work, within=SECONDS_MAX)
        return from_row(found[0], Delivery) if found else None

    @abstractmethod
    async def claim(
        self, *, busy: Collection[WebhookId], webhooks: int, each: int, failing: bool, lease_seconds: float
    ) -> list[DeliveryLease]:
        """Lease what is due, the longest due first."""

    async def record(
        self, webhook_id: WebhookId, outcomes: Sequence[DeliveryResult], health: WebhookHealth | None
    ) -> bool:
        """The webhook first, then its deliveries. True where this disabled the webhook."""

        async def work(transaction: StatementTransaction) -> bool:
            now = (await transaction.begin([])).now
            await self.record_outcomes(transaction, webhook_id, outcomes, now=now)
            transaction.wrote = True
            if health is None:
                return False
            await transaction.execute("record_health", webhook_id, health.ok, health.failed_at, health.resting_until)
            if health.disabled_because is None:
                return False
            why = (health.disabled_because, health.unless_well_since, now)
            return bool(await transaction.execute("disable_webhook", webhook_id, *why))

        return await self._store.transact(work, within=SECONDS_MAX)

    async def prune(self, *, before: datetime, limit: int) -> int:
        """By the index of what has ended."""
        return await self._write("prune_deliveries", before, limit)

    @abstractmethod
    async def queue_all(self, transaction: Any, deliveries: Sequence[Delivery]) -> None:
        """Write deliveries, in this order; those that are there already stay as they are."""

    @abstractmethod
    async def record_outcomes(
        self, transaction: Any, webhook_id: WebhookId, outcomes: Sequence[DeliveryResult], *, now: datetime
    ) -> None:
        """Lock the webhook where rows are locked, and write what became of its deliveries."""

    async def _write(self, name: str, *arguments: object, deed: WebhookChange | None = None) -> int:
        async def work(transaction: StatementTransaction) -> int:
            if (d := deed) is not None:
                kept = (*d.key, d.request_hash, d.webhook_id, d.status, d.done_at)
                if not await transaction.execute("keep_deed", *kept):
                    raise AlreadyDone
            changed = await transaction.execute(name, *arguments)
            # Where nothing was done, no deed is kept.
            transaction.wrote = changed > 0
            return changed

        return await self._store.transact(work, within=SECONDS_MAX)


def outcome_columns(o: DeliveryResult) -> tuple[Any, ...]:
    """For the statement that records outcomes."""
    return (o.delivery_id, o.attempt, o.state.value, o.due_at, o.sent, o.status, o.error, o.took_ms)


def delivery_columns(d: Delivery) -> tuple[Any, ...]:
    """For the statement that queues deliveries."""
    return (d.id, d.webhook_id, d.entry_id, d.type, d.body, d.created_at, d.due_at)
