"""Webhooks in PostgreSQL: a claim passes over the deliveries that another dispatcher is claiming."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from earmark.domain.webhook import Delivery, Webhook
from earmark.engine.ports.webhook_storage import DeliveryLease
from earmark.store.both_databases.named_statement_runner_protocols import SECONDS_MAX, from_row
from earmark.store.both_databases.webhooks_and_deliveries import StoredWebhooks, delivery_columns, outcome_columns
from earmark.store.postgres import convert_rows_and_values

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from earmark.domain.id_types import WebhookId
    from earmark.engine.ports.webhook_storage import DeliveryResult


class PostgresWebhooks(StoredWebhooks):
    """Many rows in one statement, as one array per column."""

    removed_max = 5_000

    async def claim(
        self, *, busy: Collection[WebhookId], webhooks: int, each: int, failing: bool, lease_seconds: float
    ) -> list[DeliveryLease]:
        """One statement leases the deliveries, a second reads their webhooks."""

        async def work(transaction: Any) -> list[DeliveryLease]:
            now = (await transaction.begin([])).now
            lease = timedelta(seconds=lease_seconds)
            given = await transaction.fetch("claim_deliveries", now, list(busy), failing, webhooks, each, lease)
            if not given:
                return []
            transaction.wrote = True
            deliveries = sorted((from_row(row, Delivery) for row in given), key=lambda one: one.number)
            whose = {one.webhook_id for one in deliveries}
            known = [from_row(row, Webhook) for row in await transaction.fetch("read_webhooks", list(whose))]
            return [
                DeliveryLease(webhook=one, deliveries=[d for d in deliveries if d.webhook_id == one.id], now=now)
                for one in known
            ]

        return await self._store.transact(work, within=SECONDS_MAX)

    async def queue_all(self, transaction: Any, deliveries: Sequence[Delivery]) -> None:
        """All of them in one statement."""
        if deliveries:
            await transaction.execute(
                "queue_deliveries", *convert_rows_and_values.columns(map(delivery_columns, deliveries), width=7)
            )

    async def record_outcomes(
        self, transaction: Any, webhook_id: WebhookId, outcomes: Sequence[DeliveryResult], *, now: datetime
    ) -> None:
        """All of them in one statement, after the lock of the webhook."""
        await transaction.fetch("lock_webhook", webhook_id)
        columns = convert_rows_and_values.columns(map(outcome_columns, outcomes), width=8)
        await transaction.execute("record_outcomes", webhook_id, now, *columns)
