"""The door itself: every call is authenticated, bounded, decoded, timed and worded in one place.

A handler sees a `Visit` and a decoded body, calls one verb, and returns a `Reply`. Refusals travel as exceptions
and become problems here.
"""

from __future__ import annotations

import hashlib
import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from starlette.requests import Request, cookie_parser

from earmark.api import problems
from earmark.api.identity import Identity, Principal, Scope
from earmark.api.metrics import Metrics
from earmark.api.patience import Patience
from earmark.api.till import Till
from earmark.api.turnstile import Turnstile
from earmark.domain.journal import Key
from earmark.engine.asks import Answer, Decided, Memo, Replayed
from earmark.engine.engine import Engine
from earmark.engine.ports import Clock
from earmark.errors import EarmarkError, InvalidRequest, Outage, Overloaded
from earmark.publish.availability import Availability

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from starlette.types import ASGIApp, Receive, Send
    from starlette.types import Scope as Asked


BODY_BYTES_MAX = 64 * 1024
BODY_SECONDS_MAX = 30.0
DISCARDED_BYTES_MAX = 64 * 1024 * 1024
COOKIE = "earmark_guest"
KEY_HEADER = "idempotency-key"
REPLAYED_HEADER = "Idempotency-Replayed"
JSON = "application/json"

