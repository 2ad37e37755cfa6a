"""The state of the service for its operator: everything the console shows, in one response.

Payments, holds and webhooks are those of the key's mode. Workers, the relay, the queues and the locks serve both modes.
If Redis does not answer, the rest is shown all the same; without the database the request fails.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from earmark.api import derive_ops_alerts
from earmark.api.auth.keys_and_tokens import Scope
from earmark.api.endpoint_declaration import Endpoint
from earmark.api.response import ApiResponse, json_response
from earmark.api.routes.webhooks_and_deliveries import BY_THE_SHOP
from earmark.domain.money import Money
from earmark.domain.webhook import WEBHOOKS_MAX
from earmark.engine.ports.heartbeats import WELL
from earmark.locks.errors import LocksUnavailable
from earmark.observability.metrics.redis_up_gauges import PING_SECONDS, AdmissionOverRedis
from earmark.payments.find_payments_needing_review import cases
from earmark.schemas import ops_console
from earmark.version import __version__
from earmark.wiring.workers import ROLES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from earmark.api.open_services_for_handlers import Services
    from earmark.api.request_context_for_handlers import RequestContext
    from earmark.domain.live_or_test_mode import Mode
    from earmark.domain.webhook import Webhook
    from earmark.engine.ports.heartbeats import HeartbeatRow
    from earmark.engine.ports.store import Store
    from earmark.engine.ports.webhook_storage import Waiting
    from earmark.locks import Holding, Locks
    from earmark.payments.find_payments_needing_review import Case

CASES_MAX = 20
WORKERS_MAX = 100
WEBHOOKS_SHOWN_MAX = 20
LOCKS_MAX = 50
WAITERS_MAX = 10
COUNT_MAX = 10_000
LOCKS_SECONDS_MAX = 2.0
"""How long a Redis may delay the rest of the response."""


async def show(context: RequestContext) -> ApiResponse:
    """The whole console. One query after the other: bookings do not wait for an operator's page."""
    services, mode = context.services, context.principal.actor.mode
    store, counted = context.engine.store, _HostCounts(services)
    await store.check()
    left = await store.upkeep.backlog()
    payments = await _payments(store, mode=mode)
    holds = await _holds(store, counted, mode=mode)
    relay = ops_console.OpsRelay(unsent=left.unsent, oldest_seconds=_seconds(left.unsent_since, left.now))
    webhooks = await _webhooks(store, mode=mode, now=left.now)
    missing, workers = await _workers(store, seconds=services.alive_seconds)
    locks = await _locks(services.locks)
    parts = await _parts(services, locks)
    found = (
        *derive_ops_alerts.of_payments(payments),
        *derive_ops_alerts.of_parts(parts),
        *derive_ops_alerts.of_workers(missing, workers),
        *derive_ops_alerts.of_holds(holds),
        *derive_ops_alerts.of_relay(relay),
        *derive_ops_alerts.of_webhooks(webhooks, now=left.now),
    )
    return json_response(
        ops_console.OpsAnswer(
            now=left.now,
            version=__version__,
            mode=mode,
            needs=list(found),
            parts=parts,
            payments=payments,
            holds=holds,
            relay=relay,
            webhooks=webhooks,
            roles_missing=missing,
            workers=workers,
            queues=counted.queues(),
            locks=locks,
        )
    )


async def _payments(store: Store, *, mode: Mode) -> ops_console.OpsPayments:
    watch = await store.watch_money(limit=COUNT_MAX, mode=mode)
    flagged = await cases(store, limit=CASES_MAX, mode=mode) if watch.attention else []
    return ops_console.OpsPayments(
        attention=sum(watch.attention.values()),
        open=watch.open,
        open_oldest_seconds=_seconds(watch.open_since, watch.now),
        cases=[_case(case) for case in flagged],
    )


