"""Responses of the API: plain data, and results of verbs as an idempotency record keeps them."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.api import problem_response
from earmark.engine.commands_and_results import Decided, Replayed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from starlette.types import Send

    from earmark.engine.commands_and_results import Result
    from earmark.engine.ports.encode_result_as_stored_response import ResponseWriter
    from earmark.errors import EarmarkError

JSON = "application/json"
REPLAYED_HEADER = "Idempotency-Replayed"

_MEDIA_TYPES = {name: name.encode() for name in (JSON, problem_response.MEDIA_TYPE)}
_WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_encode = msgspec.json.Encoder().encode


class ApiResponse(msgspec.Struct, kw_only=True):
    """Status, headers and body of a response."""

    status: int = HTTPStatus.OK
    body: bytes = b""
    media_type: str = JSON
    headers: dict[str, str] = {}

    async def send(self, send: Send, *, also: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send the response start and body over ASGI, with these headers too."""
        headers = [(b"content-type", _MEDIA_TYPES.get(self.media_type) or self.media_type.encode())]
        if self.status not in _WITHOUT_BODY:
            headers.append((b"content-length", b"%d" % len(self.body)))
        if self.headers:
            headers += [
                (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()
            ]
        headers += also
        await send({"type": "http.response.start", "status": int(self.status), "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class JsonWriter:
    """Writes the result of a verb as JSON with one status: a `ResponseWriter`."""

    __slots__ = ("_status", "_to_value")

    def __init__(self, to_value: Callable[[Any, datetime], object], *, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._to_value = to_value
        self._status = int(status)

    def __call__(self, result: Any, now: datetime, /) -> tuple[int, bytes]:
        """The status and the JSON body of a result."""
        return self._status, _encode(self._to_value(result, now))


def verb_response(result: Result, write: ResponseWriter) -> ApiResponse:
    """The result of a verb: the bytes that its key's record keeps, else written now."""
    if record := result.record:
        status, body = record.status, record.body
    else:
        assert isinstance(result, Decided), "a replayed result has a record"
        status, body = write(result.value, result.now)
    response = ApiResponse(status=status, body=body)
    if status >= HTTPStatus.BAD_REQUEST:
        response.media_type = problem_response.MEDIA_TYPE
    if isinstance(result, Replayed):
        response.headers = {REPLAYED_HEADER: "true"}
    return response


def json_response(
    value: object, *, status: HTTPStatus = HTTPStatus.OK, headers: dict[str, str] | None = None
) -> ApiResponse:
    """A response with plain data as JSON."""
    return ApiResponse(status=status, body=_encode(value), headers=headers or {})


def problem(error: EarmarkError) -> ApiResponse:
    """A refusal or an outage, as RFC 9457 describes it."""
    return ApiResponse(
        status=problem_response.STATUS[error.code],
        body=_encode(problem_response.describe(error)),
        media_type=problem_response.MEDIA_TYPE,
        headers=problem_response.headers(error),
    )
