"""The worlds that the rules are asked of: the sandbox in this process, and the same over HTTP by Stripe's own SDK."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from earmark.clock import MovableClock
from earmark.payments.sandbox import signature, words
from earmark.payments.sandbox.gateway import SandboxGateway
from earmark.payments.sandbox.house import Sandbox
from earmark.payments.sandbox.model import Method, Move
from earmark.payments.sandbox.server import run_in_thread
from earmark.payments.stripe import StripeGateway

from .support import Group, Letter, Situation, Totals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from uuid import UUID

    from earmark.engine.gateway import Gateway

    from .support import World

T = TypeVar("T")

ANSWER_SECONDS_MAX = 60.0
"""Far above what an answer takes, so that a busy machine fails no test that is about something else."""
METHODS = {
    Situation.FINE: Method.VISA,
    Situation.NO_FUNDS: Method.INSUFFICIENT_FUNDS,
    Situation.DECLINED: Method.DECLINED,
    Situation.ACTION: Method.AUTHENTICATION_REQUIRED,
    Situation.PROCESSING: Method.PROCESSING,
    Situation.CAPTURE_REFUSED: Method.CAPTURE_FAIL,
    Situation.REFUND_REFUSED: Method.REFUND_FAIL,
    Situation.REFUND_PENDING: Method.REFUND_PENDING,
}


class Reach(Protocol):
    """The way to a sandbox, in whichever thread that runs."""

    def __call__(self, work: Callable[[Sandbox], T], /) -> T:
        """Do this there, and give back what it gives."""
        ...


class SandboxWorld:
    """A gateway with the sandbox behind it."""

    def __init__(self, gateway: Gateway, clock: MovableClock, do: Reach) -> None:
        self.gateway = gateway
        self.clock = clock
        self._do = do

    def method(self, situation: Situation) -> str:
        """The sandbox's token for it."""
        return METHODS[situation]

    async def act(self, gateway_id: str, *, succeed: bool) -> None:
        """The buyer comes back."""
        self._do(lambda sandbox: sandbox.bank.act(gateway_id, succeed=succeed))

    async def decide(self, gateway_id: str, *, succeed: bool) -> None:
        """The bank has decided."""
        self._do(lambda sandbox: sandbox.bank.decide(gateway_id, succeed=succeed))

    async def moved(self, payment_id: UUID) -> Totals:
        """By the bank's ledger."""
        return self._do(lambda sandbox: totals(sandbox, payment_id))

    async def letters(self) -> list[Letter]:
        """What the courier has to send, whatever became of it."""
        return self._do(letters)

    def sign(self, body: bytes, *, at: datetime, secret: str | None = None) -> Mapping[str, str]:
        """By Stripe's scheme."""
        ours = self._do(lambda sandbox: sandbox.secret)
        return {signature.HEADER: signature.sign(body, secret=secret or ours, now=at)}


def totals(sandbox: Sandbox, payment_id: UUID) -> Totals:
    """What the ledger says of one payment."""
    return Totals(
        authorised=sandbox.bank.total(Move.AUTHORISED, payment_id=str(payment_id)),
        captured=sandbox.bank.total(Move.CAPTURED, payment_id=str(payment_id)),
        voided=sandbox.bank.total(Move.VOIDED, payment_id=str(payment_id)),
        refunded=sandbox.bank.total(Move.REFUNDED, payment_id=str(payment_id)),
    )


def letters(sandbox: Sandbox) -> list[Letter]:
    """The callbacks of a sandbox, signed now."""
    events = [letter.event for letter in sandbox.courier.letters]
    bodies = [msgspec.json.encode(words.event(event, base_url=sandbox.base_url)) for event in events]
    now = sandbox.clock.now()
    return [Letter({signature.HEADER: signature.sign(body, secret=sandbox.secret, now=now)}, body) for body in bodies]


@asynccontextmanager
async def in_process(kind: type[SandboxGateway] = SandboxGateway) -> AsyncIterator[World]:
    """The sandbox's own gateway, or one made from it."""
    clock = MovableClock()
    sandbox = Sandbox(clock)
    gateway = kind(sandbox, patience_seconds=ANSWER_SECONDS_MAX)

    def do(work: Callable[[Sandbox], T], /) -> T:
        return work(sandbox)

    yield SandboxWorld(gateway, clock, do)
    await gateway.close()


@asynccontextmanager
async def over_http() -> AsyncIterator[World]:
    """Stripe's SDK, talking to the sandbox over a socket."""
    with stripe_shaped() as (sandbox, do):
        gateway = StripeGateway(
            sandbox.key,
            webhook_secret=sandbox.secret,
            url=sandbox.base_url,
            clock=sandbox.clock,
            seconds_max=ANSWER_SECONDS_MAX,
        )
        assert isinstance(sandbox.clock, MovableClock)
        yield SandboxWorld(gateway, sandbox.clock, do)
        await gateway.close()


@contextmanager
def stripe_shaped() -> Iterator[tuple[Sandbox, Reach]]:
    """A sandbox behind a server, and the way into its thread."""
    with run_in_thread(Sandbox(MovableClock())) as running:
        yield running.sandbox, running.do


WORLDS: dict[str, Callable[[], AbstractAsyncContextManager[World]]] = {"sandbox": in_process, "stripe": over_http}
"""By name: how to open a world of one's own."""
GROUPS = {"sandbox": frozenset(Group), "stripe": frozenset(Group)}
"""What each must be able to do beyond the core. A third joins with a line here and a line above."""
