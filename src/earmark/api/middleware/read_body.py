"""Reading the body of a request, with a bound on its size and on the time that it takes.

A timer for each request costs as much as decoding it, and hardly one ever fires: `DeadlineTimer` is one for all.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from earmark.api.problem_response import TooLarge, WrongMediaType
from earmark.deadline_timer import DeadlineTimer
from earmark.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from starlette.types import Receive

T = TypeVar("T")

DISCARDED_BYTES_MAX = 64 * 1024 * 1024
_JSON = b"application/json"


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

    __slots__ = ("deadline", "ended", "is_late", "task")

    def __init__(self, task: asyncio.Task[object], deadline: float) -> None:
        self.task = task
        self.deadline = deadline
        self.ended = False
        self.is_late = False

    def is_over(self) -> bool:
        """Whether the body has been read, or the request was cancelled."""
        return self.ended

    def expire(self) -> None:
        """Cancel the request that waits for its body."""
        self.is_late = True
        self.task.cancel()


class BodyTimeout:
    """So many seconds for each body, in one event loop."""

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
            wait.ended = True
