"""An endpoint that does nothing: what the server, the cores and the load generator would do at the very most.

    python -m granian --interface asginl earmark.bench.http.empty:app

A plain ASGI application that reads the request and answers as many bytes as a hold has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BODY = b'{"id":"00000000-0000-0000-0000-000000000000","filling":"%s"}' % (b"." * 540)
HEADERS = [(b"content-length", b"%d" % len(BODY)), (b"content-type", b"application/json")]


async def app(
    _scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """201, whatever was asked."""
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})
