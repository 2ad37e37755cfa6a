"""The pipeline of one request: authenticate, read and decode the body, call the handler, write the response.

A handler gets a `RequestContext` and a decoded body, calls one verb, and returns an `ApiResponse`. Refusals are raised
as exceptions and become problem responses here.
"""

from __future__ import annotations

import hashlib
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request

from earmark.api import problem_response
from earmark.api.auth.api_keys import Authenticator, Principal, Scope
from earmark.api.auth.authenticate import AuthenticatedRequest, authenticate
from earmark.api.middleware import rate_limits
from earmark.api.middleware.body_timeout import BodyTimeout
from earmark.api.middleware.deadlines import Deadline
from earmark.api.middleware.decode_body import BodyDecoder
from earmark.api.middleware.in_flight import RequestsInFlight
from earmark.api.middleware.rate_limits import RateLimits
from earmark.api.middleware.rejection_throttle import RejectionThrottle
from earmark.api.middleware.request_log import note
from earmark.api.readiness import Readiness
from earmark.domain.journal import IdempotencyKey
from earmark.engine.commands import Decided, KeyedRequest, Replayed, Result
from earmark.engine.engine import Engine
from earmark.engine.ports.heartbeats import ALIVE_SECONDS
from earmark.engine.ports.store import Clock
from earmark.errors import EarmarkError, InvalidRequest, Outage, OutcomeUnknown, Overloaded, StoreUnavailable
from earmark.locks import Locks
from earmark.observability import logs
from earmark.observability.metrics.metrics import Metrics
from earmark.observability.tracing import Tracing
from earmark.payments.service import PaymentService
from earmark.schemas.requests import place
from earmark.schemas.to_command import check_key
from earmark.seatmap.cache import SeatMapCache
from earmark.seatmap.followers import StreamHub
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
_turnstile = RejectionThrottle()
log = logs.get()

Render = Any  # a function from what was decided, and when, to the answer in the API's words


class ApiResponse(msgspec.Struct, kw_only=True):
    """What goes back."""

    status: HTTPStatus = HTTPStatus.OK
    body: bytes = b""
    media_type: str = JSON
    headers: dict[str, str] = {}


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
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


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """What the door stands in front of."""

    engine: Engine
    authenticator: Authenticator
    metrics: Metrics
    clock: Clock
    guests: bool
    seat_map_cache: SeatMapCache
    payments: PaymentService
    locks: Locks | None = None
    """Where a Redis is set up."""
    limits: RateLimits = msgspec.field(default_factory=RateLimits)
    deadline: Deadline = msgspec.field(default_factory=lambda: Deadline(SECONDS_MAX))
    body_patience: BodyTimeout = msgspec.field(default_factory=lambda: BodyTimeout(BODY_SECONDS_MAX))
    trust_proxy: int = 0
    """How many proxies are believed in what they add about their callers."""
    counts_addresses: bool = False
    """Whether an operator has said how many there are: behind one that is not counted, all buyers share an address."""
    hub: StreamHub | None = None
    """Who follows events live; None where nobody can."""
    in_flight: RequestsInFlight = msgspec.field(default_factory=RequestsInFlight)
    readiness: Readiness = msgspec.field(default_factory=Readiness)
    tracing: Tracing | None = None
    """Where spans are wanted."""
    targets: Targets = Targets()
    alive_seconds: float = ALIVE_SECONDS
    """How long a worker may be silent and is still taken to be at work."""


class RequestContext:
    """One request, from somebody who has shown who they are."""

    __slots__ = ("_principal", "_raw", "_request", "call", "engine", "headers", "path", "scope", "services")

    def __init__(self, scope: Asked, *, call: Endpoint, services: Services, guest: AuthenticatedRequest) -> None:
        self.scope = scope
        self.call = call
        self.services = services
        self.engine = services.engine
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

    def idempotency(self, render: Render, *, status: HTTPStatus) -> KeyedRequest | None:
        """The idempotency key, if the caller chose one: in their scope, for this method, path and body."""
        return self.memo_of(lambda value, now: json_response(render(value, now), status=status))

    def memo_of(self, word: Callable[[Any, datetime], ApiResponse]) -> KeyedRequest | None:
        """The same, for a call whose answer chooses its own status."""
        shown = self.shown_key()
        if shown is None:
            return None
        key, digest = shown
        return KeyedRequest(key=key, request_hash=digest, render=lambda value, now: _as_stored(word(value, now)))

    def shown_key(self) -> tuple[IdempotencyKey, bytes] | None:
        """The idempotency key in its caller's scope, and the hash of the request. One that is none is refused."""
        text = self.headers.get(_KEY_HEADER)
        if text is None:
            return None
        key, scope = check_key(text.decode("latin-1")), self.scope
        # Wherever it is mounted: the same request is the same request.
        path = scope["path"].removeprefix(self.root)
        digest = hashlib.sha256(f"{scope['method']}\n{path}\n".encode() + self._raw).digest()
        return IdempotencyKey(self.principal.caller, key), digest