def _case(case: Case) -> ops_console.OpsCase:
    refused = [ops_console.OpsRefusedRefund(id=str(one.id), amount=one.amount, code=one.code) for one in case.refused]
    return ops_console.OpsCase(
        payment_id=case.payment_id,
        booking_id=case.booking_id,
        booking_state=case.booking_state,
        event_id=case.event_id,
        gateway=case.gateway,
        gateway_id=case.gateway_id,
        amount=Money(amount=case.amount, currency=case.currency),
        captured=case.captured,
        refunded=case.refunded,
        since=case.since,
        code=case.code,
        message=case.message,
        refused=refused,
        what_to_do=f"{case.advice}.",
        commands=[case.command, f"earmark explain {case.booking_id}"],
    )


async def _holds(store: Store, counted: _HostCounts, *, mode: Mode) -> ops_console.OpsHolds:
    seen = await store.upkeep.holds(mode=mode, limit=COUNT_MAX)
    return ops_console.OpsHolds(
        held=seen.held,
        next_in_seconds=_seconds(seen.now, seen.next_at) if seen.next_at else None,
        due=seen.due,
        due_seconds=_seconds(seen.due_since, seen.now),
        expired=counted.expired(),
    )


async def _webhooks(store: Store, *, mode: Mode, now: datetime) -> ops_console.OpsWebhooks:
    """Disabled and failing webhooks first, then those with the most pending deliveries; idle ones are only counted."""
    known = await store.webhooks.page(mode=mode, after=None, limit=WEBHOOKS_MAX)
    waiting = {one.webhook_id: one for one in await store.webhooks.waiting(mode=mode, limit=COUNT_MAX)}
    all_ = [_webhook(one, waiting.get(one.id), now=now) for one in known]
    shown = [one for one in all_ if one.health != "well" or one.pending]
    shown.sort(key=lambda one: (_WORST_FIRST.index(one.health), -one.pending))
    return ops_console.OpsWebhooks(
        known=len(all_),
        pending=sum(one.pending for one in all_),
        late_seconds=max((one.late_seconds for one in all_ if one.health == "well"), default=0.0),
        listed=shown[:WEBHOOKS_SHOWN_MAX],
    )


_WORST_FIRST = ("disabled", "failing", "well", "off")


def _webhook(webhook: Webhook, waiting: Waiting | None, *, now: datetime) -> ops_console.OpsWebhook:
    return ops_console.OpsWebhook(
        id=str(webhook.id),
        host=urlsplit(webhook.url).hostname or "nowhere",
        health=_health_of(webhook),
        failing_since=webhook.failing_since,
        disabled_because=webhook.disabled_because,
        pending=waiting.pending if waiting else 0,
        late_seconds=_seconds(waiting.due_at, now) if waiting else 0.0,
    )


def _health_of(webhook: Webhook) -> ops_console.WebhookHealth:
    if webhook.disabled_at is not None:
        return "off" if webhook.disabled_because == BY_THE_SHOP else "disabled"
    return "well" if webhook.failing_since is None else "failing"


async def _workers(store: Store, *, seconds: float) -> tuple[list[str], list[ops_console.OpsWorker]]:
    """The roles that no worker runs, and all workers with a heartbeat, failing and silent ones first."""
    roll = await store.heartbeats.read(limit=COUNT_MAX)
    workers = [_worker(beat, now=roll.now, seconds=seconds) for beat in roll.heartbeats]
    running = {worker.role for worker in workers if worker.health != "silent"}
    workers.sort(key=lambda worker: worker.health == "well")
    return [role for role in ROLES if role not in running], workers[:WORKERS_MAX]


def _worker(beat: HeartbeatRow, *, now: datetime, seconds: float) -> ops_console.OpsWorker:
    age = _seconds(beat.beat_at, now)
    health: ops_console.WorkerHealth = "well" if beat.code in WELL else "failing"
    return ops_console.OpsWorker(
        role=beat.role,
        host=beat.host,
        process_id=str(beat.process_id),
        version=beat.version,
        health="silent" if age > seconds else health,
        outcome=beat.code,
        failing_since=beat.failing_since,
        because=beat.because,
        rounds=beat.rounds,
        started_at=beat.started_at,
        beat_at=beat.beat_at,
        age_seconds=age,
    )


