"""What both clients share: requests as values, responses as values or errors, and when to retry. No I/O here."""

from __future__ import annotations

import math
import random
import secrets
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec

from earmark.errors import EarmarkError, SetupError, Unreachable
from earmark.schemas import errors_to_json_and_back, verb_arguments_to_request_body
from earmark.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

TIMEOUT_SECONDS = 10.0
DEADLINE_SECONDS = 30.0
RETRIES = 5
PAGE_SIZE = "200"
PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 5.0
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
IN_PROGRESS = "idempotency_in_progress"


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


class RetrySchedule:
    """How often one request is retried, and for how long: bounded, with growing pauses of random length."""

    def __init__(
        self,
        request: ApiRequest,
        *,
        url: str,
        retries: int,
        deadline_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._request = request
        self._url = url
        self._left = retries if request.method == "GET" or request.key is not None else 0
        self._pauses = 0
        self._clock = clock
        self._chance = chance
        self._ends_at = clock() + deadline_seconds

    def seconds(self, timeout_seconds: float) -> float:
        """How long this attempt may take."""
        return max(0.001, min(timeout_seconds, self._ends_at - self._clock()))

    def after_loss(self, lost: Exception) -> float:
        """How long to wait after no response came; raises `Unreachable` when no retry is left."""
        pause = self._pause()
        if pause is None:
            because = str(lost) or type(lost).__name__
            raise Unreachable(url=self._url, because=because, key=self._request.key) from lost
        return pause

    def after(self, status: int, answer_headers: Mapping[str, str], body: bytes) -> float | None:
        """How long to wait after this response; None when it is final."""
        if status not in AGAIN and not (status == HTTPStatus.CONFLICT and error_of(status, body).code == IN_PROGRESS):
            return None
        return self._pause(at_least=_retry_after(answer_headers))

    def _pause(self, *, at_least: float = 0.0) -> float | None:
        self._left -= 1
        if self._left < 0:
            return None
        most = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * 2**self._pauses)
        self._pauses += 1
        pause = at_least + self._chance(0.0, most)
        return pause if self._clock() + pause < self._ends_at else None


def _retry_after(answer_headers: Mapping[str, str]) -> float:
    """The seconds in `Retry-After`; 0 where there are none, or a date."""
    try:
        seconds = float(answer_headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _path(parts: tuple[str, ...]) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)
