"""The door itself: every call is authenticated, bounded, decoded, timed and worded in one place.

A handler sees a `Visit` and a decoded body, calls one verb, and returns a `Reply`. Refusals travel as exceptions
and become problems here.
"""

from __future__ import annotations

import hashlib
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request

from earmark.api import problem_response
from earmark.api.auth.api_keys import Identity, Principal, Scope
from earmark.api.auth.authenticate import Guest, welcome
from earmark.api.middleware import rate_limits
from earmark.api.middleware.body_timeout import Patience
from earmark.api.middleware.deadlines import Deadline
from earmark.api.middleware.decode_body import BodyDecoder
from earmark.api.middleware.in_flight import RequestsInFlight
from earmark.api.middleware.rate_limits import Limits
from earmark.api.middleware.rejection_throttle import Turnstile
from earmark.api.middleware.request_log import note
from earmark.api.readiness import Readiness
from earmark.domain.journal import Key
from earmark.engine.commands import Answer, Decided, Memo, Replayed
from earmark.engine.engine import Engine
from earmark.engine.ports.heartbeats import ALIVE_SECONDS
from earmark.engine.ports.store import Clock
from earmark.errors import EarmarkError, InvalidRequest, Outage, OutcomeUnknown, Overloaded, StoreUnavailable
from earmark.locks import Locks
from earmark.observability import logs
from earmark.observability.metrics.metrics import Metrics
from earmark.observability.tracing import Tracing
from earmark.payments.service import Till
from earmark.schemas.requests import place
from earmark.schemas.to_command import check_key
from earmark.seatmap.cache import Availability
from earmark.seatmap.followers import Hub
from earmark.webhooks.targets import Targets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Send
    from starlette.types import Scope as Asked


BODY_BYTES_MAX = 64 * 1024
BODY_SECONDS_MAX = 30.0
SECONDS_MAX = 15.0
KEY_HEADER = "idempotency-key"
REPLAYED_HEADER = "Idempotency-Replayed"
JSON = "application/json"

_KEY_HEADER = KEY_HEADER.encode()
_MEDIA_TYPES = {said: said.encode() for said in (JSON, problem_response.MEDIA_TYPE)}
_WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_encoder = msgspec.json.Encoder()
_turnstile = Turnstile()
log = logs.get()

Render = Any  # a function from what was decided, and when, to the answer in the API's words


class Reply(msgspec.Struct, kw_only=True):
    """What goes back."""

    status: HTTPStatus = HTTPStatus.OK
    body: bytes = b""
    media_type: str = JSON
    headers: dict[str, str] = {}


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the API: where it is, what it takes, what it gives, and who may make it."""

    method: str
    path: str
    name: str
    summary: str
    handler: Any
    answer: Any
    scope: Scope | None = Scope.BUY
    or_scope: Scope | None = None
    """Another scope that will do as well."""
    body: Any = None
    raw: bool = False
    """Whether the handler reads the body itself, byte for byte."""
    status: HTTPStatus = HTTPStatus.OK
    bytes_max: int = BODY_BYTES_MAX
    media_type: str = JSON
    """Of the answer."""
    also: tuple[HTTPStatus, ...] = ()
    """Other statuses that the same answer may have."""
    refusals: tuple[str, ...] = ()
    query: tuple[tuple[str, str], ...] = ()
    idempotent: bool = False
    in_line: bool = False
    """Whether its verb stands in one of the engine's lines, where it has a deadline."""
    keyed: bool = False
    """Whether an idempotency key is not only accepted but required."""
    group: str = "bookings"
    example: Any = None


