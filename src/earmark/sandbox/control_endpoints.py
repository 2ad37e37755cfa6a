"""The sandbox's own endpoints, under `/sandbox`: add a fault, advance the clock, act as the buyer, read the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from earmark.clock import MovableClock
from earmark.sandbox import stripe_json, three_d_secure_page
from earmark.sandbox.faults import FaultRule
from earmark.sandbox.model import BankIntent, BankRefusal, invalid
from earmark.sandbox.read_body_within_limits import BodyRefused, read_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from earmark.sandbox.assemble_sandbox import Sandbox
    from earmark.sandbox.callbacks import CallbackDelivery

T = TypeVar("T")


class AdvanceClockBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far to advance the clock."""

    seconds: float


class DecisionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the buyer, or the buyer's bank, decides about an intent or a refund."""

    id: str
    succeed: bool = True


class CallbackEventBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The event whose callback is lost or sent again."""

    event_id: str


class ReturnRefundBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The refund that the buyer's bank returns."""

    id: str


class DashboardRefundBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A refund made on the gateway's dashboard; without an amount, of all that is left."""

    id: str
    amount: int | None = None


class StickyErrorsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether errors are sticky."""

    on: bool


def routes(sandbox: Sandbox) -> list[Route]:
    """The routes, for an application to mount."""
    endpoints = ControlEndpoints(sandbox)
    table: list[tuple[str, str, Callable[[Request], Awaitable[object]]]] = [
        ("/sandbox/ledger", "GET", endpoints.ledger),
        ("/sandbox/calls", "GET", endpoints.calls),
        ("/sandbox/faults", "GET", endpoints.faults),
        ("/sandbox/faults", "POST", endpoints.add_fault),
        ("/sandbox/faults", "DELETE", endpoints.clear_faults),
        ("/sandbox/sticky", "POST", endpoints.sticky),
        ("/sandbox/clock", "POST", endpoints.advance),
        ("/sandbox/act", "POST", endpoints.act),
        ("/sandbox/decide", "POST", endpoints.decide),
        ("/sandbox/refund", "POST", endpoints.give_back),
        ("/sandbox/return", "POST", endpoints.return_refund),
        ("/sandbox/land", "POST", endpoints.land),
        ("/sandbox/callbacks", "GET", endpoints.callbacks),
        ("/sandbox/callbacks/deliver", "POST", endpoints.deliver),
        ("/sandbox/callbacks/lose", "POST", endpoints.lose),
        ("/sandbox/callbacks/redeliver", "POST", endpoints.redeliver),
    ]
    return [
        *(Route(path, _endpoint(sandbox, handle), methods=[method]) for path, method, handle in table),
        *three_d_secure_page.routes(sandbox),
    ]


class ControlEndpoints:
    """One method per endpoint; tests and operators of the sandbox call them."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def ledger(self, _: Request) -> object:
        """List the lines of the ledger, the oldest first."""
        return {"lines": self.sandbox.bank.ledger}

    async def calls(self, _: Request) -> object:
        """List the calls that the bank received."""
        return {"calls": list(self.sandbox.pipeline.calls)}

    async def faults(self, _: Request) -> object:
        """List the rules that are not used up."""
        return {"rules": self.sandbox.script.rules, "sticky_errors": self.sandbox.script.sticky_errors}

    async def add_fault(self, request: Request) -> object:
        """Add a rule to the fault script."""
        rule = await _read(request, FaultRule)
        self.sandbox.script.append(rule)
        return rule

    async def clear_faults(self, _: Request) -> object:
        """Delete all rules of the fault script."""
        self.sandbox.script.clear()
        return await self.faults(_)

    async def sticky(self, request: Request) -> object:
        """Set whether a key whose first answer was a 500 answers 500 from then on."""
        self.sandbox.script.sticky_errors = (await _read(request, StickyErrorsBody)).on
        return await self.faults(request)

    async def advance(self, request: Request) -> object:
        """Advance the sandbox's clock by these seconds."""
        clock = self.sandbox.clock
        if not isinstance(clock, MovableClock):
            raise invalid("The clock of this sandbox cannot be advanced: it is the system's.")
        clock.advance((await _read(request, AdvanceClockBody)).seconds)
        return {"now": clock.now()}

    async def act(self, request: Request) -> object:
        """Complete the action of an intent as its buyer."""
        decision = await _read(request, DecisionBody)
        return self._intent(self.sandbox.bank.act(decision.id, succeed=decision.succeed))

    async def decide(self, request: Request) -> object:
        """Decide an intent or a refund as the buyer's bank."""
        decision = await _read(request, DecisionBody)
        decided = self.sandbox.bank.decide(decision.id, succeed=decision.succeed)
        return self._intent(decided) if isinstance(decided, BankIntent) else stripe_json.refund(decided)

    async def give_back(self, request: Request) -> object:
        """Refund as the shop's staff does on a dashboard: the refund has no id of Earmark's."""
        body = await _read(request, DashboardRefundBody)
        return stripe_json.refund(self.sandbox.bank.refund(body.id, amount=body.amount))

    async def return_refund(self, request: Request) -> object:
        """Return a refund that had succeeded, as the buyer's bank."""
        return stripe_json.refund(self.sandbox.bank.return_refund((await _read(request, ReturnRefundBody)).id))

    async def land(self, _: Request) -> object:
        """Let all late money arrive."""
        return {"landed": [self._intent(intent) for intent in self.sandbox.bank.land()]}

    async def callbacks(self, _: Request) -> object:
        """List the callbacks and their states."""
        return {"callbacks": [_delivery(delivery) for delivery in self.sandbox.callbacks.deliveries]}

    async def deliver(self, _: Request) -> object:
        """Send the due callbacks now."""
        if self.sandbox.callbacks.deliver is None:
            raise invalid("This sandbox has no callback URL: start it with --callback-url.")
        return {"taken": await self.sandbox.callbacks.send_due(flush=True)}

    async def lose(self, request: Request) -> object:
        """Lose the queued callbacks of an event."""
        return {"lost": self.sandbox.callbacks.lose((await _read(request, CallbackEventBody)).event_id)}

    async def redeliver(self, request: Request) -> object:
        """Queue the callback of an event once more."""
        event_id = (await _read(request, CallbackEventBody)).event_id
        try:
            self.sandbox.callbacks.redeliver(event_id)
        except KeyError as unknown:
            raise invalid(f"No such event: '{event_id}'") from unknown
        return await self.callbacks(request)

    def _intent(self, intent: BankIntent) -> stripe_json.JsonObject:
        return stripe_json.intent(intent, base_url=self.sandbox.base_url)


def _endpoint(
    sandbox: Sandbox, handle: Callable[[Request], Awaitable[object]]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        status, content = 200, None
        try:
            content = await handle(request)
        except BankRefusal as refused:
            status, content = stripe_json.problem(refused, base_url=sandbox.base_url)
        return Response(msgspec.json.encode(content), status, media_type="application/json")

    return endpoint


async def _read(request: Request, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(await read_body(request), type=type_)
    except (BodyRefused, msgspec.DecodeError) as unread:
        raise invalid(str(unread)) from unread


def _delivery(delivery: CallbackDelivery) -> stripe_json.JsonObject:
    return {
        "event_id": delivery.event.id,
        "type": delivery.event.kind,
        "state": delivery.state,
        "fault": delivery.fault,
        "tries": delivery.tries,
        "problem": delivery.problem,
        "due_at": delivery.due_at,
    }
