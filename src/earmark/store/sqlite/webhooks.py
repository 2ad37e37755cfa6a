"""Webhooks in SQLite: one writer, so whoever claims or records is alone with them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from earmark.domain.ids import DeliveryId, EntryId, WebhookId
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
from earmark.store.sqlite import rows

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from datetime import datetime

    from earmark.engine.ports.outbox import Numbered
    from earmark.engine.ports.store import Clock
    from earmark.engine.ports.webhooks import DeliveryResult, WebhookHealth

SECONDS_MAX = 10.0
REMOVED_MAX = 1_000
FIRST = str(UUID(int=0))
LAST = 2**63 - 1
_types = msgspec.json.Decoder(tuple[str, ...])


def find_wanted(connection: sqlite3.Connection, events: Collection[str]) -> list[WebhookSubscription]:
    """Who wants to hear of these events."""
    sql = queries.sql("sqlite", "webhooks.sql")["find_wanted"]
    found = connection.execute(sql, (rows.to_json(sorted(events)),)).fetchall()
    return [
        WebhookSubscription(
            webhook_id=WebhookId(UUID(row["webhook_id"])), event_id=row["event_id"], types=_types.decode(row["types"])
        )
        for row in found
    ]


async def queue_entries(transaction: Any, numbered: Sequence[Numbered], wanted: Sequence[WebhookSubscription]) -> None:
    """In the transaction that has numbered them."""
    opening = await transaction.begin([])
    _queue(transaction, deliveries_of(numbered, wanted, now=opening.now))


def _queue(transaction: Any, deliveries: Sequence[Delivery]) -> None:
    columns = [
        (
            str(d.id),
            str(d.webhook_id),
            None if d.entry_id is None else str(d.entry_id),
            d.type,
            d.body,
            rows.to_moment(d.created_at),
            rows.to_moment(d.due_at),
        )
        for d in deliveries
    ]
    transaction.wrote = True
    _connection(transaction).executemany(queries.sql("sqlite", "webhooks.sql")["queue_delivery"], columns)


class SqliteWebhooks:
    """Writing in the writer's thread, reading in a reader's."""

    def __init__(
        self, transact: Callable[..., Awaitable[Any]], *, look: Callable[..., Awaitable[Any]], clock: Clock
    ) -> None:
        self._transact = transact
        self._look = look
        self._clock = clock
        self._sql = queries.sql("sqlite", "webhooks.sql")

    async def make(self, new: Webhook, *, limit: int, deed: WebhookChange | None = None) -> bool:
        """Counted and written by the one writer."""
        n = new
        what = (n.url, rows.to_json(n.types), n.event_id, n.description, n.secret, rows.to_moment(n.created_at))
        return bool(await self._write("make_webhook", str(n.id), n.live, *what, limit, deed=deed))

    async def read(self, webhook_id: WebhookId) -> Webhook | None:
        """By primary key."""
        found = await self._fetch("read_webhook", str(webhook_id))
        return _webhook(found[0]) if found else None

    async def page(self, *, live: bool, after: WebhookId | None, limit: int) -> list[Webhook]:
        """By primary key."""
        return [_webhook(row) for row in await self._fetch("page_webhooks", live, str(after or FIRST), limit)]

    async def save(self, after: Webhook, *, deed: WebhookChange | None = None) -> bool:
        """One guarded update."""
        a = after
        what = (a.url, rows.to_json(a.types), a.event_id, a.description)
        secrets = (a.secret, a.old_secret, rows.to_moment_or_none(a.old_secret_until))
        health = (
            rows.to_moment_or_none(a.disabled_at),
            a.disabled_because,
            rows.to_moment_or_none(a.failing_since),
            rows.to_moment_or_none(a.resting_until),
        )
        return bool(await self._write("save_webhook", str(a.id), a.version, *what, *secrets, *health, deed=deed))

    async def look_up_key(self, key: IdempotencyKey) -> WebhookChange | None:
        """By primary key."""
        found = await self._fetch("read_deed", *key)
        return _deed(found[0]) if found else None

    async def forget(self, *, before: datetime, limit: int) -> int:
        """By the index of when they were done."""
        return await self._write("forget_deeds", rows.to_moment(before), limit)

    async def remove(self, webhook_id: WebhookId) -> bool:
        """A bounded number of deliveries at a time, then the webhook."""
        while await self._write("remove_deliveries", str(webhook_id), REMOVED_MAX) == REMOVED_MAX:
            continue
        return bool(await self._write("remove_webhook", str(webhook_id)))

    async def queue(self, delivery: Delivery) -> None:
        """At the end of the line."""

        async def work(transaction: Any) -> None:
            _queue(transaction, [delivery])

        await self._transact(work, within=SECONDS_MAX)

    async def log(
        self, webhook_id: WebhookId, *, state: DeliveryState | None, before: int | None, limit: int
    ) -> list[Delivery]:
        """By the index of the log."""
        end = LAST if before is None else before
        found = await self._fetch("log_deliveries", str(webhook_id), end, state.value if state else None, limit)
        return [_delivery(row) for row in found]

    async def waiting(self, *, live: bool, limit: int) -> list[Waiting]:
        """By the courier's index."""
        return [
            Waiting(
                webhook_id=WebhookId(UUID(row["webhook_id"])),
                pending=row["pending"],
                due_at=rows.moment(row["due_at"]),
            )
            for row in await self._fetch("count_waiting", live, limit)
        ]

    async def replay(self, webhook_id: WebhookId, delivery_id: DeliveryId) -> Delivery | None:
        """By its id."""

        async def work(transaction: Any) -> list[Any]:
            opening = await transaction.begin([])
            transaction.wrote = True
            asked = (str(webhook_id), str(delivery_id), rows.to_moment(opening.now))
            found: list[Any] = _connection(transaction).execute(self._sql["replay_delivery"], asked).fetchall()
            return found

        found = await self._transact(work, within=SECONDS_MAX)
        return _delivery(found[0]) if found else None

    async def claim(
        self, *, busy: Collection[WebhookId], webhooks: int, each: int, failing: bool, lease_seconds: float
    ) -> list[DeliveryLease]:
        """A reader looks first: with nothing due, those who book are not kept from the writer."""
        passed_over = rows.to_json([str(webhook_id) for webhook_id in busy])
        if not await self._fetch("find_due", rows.to_moment(self._clock.now()), passed_over, failing, webhooks):
            return []

        async def work(transaction: Any) -> list[DeliveryLease]:
            execute = _connection(transaction).execute
            now = (await transaction.begin([])).now
            lease = rows.to_moment(now + timedelta(seconds=lease_seconds))
            moment = rows.to_moment(now)
            errands = []
            for due in execute(self._sql["find_due"], (moment, passed_over, failing, webhooks)).fetchall():
                given = execute(self._sql["claim_deliveries"], (due["id"], moment, each, lease)).fetchall()
                webhook = _webhook(execute(self._sql["read_webhook"], (due["id"],)).fetchone())
                deliveries = sorted(map(_delivery, given), key=lambda one: one.number)
                errands.append(DeliveryLease(webhook=webhook, deliveries=deliveries, now=now))
            transaction.wrote = bool(errands)
            return errands

        errands: list[DeliveryLease] = await self._transact(work, within=SECONDS_MAX)
        return errands

    async def record(
        self, webhook_id: WebhookId, outcomes: Sequence[DeliveryResult], health: WebhookHealth | None
    ) -> bool:
        """All of it in one hop."""
        own = str(webhook_id)

        async def work(transaction: Any) -> bool:
            connection = _connection(transaction)
            now = rows.to_moment((await transaction.begin([])).now)
            transaction.wrote = True
            connection.executemany(self._sql["record_outcome"], [(own, now, *_columns(one)) for one in outcomes])
            if health is None:
                return False
            since, until = rows.to_moment(health.failed_at), rows.to_moment_or_none(health.resting_until)
            connection.execute(self._sql["record_health"], (own, health.ok, since, until))
            if health.disabled_because is None:
                return False
            why = (health.disabled_because, rows.to_moment_or_none(health.unless_well_since), now)
            return bool(connection.execute(self._sql["disable_webhook"], (own, *why)).rowcount)

        disabled: bool = await self._transact(work, within=SECONDS_MAX)
        return disabled

    async def prune(self, *, before: datetime, limit: int) -> int:
        """By the index of what has ended."""
        return await self._write("prune_deliveries", rows.to_moment(before), limit)

    async def _write(self, name: str, *arguments: object, deed: WebhookChange | None = None) -> int:
        async def work(transaction: Any) -> int:
            execute = _connection(transaction).execute
            if (d := deed) is not None:
                kept = (*d.key, d.request_hash, str(d.webhook_id), d.status, rows.to_moment(d.done_at))
                if not execute(self._sql["keep_deed"], kept).rowcount:
                    raise AlreadyDone
            changed = int(execute(self._sql[name], arguments).rowcount)
            # Where nothing was done, no deed is kept.
            transaction.wrote = changed > 0
            return changed

        count: int = await self._transact(work, within=SECONDS_MAX)
        return count

    async def _fetch(self, name: str, *arguments: object) -> list[Any]:
        def look(connection: sqlite3.Connection) -> list[Any]:
            return connection.execute(self._sql[name], arguments).fetchall()

        found: list[Any] = await self._look(look, within=SECONDS_MAX)
        return found


