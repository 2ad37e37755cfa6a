"""Earmark inside another web application: the whole service under a prefix, and the verbs as plain calls.

    app = FastAPI()
    tickets = mount(app, "/tickets", database_url="sqlite:///shop.sqlite3", admin_key="ek_test_…")

It opens its database and starts its workers when the application starts, and closes both when the application ends.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from earmark import config
from earmark.api import problem_response
from earmark.api.app import create_app
from earmark.api.open_services_for_handlers import open_services
from earmark.errors import SetupError
from earmark.library import Earmark
from earmark.wiring import open_and_maintain_databases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send


class Service:
    """An ASGI application: to be mounted, or to be served by itself.

    Settings are those of `earmark serve`, by name, and else from the environment. An application that mounts it without
    `mount` must enter `running` in its own lifespan; `mount` does both.
    """

    def __init__(self, *, migrate: bool = True, **settings: Any) -> None:
        self.settings = config.read(os.environ, **settings)
        if self.settings.admin_key is None:
            raise SetupError(problem="Give an admin_key, or set EARMARK_ADMIN_KEY: callers of the service show it.")
        self._migrate = migrate
        self._app: ASGIApp | None = None
        self._earmark: Earmark | None = None
        self._begin_shutdown: Callable[[], object] | None = None

    @property
    def earmark(self) -> Earmark:
        """The verbs as plain calls, on the same engine: for the routes of your own."""
        if self._earmark is None:
            raise SetupError(problem=_CLOSED)
        return self._earmark

    @asynccontextmanager
    async def running(self, _: object = None) -> AsyncIterator[None]:
        """Open the database, run the workers, and finish both at the end."""
        if self._migrate:
            await open_and_maintain_databases.migrate(self.settings.database_url)
        async with open_services(self.settings) as opened, opened.runtime.working(opened.workers):
            services = opened.services
            self._earmark = Earmark(services.engine, mode=services.authenticator.mode, payments=services.payments)
            self._app = create_app(services)
            running = asyncio.get_running_loop()
            self._begin_shutdown = partial(running.call_soon_threadsafe, services.begin_shutdown)
            try:
                yield
            finally:
                self._app = self._earmark = self._begin_shutdown = None

    def begin_shutdown(self) -> None:
        """Say that the host is about to stop: `/readyz` fails, and no stream or payment keeps a connection open.

        Streams get a last event, and requests that wait for a gateway are answered 202. Other requests are answered as
        before. It returns at once, may be called from a signal handler or another thread, and again; a service that is
        not open is left as it is.
        """
        if (begin := self._begin_shutdown) is not None:
            begin()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or handle the server's lifespan messages."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        app = self._app or problem_response.respond(SetupError(problem=_CLOSED))
        await app(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """The lifespan of an application that is served by itself."""
        await receive()
        phase = "startup"
        try:
            async with self.running():
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()
        except Exception as broken:
            await send({"type": f"lifespan.{phase}.failed", "message": str(broken)})
            raise
        await send({"type": "lifespan.shutdown.complete"})


class Mountable(Protocol):
    """A Starlette or a FastAPI application."""

    @property
    def router(self) -> Any:
        """The router, which has the application's lifespan."""
        ...

    def mount(self, path: str, app: ASGIApp) -> None:
        """Serve another application under a prefix."""
        ...


def mount(app: Mountable, path: str, *, migrate: bool = True, **settings: Any) -> Service:
    """Put the service under a prefix of an application, and its lifespan inside that application's own."""
    service = Service(migrate=migrate, **settings)
    outer = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(whole: Starlette) -> AsyncIterator[Any]:
        async with service.running(), outer(whole) as state:
            yield state

    app.router.lifespan_context = lifespan
    app.mount(path, service)
    return service


_CLOSED = "Earmark is not open here: the application's lifespan opens it, so run the application with its lifespan."
