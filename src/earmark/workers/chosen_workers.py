"""The crew: all agents that the settings ask for, made in one place for `serve` and for `work`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.seatmap.entry_feed import Feed
from earmark.workers.heartbeat import Heart
from earmark.workers.janitor import Janitor
from earmark.workers.outbox_relay import Relay
from earmark.workers.reconciler import Reconciler
from earmark.workers.sweeper import Sweeper

if TYPE_CHECKING:
    from earmark.config import Settings
    from earmark.engine.engine import Engine
    from earmark.engine.ports.store import Store
    from earmark.payments.driver import Teller
    from earmark.workers.loop import Agent
    from earmark.workers.webhook_dispatcher import Courier

ROLES = ("sweeper", "reconciler", "relay", "courier", "janitor")
"""The agents of every crew, by name."""


def crew_for(
    settings: Settings,
    engine: Engine,
    teller: Teller,
    courier: Courier,
    *,
    feed: Feed | None = None,
) -> list[Agent]:
    """One of each."""
    return [
        Sweeper(
            engine,
            batch_size_max=settings.sweep_batch_size_max,
            interval_seconds_max=settings.sweep_interval_seconds,
        ),
        Reconciler(teller, interval_seconds_max=settings.reconcile_interval_seconds),
        Relay(engine.store.outbox, feed or Feed(), interval_seconds_max=settings.relay_interval_seconds),
        courier,
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


def heart_for(settings: Settings, store: Store) -> Heart:
    """What says that this process lives."""
    return Heart(store.beats, interval_seconds=settings.heartbeat_seconds)
