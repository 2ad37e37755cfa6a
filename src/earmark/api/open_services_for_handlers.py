"""What the handlers use: the runtime's parts and those that only HTTP needs, opened and closed together."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from earmark.api.auth.keys_and_tokens import Authenticator
from earmark.api.cross_origin_requests import AllowedOrigins
from earmark.api.middleware.rate_limits import RateLimits
from earmark.api.middleware.read_and_decode_body import BodyTimeout
from earmark.api.middleware.requests_in_flight_and_shutdown import RequestsInFlight
from earmark.api.middleware.run_handler_within_deadline import Deadline
from earmark.api.shared_readiness_check import Readiness
from earmark.clock import SystemClock
from earmark.config_checks import origins_of
from earmark.engine.engine import Engine
from earmark.engine.ports.heartbeats import ALIVE_SECONDS, alive_seconds
from earmark.engine.ports.store import Clock
from earmark.locks import Locks
from earmark.observability.metrics.metrics_page import PAGE_SECONDS, Metrics
from earmark.observability.tracing import Tracing, open_tracing
from earmark.payments.choose_gateway_and_pay import PaymentService
from earmark.schemas.render_seat_map import SeatMapRenderer, render_map
from earmark.seatmap.rendered_seat_map_cache import SeatMapCache
from earmark.seatmap.stream_hub import StreamHub
from earmark.version import __version__
from earmark.webhooks.check_target_addresses import Targets
from earmark.wiring.runtime import open_runtime
from earmark.wiring.workers import lock_monitors_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from earmark.config import Settings
    from earmark.wiring.runtime import Runtime
    from earmark.workers.loop import Worker

BODY_SECONDS_MAX = 30.0
SECONDS_MAX = 15.0


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that handlers use: engine, payments, authentication, limits, metrics and the rest."""

    engine: Engine
    authenticator: Authenticator
    metrics: Metrics
    clock: Clock
    guests: bool
    mail: bool = False
    """Whether mails are sent, so that a contact which comes after the confirmation queues one."""
    mail_test_events: bool = False
    """Whether mails are sent about bookings of test events, too."""
    seat_map_cache: SeatMapCache
    payments: PaymentService
    locks: Locks | None = None
    """None where no Redis is set up."""
    origins: AllowedOrigins = msgspec.field(default_factory=AllowedOrigins)
    """Other sites whose pages may call what buyers call."""
    limits: RateLimits = msgspec.field(default_factory=RateLimits)
    deadline: Deadline = msgspec.field(default_factory=lambda: Deadline(SECONDS_MAX))
    body_timeout: BodyTimeout = msgspec.field(default_factory=lambda: BodyTimeout(BODY_SECONDS_MAX))
    trust_proxy: int = 0
    """How many proxies in front are trusted to name the client's address."""
    counts_addresses: bool = False
    """Whether an operator has set how many there are: behind an uncounted proxy all buyers share an address."""
    hub: StreamHub | None = None
    """The open streams of live maps; None where there are none."""
    in_flight: RequestsInFlight = msgspec.field(default_factory=RequestsInFlight)
    readiness: Readiness = msgspec.field(default_factory=Readiness)
    tracing: Tracing | None = None
    """None where tracing is off."""
    targets: Targets = Targets()
    alive_seconds: float = ALIVE_SECONDS
    """How long a worker's heartbeat may be old before the worker counts as stopped."""

    def begin_shutdown(self) -> None:
        """Prepare for the end: `/readyz` fails, streams get a last event, requests waiting for a gateway are answered.

        All other requests are still answered as before.
        """
        self.in_flight.begin_shutdown()
        self.payments.hurry()
        if self.hub:
            self.hub.end()


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An open service: what handlers use, the runtime behind it, and the workers that run beside it."""

    services: Services
    runtime: Runtime
    workers: Sequence[Worker]
    """The embedded workers of the settings, and the lock monitor."""


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Opened]:
    """Open everything that serving needs. At the end, streams are closed first, then the runtime."""
    metrics = Metrics(version=__version__, page_seconds=PAGE_SECONDS)
    tracing = open_tracing() if settings.tracing else None
    observer = tracing.around(metrics.recorder) if tracing else metrics.recorder
    async with AsyncExitStack() as closing:
        runtime = await closing.enter_async_context(
            open_runtime(settings, workers=settings.embedded_workers, locks=True, observer=observer)
        )
        services = _services(runtime, metrics=metrics, tracing=tracing)
        closing.callback(services.targets.close)
        assert services.hub is not None
        closing.push_async_callback(services.hub.close)
        closing.push_async_callback(services.authenticator.close)
        closing.push_async_callback(services.deadline.close)
        closing.push_async_callback(services.readiness.close)
        runtime.notifications.listen(services.hub)
        if not (settings.embedded_workers and settings.processes == 1):
            await closing.enter_async_context(runtime.reconciling_sandbox())
        await closing.enter_async_context(metrics.shared())
        runtime.heartbeat.add_role("server", outcome="ok")
        workers = [*metrics.recorder.watching(runtime.workers), *lock_monitors_for(settings, runtime.locks)]
        yield Opened(services=services, runtime=runtime, workers=workers)


def _services(runtime: Runtime, *, metrics: Metrics, tracing: Tracing | None) -> Services:
    settings, engine, clock = runtime.settings, runtime.engine, SystemClock()
    assert settings.admin_key is not None
    return Services(
        engine=engine,
        authenticator=Authenticator(admin_key=settings.admin_key, secret=settings.secret, keys=engine.store.keys),
        metrics=metrics,
        clock=clock,
        guests=settings.guests,
        mail=settings.smtp_url is not None,
        mail_test_events=settings.mail_test_events,
        seat_map_cache=SeatMapCache(engine, clock=clock, render=render_map, seconds_max=settings.map_cache_seconds),
        payments=runtime.payments,
        locks=runtime.locks,
        origins=AllowedOrigins(origins_of(settings.allowed_origins)),
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
        hub=StreamHub(
            engine.store,
            clock=clock,
            renderer=SeatMapRenderer(),
            feed=runtime.feed,
            heartbeat_seconds=settings.stream_heartbeat_seconds,
            stall_seconds=settings.stream_stall_seconds,
            readers_max=settings.stream_readers_max,
        ),
        tracing=tracing,
        targets=Targets(private=settings.webhook_private),
        alive_seconds=alive_seconds(settings.heartbeat_seconds),
    )