def _as_stored(worded: ApiResponse) -> tuple[int, bytes]:
    return int(worded.status), worded.body


def replayed_response(answer: Result) -> ApiResponse | None:
    """What a key remembers, byte for byte; None where nothing does."""
    memory = answer.memory
    if memory is None:
        return None
    media_type = JSON if memory.status < HTTPStatus.BAD_REQUEST else problem_response.MEDIA_TYPE
    headers = {REPLAYED_HEADER: "true"} if isinstance(answer, Replayed) else {}
    return ApiResponse(status=HTTPStatus(memory.status), body=memory.body, media_type=media_type, headers=headers)


def verb_response(answer: Result, render: Render, *, status: HTTPStatus = HTTPStatus.OK) -> ApiResponse:
    """A verb's answer: again, byte for byte, what the key remembers, else worded now."""
    if told := replayed_response(answer):
        return told
    assert isinstance(answer, Decided), "what is replayed is remembered"
    return json_response(render(answer.value, answer.now), status=status)


def json_response(
    value: object, *, status: HTTPStatus = HTTPStatus.OK, headers: dict[str, str] | None = None
) -> ApiResponse:
    """Plain data."""
    return ApiResponse(status=status, body=_encoder.encode(value), headers=headers or {})


def endpoint(call: Endpoint, services: Services) -> ASGIApp:
    """The call as an ASGI application."""
    return EndpointApp(call, services)


class EndpointApp:
    """The steps of a call, in order."""

    def __init__(self, call: Endpoint, services: Services) -> None:
        self._call = call
        self._house = services
        self._decoder = BodyDecoder(call.body) if call.body else None
        self._line = services.engine.lines.get(call.name)

    async def __call__(self, scope: Asked, receive: Receive, send: Send) -> None:
        """Turn away or attend to it, note how it went, answer."""
        call = self._call
        if self._line is not None and self._line.is_full:
            # Before anything is read or looked up: under a crowd, this is what is done most often.
            await _turnstile.turn()
            outcome = Overloaded.code
            answered: ApiResponse | Response = _CROWDED
        else:
            answered, outcome = await self._attend(scope, receive)
        note(scope, verb=call.name, route=call.path, outcome=outcome)
        if isinstance(answered, ApiResponse):
            await _put(answered, send)
        else:
            await answered(scope, receive, send)

    async def _attend(self, scope: Asked, receive: Receive) -> tuple[ApiResponse | Response, str]:
        """Welcome, decode, handle, word; and what is to be counted."""
        call = self._call
        try:
            guest = await authenticate(scope, receive, call=call, services=self._house)
            context = RequestContext(scope, call=call, services=self._house, guest=guest)
            arguments = (_decode(self._decoder, context.raw),) if self._decoder else ()
            return await _within(self._house.deadline, call, call.handler(context, *arguments)), "ok"
        except EarmarkError as error:
            if isinstance(error, Outage) and not isinstance(error, Overloaded):
                log.warning(call.name, outcome=error.code, **error.facts())
            return problem(error), error.code
        except Exception:
            log.exception(call.name, outcome="internal")
            return problem(problem_response.OurFault()), "internal"


async def _within(deadline: Deadline, call: Endpoint, work: Any) -> ApiResponse | Response:
    """In time, or an answer that says what is known: of a call that changes something, nothing."""
    try:
        answered: ApiResponse | Response = await (work if call.in_line else deadline.within(work))
    except TimeoutError as late:
        if call.method == "GET":
            raise StoreUnavailable(because="the call took too long") from late
        raise OutcomeUnknown from late
    return answered


def problem(error: EarmarkError) -> ApiResponse:
    """The problem, worded."""
    return ApiResponse(
        status=problem_response.STATUS[error.code],
        body=_encoder.encode(problem_response.describe(error)),
        media_type=problem_response.MEDIA_TYPE,
        headers=problem_response.headers(error),
    )


_CROWDED = problem(Overloaded())


async def _put(verb_response: ApiResponse, send: Send) -> None:
    """On the wire."""
    status = int(verb_response.status)
    headers = [(b"content-type", _MEDIA_TYPES.get(verb_response.media_type) or verb_response.media_type.encode())]
    if status not in _WITHOUT_BODY:
        headers.append((b"content-length", b"%d" % len(verb_response.body)))
    if verb_response.headers:
        headers += [
            (name.lower().encode("latin-1"), said.encode("latin-1")) for name, said in verb_response.headers.items()
        ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": verb_response.body})


def _decode(decoder: BodyDecoder[Any], raw: bytes) -> Any:
    rate_limits.check_depth(raw)
    try:
        return decoder.decode(raw or b"{}")
    except msgspec.ValidationError as wrong:
        raise InvalidRequest.at(*place(str(wrong))) from wrong
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
        raise InvalidRequest.at("", f"the body is not JSON: {broken}") from broken