_KEY = re.compile(rb"[\x21-\x7e]{1,255}")
_AT = re.compile(r"^(?P<message>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_FIELD = re.compile(r"Object (?:(?P<missing>missing required)|contains unknown) field `(?P<name>[^`]*)`")
_KEY_HEADER = KEY_HEADER.encode()
_JSON = JSON.encode()
_MEDIA_TYPES = {said: said.encode() for said in (JSON, problems.MEDIA_TYPE)}
_WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_encoder = msgspec.json.Encoder()
_patience = Patience(BODY_SECONDS_MAX)
_turnstile = Turnstile()
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

    __slots__ = ("_principal", "_raw", "_request", "call", "engine", "headers", "house", "path", "scope")

    def __init__(
        self,
        scope: Asked,
        *,
        call: Call,
        house: House,
        headers: Mapping[bytes, bytes],
        principal: Principal | None,
        raw: bytes,
    ) -> None:
        self.scope = scope
        self.call = call
        self.house = house
        self.engine = house.engine
        self.headers = headers
        """As they were sent: bytes, by names in small letters."""
        self.path: Mapping[str, str] = scope["path_params"]
        """What the call's path names, such as `booking_id`."""
        self._principal = principal
        self._raw = raw
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

    def memo(self, render: Render, *, status: HTTPStatus) -> Memo | None:
        """The idempotency key, if the caller chose one: in their scope, for this method, path and body."""
        return self.memo_of(lambda value, now: say(render(value, now), status=status))

    def memo_of(self, word: Callable[[Any, datetime], Reply]) -> Memo | None:
        """The same, for a call whose answer chooses its own status."""
        text = self.headers.get(_KEY_HEADER)
        if text is None:
            return None
        if not _KEY.fullmatch(text):
            raise InvalidRequest.at("Idempotency-Key", "must be 1 to 255 visible ASCII characters")
        scope = self.scope
        digest = hashlib.sha256(f"{scope['method']}\n{scope['path']}\n".encode() + self._raw).digest()
        return Memo(
            key=Key(self.principal.actor.name, text.decode()),
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


def endpoint(call: Call, house: House) -> ASGIApp:
    """The call as an ASGI application."""
    return _Endpoint(call, house)


class _Endpoint:
    """The steps of a call, in order."""

    def __init__(self, call: Call, house: House) -> None:
        self._call = call
        self._house = house
        self._decoder = msgspec.json.Decoder(call.body) if call.body else None
        self._line = house.engine.lines.get(call.name)
        self._log = log.bind()

    async def __call__(self, scope: Asked, receive: Receive, send: Send) -> None:
        """Turn away or attend to it, count it, tell of it, answer."""
        call, started = self._call, time.perf_counter()
        if self._line is not None and self._line.is_full:
            # Before anything is read or looked up: under a crowd, this is what is done most often.
            await _turnstile.turn()
            answered, outcome = _CROWDED, Overloaded.code
        else:
            answered, outcome = await self._attend(scope, receive)
        seconds = time.perf_counter() - started
        self._house.metrics.observe(call.name, outcome=outcome, seconds=seconds)
        self._log.debug(call.name, outcome=outcome, took_ms=round(seconds * 1000, 1), **scope["path_params"])
        await _put(answered, send)

    async def _attend(self, scope: Asked, receive: Receive) -> tuple[Reply, str]:
        """Welcome, decode, handle, word; and what is to be counted."""
        call = self._call
        try:
            visit = await _welcome(scope, receive, call=call, house=self._house)
            if self._decoder is None:
                answered: Reply = await call.handler(visit)
            else:
                answered = await call.handler(visit, _decode(self._decoder, visit.raw))
        except EarmarkError as error:
            if isinstance(error, Outage) and not isinstance(error, Overloaded):
                self._log.warning(call.name, outcome=error.code, **error.facts())
            return refuse(error), error.code
        except Exception:
            log.exception(call.name, outcome="internal")
            return refuse(problems.OurFault()), "internal"
        return answered, "ok"


def refuse(error: EarmarkError) -> Reply:
    """The problem, worded."""
    return Reply(
        status=problems.STATUS[error.code],
        body=_encoder.encode(problems.describe(error)),
        media_type=problems.MEDIA_TYPE,
        headers=problems.headers(error),
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


async def _welcome(scope: Asked, receive: Receive, *, call: Call, house: House) -> Visit:
    # Of a header that is sent twice the first counts.
    headers = dict(reversed(scope["headers"]))
    principal = _recognise(headers, house.identity, now=house.clock.now())
    if call.scope is not None:
        if principal is None:
            raise problems.Unauthorized
        if call.scope not in principal.scopes:
            raise problems.Forbidden(needs=call.scope)
    raw = await _read(headers, receive, bytes_max=call.bytes_max) if call.body or call.raw else b""
    return Visit(scope, call=call, house=house, headers=headers, principal=principal, raw=raw)


def _recognise(headers: Mapping[bytes, bytes], identity: Identity, *, now: datetime) -> Principal | None:
    kind, _, credential = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if kind:
        return identity.recognise(credential.strip(), now=now) if kind.lower() == "bearer" else None
    cookies = headers.get(b"cookie")
    cookie = cookie_parser(cookies.decode("latin-1")).get(COOKIE) if cookies else None
    return identity.recognise(cookie, now=now) if cookie else None


async def _read(headers: Mapping[bytes, bytes], receive: Receive, *, bytes_max: int) -> bytes:
    """The body, if it is JSON and not too large.

    What is too large is read on and thrown away, up to a bound: a sender that is cut off while it still sends would
    see a broken connection instead of the answer.
    """
    try:
        raw, size = await _patience.wait(_gather(receive, bytes_max=bytes_max))
    except TimeoutError:
        raise InvalidRequest.at("", "the body did not arrive in time") from None
    if size > bytes_max:
        raise problems.TooLarge(bytes_max=bytes_max)
    if size and headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _JSON:
        raise problems.WrongMediaType
    return raw


async def _gather(receive: Receive, *, bytes_max: int) -> tuple[bytes, int]:
    """All that is sent, and its size; of what is too large, only the size."""
    parts: list[bytes] = []
    size, more = 0, True
    while more and size <= DISCARDED_BYTES_MAX:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest.at("", "the connection broke before the body was here")
        part = message.get("body", b"")
        size += len(part)
        if size <= bytes_max:
            parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts), size


def _decode(decoder: msgspec.json.Decoder[Any], raw: bytes) -> Any:
    try:
        return decoder.decode(raw or b"{}")
    except msgspec.ValidationError as wrong:
        raise InvalidRequest.at(*_place(str(wrong))) from wrong
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
        raise InvalidRequest.at("", f"the body is not JSON: {broken}") from broken


def _place(text: str) -> tuple[str, str]:
    """Where and what, from msgspec's one sentence."""
    found = _AT.match(text)
    assert found is not None
    path = (found["path"] or "").removeprefix("$").removeprefix(".")
    message = found["message"]
    if field := _FIELD.match(message):
        path = f"{path}.{field['name']}".removeprefix(".")
        message = "is required" if field["missing"] else "is not a field of this request"
    elif " matching regex " in message:
        message = "has characters that are not allowed here"
    return path, message[:1].lower() + message[1:]
