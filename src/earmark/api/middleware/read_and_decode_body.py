"""The body of a request: read within bounds on its size and its time, and decoded to the endpoint's type.

A timer for each request costs as much as decoding it, and hardly one ever fires: `DeadlineTimer` is one for all.

To JSON Schema, in which the API is described, `281.0` and `2.81e2` are integers. msgspec takes a number with a point or
an exponent for a float and refuses it where an integer belongs. So a body that is refused for that is decoded again,
and whole numbers count as integers. They are read from their digits: a float would lose some above 2**53.
"""

from __future__ import annotations

import asyncio
import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from earmark.api.problem_response import TooLarge, WrongMediaType
from earmark.errors import InvalidRequest
from earmark.schemas.requests import place
from earmark.shared_deadline_timer import DeadlineTimer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from starlette.types import Receive

T = TypeVar("T")

DISCARDED_BYTES_MAX = 64 * 1024 * 1024
_JSON = b"application/json"
DEPTH_MAX = 32
# A string without an end matches too: else each quote in it would be tried as the beginning of another.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_ALIKE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_MET_FLOAT = "got `float`"
_DIGITS_MAX = 18
"""Longer integers fit no field of a request, and are not worth being written out."""


async def read_body(
    headers: Mapping[bytes, bytes], receive: Receive, *, bytes_max: int, body_timeout: BodyTimeout
) -> bytes:
    """The body, if it is JSON and not too large.

    A body that is too large is read on and discarded, up to a bound: a client whose connection is closed while it still
    sends would see a broken connection instead of the response.
    """
    if b"content-encoding" in headers:
        check_encoding(headers[b"content-encoding"])
    try:
        raw, size = await body_timeout.wait(_gather(receive, bytes_max=bytes_max))
    except TimeoutError:
        raise InvalidRequest.at("", "the body did not arrive in time") from None
    if size > bytes_max:
        raise TooLarge(bytes_max=bytes_max)
    if size and headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _JSON:
        raise WrongMediaType
    return raw


def check_encoding(encoding: bytes) -> None:
    """A compressed body is refused and not unpacked, so a small bomb stays small."""
    if encoding and encoding.strip().lower() != b"identity":
        raise WrongMediaType


async def _gather(receive: Receive, *, bytes_max: int) -> tuple[bytes, int]:
    """The whole body and its size; of a body that is too large, only the size."""
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


class _Wait:
    """One request whose body is being read."""

    __slots__ = ("deadline", "is_late", "is_over", "task")

    def __init__(self, task: asyncio.Task[object], deadline: float) -> None:
        self.task = task
        self.deadline = deadline
        self.is_over = False
        """Whether the body has been read, or the request was cancelled."""
        self.is_late = False

    def expire(self) -> None:
        """Cancel the request that waits for its body."""
        self.is_late = True
        self.task.cancel()


class BodyTimeout:
    """The same number of seconds for each body, in one event loop."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._deadlines: DeadlineTimer[_Wait] = DeadlineTimer()

    async def wait(self, reading: Awaitable[T]) -> T:
        """The result; TimeoutError if it is not there in time."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        wait = _Wait(task, loop.time() + self.seconds)
        self._deadlines.watch(wait)
        try:
            return await reading
        except asyncio.CancelledError:
            if wait.is_late and task.uncancel() <= 0:
                raise TimeoutError from None
            raise
        finally:
            wait.is_over = True


class BodyDecoder(Generic[T]):
    """Decodes bodies to one type."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, raw: bytes) -> T:
        """The body as its type. Raises `InvalidRequest` with the path of the field that is wrong."""
        raw = raw or b"{}"
        if raw.count(b"[") + raw.count(b"{") > DEPTH_MAX:
            check_depth(raw)
        try:
            try:
                return self._decoder.decode(raw)
            except msgspec.ValidationError as wrong:
                if _MET_FLOAT not in str(wrong):
                    raise
            return msgspec.convert(_plain.decode(raw), self._kind)
        except msgspec.ValidationError as wrong:
            raise InvalidRequest.at(*place(str(wrong))) from wrong
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
            raise InvalidRequest.at("", f"the body is not JSON: {broken}") from broken


def check_depth(raw: bytes, *, depth_max: int = DEPTH_MAX) -> None:
    """Refuse JSON that is nested deeper than anything that makes sense here, before it is decoded.

    Only the brackets are looked at, and each round removes the innermost pairs. What is left after `depth_max` rounds
    is deeper than that, or is not JSON, which the decoder reports better if little is left.
    """
    if raw.count(b"[") + raw.count(b"{") <= depth_max:
        return
    # Without an escape, strings are the parts between every other quote, which is faster to find.
    plain = _STRING.sub(b"", raw) if b"\\" in raw else b"".join(raw.split(b'"')[::2])
    brackets = plain.translate(_ALIKE, _NOT_BRACKETS)
    for _ in range(depth_max):
        if b"[" * (depth_max + 1) in brackets:
            break
        brackets = brackets.replace(b"[]", b"")
    if b"[]" in brackets or len(brackets) > depth_max:
        raise InvalidRequest.at("", f"is nested deeper than {depth_max} levels")


def _number(text: str) -> int | float:
    """A number that is written with a point or an exponent: an integer if it is whole."""
    try:
        exact = Decimal(text)
    except InvalidOperation:
        return float(text)
    if exact.adjusted() >= _DIGITS_MAX:
        return float(text)
    whole = int(exact)
    return whole if whole == exact else float(text)


_plain: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=_number)
