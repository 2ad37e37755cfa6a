"""The body of a request, with a bound on its size and on the time that it takes.

A client that announces a body and never sends it would otherwise keep its connection for good.
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
    """There is no body to work with. The message says why, and `status` says it in a number."""

    def __init__(self, message: str, *, status: HTTPStatus) -> None:
        super().__init__(message)
        self.status = status


async def read_body(
    request: Request, *, bytes_max: int = BODY_BYTES_MAX, seconds_max: float = BODY_SECONDS_MAX
) -> bytes:
    """All of the body."""
    try:
        return await within(_gather(request, bytes_max), seconds_max)
    except TimeoutError:
        raise BodyRefused("The body did not arrive in time.", status=HTTPStatus.REQUEST_TIMEOUT) from None
    except ClientDisconnect:
        message = "The connection broke before the body was here."
        raise BodyRefused(message, status=HTTPStatus.BAD_REQUEST) from None


async def within(coming: Awaitable[T], seconds: float) -> T:
    """What comes; TimeoutError if it does not in time."""
    async with asyncio.timeout(seconds):
        return await coming


async def _gather(request: Request, bytes_max: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > bytes_max:
            message = f"A body has at most {bytes_max} bytes."
            raise BodyRefused(message, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return bytes(body)
