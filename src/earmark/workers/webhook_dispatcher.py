"""The courier: calls webhooks, signed, until they hear.

Every message is sent at least once, and the order is not promised: its `sequence` tells. Any number of couriers may
run; each is given deliveries that no other has, for a while, so what one leaves undone when it dies another does. A
webhook that fails is tried with one message at a time, and all that fail together have no more than half of the
courier's attention: a receiver that is slow or dead delays nobody else.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING

from earmark.domain.webhook import DeliveryState, next_try, rest_seconds
from earmark.engine.ports.webhooks import DeliveryResult, WebhookHealth
from earmark.observability import logs

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.domain.webhook import Delivery
    from earmark.engine.ports.webhooks import DeliveryLease, Webhooks
    from earmark.webhooks.sender import EndpointAnswer, Round, WebhookSender

ERRANDS_MAX = 32
"""How many webhooks are served at once."""
EACH_MAX = 20
"""How many deliveries of one webhook an errand has."""
AT_ONCE_MAX = 4
"""How many of these are on their way at once."""
SPARE_SECONDS = 20.0
GRACE_SECONDS = 2.0
"""How long a courier that is to stop waits for those who are answering."""
GONE = "the receiver answered 410 Gone"
GAVE_UP = "every delivery failed, for as long as they are retried"
OFF = "not sent: the webhook is disabled"

log = logs.get()


class WebhookDispatcher:
    """A worker around the queue of deliveries."""

    name = "webhook_dispatcher"

    def __init__(
        self,
        webhooks: Webhooks,
        sender: WebhookSender,
        *,
        retry_seconds_max: float,
        errands_max: int = ERRANDS_MAX,
        each_max: int = EACH_MAX,
        interval_seconds_max: float = 0.5,
    ) -> None:
        self._webhooks = webhooks
        self._postman = sender
        self._retry_seconds_max = retry_seconds_max
        self._errands_max = errands_max
        self._each_max = each_max
        self._interval_seconds_max = interval_seconds_max
        # As long as the slowest errand that succeeds may take.
        self.lease_seconds = sender.timeout_seconds * -(-each_max // AT_ONCE_MAX) + SPARE_SECONDS
        self._running: dict[asyncio.Task[None], DeliveryLease] = {}
        self._stopping = False

    async def act(self) -> float:
        """Set out for whoever has something due and is not being served, and look again when one is done."""
        set_out = await self._set_out()
        if not self._running:
            # Jitter keeps couriers apart.
            return self._interval_seconds_max * random.uniform(0.8, 1.0)  # noqa: S311 (jitter, not a secret)
        if not set_out or len(self._running) >= self._errands_max:
            await asyncio.wait(self._running, timeout=self._interval_seconds_max, return_when=asyncio.FIRST_COMPLETED)
        self._come_home()
        return 0.0

    async def close(self) -> None:
        """Nothing more is sent; whoever is answering is waited for, a little. What is left is delivered by the next."""
        self._stopping = True
        if self._running:
            await asyncio.wait(self._running, timeout=GRACE_SECONDS)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()
        self._postman.close()

    async def _set_out(self) -> bool:
        """First for those who answer, then for those who do not."""
        failing = sum(errand.webhook.failing_since is not None for errand in self._running.values())
        well = await self._claim(self._errands_max - len(self._running), each=self._each_max, failing=False)
        room = min(self._errands_max - len(self._running), self._errands_max // 2 - failing)
        ill = await self._claim(room, each=1, failing=True)
        return well or ill

    async def _claim(self, room: int, *, each: int, failing: bool) -> bool:
        if room <= 0:
            return False
        errands = await self._webhooks.claim(
            busy={errand.webhook.id for errand in self._running.values()},
            webhooks=room,
            each=each,
            failing=failing,
            lease_seconds=self.lease_seconds,
        )
        for errand in errands:
            task = asyncio.create_task(self._run(errand), name=f"errand {errand.webhook.id}")
            self._running[task] = errand
        return bool(errands)

    def _come_home(self) -> None:
        """Those that are done make room. A store that did not hear how it went is an outage like any other."""
        done = [task for task in self._running if task.done()]
        for task in done:
            del self._running[task]
        failures = [failure for task in done if not task.cancelled() and (failure := task.exception())]
        for failure in failures:
            raise failure

    async def _run(self, errand: DeliveryLease) -> None:
        """One errand, to its end: what was tried is recorded with what was not, in one transaction."""
        webhook = errand.webhook
        if webhook.disabled_at is not None:
            ended = [_unsent(one, state=DeliveryState.FAILED, now=errand.now, error=OFF) for one in errand.deliveries]
            await self._webhooks.record(webhook.id, ended, None)
            return
        began = time.monotonic()
        trip = _Trip(errand, span_seconds=self._retry_seconds_max)
        async with self._postman.round() as calls, asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE_MAX, len(errand.deliveries))):
                group.create_task(self._carry(trip, calls))
        outcomes = trip.outcomes + [_unsent(one, state=DeliveryState.PENDING, now=errand.now) for one in trip.waiting]
        health = trip.health()
        disabled = await self._webhooks.record(webhook.id, outcomes, health)
        took_ms = round((time.monotonic() - began) * 1000)
        told = log.info if trip.failures else log.debug
        told("deliver", webhook=str(webhook.id), delivered=trip.delivered, failed=trip.failures, took_ms=took_ms)
        if disabled and health is not None:
            log.warning("webhook_disabled", webhook=str(webhook.id), because=health.disabled_because)

    async def _carry(self, trip: _Trip, calls: Round) -> None:
        """One after the other, until one fails: then the rest waits, and comes again."""
        webhook = trip.errand.webhook
        while trip.waiting and not trip.failures and not self._stopping:
            delivery = trip.waiting.popleft()
            answered = await calls.call(
                webhook.url,
                message_id=str(delivery.id),
                body=delivery.body,
                secrets=webhook.secrets(now=trip.now),
            )
            trip.hear(delivery, answered)


class _Trip:
    """What an errand has come to so far. Its moments go on from the store's own."""

    def __init__(self, errand: DeliveryLease, *, span_seconds: float) -> None:
        self.errand = errand
        self.waiting = deque(errand.deliveries)
        self.outcomes: list[DeliveryResult] = []
        self.delivered = 0
        self.failures = 0
        self._span_seconds = span_seconds
        self._began = time.monotonic()
        self._asked_seconds: float | None = None
        self._gone = False
        self._given_up: list[Delivery] = []

    @property
    def now(self) -> datetime:
        return self.errand.now + timedelta(seconds=time.monotonic() - self._began)

    def hear(self, delivery: Delivery, answered: EndpointAnswer) -> None:
        """2xx is delivered. Anything else is tried again, until the time for that is over."""
        now = self.now
        state, due_at = DeliveryState.DELIVERED, now
        if answered.error is None:
            self.delivered += 1
        else:
            self.failures += 1
            self._gone = self._gone or answered.status == HTTPStatus.GONE
            self._asked_seconds = answered.asked_seconds or self._asked_seconds
            again = None if answered.status == HTTPStatus.GONE else self._next_try(delivery, answered, now=now)
            if again is None:
                self._given_up.append(delivery)
            state, due_at = (DeliveryState.FAILED, now) if again is None else (DeliveryState.PENDING, again)
        self.outcomes.append(
            DeliveryResult(
                delivery_id=delivery.id,
                attempt=delivery.attempts,
                state=state,
                due_at=due_at,
                status=answered.status,
                error=answered.error,
                took_ms=answered.took_ms,
            )
        )

    def health(self) -> WebhookHealth | None:
        """What this says of the webhook itself; None where it is as well as it was."""
        webhook, began = self.errand.webhook, self.errand.now
        if not self.failures and not (self.delivered and webhook.failing_since):
            return None
        since = webhook.failing_since or began
        rest = rest_seconds(failing_since=since, now=self.now, asked_seconds=self._asked_seconds)
        over = [delivery.first_at for delivery in self._given_up if delivery.first_at is not None]
        because = GONE if self._gone else GAVE_UP if over and not self.delivered else None
        return WebhookHealth(
            ok=self.delivered > 0,
            failed_at=began,
            resting_until=self.now + timedelta(seconds=rest),
            disabled_because=because,
            unless_well_since=None if self._gone else min(over, default=None),
        )

    def _next_try(self, delivery: Delivery, answered: EndpointAnswer, *, now: datetime) -> datetime | None:
        return next_try(
            delivery,
            now=now,
            span_seconds=self._span_seconds,
            chance=random.random(),  # noqa: S311 (jitter, not a secret)
            asked_seconds=answered.asked_seconds,
        )


def _unsent(delivery: Delivery, *, state: DeliveryState, now: datetime, error: str | None = None) -> DeliveryResult:
    return DeliveryResult(
        delivery_id=delivery.id, attempt=delivery.attempts, state=state, due_at=now, sent=False, error=error
    )