async def _locks(opened: Locks | None) -> ops_console.OpsLocks:
    if opened is None:
        return ops_console.OpsLocks(configured=False, up=False, more=False, listed=[])
    try:
        async with asyncio.timeout(LOCKS_SECONDS_MAX):
            found = await opened.holdings(limit=LOCKS_MAX + 1)
    except (LocksUnavailable, TimeoutError):
        return ops_console.OpsLocks(configured=True, up=False, more=False, listed=[])
    listed = [_lock(holding) for holding in found[:LOCKS_MAX]]
    return ops_console.OpsLocks(configured=True, up=True, more=len(found) > LOCKS_MAX, listed=listed)


def _lock(holding: Holding) -> ops_console.OpsLock:
    return ops_console.OpsLock(
        key=holding.key,
        holder=holding.holder,
        fence=holding.fence,
        age_seconds=round(holding.age_seconds, 3),
        ttl_seconds=round(holding.ttl_seconds, 3),
        waiting=len(holding.waiters),
        waiters=list(holding.waiters[:WAITERS_MAX]),
    )


async def _parts(services: Services, locks: ops_console.OpsLocks) -> list[ops_console.OpsPart]:
    """The server, the database and each Redis. If the database does not answer, the request has already failed."""
    stopping, admission = services.in_flight.is_stopping, _admission(services)
    said = "This server is about to stop." if stopping else "This server takes bookings."
    parts = [
        ops_console.OpsPart(name="server", up=not stopping, said=said),
        ops_console.OpsPart(name="database", up=True, said="The database answers, and its schema is current."),
    ]
    if locks.configured:
        said = "The Redis of the locks answers." if locks.up else "The Redis of the locks does not answer."
        parts.append(ops_console.OpsPart(name="locks", up=locks.up, said=said))
    if admission is not None:
        up = all((await admission.answering(within=PING_SECONDS)).values())
        said = "The Redis of admission answers." if up else "The Redis of admission does not answer."
        parts.append(ops_console.OpsPart(name="admission", up=up, said=said))
    return parts


def _admission(services: Services) -> AdmissionOverRedis | None:
    admission: object = services.engine.admission
    return admission if isinstance(admission, AdmissionOverRedis) else None


class _HostCounts:
    """The counters of all server processes of this host, summed."""

    def __init__(self, services: Services) -> None:
        self._verbs = list(services.engine.queues)
        self._values: Mapping[tuple[str, str], float] = services.metrics.figures()

    def queues(self) -> list[ops_console.OpsQueue]:
        """The queue of each verb that runs in batches."""
        return [
            ops_console.OpsQueue(
                verb=verb,
                waiting=self._of("earmark_queue_waiting", verb),
                in_flight=self._of("earmark_batches_in_flight", verb),
                batches=self._of("earmark_batch_size_count", verb),
                requests=self._of("earmark_batch_size_sum", verb),
            )
            for verb in self._verbs
        ]

    def expired(self) -> ops_console.OpsExpired:
        """Ended holds, by what ended them."""
        name = "earmark_expired_total"
        return ops_console.OpsExpired(
            swept=self._of(name, "swept"), met=self._of(name, "met"), made_room=self._of(name, "made_room")
        )

    def _of(self, name: str, label: str) -> int:
        return int(self._values.get((name, label), 0))


def _seconds(since: datetime | None, until: datetime) -> float:
    """The time between two moments; 0 without a beginning."""
    return round(max((until - since).total_seconds(), 0.0), 3) if since else 0.0


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/ops",
        name="show_ops",
        summary="Show the state of the service, and what needs an operator",
        handler=show,
        answer=ops_console.OpsAnswer,
        scope=Scope.OPS,
        group="operations",
    ),
)
