"""An endpoint that does nothing: the limit of the server, the cores and the load generator.

    python -m granian --interface asginl earmark.bench.http.fixed_response_app:app

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
    """Answer 201 to every request."""
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})