class House(msgspec.Struct, frozen=True, kw_only=True):
    """What the door stands in front of."""

    engine: Engine
    identity: Identity
    metrics: Metrics
    clock: Clock
    guests: bool
    availability: Availability
    till: Till
    locks: Locks | None = None
    """Where a Redis is set up."""
    limits: Limits = msgspec.field(default_factory=Limits)
    deadline: Deadline = msgspec.field(default_factory=lambda: Deadline(SECONDS_MAX))
    body_patience: Patience = msgspec.field(default_factory=lambda: Patience(BODY_SECONDS_MAX))
    trust_proxy: int = 0
    """How many proxies are believed in what they add about their callers."""
    counts_addresses: bool = False
    """Whether an operator has said how many there are: behind one that is not counted, all buyers share an address."""
    hub: Hub | None = None
    """Who follows events live; None where nobody can."""
    in_flight: RequestsInFlight = msgspec.field(default_factory=RequestsInFlight)
    readiness: Readiness = msgspec.field(default_factory=Readiness)
    tracing: Tracing | None = None
    """Where spans are wanted."""
    targets: Targets = Targets()
    alive_seconds: float = ALIVE_SECONDS
    """How long an agent may be silent and is still taken to be at work."""


class Visit:
    """One request, from somebody who has shown who they are."""

    __slots__ = ("_principal", "_raw", "_request", "call", "engine", "headers", "house", "path", "scope")

    def __init__(self, scope: Asked, *, call: Call, house: House, guest: Guest) -> None:
        self.scope = scope
        self.call = call
        self.house = house
        self.engine = house.engine
        self._principal, self.headers, self._raw = guest
        self.path: Mapping[str, str] = scope["path_params"]
        """What the call's path names, such as `booking_id`."""
        self._request: Request | None = None

    @property
    def request(self) -> Request:
        """All of the request, for the few calls that ask for more than the path, the body and a header."""
        if self._request is None:
            self._request = Request(self.scope)
        return self._request

    @property
    def principal(self) -> Principal:
        """Who asks. Only calls that need nobody have none."""
        assert self._principal is not None
        return self._principal

    @property
    def raw(self) -> bytes:
        """The body, byte for byte."""
        return self._raw

    @property
    def root(self) -> str:
        """Where the API is mounted in a larger application; nothing where it stands alone."""
        return str(self.request.scope.get("root_path", "")).rstrip("/")

    def memo(self, render: Render, *, status: HTTPStatus) -> Memo | None:
        """The idempotency key, if the caller chose one: in their scope, for this method, path and body."""
        return self.memo_of(lambda value, now: say(render(value, now), status=status))

    def memo_of(self, word: Callable[[Any, datetime], Reply]) -> Memo | None:
        """The same, for a call whose answer chooses its own status."""
        shown = self.shown_key()
        if shown is None:
            return None
        key, digest = shown
        return Memo(key=key, request_hash=digest, render=lambda value, now: _as_stored(word(value, now)))

    def shown_key(self) -> tuple[Key, bytes] | None:
        """The idempotency key in its caller's scope, and the hash of the request. One that is none is refused."""
        text = self.headers.get(_KEY_HEADER)
        if text is None:
            return None
        key, scope = check_key(text.decode("latin-1")), self.scope
        # Wherever it is mounted: the same request is the same request.
        path = scope["path"].removeprefix(self.root)
        digest = hashlib.sha256(f"{scope['method']}\n{path}\n".encode() + self._raw).digest()
        return Key(self.principal.caller, key), digest


def _as_stored(worded: Reply) -> tuple[int, bytes]:
    return int(worded.status), worded.body


def again(answer: Answer) -> Reply | None:
    """What a key remembers, byte for byte; None where nothing does."""
    memory = answer.memory
    if memory is None:
        return None
    media_type = JSON if memory.status < HTTPStatus.BAD_REQUEST else problem_response.MEDIA_TYPE
    headers = {REPLAYED_HEADER: "true"} if isinstance(answer, Replayed) else {}
    return Reply(status=HTTPStatus(memory.status), body=memory.body, media_type=media_type, headers=headers)


