"""Opening: what the settings describe, behind a door that is not open yet.

`serve` opens a door in front of it, and so does whoever mounts Earmark into an application of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from earmark.api.auth.api_keys import Authenticator
from earmark.api.endpoint import Services
from earmark.api.middleware.deadlines import Deadline
from earmark.api.middleware.rate_limits import RateLimits
from earmark.api.routes.events import draw
from earmark.clock import SystemClock
from earmark.domain.payment_method import SANDBOX
from earmark.engine.ports.heartbeats import alive_seconds
from earmark.errors import SetupError
from earmark.observability.metrics.metrics import PAGE_SECONDS, Metrics
from earmark.observability.tracing import open_tracing
from earmark.payments.driver import PaymentDriver
from earmark.payments.service import PaymentService
from earmark.schemas.seat_map import SeatMapRenderer
from earmark.seatmap.cache import SeatMapCache
from earmark.seatmap.entry_feed import EntryFeed
from earmark.seatmap.followers import StreamHub
from earmark.version import __version__
from earmark.webhooks.targets import Targets
from earmark.wiring import capture_for, engine_for, lock_addresses, open_gateways, open_locks, open_sandbox, telling
from earmark.workers import loop
from earmark.workers.chosen_workers import crew_for, heart_for
from earmark.workers.lock_monitor import lock_monitors_for
from earmark.workers.reconciler import Reconciler
from earmark.workers.webhook_dispatcher import dispatcher_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from earmark.config import Settings
    from earmark.engine.engine import Engine
    from earmark.observability.tracing import Tracing
    from earmark.workers.heartbeat import Heartbeat
    from earmark.workers.loop import Worker


SANDBOX_SECONDS = 10.0
"""How long the reconciler of a server's own sandbox sleeps at most: test payments can wait that long."""
EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 (addresses to listen on, which no browser goes to)


class Opened(NamedTuple):
    """A house, and who works in it."""

    services: Services
    workers: Sequence[Worker]
    """Where somebody else does the work, none but those who watch."""
    heartbeat: Heartbeat


@contextlib.asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Opened]:
    """Open everything, and at the end finish what was accepted and close it."""
    metrics = Metrics(version=__version__, page_seconds=PAGE_SECONDS)
    tracing = open_tracing() if settings.tracing else None
    engine = await engine_for(settings, observer=tracing.around(metrics.tally) if tracing else metrics.tally)
    gateways = open_sandbox(secret=settings.sandbox_secret, url=sandbox_url(settings))
    gateways |= open_gateways(settings, engine.store.accounts)
    # Whoever asks for little time is told that the gateway still decides, rather than nothing.
    seconds = min(settings.gateway_answer_seconds, settings.request_seconds_max / 2)
    payments = PaymentService(engine, gateways, seconds=seconds, capture=capture_for(settings))
    test_driver = PaymentDriver(engine, {SANDBOX: gateways[SANDBOX]})
    feed = EntryFeed()
    hub = _hub(settings, engine, feed)
    services = _house(settings, engine, metrics=metrics, payments=payments, hub=hub, tracing=tracing)
    dispatcher = dispatcher_for(settings, engine.store.webhooks)
    workers = (
        metrics.tally.watching(crew_for(settings, engine, payments.driver, dispatcher, feed=feed))
        if settings.embedded_workers
        else []
    )
    heartbeat = heart_for(settings, engine.store)
    heartbeat.takes("server", outcome="ok")
    try:
        async with (
            metrics.shared(),
            telling(settings.redis_url, feed=feed if workers else None, listener=hub),
            _test_payments_seen_through(settings, test_driver),
        ):
            yield Opened(services, [*workers, *lock_monitors_for(settings, services.locks)], heartbeat)
    finally:
        await services.readiness.close()
        await services.deadline.close()
        await services.authenticator.close()
        await hub.close()
        await dispatcher.close()
        services.targets.close()
        await payments.close()
        await test_driver.close()
        if services.locks is not None:
            await services.locks.close()
        await engine.close()


@contextlib.asynccontextmanager
async def _test_payments_seen_through(settings: Settings, driver: PaymentDriver) -> AsyncIterator[None]:
    """Reconcile the payments of this process's sandbox, where the workers may run in another process.

    No worker can do that: it has no sandbox, or one of its own.
    """
    if settings.embedded_workers and settings.processes == 1:
        yield
        return
    stop = asyncio.Event()
    reconciler = Reconciler(driver, name="sandbox reconciler", interval_seconds_max=SANDBOX_SECONDS)
    working = asyncio.create_task(loop.run([reconciler], stop))
    try:
        yield
    finally:
        stop.set()
        await working


def sandbox_url(settings: Settings) -> str:
    """Where a buyer's browser finds the page of the sandbox in this server."""
    if settings.sandbox_url is not None:
        if not settings.sandbox_url.startswith(("http://", "https://")):
            raise SetupError(problem="EARMARK_SANDBOX_URL begins with http:// or https://.")
        return settings.sandbox_url.rstrip("/")
    if settings.host in EVERYWHERE:
        return f"http://127.0.0.1:{settings.port}"
    return f"http://{f'[{settings.host}]' if ':' in settings.host else settings.host}:{settings.port}"


def _hub(settings: Settings, engine: Engine, feed: EntryFeed) -> StreamHub:
    return StreamHub(
        engine.store,
        clock=SystemClock(),
        brush=SeatMapRenderer(),
        feed=feed,
        heartbeat_seconds=settings.stream_heartbeat_seconds,
        stall_seconds=settings.stream_stall_seconds,
        readers_max=settings.stream_readers_max,
    )


def _house(
    settings: Settings,
    engine: Engine,
    *,
    metrics: Metrics,
    payments: PaymentService,
    hub: StreamHub,
    tracing: Tracing | None,
) -> Services:
    assert settings.admin_key is not None
    clock = SystemClock()
    return Services(
        engine=engine,
        authenticator=Authenticator(admin_key=settings.admin_key, secret=settings.secret, keys=engine.store.keys),
        metrics=metrics,
        clock=clock,
        guests=settings.guests,
        seat_map_cache=SeatMapCache(engine, clock=clock, word=draw, seconds_max=settings.map_cache_seconds),
        payments=payments,
        locks=open_locks(settings) if lock_addresses(settings) else None,
        limits=RateLimits(
            per_key=settings.requests_per_second_per_key,
            per_buyer=settings.requests_per_second_per_buyer,
            guests_per_address=settings.guests_per_second_per_address,
            streams_per_key=settings.stream_readers_per_key_max,
            streams_per_buyer=settings.stream_readers_per_buyer_max,
            streams_per_address=settings.stream_readers_per_address_max,
        ),
        deadline=Deadline(settings.request_seconds_max),
        trust_proxy=settings.trust_proxy or 0,
        counts_addresses=settings.trust_proxy is not None,
        hub=hub,
        tracing=tracing,
        targets=Targets(private=settings.webhook_private),
        alive_seconds=alive_seconds(settings.heartbeat_seconds),
    )
