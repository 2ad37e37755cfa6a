"""Serves HTTP and runs the workers in one process and one event loop. `processes.py` runs several processes.

Shutdown is graceful and bounded (`shutdown.py`): accepted requests are finished; idle connections are closed.
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
from earmark.api.open_services_for_handlers import open_services
from earmark.errors import SetupError
from earmark.observability import logs
from earmark.server import gc_tuning
from earmark.server.shutdown import drop_unread, wait_for_requests
from earmark.server.wait_for_native_threads import threads_ended
from earmark.workers import loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from earmark.api.open_services_for_handlers import Services
    from earmark.config import Settings

GRACE_SECONDS = 1.0
BACKLOG = 2048
CONNECTIONS_MAX = 16_384
"""Open at once, in addition to streams. Connections above that wait in the backlog, where they get no answer."""
FILES_APART = 256
"""Open files that are not client connections: the store, Redis, gateways, webhooks, logs."""
log = logs.get()
TAKEN = {errno.EADDRINUSE, errno.EACCES}


async def serve(settings: Settings, *, ready: Callable[[str], None], run_workers: asyncio.Event | None = None) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is called with the URL once the server accepts connections.

    With `run_workers` it is one of several processes: it shares its port, and runs the workers once that is set.
    """
    if run_workers is None:
        check_free(settings.host, settings.port)
    stop = asyncio.Event()
    async with (
        open_services(settings) as opened,
        threads_ended(),
        signals(stop),
        serving(opened.services, settings, stop),
    ):
        gc_tuning.freeze_startup_objects()
        ready(shown_url(settings))
        await _wait_for_workers(run_workers, stop)
        await loop.run(opened.workers, stop, heartbeat=opened.runtime.heartbeat)
        await stop.wait()


async def _wait_for_workers(run_workers: asyncio.Event | None, stop: asyncio.Event) -> None:
    """Wait until this process is to run the workers; a single process runs them at once."""
    if run_workers is not None:
        waits = [asyncio.create_task(event.wait()) for event in (run_workers, stop)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


@contextlib.asynccontextmanager
async def signals(stop: asyncio.Event) -> AsyncIterator[None]:
    """Inside, SIGINT and SIGTERM set `stop`."""
    running = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            running.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def serving(services: Services, settings: Settings, stop: asyncio.Event) -> AsyncIterator[None]:
    """Inside, Granian accepts requests on the settings' port. On exit, requests are drained and the port is closed.

    Raises `SetupError` on exit when Granian ended by itself, before `stop` was set; that sets `stop`.
    """
    streams = settings.stream_readers_max
    connections = _allow_connections(CONNECTIONS_MAX + streams, enough=BACKLOG + streams)
    if services.hub:
        # Streams stay open: where there are few connections, half of them are kept for short requests.
        services.hub.keep_room(connections - min(CONNECTIONS_MAX, connections // 2))
    server = _granian(services.in_flight.around(create_app(services)), settings, connections=connections)
    granian = asyncio.create_task(server.serve())
    lost = asyncio.Event()
    granian.add_done_callback(lambda _: _note_lost_listener(lost, stop))
    draining = asyncio.create_task(_drain(services, settings, stop, lost))
    try:
        await _wait_until_open(settings, granian)
        drop_unread(settings.port, seconds=settings.stream_stall_seconds)
        yield
    finally:
        stop.set()
        with contextlib.suppress(Exception):
            await draining
        with contextlib.suppress(Exception):
            server.stop()
        await asyncio.wait({granian}, timeout=GRACE_SECONDS)
        granian.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await asyncio.wait_for(granian, timeout=GRACE_SECONDS)
    if lost.is_set():
        raise _listener_ended(granian)


def _note_lost_listener(lost: asyncio.Event, stop: asyncio.Event) -> None:
    """Stop this process when its listener ends; `lost` tells that no stop was asked for."""
    if not stop.is_set():
        lost.set()
        stop.set()


def _listener_ended(granian: asyncio.Task[None]) -> SetupError:
    error = None if granian.cancelled() else granian.exception()
    ended = SetupError(problem=f"The HTTP listener ended ({error or 'without an error'}). Start the server again.")
    ended.__cause__ = error
    return ended


def _allow_connections(wanted: int, *, enough: int) -> int:
    """How many connections the limit of open files allows; the limit is raised as far as the system permits.

    Without a free file descriptor, accepting a connection fails again and again, and the store cannot open one either.
    Fewer than `enough` are logged as a warning: there is no room for all streams and a full backlog.
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
    write = log.warning if most < enough else log.debug
    write("connections", outcome="lowered", most=most, wanted=wanted, open_files=soft, open_files_wanted=files)
    return most


async def _drain(services: Services, settings: Settings, stop: asyncio.Event, lost: asyncio.Event) -> None:
    """Begin to drain as soon as `stop` is set, whatever else is still being finished."""
    await stop.wait()
    services.begin_shutdown()
    # Without a listener no new connection can come, so none is waited for.
    seconds = 0.0 if lost.is_set() else settings.drain_seconds
    await wait_for_requests(services.in_flight, port=settings.port, seconds=seconds)


def _granian(app: Any, settings: Settings, *, connections: int) -> Any:
    """Granian in our own event loop, so that one process runs everything and one signal ends it."""
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
            # To detect the HTTP version, Granian waits without a timeout for the client's first bytes.
            http=HTTPModes.auto if settings.http2 else HTTPModes.http1,
            backlog=BACKLOG,
            backpressure=connections,
            # Counted from the end of the previous response, or from the connection's start: it closes idle ones too.
            http1_settings=HTTP1Settings(header_read_timeout=round(settings.idle_seconds * 1000)),
            log_enabled=False,
        )


async def _wait_until_open(settings: Settings, serving: asyncio.Task[None]) -> None:
    """Wait until the port accepts a connection; raise `SetupError` when the server ends first or takes too long."""
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
    """Raise `SetupError` for an address that this process cannot listen on."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as refused:
        other = "--port" if refused.errno in TAKEN else "--host"
        problem = f"Cannot listen on {host}:{port} ({refused.strerror or refused}). Choose another with {other}."
        raise SetupError(problem=problem) from refused


def first_free_port(host: str, *, first: int, tries: int = 100) -> int:
    """The first port, from `first` on, that no process listens on."""
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
    """The server's URL, with an IPv6 address in brackets."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{settings.port}"


logging.getLogger("_granian").setLevel(logging.WARNING)
