"""The door itself: every call is authenticated, bounded, decoded, timed and worded in one place.

A handler sees a `Visit` and a decoded body, calls one verb, and returns a `Reply`. Refusals travel as exceptions
and become problems here.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from starlette.responses import Response

from earmark.api import problems
from earmark.api.identity import Identity, Principal, Scope
from earmark.api.metrics import Metrics
from earmark.domain.journal import Key
from earmark.engine.asks import Answer, Decided, Memo, Replayed
from earmark.engine.engine import Engine
from earmark.engine.ports import Clock
from earmark.engine.till import Till
from earmark.errors import EarmarkError, InvalidRequest, Outage
from earmark.publish.availability import Availability
from earmark.words.asking import check_key
from earmark.words.bodies import place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from starlette.requests import Request


BODY_BYTES_MAX = 64 * 1024
BODY_SECONDS_MAX = 30.0
DISCARDED_BYTES_MAX = 64 * 1024 * 1024
COOKIE = "earmark_guest"
KEY_HEADER = "idempotency-key"
REPLAYED_HEADER = "Idempotency-Replayed"
JSON = "application/json"

_encoder = msgspec.json.Encoder()
log = structlog.get_logger("earmark")

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
    body: Any = None
    raw: bool = False
    """Whether the handler reads the body itself, byte for byte."""
    status: HTTPStatus = HTTPStatus.OK
    bytes_max: int = BODY_BYTES_MAX
    also: tuple[HTTPStatus, ...] = ()
    """Other statuses that the same answer may have."""
    refusals: tuple[str, ...] = ()
    query: tuple[tuple[str, str], ...] = ()
    idempotent: bool = False
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


class Visit:
    """One request, from somebody who has shown who they are."""

    def __init__(self, request: Request, *, call: Call, house: House, principal: Principal | None, raw: bytes) -> None:
        self.request = request
        self.call = call
        self.house = house
        self.engine = house.engine
        self._principal = principal
        self._raw = raw

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
        text = self.request.headers.get(KEY_HEADER)
        if text is None:
            return None
        path = self.request.url.path.removeprefix(self.root)
        digest = hashlib.sha256(f"{self.request.method}\n{path}\n".encode() + self._raw).digest()
        return Memo(
            key=Key(self.principal.actor.name, check_key(text)),
            request_hash=digest,
            render=lambda value, now: _as_stored(word(value, now)),
        )


def _as_stored(worded: Reply) -> tuple[int, bytes]:
    return int(worded.status), worded.body


def again(answer: Answer) -> Reply | None:
    """What a key remembers, byte for byte; None where nothing does."""
    memory = answer.memory
    if memory is None:
        return None
    media_type = JSON if memory.status < HTTPStatus.BAD_REQUEST else problems.MEDIA_TYPE
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


def endpoint(call: Call, house: House) -> Callable[[Request], Awaitable[Response]]:
    """The call as Starlette wants it."""
    decoder = msgspec.json.Decoder(call.body) if call.body else None

    async def handle(request: Request) -> Response:
        started = time.perf_counter()
        try:
            visit = await _welcome(request, call=call, house=house)
            arguments = (_decode(decoder, visit._raw),) if decoder else ()  # noqa: SLF001 (the door made the visit)
            answered: Reply = await call.handler(visit, *arguments)
            response = Response(
                answered.body, status_code=answered.status, media_type=answered.media_type, headers=answered.headers
            )
            outcome = "ok"
        except EarmarkError as error:
            response, outcome = problems.respond(error), error.code
            if isinstance(error, Outage):
                log.warning(call.name, outcome=outcome, **error.facts())
        except Exception:
            log.exception(call.name, outcome="internal")
            response, outcome = problems.respond(problems.OurFault()), "internal"
        seconds = time.perf_counter() - started
        house.metrics.observe(call.name, outcome=outcome, seconds=seconds)
        log.debug(call.name, outcome=outcome, took_ms=round(seconds * 1000, 1), **request.path_params)
        return response

    return handle


async def _welcome(request: Request, *, call: Call, house: House) -> Visit:
    principal = _recognise(request, house.identity, now=house.clock.now())
    if call.scope is not None:
        if principal is None:
            raise problems.Unauthorized
        if call.scope not in principal.scopes:
            raise problems.Forbidden(needs=call.scope)
    raw = await _read(request, bytes_max=call.bytes_max) if call.body or call.raw else b""
    return Visit(request, call=call, house=house, principal=principal, raw=raw)


def _recognise(request: Request, identity: Identity, *, now: datetime) -> Principal | None:
    kind, _, credential = request.headers.get("authorization", "").partition(" ")
    if kind:
        return identity.recognise(credential.strip(), now=now) if kind.lower() == "bearer" else None
    cookie = request.cookies.get(COOKIE)
    return identity.recognise(cookie, now=now) if cookie else None


async def _read(request: Request, *, bytes_max: int) -> bytes:
    """The body, if it is JSON and not too large.

    What is too large is read on and thrown away, up to a bound: a sender that is cut off while it still sends would
    see a broken connection instead of the answer.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for part in request.stream():
                size += len(part)
                if size <= bytes_max:
                    parts.append(part)
                elif size > DISCARDED_BYTES_MAX:
                    break
    except TimeoutError:
        raise InvalidRequest.at("", "the body did not arrive in time") from None
    if size > bytes_max:
        raise problems.TooLarge(bytes_max=bytes_max)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if size and media_type != JSON:
        raise problems.WrongMediaType
    return b"".join(parts)


def _decode(decoder: msgspec.json.Decoder[Any], raw: bytes) -> Any:
    try:
        return decoder.decode(raw or b"{}")
    except msgspec.ValidationError as wrong:
        raise InvalidRequest.at(*place(str(wrong))) from wrong
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
        raise InvalidRequest.at("", f"the body is not JSON: {broken}") from broken
