"""Opening: what the settings describe, behind a door that is not open yet.

`serve` opens a door in front of it, and so does whoever mounts Earmark into an application of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from earmark.api.auth.api_keys import Identity
from earmark.api.endpoint import House
from earmark.api.middleware.deadlines import Deadline
from earmark.api.middleware.rate_limits import Limits
from earmark.api.routes.events import draw
from earmark.clock import SystemClock
from earmark.domain.payment_method import SANDBOX
from earmark.engine.ports.heartbeats import alive_seconds
from earmark.errors import SetupError
from earmark.observability.metrics.metrics import PAGE_SECONDS, Metrics
from earmark.observability.tracing import open_tracing
from earmark.payments.driver import Teller
from earmark.payments.service import Till
from earmark.schemas.seat_map import Words
from earmark.seatmap.cache import Availability
from earmark.seatmap.entry_feed import Feed
from earmark.seatmap.followers import Hub
from earmark.version import __version__
from earmark.webhooks.targets import Targets
from earmark.wiring import capture_for, engine_for, lock_addresses, open_gateways, open_locks, open_sandbox, telling
from earmark.workers import loop
from earmark.workers.chosen_workers import crew_for, heart_for
from earmark.workers.lock_monitor import watchmen_for
from earmark.workers.reconciler import Reconciler
from earmark.workers.webhook_dispatcher import courier_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from earmark.config import Settings
    from earmark.engine.engine import Engine
    from earmark.observability.tracing import Tracing
    from earmark.workers.heartbeat import Heart
    from earmark.workers.loop import Agent


SANDBOX_SECONDS = 10.0
"""How long the reconciler of a server's own sandbox sleeps at most: test payments can wait that long."""
EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 (addresses to listen on, which no browser goes to)


class Opened(NamedTuple):
    """A house, and who works in it."""

    house: House
    agents: Sequence[Agent]
    """Where somebody else does the work, none but those who watch."""
    heart: Heart


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
    till = Till(engine, gateways, seconds=seconds, capture=capture_for(settings))
    test_teller = Teller(engine, {SANDBOX: gateways[SANDBOX]})
    feed = Feed()
    hub = _hub(settings, engine, feed)
    house = _house(settings, engine, metrics=metrics, till=till, hub=hub, tracing=tracing)
    courier = courier_for(settings, engine.store.webhooks)
    agents = (
        metrics.tally.watching(crew_for(settings, engine, till.teller, courier, feed=feed))
        if settings.embedded_workers
        else []
    )
    heart = heart_for(settings, engine.store)
    heart.takes("server", outcome="ok")
    try:
        async with (
            metrics.shared(),
            telling(settings.redis_url, feed=feed if agents else None, listener=hub),
            _test_payments_seen_through(settings, test_teller),
        ):
            yield Opened(house, [*agents, *watchmen_for(settings, house.locks)], heart)
    finally:
        await house.readiness.close()
        await house.deadline.close()
        await house.identity.close()
        await hub.close()
        await courier.close()
        house.targets.close()
        await till.close()
        await test_teller.close()
        if house.locks is not None:
            await house.locks.close()
        await engine.close()


@contextlib.asynccontextmanager
async def _test_payments_seen_through(settings: Settings, teller: Teller) -> AsyncIterator[None]:
    """Reconcile the payments of this process's sandbox, where the workers may run in another process.

    No worker can do that: it has no sandbox, or one of its own.
    """
    if settings.embedded_workers and settings.processes == 1:
        yield
        return
    stop = asyncio.Event()
    reconciler = Reconciler(teller, name="sandbox reconciler", interval_seconds_max=SANDBOX_SECONDS)
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


def _hub(settings: Settings, engine: Engine, feed: Feed) -> Hub:
    return Hub(
        engine.store,
        clock=SystemClock(),
        brush=Words(),
        feed=feed,
        heartbeat_seconds=settings.stream_heartbeat_seconds,
        stall_seconds=settings.stream_stall_seconds,
        readers_max=settings.stream_readers_max,
    )


def _house(
    settings: Settings, engine: Engine, *, metrics: Metrics, till: Till, hub: Hub, tracing: Tracing | None
) -> House:
    assert settings.admin_key is not None
    clock = SystemClock()
    return House(
        engine=engine,
        identity=Identity(admin_key=settings.admin_key, secret=settings.secret, keys=engine.store.keys),
        metrics=metrics,
        clock=clock,
        guests=settings.guests,
        availability=Availability(engine, clock=clock, word=draw, seconds_max=settings.map_cache_seconds),
        till=till,
        locks=open_locks(settings) if lock_addresses(settings) else None,
        limits=Limits(
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
