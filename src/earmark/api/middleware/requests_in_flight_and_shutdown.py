"""Counts the requests that this process is answering, and knows whether the server is about to stop."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from earmark.errors import Outage

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

QUIET_SECONDS = 0.1
"""A server is quiet when no request has arrived or ended for so long: open connections are then idle."""


@dataclass(kw_only=True, eq=False)
class Stopping(Outage):
    """This server is about to stop; another one, or this one in a moment, will answer."""

    code = "stopping"


class RequestsInFlight:
    """The number of requests in progress, and whether shutdown has begun."""

    def __init__(self) -> None:
        self.is_stopping = False
        self._count = 0
        self._last_change = time.monotonic()

    def begin_shutdown(self) -> None:
        """From now on this server is not ready, and closes each connection after its response."""
        self.is_stopping = True

    def check_not_stopping(self) -> None:
        """Raise `Stopping` when shutdown has begun."""
        if self.is_stopping:
            raise Stopping

    def around(self, app: ASGIApp) -> ASGIApp:
        """The same application, counted; once shutdown has begun, its responses close their connections."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            async def closing_send(message: Message) -> None:
                # HTTP/2 has no such header: it ends a connection by itself.
                if self.is_stopping and message["type"] == "http.response.start" and scope["http_version"] < "2":
                    message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
                await send(message)

            self._count += 1
            try:
                await app(scope, receive, closing_send)
            finally:
                self._count -= 1
                self._last_change = time.monotonic()

        return counted

    def restart_quiet_time(self) -> None:
        """Count the quiet time from now."""
        self._last_change = time.monotonic()

    @property
    def is_quiet(self) -> bool:
        """Whether no request is in progress and none was for a moment."""
        return not self._count and time.monotonic() - self._last_change >= QUIET_SECONDS