def _connection(transaction: Any) -> sqlite3.Connection:
    connection: sqlite3.Connection = transaction._connection  # noqa: SLF001 (the store's own transaction)
    return connection


def _columns(o: DeliveryResult) -> tuple[Any, ...]:
    due_at = rows.to_moment(o.due_at)
    return (str(o.delivery_id), o.attempt, o.state.value, due_at, o.sent, o.status, o.error, o.took_ms)


def _webhook(row: sqlite3.Row) -> Webhook:
    moments = ("old_secret_until", "disabled_at", "failing_since", "resting_until")
    return Webhook(
        **dict(row)
        | {name: rows.moment_or_none(row[name]) for name in moments}
        | {
            "id": WebhookId(UUID(row["id"])),
            "live": bool(row["live"]),
            "types": _types.decode(row["types"]),
            "created_at": rows.moment(row["created_at"]),
        }
    )


def _deed(row: sqlite3.Row) -> WebhookChange:
    told = dict(row) | {"webhook_id": WebhookId(UUID(row["webhook_id"])), "done_at": rows.moment(row["done_at"])}
    return WebhookChange(key=IdempotencyKey(told.pop("caller"), told.pop("key")), **told)


def _delivery(row: sqlite3.Row) -> Delivery:
    moments = ("created_at", "due_at", "first_at", "tried_at", "ended_at")
    return Delivery(
        **dict(row)
        | {name: rows.moment_or_none(row[name]) for name in moments}
        | {
            "id": DeliveryId(UUID(row["id"])),
            "webhook_id": WebhookId(UUID(row["webhook_id"])),
            "entry_id": EntryId(UUID(row["entry_id"])) if row["entry_id"] else None,
            "state": DeliveryState(row["state"]),
        }
    )
