"""The crew: all workers that the settings ask for, made in one place for `serve` and for `work`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.seatmap.entry_feed import EntryFeed
from earmark.workers.heartbeat import Heartbeat
from earmark.workers.janitor import Janitor
from earmark.workers.outbox_relay import OutboxRelay
from earmark.workers.reconciler import Reconciler
from earmark.workers.sweeper import Sweeper

if TYPE_CHECKING:
    from earmark.config import Settings
    from earmark.engine.engine import Engine
    from earmark.engine.ports.store import Store
    from earmark.payments.driver import PaymentDriver
    from earmark.workers.loop import Worker
    from earmark.workers.webhook_dispatcher import WebhookDispatcher

ROLES = ("sweeper", "reconciler", "relay", "webhook_dispatcher", "janitor")
"""The workers of every crew, by name."""


def crew_for(
    settings: Settings,
    engine: Engine,
    driver: PaymentDriver,
    dispatcher: WebhookDispatcher,
    *,
    feed: EntryFeed | None = None,
) -> list[Worker]:
    """One of each."""
    return [
        Sweeper(
            engine,
            batch_size_max=settings.sweep_batch_size_max,
            interval_seconds_max=settings.sweep_interval_seconds,
        ),
        Reconciler(driver, interval_seconds_max=settings.reconcile_interval_seconds),
        OutboxRelay(engine.store.outbox, feed or EntryFeed(), interval_seconds_max=settings.relay_interval_seconds),
        dispatcher,
        janitor_for(settings, engine.store),
    ]


def janitor_for(settings: Settings, store: Store) -> Janitor:
    """The one who tidies, also by hand."""
    return Janitor(
        store,
        keys_seconds=settings.idempotency_seconds,
        deliveries_seconds=settings.webhook_log_seconds,
        interval_seconds_max=settings.janitor_interval_seconds,
    )


def heart_for(settings: Settings, store: Store) -> Heartbeat:
    """What says that this process lives."""
    return Heartbeat(store.beats, interval_seconds=settings.heartbeat_seconds)
