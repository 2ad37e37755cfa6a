"""Webhooks in PostgreSQL: deliveries are claimed in passing, and whoever changes a webhook and them takes it first."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from earmark.domain.journal import IdempotencyKey
from earmark.domain.webhook import Delivery, DeliveryState, Webhook
from earmark.engine.ports.webhooks import (
    AlreadyDone,
    DeliveryLease,
    Waiting,
    WebhookChange,
    WebhookSubscription,
    deliveries_of,
)
from earmark.store import queries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from datetime import datetime

    from earmark.domain.ids import DeliveryId, WebhookId
    from earmark.engine.ports.outbox import Numbered
    from earmark.engine.ports.webhooks import DeliveryResult, WebhookHealth

SECONDS_MAX = 10.0
REMOVED_MAX = 5_000
FIRST = UUID(int=0)
LAST = 2**63 - 1


async def find_wanted(connection: Any, events: Collection[str]) -> list[WebhookSubscription]:
    """Who wants to hear of these events."""
    found = await connection.fetch(queries.sql("postgres", "webhooks.sql")["find_wanted"], sorted(events))
    return [
        WebhookSubscription(webhook_id=row["webhook_id"], event_id=row["event_id"], types=tuple(row["types"]))
        for row in found
    ]


async def queue_entries(transaction: Any, numbered: Sequence[Numbered], wanted: Sequence[WebhookSubscription]) -> None:
    """In the transaction that has numbered them."""
    opening = await transaction.begin([])
    await _queue(transaction, deliveries_of(numbered, wanted, now=opening.now))


async def _queue(transaction: Any, deliveries: Sequence[Delivery]) -> None:
    rows = [(d.id, d.webhook_id, d.entry_id, d.type, d.body, d.created_at, d.due_at) for d in deliveries]
    if rows:
        transaction.wrote = True
        columns = [list(column) for column in zip(*rows, strict=True)]
        await transaction._connection.execute(  # noqa: SLF001 (the store's own transaction)
            queries.sql("postgres", "webhooks.sql")["queue_deliveries"], *columns
        )


class PostgresWebhooks:
    """Writing in transactions of the store, reading over its connections."""

    def __init__(self, transact: Callable[..., Awaitable[Any]], *, read: Callable[..., Awaitable[list[Any]]]) -> None:
        self._transact = transact
        self._read = read
        self._sql = queries.sql("postgres", "webhooks.sql")

    async def make(self, new: Webhook, *, limit: int, deed: WebhookChange | None = None) -> bool:
        """Counted as the last commit left them."""
        n = new
        what = (n.id, n.live, n.url, list(n.types), n.event_id, n.description, n.secret, n.created_at)
        return bool(await self._fetch("make_webhook", *what, limit, deed=deed))

    async def read(self, webhook_id: WebhookId) -> Webhook | None:
        """By primary key."""
        found = await self._read("read_webhooks", [webhook_id])
        return _webhook(found[0]) if found else None

    async def page(self, *, live: bool, after: WebhookId | None, limit: int) -> list[Webhook]:
        """By primary key."""
        return [_webhook(row) for row in await self._read("page_webhooks", live, after or FIRST, limit)]

    async def save(self, after: Webhook, *, deed: WebhookChange | None = None) -> bool:
        """One guarded update."""
        a = after
        secrets = (a.secret, a.old_secret, a.old_secret_until)
        health = (a.disabled_at, a.disabled_because, a.failing_since, a.resting_until)
        what = (a.url, list(a.types), a.event_id, a.description)
        return bool(await self._fetch("save_webhook", a.id, a.version, *what, *secrets, *health, deed=deed))

    async def look_up_key(self, key: IdempotencyKey) -> WebhookChange | None:
        """By primary key."""
        found = await self._read("read_deed", *key)
        return _deed(found[0]) if found else None

    async def forget(self, *, before: datetime, limit: int) -> int:
        """By the index of when they were done."""
        return await self._execute("forget_deeds", before, limit)

    async def remove(self, webhook_id: WebhookId) -> bool:
        """A bounded number of deliveries at a time, then the webhook."""
        while await self._execute("remove_deliveries", webhook_id, REMOVED_MAX) == REMOVED_MAX:
            continue
        return bool(await self._fetch("remove_webhook", webhook_id))

    async def queue(self, delivery: Delivery) -> None:
        """At the end of the line."""

        async def work(transaction: Any) -> None:
            await _queue(transaction, [delivery])

        await self._transact(work, within=SECONDS_MAX)

    async def log(
        self, webhook_id: WebhookId, *, state: DeliveryState | None, before: int | None, limit: int
    ) -> list[Delivery]:
        """By the index of the log."""
        end = LAST if before is None else before
        found = await self._read("log_deliveries", webhook_id, end, state.value if state else None, limit)
        return [_delivery(row) for row in found]

    async def waiting(self, *, live: bool, limit: int) -> list[Waiting]:
        """By the courier's index."""
        return [Waiting(**row) for row in await self._read("count_waiting", live, limit)]

    async def replay(self, webhook_id: WebhookId, delivery_id: DeliveryId) -> Delivery | None:
        """By primary key."""

        async def work(transaction: Any) -> list[Any]:
            opening = await transaction.begin([])
            transaction.wrote = True
            found: list[Any] = await _connection(transaction).fetch(
                self._sql["replay_delivery"], webhook_id, delivery_id, opening.now
            )
            return found

        found = await self._transact(work, within=SECONDS_MAX)
        return _delivery(found[0]) if found else None

    async def claim(
        self, *, busy: Collection[WebhookId], webhooks: int, each: int, failing: bool, lease_seconds: float
    ) -> list[DeliveryLease]:
        """Passing over what another courier is claiming at this moment."""

        async def work(transaction: Any) -> list[DeliveryLease]:
            fetch = _connection(transaction).fetch
            now = (await transaction.begin([])).now
            lease = timedelta(seconds=lease_seconds)
            given = await fetch(self._sql["claim_deliveries"], now, list(busy), failing, webhooks, each, lease)
            if not given:
                return []
            transaction.wrote = True
            deliveries = sorted(map(_delivery, given), key=lambda one: one.number)
            whose = {one.webhook_id for one in deliveries}
            known = await fetch(self._sql["read_webhooks"], list(whose))
            return [_errand(_webhook(row), deliveries, now=now) for row in known]

        errands: list[DeliveryLease] = await self._transact(work, within=SECONDS_MAX)
        return errands

    async def record(
        self, webhook_id: WebhookId, outcomes: Sequence[DeliveryResult], health: WebhookHealth | None
    ) -> bool:
        """The webhook first, then its deliveries."""

        async def work(transaction: Any) -> bool:
            connection = _connection(transaction)
            now = (await transaction.begin([])).now
            transaction.wrote = True
            await connection.fetch(self._sql["lock_webhook"], webhook_id)
            columns = [list(column) for column in zip(*map(_columns, outcomes), strict=True)]
            await connection.execute(self._sql["record_outcomes"], webhook_id, now, *columns)
            if health is None:
                return False
            await connection.execute(
                self._sql["record_health"], webhook_id, health.ok, health.failed_at, health.resting_until
            )
            if health.disabled_because is None:
                return False
            why = (health.disabled_because, health.unless_well_since, now)
            return bool(await connection.fetch(self._sql["disable_webhook"], webhook_id, *why))

        disabled: bool = await self._transact(work, within=SECONDS_MAX)
        return disabled

    async def prune(self, *, before: datetime, limit: int) -> int:
        """By the index of what has ended."""
        return await self._execute("prune_deliveries", before, limit)

    async def _fetch(self, name: str, *arguments: object, deed: WebhookChange | None = None) -> list[Any]:
        async def work(transaction: Any) -> list[Any]:
            fetch = _connection(transaction).fetch
            if (d := deed) is not None:
                kept = (*d.key, d.request_hash, d.webhook_id, d.status, d.done_at)
                if not await fetch(self._sql["keep_deed"], *kept):
                    raise AlreadyDone
            found: list[Any] = await fetch(self._sql[name], *arguments)
            # Where nothing was done, no deed is kept.
            transaction.wrote = bool(found)
            return found

        found: list[Any] = await self._transact(work, within=SECONDS_MAX)
        return found

    async def _execute(self, name: str, *arguments: object) -> int:
        async def work(transaction: Any) -> int:
            transaction.wrote = True
            status: str = await _connection(transaction).execute(self._sql[name], *arguments)
            return int(status.rpartition(" ")[2])

        count: int = await self._transact(work, within=SECONDS_MAX)
        return count


def _connection(transaction: Any) -> Any:
    return transaction._connection  # noqa: SLF001 (the store's own transaction)


def _columns(o: DeliveryResult) -> tuple[Any, ...]:
    return (o.delivery_id, o.attempt, o.state.value, o.due_at, o.sent, o.status, o.error, o.took_ms)


def _errand(webhook: Webhook, deliveries: Sequence[Delivery], *, now: datetime) -> DeliveryLease:
    own = [delivery for delivery in deliveries if delivery.webhook_id == webhook.id]
    return DeliveryLease(webhook=webhook, deliveries=own, now=now)


def _webhook(row: Any) -> Webhook:
    return Webhook(**dict(row) | {"types": tuple(row["types"])})


def _deed(row: Any) -> WebhookChange:
    told = dict(row)
    return WebhookChange(key=IdempotencyKey(told.pop("caller"), told.pop("key")), **told)


def _delivery(row: Any) -> Delivery:
    return Delivery(**dict(row) | {"state": DeliveryState(row["state"])})
