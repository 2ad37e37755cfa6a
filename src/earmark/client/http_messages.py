"""What both clients send and read: requests as values, and responses as values or errors. No I/O here."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from earmark.errors import EarmarkError, SetupError
from earmark.schemas import errors_to_json_and_back, verb_arguments_to_request_body
from earmark.version import __version__

T = TypeVar("T")

PAGE_SIZE = "200"
KEY_HEADER = "Idempotency-Key"
AGAIN = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
"""Responses that say "not now", from the server or from a proxy in front of it."""


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, the same each time it is sent."""

    method: str
    path: str
    content: bytes | None = None
    params: dict[str, str] = {}
    headers: dict[str, str] = {}

    @property
    def key(self) -> str | None:
        """The idempotency key; without one, only a GET may be sent twice."""
        return self.headers.get(KEY_HEADER)


def get(*path: str, **params: str | None) -> ApiRequest:
    """A GET request; parameters without a value are left out."""
    return ApiRequest(method="GET", path=_path(path), params={name: value for name, value in params.items() if value})


def post(*path: str, body: verb_arguments_to_request_body.Fields, key: str | None, method: str = "POST") -> ApiRequest:
    """A request that changes something. Its idempotency key is the caller's, or a new one."""
    return ApiRequest(
        method=method,
        path=_path(path),
        content=verb_arguments_to_request_body.encode(body),
        headers={"Content-Type": "application/json", KEY_HEADER: key or secrets.token_hex(16)},
    )


def address(url: str) -> str:
    """The URL of the service, without a slash at the end."""
    if not url.startswith(("http://", "https://")):
        raise SetupError(problem=f"{url!r} is not the URL of a service: it must begin with http:// or https://.")
    return url.rstrip("/")


def headers(key: str | None) -> dict[str, str]:
    """The headers of every request: the credential and the client's version."""
    own = {"User-Agent": f"earmark-python/{__version__}", "Accept": "application/json"}
    return own | ({"Authorization": f"Bearer {key}"} if key else {})


def read(kind: type[T], status: int, body: bytes) -> T:
    """Decode a response into a value, or raise the error that it reports."""
    if status >= HTTPStatus.MULTIPLE_CHOICES:
        raise error_of(status, body)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as odd:
        raise errors_to_json_and_back.OtherOutage(
            "answer_unknown", transient=False, facts={"because": f"the response cannot be read: {odd}"}
        ) from odd


def error_of(status: int, body: bytes) -> EarmarkError:
    """The error that a response reports; a proxy's response without a problem document becomes `http_<status>`."""
    try:
        problem = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        problem = {}
    if "code" not in problem:
        problem = {"code": f"http_{status}", "transient": status in AGAIN}
    return errors_to_json_and_back.retell(problem, status=status)


def _path(parts: tuple[str, ...]) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)
