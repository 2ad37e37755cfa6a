"""The webhook dispatcher: sends signed webhook deliveries, and retries until the receiver answers 2xx.

Every message is sent at least once. The order is not guaranteed: receivers sort by `sequence`. Any number of
dispatchers may run; each leases deliveries that no other has, so what one leaves undone when it dies another does. A
failing webhook is tried with one message at a time, and all failing webhooks together get at most half of the
dispatcher's capacity: a slow or dead receiver does not delay the others.
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
from earmark.engine.ports.webhook_storage import DeliveryResult, WebhookHealth
from earmark.observability import logs

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.domain.webhook import Delivery
    from earmark.engine.ports.webhook_storage import DeliveryLease, Webhooks
    from earmark.webhooks.sign_and_send_one_webhook import Round, WebhookResponse, WebhookSender

WEBHOOKS_AT_ONCE_MAX = 32
"""How many webhooks are served at once."""
EACH_MAX = 20
"""How many deliveries of one webhook are claimed together."""
AT_ONCE_MAX = 4
"""How many of these are sent at once."""
SPARE_SECONDS = 20.0
GRACE_SECONDS = 2.0
"""How long a dispatcher that stops waits for receivers that are answering."""
GONE = "the receiver answered 410 Gone"
GAVE_UP = "every delivery failed, for as long as they are retried"
OFF = "not sent: the webhook is disabled"

log = logs.get()


class WebhookDispatcher:
    """A worker that sends the deliveries in the queue."""

    name = "webhook_dispatcher"

    def __init__(
        self,
        webhooks: Webhooks,
        sender: WebhookSender,
        *,
        retry_seconds_max: float,
        webhooks_max: int = WEBHOOKS_AT_ONCE_MAX,
        each_max: int = EACH_MAX,
        interval_seconds_max: float = 0.5,
    ) -> None:
        self._webhooks = webhooks
        self._sender = sender
        self._retry_seconds_max = retry_seconds_max
        self._webhooks_max = webhooks_max
        self._each_max = each_max
        self._interval_seconds_max = interval_seconds_max
        # As long as the slowest claim that succeeds may take.
        self.lease_seconds = sender.timeout_seconds * -(-each_max // AT_ONCE_MAX) + SPARE_SECONDS
        self._running: dict[asyncio.Task[None], DeliveryLease] = {}
        self._stopping = False

    async def act(self) -> float:
        """Start sending to every webhook that has due deliveries and is not being served; return when one is done."""
        started = await self._start_due()
        if not self._running:
            # Jitter keeps dispatchers apart.
            return self._interval_seconds_max * random.uniform(0.8, 1.0)  # noqa: S311 (jitter, not a secret)
        if not started or len(self._running) >= self._webhooks_max:
            await asyncio.wait(self._running, timeout=self._interval_seconds_max, return_when=asyncio.FIRST_COMPLETED)
        self._collect_finished()
        return 0.0

    async def close(self) -> None:
        """Send nothing more; wait briefly for receivers that are answering. Another dispatcher sends the rest."""
        self._stopping = True
        if self._running:
            await asyncio.wait(self._running, timeout=GRACE_SECONDS)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()
        self._sender.close()

    async def _start_due(self) -> bool:
        """Claim deliveries of answering webhooks first, then of failing ones; return whether any was claimed."""
        failing = sum(claimed.webhook.failing_since is not None for claimed in self._running.values())
        answering = await self._claim(self._webhooks_max - len(self._running), each=self._each_max, failing=False)
        room = min(self._webhooks_max - len(self._running), self._webhooks_max // 2 - failing)
        failing_ones = await self._claim(room, each=1, failing=True)
        return answering or failing_ones

    async def _claim(self, room: int, *, each: int, failing: bool) -> bool:
        if room <= 0:
            return False
        claims = await self._webhooks.claim(
            busy={claimed.webhook.id for claimed in self._running.values()},
            webhooks=room,
            each=each,
            failing=failing,
            lease_seconds=self.lease_seconds,
        )
        for claimed in claims:
            task = asyncio.create_task(self._run(claimed), name=f"deliveries to {claimed.webhook.id}")
            self._running[task] = claimed
        return bool(claims)

    def _collect_finished(self) -> None:
        """Forget finished tasks. Raises what one raised: the store could not record its outcomes."""
        done = [task for task in self._running if task.done()]
        for task in done:
            del self._running[task]
        failures = [failure for task in done if not task.cancelled() and (failure := task.exception())]
        for failure in failures:
            raise failure

    async def _run(self, claimed: DeliveryLease) -> None:
        """Send the claimed deliveries of one webhook; record those tried and those not, in one transaction."""
        webhook = claimed.webhook
        if webhook.disabled_at is not None:
            ended = [_unsent(one, state=DeliveryState.FAILED, now=claimed.now, error=OFF) for one in claimed.deliveries]
            await self._webhooks.record(webhook.id, ended, None)
            return
        began = time.monotonic()
        run = _DeliveryRun(claimed, span_seconds=self._retry_seconds_max)
        async with self._sender.round() as calls, asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE_MAX, len(claimed.deliveries))):
                group.create_task(self._deliver(run, calls))
        outcomes = run.outcomes + [_unsent(one, state=DeliveryState.PENDING, now=claimed.now) for one in run.waiting]
        health = run.health()
        disabled = await self._webhooks.record(webhook.id, outcomes, health)
        took_ms = round((time.monotonic() - began) * 1000)
        write = log.info if run.failures else log.debug
        write("deliver", webhook=str(webhook.id), delivered=run.delivered, failed=run.failures, took_ms=took_ms)
        if disabled and health is not None:
            log.warning("webhook_disabled", webhook=str(webhook.id), because=health.disabled_because)

    async def _deliver(self, run: _DeliveryRun, calls: Round) -> None:
        """Send one after the other until one fails; the rest stays pending and is claimed again later."""
        webhook = run.claimed.webhook
        while run.waiting and not run.failures and not self._stopping:
            delivery = run.waiting.popleft()
            answered = await calls.call(
                webhook.url,
                message_id=str(delivery.id),
                body=delivery.body,
                secrets=webhook.secrets(now=run.now),
            )
            run.record_answer(delivery, answered)


class _DeliveryRun:
    """The outcomes so far of one webhook's claimed deliveries. Its clock continues from the store's."""

    def __init__(self, claimed: DeliveryLease, *, span_seconds: float) -> None:
        self.claimed = claimed
        self.waiting = deque(claimed.deliveries)
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
        return self.claimed.now + timedelta(seconds=time.monotonic() - self._began)

    def record_answer(self, delivery: Delivery, answered: WebhookResponse) -> None:
        """Record an answer: 2xx is delivered, anything else is retried until the time for retries is over."""
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
        """The new state of the webhook itself; None where it has not changed."""
        webhook, began = self.claimed.webhook, self.claimed.now
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

    def _next_try(self, delivery: Delivery, answered: WebhookResponse, *, now: datetime) -> datetime | None:
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
