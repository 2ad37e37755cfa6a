"""Which due payments are driven at once: each gateway has a bounded queue of its own.

A gateway that does not answer fills its own queue and no other. After a few calls in a row without an answer it is
tried with one payment at a time, until it answers, or ten minutes after its last call without an answer; what else was
claimed for it is left, and is due again when its claim runs out.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Protocol

from earmark.domain.payment import WAIT_SECONDS_MAX
from earmark.engine.ports.gateway import GatewaySilent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
    from contextlib import AbstractContextManager

    from earmark.domain.id_types import PaymentId

    Drive = Callable[[PaymentId], Awaitable[object]]
    DriveFor = Callable[[str, PaymentId], Awaitable[object]]

AT_ONCE_MAX = 8
"""How many payments of one gateway are driven at the same time."""
SILENT_AFTER = 3
"""After so many calls in a row without a reply the gateway is taken to be silent."""
SILENT_SECONDS = 2.0 * WAIT_SECONDS_MAX
"""For so long after the last of them: a payment that is open is due again sooner than that. If none is open, because
callbacks or another process have decided them, no call of this process could find that the gateway is back."""


class ClaimPayments(Protocol):
    """How a store leases payments that are due."""

    def __call__(self, *, limit: int, gateways: Collection[str]) -> Awaitable[list[PaymentId]]:
        """Up to so many of these gateways, which no other process gets for a while."""
        ...


class GatewayQueues:
    """One queue for each gateway that this process has."""

    def __init__(self, gateways: Iterable[str]) -> None:
        self._queues = {name: GatewayQueue() for name in gateways}
        # Without any gateway there are still payments that are given up without one.
        self._nameless = {} if self._queues else {"": GatewayQueue()}

    @property
    def ready(self) -> list[str]:
        """The gateways that payments can be taken for now."""
        return [name for name, queue in self._queues.items() if queue.room(1)]

    @property
    def silent(self) -> list[str]:
        """The gateways that are silent now."""
        return sorted(name for name, queue in self._queues.items() if queue.is_silent)

    async def drive(
        self,
        claim: ClaimPayments,
        drive: DriveFor,
        *,
        limit: int,
        within: float | None,
        only: Collection[str] | None = None,
    ) -> int:
        """Claim what is due for each queue and drive it; return how many payments. `drive` gets the name of the queue.

        A claim also returns payments of other gateways that were not decided within the hour; `drive` gives those up
        and calls no gateway.

        Without a limit of time all of them are waited for. With one, no gateway is waited for that is known to be
        silent.
        """
        found, started = 0, list[asyncio.Task[None]]()
        chosen = {
            name: queue for name, queue in (self._queues | self._nameless).items() if only is None or name in only
        }
        for name, queue in chosen.items():
            if room := queue.room(limit):
                due = await claim(limit=room, gateways=[name] if name else [])
                new = queue.start(due, partial(drive, name))
                started += new if within is None or not queue.is_silent else []
                found += len(due)
        if started:
            await asyncio.wait(started, timeout=within)
        broken = [error for queue in chosen.values() for error in queue.take_off()]
        for error in broken:
            raise error
        return found

    def call(self, gateway: str) -> AbstractContextManager[None]:
        """Around a call to a gateway: whether it was answered."""
        return self._queues[gateway].call() if gateway in self._queues else contextlib.nullcontext()

    async def close(self) -> None:
        """Start no more drives; those under way go on."""
        for queue in (self._queues | self._nameless).values():
            await queue.close()


class GatewayQueue:
    """The due payments of one gateway that this process is at."""

    def __init__(self, *, at_once: int = AT_ONCE_MAX, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or _loop_seconds
        self._turns = asyncio.Semaphore(at_once)
        self._running: dict[PaymentId, asyncio.Task[None]] = {}
        self._unanswered = 0
        self._unanswered_at = 0.0
        """When the last call without an answer ended."""

    @property
    def is_silent(self) -> bool:
        """Whether the last calls had no answer, and the last of them ended less than ten minutes ago."""
        return self._unanswered >= SILENT_AFTER and self._clock() - self._unanswered_at < SILENT_SECONDS

    def room(self, limit: int) -> int:
        """How many more payments it takes: one at a time while the gateway is silent."""
        return max((1 if self.is_silent else limit) - len(self._running), 0)

    def start(self, payments: Iterable[PaymentId], drive: Drive) -> list[asyncio.Task[None]]:
        """Drive these, a few at a time, in the background; those that are new here."""
        new = {
            payment_id: asyncio.create_task(self._take_turn(payment_id, drive))
            for payment_id in payments
            if payment_id not in self._running
        }
        self._running |= new
        return list(new.values())

    def take_off(self) -> list[BaseException]:
        """Forget those that are done; how they broke, where they did."""
        done = {payment_id: task for payment_id, task in self._running.items() if task.done()}
        for payment_id in done:
            del self._running[payment_id]
        return [error for task in done.values() if not task.cancelled() and (error := task.exception())]

    async def close(self) -> None:
        """Start nothing more. A drive that is under way is its own task, and goes on."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Around a call to the gateway: whether it was answered."""
        try:
            yield
        except (GatewaySilent, TimeoutError):
            self._unanswered += 1
            self._unanswered_at = self._clock()
            raise
        except Exception:
            self._unanswered = 0
            raise
        self._unanswered = 0

    async def _take_turn(self, payment_id: PaymentId, drive: Drive) -> None:
        async with self._turns:
            if not self.is_silent or len(self._running) == 1:
                await drive(payment_id)


def _loop_seconds() -> float:
    return asyncio.get_running_loop().time()
