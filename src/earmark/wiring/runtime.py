"""The runtime: the parts of one process, opened from its settings and closed in the right order.

`earmark serve`, `earmark worker`, the mounted service, the library and the commands that run verbs all open one. There
is one engine and one payment driver in it, whichever of them opened it. At the end

    1  the worker rounds that have begun are finished
    2  notifications to other processes stop, and mails and webhook deliveries under way are finished
    3  payments under way are finished, and then the gateways are closed
    4  locks, admission and the store are closed
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from earmark.domain.default_limits_for_all_events import Policy
from earmark.domain.mask_and_reference_payment_method import SANDBOX
from earmark.engine.engine import Engine
from earmark.payments.choose_gateway_and_pay import PaymentService
from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
from earmark.uuids import Uuid7Ids
from earmark.wiring.gateways import capture_for, open_gateways, open_sandbox, publishable_key_for, sandbox_url
from earmark.wiring.mail import mailer_for
from earmark.wiring.open_and_maintain_databases import open_store
from earmark.wiring.redis_entry_notifications import Notifications
from earmark.wiring.redis_locks_and_admission import lock_addresses, open_admission, open_locks
from earmark.wiring.workers import dispatcher_for, heartbeat_for, workers_for
from earmark.workers import loop
from earmark.workers.unfinished_payment_reconciler import Reconciler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from earmark.config import Settings
    from earmark.engine.ports.gateway import Gateway
    from earmark.engine.ports.observer import Observer
    from earmark.engine.ports.store import Clock
    from earmark.locks import Locks
    from earmark.workers.heartbeat import Heartbeat
    from earmark.workers.loop import Worker

SANDBOX_SECONDS = 10.0
"""How long the reconciler of a server's own sandbox sleeps at most: test payments can wait that long."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The parts of one process."""

    settings: Settings
    engine: Engine
    payments: PaymentService
    locks: Locks | None
    """Where a lock server is set up, and this process was opened with locks."""
    feed: EntryFeed
    notifications: Notifications
    heartbeat: Heartbeat
    workers: Sequence[Worker] = ()
    """One of each role, where this process was opened with workers."""

    @asynccontextmanager
    async def working(self, workers: Sequence[Worker] | None = None) -> AsyncIterator[None]:
        """While the block runs, these workers (or all) run beside it; at its end their rounds are finished.

        A worker whose loop breaks, which no failed round does, ends the block with its error: a process without workers
        must not look alive.
        """
        stop, body = asyncio.Event(), asyncio.current_task()
        assert body is not None
        running = asyncio.create_task(
            loop.run(self.workers if workers is None else workers, stop, heartbeat=self.heartbeat)
        )
        running.add_done_callback(lambda _: None if stop.is_set() else body.cancel())
        try:
            yield
        except asyncio.CancelledError:
            if stop.is_set() or not running.done():
                raise
            body.uncancel()
        finally:
            stop.set()
            await running

    @asynccontextmanager
    async def reconciling_sandbox(self) -> AsyncIterator[None]:
        """While the block runs, reconcile the payments of the sandbox in this process.

        A worker in another process cannot do that: it has no sandbox, or one of its own.
        """
        reconciler = Reconciler(
            self.payments.driver,
            name="sandbox reconciler",
            interval_seconds_max=SANDBOX_SECONDS,
            gateways=(SANDBOX,),
        )
        stop = asyncio.Event()
        running = asyncio.create_task(loop.run([reconciler], stop))
        try:
            yield
        finally:
            stop.set()
            await running


@asynccontextmanager
async def open_runtime(
    settings: Settings,
    *,
    workers: bool = False,
    locks: bool = False,
    sandbox: bool = True,
    gateways: Mapping[str, Gateway] | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
    gateway_seconds: float | None = None,
) -> AsyncIterator[Runtime]:
    """Open the parts that the settings describe; with `workers` one worker of each role, with `locks` the lock server.

    `gateways` take the place of those that the settings describe. `sandbox` adds the gateway for test events that
    lives in this process. `gateway_seconds` is how long a call of `pay` waits for its gateway, where no request has a
    deadline.
    """
    async with AsyncExitStack() as closing:
        engine = await open_engine(settings, clock=clock, observer=observer)
        closing.push_async_callback(engine.close)
        opened_locks = open_locks(settings) if locks and lock_addresses(settings) else None
        if opened_locks is not None:
            closing.push_async_callback(opened_locks.close)
        if gateways is None:
            own = open_sandbox(clock, secret=settings.sandbox_secret, url=sandbox_url(settings)) if sandbox else {}
            gateways = own | open_gateways(settings, engine.store.accounts)
        payments = PaymentService(
            engine,
            gateways,
            # A request with little time is answered that the gateway still decides, rather than not at all.
            seconds=gateway_seconds or min(settings.gateway_answer_seconds, settings.request_seconds_max / 2),
            capture=capture_for(settings),
            stripe_publishable_key=publishable_key_for(settings),
        )
        closing.push_async_callback(payments.close)
        feed, notifications, started = EntryFeed(), Notifications(settings.redis_url), list["Worker"]()
        if workers:
            dispatcher = dispatcher_for(settings, engine.store.webhooks)
            closing.push_async_callback(dispatcher.close)
            mailer = mailer_for(settings, engine.store)
            if mailer is not None:
                closing.push_async_callback(mailer.close)
            started = workers_for(settings, engine, payments.driver, dispatcher, feed=feed, mailer=mailer)
        closing.push_async_callback(notifications.close)
        if workers:
            notifications.publish(feed)
        yield Runtime(
            settings=settings,
            engine=engine,
            payments=payments,
            locks=opened_locks,
            feed=feed,
            notifications=notifications,
            heartbeat=heartbeat_for(settings, engine.store),
            workers=started,
        )


async def open_engine(settings: Settings, *, clock: Clock | None = None, observer: Observer | None = None) -> Engine:
    """The engine on the settings' database, whose schema must be current.

    With a Redis, admission refuses hopeless holds in front of the database.
    """
    store = await open_store(settings.database_url, clock=clock, connections_max=settings.database_connections_max)
    try:
        await store.check()
        admission = (
            open_admission(
                settings.redis_url,
                timeout=settings.admission_timeout_seconds,
                ttl_seconds=settings.admission_ttl_seconds,
                # What signs buyers' tokens, and all servers have: see `SeatAdmission`.
                secret=settings.secret or settings.admin_key,
            )
            if settings.redis_url
            else None
        )
    except BaseException:
        await store.close()
        raise
    return Engine(
        store,
        ids=Uuid7Ids(),
        admission=admission,
        policy=policy_of(settings),
        observer=observer,
        request_seconds_max=settings.request_seconds_max,
        transaction_seconds_max=settings.transaction_seconds_max,
        connection_slots=settings.batch_connections_max,
        batch_size_max=settings.batch_size_max,
        waiting_max=settings.queue_length_max,
        queue_seconds_max=settings.queue_seconds_max,
    )


def policy_of(settings: Settings) -> Policy:
    """The limits on holds and buyers."""
    return Policy(
        ttl_seconds_default=settings.hold_ttl_seconds,
        life_seconds_max=settings.hold_life_seconds_max,
        per_buyer_max=settings.per_buyer_max,
        declines_per_hold_max=settings.declines_per_hold_max or None,
        declines_per_buyer_max=settings.declines_per_buyer_max or None,
        declines_per_address_max=settings.declines_per_address_max or None,
        key_seconds=settings.idempotency_seconds,
    )
