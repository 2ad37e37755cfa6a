"""Serving: one process, one event loop, with the sweeper and the relay beside the door.

Stopping is polite and bounded: no new connection is taken, what was accepted is finished, and whoever only keeps a
connection open is not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
import warnings
from typing import TYPE_CHECKING, Any

from earmark.api.app import create_app
from earmark.api.door import House
from earmark.api.events import draw
from earmark.api.identity import Identity
from earmark.api.metrics import Metrics
from earmark.clock import SystemClock
from earmark.engine.till import Till
from earmark.errors import SetupError
from earmark.publish.availability import Availability
from earmark.publish.news import Feed
from earmark.threads import threads_ended
from earmark.version import __version__
from earmark.wiring import engine_for, open_gateways, open_sandbox
from earmark.workers import loop
from earmark.workers.reconciler import Reconciler
from earmark.workers.relay import Relay
from earmark.workers.sweeper import Sweeper

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from earmark.config import Settings

GRACE_SECONDS = 1.0
BACKLOG = 2048
TAKEN = {errno.EADDRINUSE, errno.EACCES}


@contextlib.asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[tuple[House, list[loop.Agent]]]:
    """What the settings describe, behind a door that is not open yet, and the workers that belong beside it."""
    assert settings.admin_key is not None
    engine = await engine_for(settings)
    metrics = Metrics(version=__version__)
    till = Till(engine, open_sandbox() | open_gateways(settings, engine.store.accounts))
    house = House(
        engine=engine,
        identity=Identity(admin_key=settings.admin_key, secret=settings.secret),
        metrics=metrics,
        clock=SystemClock(),
        guests=settings.guests,
        availability=Availability(engine, clock=SystemClock(), word=draw),
        till=till,
    )
    agents: list[loop.Agent] = []
    if settings.sweep:
        sweeper = Sweeper(
            engine,
            swept=metrics.swept,
            interval_seconds_max=settings.sweep_interval_seconds,
            batch_size_max=settings.sweep_batch_size_max,
        )
        agents += [sweeper, Relay(engine.store.outbox, Feed()), Reconciler(till.teller)]
    try:
        yield house, agents
    finally:
        await till.close()
        await engine.close()


async def serve(settings: Settings, *, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told the URL once the door is open."""
    _check_free(settings.host, settings.port)
    stop = asyncio.Event()
    async with (
        opened(settings) as (house, agents),
        threads_ended(),
        _signals(stop),
        _door(create_app(house), settings, stop),
    ):
        # What is here by now stays: to search it for rubbish again and again would be a pause in every minute.
        gc.collect()
        gc.freeze()
        ready(f"http://{_shown(settings.host)}:{settings.port}")
        await loop.run(agents, stop)
        await stop.wait()


@contextlib.asynccontextmanager
async def _signals(stop: asyncio.Event) -> AsyncIterator[None]:
    running = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            running.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def _door(app: Any, settings: Settings, stop: asyncio.Event) -> AsyncIterator[None]:
    server = _granian(app, settings)
    serving = asyncio.create_task(server.serve())
    serving.add_done_callback(lambda _: stop.set())
    try:
        await _open(settings, serving)
        yield
    finally:
        with contextlib.suppress(Exception):
            server.stop()
        await asyncio.wait({serving}, timeout=GRACE_SECONDS)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await asyncio.wait_for(serving, timeout=GRACE_SECONDS)


def _granian(app: Any, settings: Settings) -> Any:
    """Granian inside our own loop, so that one process holds everything and one signal ends it."""
    from granian.constants import Interfaces
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
            backlog=BACKLOG,
            backpressure=BACKLOG,
            http1_settings=HTTP1Settings(header_read_timeout=30_000),
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


def _check_free(host: str, port: int) -> None:
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
            _check_free(host, port)
        except SetupError as refused:
            if isinstance(refused.__cause__, OSError) and refused.__cause__.errno in TAKEN:
                continue
            raise
        return port
    raise SetupError(problem=f"No free port from {first} to {first + tries - 1} on {host}. Choose one with --port.")


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


logging.getLogger("_granian").setLevel(logging.WARNING)
