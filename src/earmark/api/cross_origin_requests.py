"""Requests from pages of other sites: which sites may call the API (CORS), and when a request comes from another one.

An operator lists the sites in `EARMARK_ALLOWED_ORIGINS`. Their pages may call what a buyer's token may call, and import
the modules under `/web`. They send the token as a header: no response allows credentials, and a request from another
site is never authenticated by its cookie. A page of any other site cannot read a response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.api.auth.keys_and_tokens import Scope
from earmark.api.middleware.read_forwarded_headers import is_secure_at
from earmark.api.problem_response import MethodNotAllowed
from earmark.api.response import problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from starlette.types import Message, Receive, Send
    from starlette.types import Scope as AsgiScope

    from earmark.api.endpoint_declaration import Endpoint

ORIGIN = b"origin"
NOTED = "earmark.origin"
"""Where the request's scope has its `Origin` header, if it has one: found also before an endpoint reads any header."""
MAX_AGE_SECONDS = 7200
"""How long a browser remembers the answer to a preflight; Chromium takes no more."""
REQUEST_HEADERS = ("Authorization", "Content-Type", "Idempotency-Key", "If-None-Match", "Last-Event-ID", "X-Request-Id")
"""Headers that a page of a listed site may send."""
RESPONSE_HEADERS = ("ETag", "Idempotency-Replayed", "Retry-After", "X-Request-Id")
"""Headers of a response that it may read, beside those that every page may."""
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
SAME_SITE = (b"same-origin", b"none")
"""What browsers send as `Sec-Fetch-Site` when the page is of the server's own origin, or there is no page."""

Headers = tuple[tuple[bytes, bytes], ...]
_VARY: Headers = ((b"vary", b"Origin"),)


class AllowedOrigins:
    """The sites of the setting, and the headers that a response gets by the `Origin` of its request."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        exposed = ", ".join(RESPONSE_HEADERS).encode()
        self._listed: dict[bytes | None, Headers] = {
            (origin := text.encode()): (
                *_VARY,
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", exposed),
            )
            for text in origins
        }
        # Also for a request without an Origin: a cache may not give its response to a page of a listed site.
        self._unlisted = _VARY if self._listed else ()

    def __bool__(self) -> bool:
        return bool(self._listed)

    def __contains__(self, origin: bytes | None) -> bool:
        return origin in self._listed

    @property
    def listed(self) -> list[str]:
        """The sites, as a page's `Origin` names them."""
        return [origin.decode() for origin in self._listed if origin is not None]

    def headers(self, scope: AsgiScope) -> Headers:
        """The headers of a response that pages of listed sites may read."""
        return self._listed.get(scope.get(NOTED), self._unlisted)


class Preflight:
    """Answers `OPTIONS` at one path: whether a page of the request's origin may send what it is about to send."""

    def __init__(self, methods: Sequence[str], origins: AllowedOrigins) -> None:
        self._methods = sorted(methods)
        self._origins = origins
        self._allowed: Headers = (
            (b"access-control-allow-methods", ", ".join(self._methods).encode()),
            (b"access-control-allow-headers", ", ".join(REQUEST_HEADERS).encode()),
            (b"access-control-max-age", b"%d" % MAX_AGE_SECONDS),
        )

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """204 with what is allowed for a preflight of a listed site; else the method is not one of this path."""
        headers = self._origins.headers(scope)
        asks = any(name == b"access-control-request-method" for name, _ in scope["headers"])
        if not asks or scope.get(NOTED) not in self._origins:
            await problem(MethodNotAllowed(allowed=self._methods)).send(send, also=headers)
            return
        await send({"type": "http.response.start", "status": 204, "headers": [*headers, *self._allowed]})
        await send({"type": "http.response.body", "body": b""})


def preflights(endpoints: Iterable[Endpoint], origins: AllowedOrigins) -> Iterator[tuple[str, Preflight]]:
    """Each path that buyers call, with what answers its preflight; none where no site is listed."""
    methods: dict[str, list[str]] = {}
    for endpoint in endpoints:
        if origins and is_for_buyers(endpoint):
            methods.setdefault(endpoint.path, []).append(endpoint.method)
    return ((path, Preflight(found, origins)) for path, found in methods.items())


def is_for_buyers(endpoint: Endpoint) -> bool:
    """Whether a buyer's token may call it, or buyers call it before they have a token."""
    return endpoint.scope is Scope.BUY or endpoint.before_token


def adding(headers: Headers, send: Send) -> Send:
    """The same `send`, with these headers added to the response."""

    async def added(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *headers]}
        await send(message)

    return added


def is_from_elsewhere(scope: AsgiScope, headers: Mapping[bytes, bytes], *, hops: int) -> bool:
    """Whether a page of another origin sent the request.

    A browser says so itself in `Sec-Fetch-Site`, which no page can change. Of older browsers, and over plain HTTP, the
    `Origin` is compared with the address that the request was sent to. A request without an `Origin` is a client's that
    is no browser, or a browser's `GET` for a page of this origin.
    """
    origin = headers.get(ORIGIN)
    if origin is None:
        return False
    if (site := headers.get(b"sec-fetch-site")) is not None:
        return site not in SAME_SITE
    scheme, _, page = origin.decode("latin-1").lower().partition("://")
    here = headers.get(b"host", b"").decode("latin-1").lower()
    port = DEFAULT_PORTS.get(scheme, "")
    if not page or page.removesuffix(port) != here.removesuffix(port):
        return True
    # A proxy that is not trusted may have ended TLS, so `https` at an address that looks plain is this origin.
    return scheme == "http" and is_secure_at(scope, hops=hops)
