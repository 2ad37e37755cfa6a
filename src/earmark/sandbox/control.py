"""The sandbox's own calls, under `/sandbox`: script a fault, push the clock, act as the buyer, read the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from earmark.clock import MovableClock
from earmark.sandbox import action, words
from earmark.sandbox.faults import Rule
from earmark.sandbox.model import Intent, Refused, invalid
from earmark.sandbox.reading import BodyRefused, read_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from earmark.sandbox.callbacks import Letter
    from earmark.sandbox.house import Sandbox

T = TypeVar("T")


class Seconds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far to push the clock."""

    seconds: float


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the buyer, or the buyer's bank, does with an intent or a refund."""

    id: str
    succeed: bool = True


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which event."""

    event_id: str


class Returned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which refund."""

    id: str


class GivenBack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of which intent, and how much; all that is left if nothing is said."""

    id: str
    amount: int | None = None


class Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """On or off."""

    on: bool


def routes(sandbox: Sandbox) -> list[Route]:
    """The calls, for an application to mount."""
    desk = Controls(sandbox)
    table: list[tuple[str, str, Callable[[Request], Awaitable[object]]]] = [
        ("/sandbox/ledger", "GET", desk.ledger),
        ("/sandbox/calls", "GET", desk.calls),
        ("/sandbox/faults", "GET", desk.faults),
        ("/sandbox/faults", "POST", desk.add_fault),
        ("/sandbox/faults", "DELETE", desk.clear_faults),
        ("/sandbox/sticky", "POST", desk.sticky),
        ("/sandbox/clock", "POST", desk.advance),
        ("/sandbox/act", "POST", desk.act),
        ("/sandbox/decide", "POST", desk.decide),
        ("/sandbox/refund", "POST", desk.give_back),
        ("/sandbox/return", "POST", desk.return_refund),
        ("/sandbox/land", "POST", desk.land),
        ("/sandbox/callbacks", "GET", desk.callbacks),
        ("/sandbox/callbacks/deliver", "POST", desk.deliver),
        ("/sandbox/callbacks/lose", "POST", desk.lose),
        ("/sandbox/callbacks/redeliver", "POST", desk.redeliver),
    ]
    return [
        *(Route(path, _endpoint(sandbox, handle), methods=[method]) for path, method, handle in table),
        *action.routes(sandbox),
    ]


class Controls:
    """Whoever runs the sandbox sits here."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def ledger(self, _: Request) -> object:
        """What really happened."""
        return {"lines": self.sandbox.bank.ledger}

    async def calls(self, _: Request) -> object:
        """Who asked for what."""
        return {"calls": list(self.sandbox.desk.calls)}

    async def faults(self, _: Request) -> object:
        """What is still to go wrong."""
        return {"rules": self.sandbox.script.rules, "sticky_errors": self.sandbox.script.sticky_errors}

    async def add_fault(self, request: Request) -> object:
        """Let something go wrong."""
        rule = await _read(request, Rule)
        self.sandbox.script.append(rule)
        return rule

    async def clear_faults(self, _: Request) -> object:
        """Let nothing go wrong any more."""
        self.sandbox.script.clear()
        return await self.faults(_)

    async def sticky(self, request: Request) -> object:
        """Whether a key whose first answer was a 500 answers 500 for ever."""
        self.sandbox.script.sticky_errors = (await _read(request, Switch)).on
        return await self.faults(request)

    async def advance(self, request: Request) -> object:
        """Let time pass at once."""
        clock = self.sandbox.clock
        if not isinstance(clock, MovableClock):
            raise invalid("The clock of this sandbox cannot be pushed.")
        clock.advance((await _read(request, Seconds)).seconds)
        return {"now": clock.now()}

    async def act(self, request: Request) -> object:
        """Be the buyer."""
        verdict = await _read(request, Verdict)
        return self._worded(self.sandbox.bank.act(verdict.id, succeed=verdict.succeed))

    async def decide(self, request: Request) -> object:
        """Be the buyer's bank."""
        verdict = await _read(request, Verdict)
        decided = self.sandbox.bank.decide(verdict.id, succeed=verdict.succeed)
        return self._worded(decided) if isinstance(decided, Intent) else words.refund(decided)

    async def give_back(self, request: Request) -> object:
        """Be the shop's own staff on the dashboard: a refund that carries no id of Earmark's."""
        asked = await _read(request, GivenBack)
        return words.refund(self.sandbox.bank.refund(asked.id, amount=asked.amount))

    async def return_refund(self, request: Request) -> object:
        """Let a refund that had arrived come back."""
        return words.refund(self.sandbox.bank.return_refund((await _read(request, Returned)).id))

    async def land(self, _: Request) -> object:
        """Let the money come that comes after the no."""
        return {"landed": [self._worded(intent) for intent in self.sandbox.bank.land()]}

    async def callbacks(self, _: Request) -> object:
        """The callbacks, and what became of them."""
        return {"callbacks": [_letter(letter) for letter in self.sandbox.courier.letters]}

    async def deliver(self, _: Request) -> object:
        """Send what is due, now."""
        if self.sandbox.courier.deliver is None:
            raise invalid("This sandbox was given no address to call.")
        return {"taken": await self.sandbox.courier.send_due(flush=True)}

    async def lose(self, request: Request) -> object:
        """Never send what is queued about an event."""
        return {"lost": self.sandbox.courier.lose((await _read(request, Named)).event_id)}

    async def redeliver(self, request: Request) -> object:
        """Send an event once more."""
        event_id = (await _read(request, Named)).event_id
        try:
            self.sandbox.courier.redeliver(event_id)
        except KeyError as unknown:
            raise invalid(f"No such event: '{event_id}'") from unknown
        return await self.callbacks(request)

    def _worded(self, intent: Intent) -> words.Words:
        return words.intent(intent, base_url=self.sandbox.base_url)


def _endpoint(
    sandbox: Sandbox, handle: Callable[[Request], Awaitable[object]]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        status, said = 200, None
        try:
            said = await handle(request)
        except Refused as refused:
            status, said = words.problem(refused, base_url=sandbox.base_url)
        return Response(msgspec.json.encode(said), status, media_type="application/json")

    return endpoint


async def _read(request: Request, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(await read_body(request), type=type_)
    except (BodyRefused, msgspec.DecodeError) as unread:
        raise invalid(str(unread)) from unread


def _letter(letter: Letter) -> words.Words:
    return {
        "event_id": letter.event.id,
        "type": letter.event.kind,
        "state": letter.state,
        "fault": letter.fault,
        "tries": letter.tries,
        "problem": letter.problem,
        "due_at": letter.due_at,
    }
