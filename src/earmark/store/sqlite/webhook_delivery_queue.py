"""Webhooks in SQLite: one writer, so a dispatcher that claims or records waits for no other."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from earmark.domain.webhook import Delivery, Webhook
from earmark.engine.ports.webhook_storage import DeliveryLease
from earmark.store.both_databases.named_statement_runner_protocols import SECONDS_MAX, from_row
from earmark.store.both_databases.webhooks_and_deliveries import StoredWebhooks, delivery_columns, outcome_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from earmark.domain.id_types import WebhookId
    from earmark.engine.ports.webhook_storage import DeliveryResult


class SqliteWebhooks(StoredWebhooks):
    """One row after the other."""

    removed_max = 1_000

    async def claim(
        self, *, busy: Collection[WebhookId], webhooks: int, each: int, failing: bool, lease_seconds: float
    ) -> list[DeliveryLease]:
        """A reader looks first: where nothing is due, the writer is left to bookings."""
        passed_over = list(busy)
        if not await self._store.read_rows("find_due", await self._store.now(), passed_over, failing, webhooks):
            return []

        async def work(transaction: Any) -> list[DeliveryLease]:
            now = (await transaction.begin([])).now
            lease = now + timedelta(seconds=lease_seconds)
            errands = []
            for due in await transaction.fetch("find_due", now, passed_over, failing, webhooks):
                given = await transaction.fetch("claim_deliveries", due["id"], now, each, lease)
                (webhook,) = await transaction.fetch("read_webhooks", [due["id"]])
                deliveries = sorted((from_row(row, Delivery) for row in given), key=lambda one: one.number)
                errands.append(DeliveryLease(webhook=from_row(webhook, Webhook), deliveries=deliveries, now=now))
            transaction.wrote = bool(errands)
            return errands

        return await self._store.transact(work, within=SECONDS_MAX)

    async def queue_all(self, transaction: Any, deliveries: Sequence[Delivery]) -> None:
        """In the order in which they are given."""
        for delivery in deliveries:
            await transaction.execute("queue_delivery", *delivery_columns(delivery))

    async def record_outcomes(
        self, transaction: Any, webhook_id: WebhookId, outcomes: Sequence[DeliveryResult], *, now: datetime
    ) -> None:
        """One by one; nothing is locked."""
        for outcome in outcomes:
            await transaction.execute("record_outcome", webhook_id, now, *outcome_columns(outcome))
