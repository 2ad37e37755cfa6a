"""Callbacks to the shop: queued with each event, sent on demand, and delayed, repeated or lost as the script says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

from earmark.sandbox import sign_and_verify_callbacks, stripe_json
from earmark.sandbox.faults import Fault, FaultScript
from earmark.sandbox.model import BankEvent

if TYPE_CHECKING:
    from earmark.engine.ports.store import Clock

Deliver = Callable[[Mapping[str, str], bytes], Awaitable[None]]
"""Sends one callback to the shop. An exception of any kind means that the shop did not accept it."""


class CallbackSettings(Protocol):
    """What signing needs. `base_url` may be set after the sender was made, once the server has its port."""

    clock: Clock
    secret: str
    base_url: str


class CallbackState(StrEnum):
    """The state of one delivery of a callback."""

    QUEUED = "queued"
    SENT = "sent"
    LOST = "lost"


class CallbackDelivery(msgspec.Struct, kw_only=True):
    """One delivery of an event; a duplicate is another delivery of the same event."""

    event: BankEvent
    state: CallbackState
    due_at: datetime
    held_back: bool = False
    """Waits until a delivery that was queued later is sent."""
    fault: Fault | None = None
    tries: int = 0
    problem: str | None = None
    """Why the last attempt failed."""


class CallbackSender:
    """Sends deliveries in the order in which they were queued, and retries failed ones a bounded number of times."""

    def __init__(
        self,
        settings: CallbackSettings,
        script: FaultScript,
        *,
        deliver: Deliver | None = None,
        tries_max: int = 5,
        retry_seconds: float = 1.0,
        log_max: int | None = None,
    ) -> None:
        self.deliveries: deque[CallbackDelivery] = deque(maxlen=log_max)
        self.deliver = deliver
        self.manual = False
        """Deliveries are sent only when a test calls `send_due`."""
        self.tries_max = tries_max
        self.retry_seconds = retry_seconds
        self._settings = settings
        self._script = script
        self._sending = asyncio.Lock()

    def queue(self, event: BankEvent) -> None:
        """Queue an event: one delivery, two with the fault `duplicate`, or one that is lost with the fault `lose`."""
        now = self._settings.clock.now()
        rule = self._script.for_callback(event.kind)
        fault = rule.fault if rule else None
        delay = (rule.seconds or 0) if rule and fault is Fault.DELAY else 0
        for _ in range(2 if fault is Fault.DUPLICATE else 1):
            delivery = CallbackDelivery(
                event=event,
                state=CallbackState.LOST if fault is Fault.LOSE else CallbackState.QUEUED,
                due_at=now + timedelta(seconds=delay),
                held_back=fault is Fault.REORDER,
                fault=fault,
            )
            self.deliveries.append(delivery)

    def in_state(self, state: CallbackState) -> list[CallbackDelivery]:
        """The deliveries in this state, in the order in which they were queued."""
        return [delivery for delivery in self.deliveries if delivery.state is state]

    def lose(self, event_id: str) -> int:
        """Mark the queued deliveries of this event as lost, and return how many there were."""
        lost = [delivery for delivery in self.in_state(CallbackState.QUEUED) if delivery.event.id == event_id]
        for delivery in lost:
            delivery.state = CallbackState.LOST
        return len(lost)

    def redeliver(self, event_id: str) -> None:
        """Queue an event once more, whatever the state of its deliveries."""
        known = next((delivery.event for delivery in self.deliveries if delivery.event.id == event_id), None)
        if known is None:
            raise KeyError(event_id)
        self.deliveries.append(
            CallbackDelivery(event=known, state=CallbackState.QUEUED, due_at=self._settings.clock.now())
        )

    def signed(self, event: BankEvent) -> tuple[dict[str, str], bytes]:
        """The headers, with a signature of the current time, and the body of an event."""
        body = msgspec.json.encode(stripe_json.event(event, base_url=self._settings.base_url))
        value = sign_and_verify_callbacks.sign(body, secret=self._settings.secret, now=self._settings.clock.now())
        return {"Content-Type": "application/json; charset=utf-8", sign_and_verify_callbacks.HEADER: value}, body

    async def send_due(self, *, flush: bool = False) -> int:
        """Send the due deliveries, with `flush` also those held back; returns how many the shop accepted."""
        accepted = 0
        # One caller at a time, or a delivery that is being sent would be sent twice.
        async with self._sending:
            while delivery := self._next(flush=flush):
                accepted += await self._send(delivery)
        return accepted

    def _next(self, *, flush: bool) -> CallbackDelivery | None:
        now = self._settings.clock.now()
        due = [delivery for delivery in self.in_state(CallbackState.QUEUED) if delivery.due_at <= now]
        ready = [delivery for delivery in due if not delivery.held_back]
        return next(iter(ready or (due if flush else [])), None)

    async def _send(self, delivery: CallbackDelivery) -> bool:
        assert self.deliver is not None, "set `deliver` before sending"
        headers, body = self.signed(delivery.event)
        delivery.tries += 1
        try:
            await self.deliver(headers, body)
        except Exception as problem:  # noqa: BLE001 (any error of the shop is a failed attempt)
            delivery.problem = str(problem) or type(problem).__name__
            if delivery.tries >= self.tries_max:
                delivery.state = CallbackState.LOST
            delivery.due_at = self._settings.clock.now() + timedelta(seconds=self.retry_seconds)
            return False
        delivery.state, delivery.problem = CallbackState.SENT, None
        self._release_before(delivery)
        return True

    def _release_before(self, sent: CallbackDelivery) -> None:
        """Release the deliveries that were queued before the sent one and held back until it was sent."""
        for delivery in self.deliveries:
            if delivery is sent:
                return
            delivery.held_back = False
