"""Read the body of a request within a bound on its size and its time.

Without the bound on time, a client that announces a body and never sends it would keep its connection for ever.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import ClientDisconnect

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.requests import Request

T = TypeVar("T")

BODY_BYTES_MAX = 65_536
BODY_SECONDS_MAX = 30.0


class BodyRefused(Exception):
    """The body could not be read. The message says why; `status` is the HTTP status."""

    def __init__(self, message: str, *, status: HTTPStatus) -> None:
        super().__init__(message)
        self.status = status


async def read_body(
    request: Request, *, bytes_max: int = BODY_BYTES_MAX, seconds_max: float = BODY_SECONDS_MAX
) -> bytes:
    """The whole body; raises `BodyRefused` when it is too long, too slow or cut off."""
    try:
        return await within(_read_all(request, bytes_max), seconds_max)
    except TimeoutError:
        raise BodyRefused("The body did not arrive in time.", status=HTTPStatus.REQUEST_TIMEOUT) from None
    except ClientDisconnect:
        message = "The connection broke before the body arrived."
        raise BodyRefused(message, status=HTTPStatus.BAD_REQUEST) from None


async def within(awaitable: Awaitable[T], seconds: float) -> T:
    """The result of an awaitable; raises TimeoutError when it takes longer. A function of its own for the tests."""
    async with asyncio.timeout(seconds):
        return await awaitable


async def _read_all(request: Request, bytes_max: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > bytes_max:
            message = f"A body has at most {bytes_max} bytes."
            raise BodyRefused(message, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return bytes(body)
