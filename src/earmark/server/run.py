"""Serving: one process, one event loop, with the workers beside the door. `crew.py` runs several.

Stopping is polite and bounded (`api/drain.py`): what was accepted is finished, and whoever only keeps a connection open
is not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
import warnings
from typing import TYPE_CHECKING, Any

from earmark.api.app import create_app
from earmark.api.services import open_services
from earmark.errors import SetupError
from earmark.observability import logs
from earmark.server import gc_tuning
from earmark.server.native_threads import threads_ended
from earmark.server.shutdown import drop_unread, wait_for_requests
from earmark.workers import loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from earmark.api.services import Services
    from earmark.config import Settings

GRACE_SECONDS = 1.0
BACKLOG = 2048
CONNECTIONS_MAX = 16_384
"""At once, beside streams; those beyond wait unseen in the backlog, where no answer can tell them to come again."""
FILES_APART = 256
"""Open files that are no connections of clients: the store, Redis, gateways, webhooks, logs."""
log = logs.get()
TAKEN = {errno.EADDRINUSE, errno.EACCES}


async def serve(settings: Settings, *, ready: Callable[[str], None], duty: asyncio.Event | None = None) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told the URL once the door is open.

    With `duty` it is one of a crew: it shares its port, and runs the workers only once it is called to.
    """
    if duty is None:
        check_free(settings.host, settings.port)
    stop = asyncio.Event()
    async with (
        open_services(settings) as opened,
        threads_ended(),
        signals(stop),
        _door(opened.services, settings, stop),
    ):
        gc_tuning.put_away()
        ready(shown_url(settings))
        await _called(duty, stop)
        await loop.run(opened.workers, stop, heartbeat=opened.runtime.heartbeat)
        await stop.wait()


async def _called(duty: asyncio.Event | None, stop: asyncio.Event) -> None:
    """Wait for the call to duty; whoever is alone is always on duty."""
    if duty is not None:
        waits = [asyncio.create_task(event.wait()) for event in (duty, stop)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


@contextlib.asynccontextmanager
async def signals(stop: asyncio.Event) -> AsyncIterator[None]:
    """Meanwhile SIGINT and SIGTERM ask to stop."""
    running = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            running.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def _door(services: Services, settings: Settings, stop: asyncio.Event) -> AsyncIterator[None]:
    streams = settings.stream_readers_max
    connections = _allow_connections(CONNECTIONS_MAX + streams, enough=BACKLOG + streams)
    if services.hub:
        # Streams stay: where there are few connections, half of them are for requests that come and go.
        services.hub.keep_room(connections - min(CONNECTIONS_MAX, connections // 2))
    server = _granian(services.in_flight.around(create_app(services)), settings, connections=connections)
    serving = asyncio.create_task(server.serve())
    serving.add_done_callback(lambda _: stop.set())
    draining = asyncio.create_task(_drain(services, settings, stop))
    try:
        await _open(settings, serving)
        drop_unread(settings.port, seconds=settings.stream_stall_seconds)
        yield
    finally:
        stop.set()
        with contextlib.suppress(Exception):
            await draining
        with contextlib.suppress(Exception):
            server.stop()
        await asyncio.wait({serving}, timeout=GRACE_SECONDS)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await asyncio.wait_for(serving, timeout=GRACE_SECONDS)


def _allow_connections(wanted: int, *, enough: int) -> int:
    """How many connections there may be, as far as the system lets us: each is an open file.

    Without a file for it, a connection is accepted again and again in vain, and the store gets none either. Fewer than
    `enough` are worth a warning: all streams and a crowd beside them find no room.
    """
    if sys.platform == "win32":
        return wanted
    import resource

    files = wanted + FILES_APART
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files:
        soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= files:
        return wanted
    most = max(soft - FILES_APART, soft // 2)
    told = log.warning if most < enough else log.debug
    told("connections", outcome="lowered", most=most, wanted=wanted, open_files=soft, open_files_wanted=files)
    return most


async def _drain(services: Services, settings: Settings, stop: asyncio.Event) -> None:
    """As soon as there is word to stop, whatever else is still being finished."""
    await stop.wait()
    services.in_flight.begin_shutdown()
    services.payments.hurry()
    if services.hub:
        services.hub.end()
    await wait_for_requests(services.in_flight, port=settings.port, seconds=settings.drain_seconds)


def _granian(app: Any, settings: Settings, *, connections: int) -> Any:
    """Granian inside our own loop, so that one process holds everything and one signal ends it."""
    from granian.constants import HTTPModes, Interfaces
    from granian.http import HTTP1Settings
    from granian.server.embed import Server

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Server(
            app,
            address=settings.host,
            port=settings.port,
            interface=Interfaces.ASGINL,
            websockets=False,
            # To find out which version a client speaks, Granian waits without an end for its first word.
            http=HTTPModes.auto if settings.http2 else HTTPModes.http1,
            backlog=BACKLOG,
            backpressure=connections,
            # Counted from the end of the answer before, or from the beginning: it closes idle connections too.
            http1_settings=HTTP1Settings(header_read_timeout=round(settings.idle_seconds * 1000)),
            log_enabled=False,
        )


async def _open(settings: Settings, serving: asyncio.Task[None]) -> None:
    """Wait for the fact that the door answers."""
    host = "127.0.0.1" if settings.host in {"0.0.0.0", "::"} else settings.host  # noqa: S104 (compared, not bound)
    for _ in range(500):
        if serving.done():
            serving.result()
            raise SetupError(problem="The server stopped before it was ready.")
        try:
            _, writer = await asyncio.open_connection(host, settings.port)
        except OSError:
            await asyncio.sleep(0.01)
            continue
        writer.close()
        return
    raise SetupError(problem=f"The server did not answer on {settings.host}:{settings.port} within 5 seconds.")


def check_free(host: str, port: int) -> None:
    """Refuse, in words, an address that cannot be listened on."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as refused:
        other = "--port" if refused.errno in TAKEN else "--host"
        problem = f"Cannot listen on {host}:{port} ({refused.strerror or refused}). Choose another with {other}."
        raise SetupError(problem=problem) from refused


def first_free_port(host: str, *, first: int, tries: int = 100) -> int:
    """The first port from `first` on that nobody listens on."""
    for port in range(first, first + tries):
        try:
            check_free(host, port)
        except SetupError as refused:
            if isinstance(refused.__cause__, OSError) and refused.__cause__.errno in TAKEN:
                continue
            raise
        return port
    raise SetupError(problem=f"No free port from {first} to {first + tries - 1} on {host}. Choose one with --port.")


def shown_url(settings: Settings) -> str:
    """Where the door is, as people write it."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{settings.port}"


logging.getLogger("_granian").setLevel(logging.WARNING)
