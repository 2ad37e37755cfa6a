"""Builds the workers of a process from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.errors import SetupError
from earmark.workers.due_hold_sweeper import Sweeper
from earmark.workers.heartbeat import Heartbeat
from earmark.workers.journal_numbering_and_publishing_relay import OutboxRelay
from earmark.workers.old_row_janitor import Janitor
from earmark.workers.stuck_lock_monitor import LockMonitor
from earmark.workers.unfinished_payment_reconciler import Reconciler

if TYPE_CHECKING:
    from earmark.config import Settings
    from earmark.engine.engine import Engine
    from earmark.engine.ports.store import Store
    from earmark.engine.ports.webhook_storage import Webhooks
    from earmark.locks import Locks
    from earmark.payments.drive_payment_to_its_end import PaymentDriver
    from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
    from earmark.workers.loop import Worker
    from earmark.workers.mailer import Mailer
    from earmark.workers.webhook_dispatcher import WebhookDispatcher

ROLES = ("sweeper", "reconciler", "relay", "webhook_dispatcher", "janitor")
"""The workers that every installation needs, by name."""


def workers_for(
    settings: Settings,
    engine: Engine,
    driver: PaymentDriver,
    dispatcher: WebhookDispatcher,
    *,
    feed: EntryFeed,
    mailer: Mailer | None = None,
) -> list[Worker]:
    """One worker of each role; the mailer where mails are sent."""
    mail = mailer is not None
    return [
        Sweeper(
            engine,
            batch_size_max=settings.sweep_batch_size_max,
            interval_seconds_max=settings.sweep_interval_seconds,
        ),
        Reconciler(driver, interval_seconds_max=settings.reconcile_interval_seconds),
        OutboxRelay(engine.store.outbox, feed, interval_seconds_max=settings.relay_interval_seconds, mail=mail),
        dispatcher,
        janitor_for(settings, engine.store),
        *([mailer] if mailer is not None else []),
    ]


def janitor_for(settings: Settings, store: Store) -> Janitor:
    """The janitor, also for `earmark tidy`."""
    return Janitor(
        store,
        keys_seconds=settings.idempotency_seconds,
        deliveries_seconds=settings.webhook_log_seconds,
        interval_seconds_max=settings.janitor_interval_seconds,
    )


def dispatcher_for(settings: Settings, webhooks: Webhooks) -> WebhookDispatcher:
    """The webhook dispatcher, with its HTTP client."""
    try:
        from earmark.webhooks.check_target_addresses import Targets
        from earmark.webhooks.sign_and_send_one_webhook import WebhookSender
        from earmark.workers.webhook_dispatcher import WebhookDispatcher
    except ImportError as missing:
        raise SetupError(problem="Calling webhooks needs an extra: pip install 'earmark[server]'") from missing
    sender = WebhookSender(Targets(private=settings.webhook_private), timeout_seconds=settings.webhook_timeout_seconds)
    return WebhookDispatcher(webhooks, sender, retry_seconds_max=settings.webhook_retry_seconds_max)


def heartbeat_for(settings: Settings, store: Store) -> Heartbeat:
    """What records that this process is alive."""
    return Heartbeat(store.heartbeats, interval_seconds=settings.heartbeat_seconds)


def lock_monitors_for(settings: Settings, locks: Locks | None) -> list[LockMonitor]:
    """One lock monitor where there are locks and the settings want it, else none."""
    if locks is None or not settings.lock_check_seconds:
        return []
    return [
        LockMonitor(locks, stuck_seconds=settings.lock_stuck_seconds, interval_seconds=settings.lock_check_seconds),
    ]