def reply(answer: Answer, render: Render, *, status: HTTPStatus = HTTPStatus.OK) -> Reply:
    """A verb's answer: again, byte for byte, what the key remembers, else worded now."""
    if told := again(answer):
        return told
    assert isinstance(answer, Decided), "what is replayed is remembered"
    return say(render(answer.value, answer.now), status=status)


def say(value: object, *, status: HTTPStatus = HTTPStatus.OK, headers: dict[str, str] | None = None) -> Reply:
    """Plain data."""
    return Reply(status=status, body=_encoder.encode(value), headers=headers or {})


def endpoint(call: Call, house: House) -> ASGIApp:
    """The call as an ASGI application."""
    return _Endpoint(call, house)


class _Endpoint:
    """The steps of a call, in order."""

    def __init__(self, call: Call, house: House) -> None:
        self._call = call
        self._house = house
        self._decoder = BodyDecoder(call.body) if call.body else None
        self._line = house.engine.lines.get(call.name)

    async def __call__(self, scope: Asked, receive: Receive, send: Send) -> None:
        """Turn away or attend to it, note how it went, answer."""
        call = self._call
        if self._line is not None and self._line.is_full:
            # Before anything is read or looked up: under a crowd, this is what is done most often.
            await _turnstile.turn()
            outcome = Overloaded.code
            answered: Reply | Response = _CROWDED
        else:
            answered, outcome = await self._attend(scope, receive)
        note(scope, verb=call.name, route=call.path, outcome=outcome)
        if isinstance(answered, Reply):
            await _put(answered, send)
        else:
            await answered(scope, receive, send)

    async def _attend(self, scope: Asked, receive: Receive) -> tuple[Reply | Response, str]:
        """Welcome, decode, handle, word; and what is to be counted."""
        call = self._call
        try:
            guest = await welcome(scope, receive, call=call, house=self._house)
            visit = Visit(scope, call=call, house=self._house, guest=guest)
            arguments = (_decode(self._decoder, visit.raw),) if self._decoder else ()
            return await _within(self._house.deadline, call, call.handler(visit, *arguments)), "ok"
        except EarmarkError as error:
            if isinstance(error, Outage) and not isinstance(error, Overloaded):
                log.warning(call.name, outcome=error.code, **error.facts())
            return refuse(error), error.code
        except Exception:
            log.exception(call.name, outcome="internal")
            return refuse(problem_response.OurFault()), "internal"


async def _within(deadline: Deadline, call: Call, work: Any) -> Reply | Response:
    """In time, or an answer that says what is known: of a call that changes something, nothing."""
    try:
        answered: Reply | Response = await (work if call.in_line else deadline.within(work))
    except TimeoutError as late:
        if call.method == "GET":
            raise StoreUnavailable(because="the call took too long") from late
        raise OutcomeUnknown from late
    return answered


def refuse(error: EarmarkError) -> Reply:
    """The problem, worded."""
    return Reply(
        status=problem_response.STATUS[error.code],
        body=_encoder.encode(problem_response.describe(error)),
        media_type=problem_response.MEDIA_TYPE,
        headers=problem_response.headers(error),
    )


_CROWDED = refuse(Overloaded())


async def _put(reply: Reply, send: Send) -> None:
    """On the wire."""
    status = int(reply.status)
    headers = [(b"content-type", _MEDIA_TYPES.get(reply.media_type) or reply.media_type.encode())]
    if status not in _WITHOUT_BODY:
        headers.append((b"content-length", b"%d" % len(reply.body)))
    if reply.headers:
        headers += [(name.lower().encode("latin-1"), said.encode("latin-1")) for name, said in reply.headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def _decode(decoder: BodyDecoder[Any], raw: bytes) -> Any:
    rate_limits.check_depth(raw)
    try:
        return decoder.decode(raw or b"{}")
    except msgspec.ValidationError as wrong:
        raise InvalidRequest.at(*place(str(wrong))) from wrong
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
        raise InvalidRequest.at("", f"the body is not JSON: {broken}") from broken
