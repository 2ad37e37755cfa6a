"""Lets pages of other sites call the API from a browser (CORS): only the sites that the operator named.

A browser asks first (preflight) and shows the page a response only if the server names the page's site in it. No cookie
is allowed with it: a page of another site sends the buyer's token.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

ORIGIN = b"origin"
ALLOWED = b"access-control-allow-origin"
VARY = (b"vary", b"Origin")
PREFLIGHT = b"access-control-request-method"
SECONDS_MAX = 7200
"""Browsers remember for at most so long what they were answered."""
SENT = "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, X-Request-Id"
READ = "ETag, Idempotency-Replayed, Location, Retry-After, X-Request-Id"
ANSWER_TO_PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST, PATCH, DELETE"),
    (b"access-control-allow-headers", SENT.encode()),
    (b"access-control-max-age", b"%d" % SECONDS_MAX),
    VARY,
)


def origins_of(setting: str | None) -> frozenset[str]:
    """The sites of the setting, as browsers name them."""
    return frozenset(filter(None, (site.strip().rstrip("/").lower() for site in (setting or "").split(","))))


class AllowOtherSites:
    """ASGI middleware around the API and its pages."""

    def __init__(self, app: ASGIApp, *, origins: frozenset[str]) -> None:
        self._app = app
        self._origins = frozenset(origin.encode("latin-1", "replace") for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a preflight of an allowed site; name the site in every other response to its pages."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin = headers.get(ORIGIN)
        is_allowed = origin in self._origins
        if is_allowed and scope["method"] == "OPTIONS" and PREFLIGHT in headers:
            start = {"type": "http.response.start", "status": HTTPStatus.NO_CONTENT}
            await send({**start, "headers": [(ALLOWED, origin), *ANSWER_TO_PREFLIGHT]})
            await send({"type": "http.response.body", "body": b""})
            return

        async def naming(message: Message) -> None:
            if message["type"] == "http.response.start" and ALLOWED not in dict(message["headers"]):
                names = [(ALLOWED, origin), (b"access-control-expose-headers", READ.encode())] if is_allowed else []
                # Also without a site: a cache must not give one site's response to another.
                message["headers"] = [*message["headers"], *names, VARY]
            await send(message)

        await self._app(scope, receive, naming)
