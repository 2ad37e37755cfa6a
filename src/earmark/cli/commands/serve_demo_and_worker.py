"""The commands that run until they are stopped: demo, serve and worker."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from earmark import config
from earmark.cli.commands.migrate_and_verify import Database
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import SetupError
from earmark.observability import logs
from earmark.wiring import open_and_maintain_databases

Host = Annotated[str | None, Parameter(help="Address to listen on.")]
Redis = Annotated[
    str | None, Parameter(help="A Redis that refuses hopeless holds early. Never needed: the database decides.")
]
IS_PORT = Number(gte=1, lte=65535)
Port = Annotated[int | None, Parameter(validator=IS_PORT, help="Port to listen on. Else EARMARK_PORT, else 8080.")]
Verbose = Annotated[bool, Parameter(negative="", help="Log everything, down to level debug.")]


def demo(
    *,
    host: Host = None,
    port: Annotated[
        int | None, Parameter(validator=IS_PORT, help="Port to listen on. Else the first free one from 8080.")
    ] = None,
    database: Annotated[str | None, Parameter(help="Keep the demo's data here. Else it is deleted at the end.")] = None,
    redis: Redis = None,
    open_: Annotated[bool, Parameter(name="--open", help="Open the page in a browser.")] = True,
    verbose: Verbose = False,
) -> None:
    """Run a seeded theatre on SQLite, with its page.

    It needs nothing else, and leaves nothing behind.
    """
    from earmark.api.auth.keys_and_tokens import new_key
    from earmark.server import event_loop_with_fewer_wakeups
    from earmark.server.serve_in_one_process import first_free_port

    logs.configure("debug" if verbose else "warning")
    with tempfile.TemporaryDirectory(prefix="earmark-demo-") as folder:
        url = database or f"sqlite:////{Path(folder, 'demo.sqlite3').as_posix().lstrip('/')}"
        host = host or "127.0.0.1"
        settings = config.read(
            os.environ,
            host=host,
            port=port if port is not None else first_free_port(host, first=8080),
            database_url=url,
            redis_url=redis,
            guests=True,
        )
        if settings.admin_key is None:
            settings = config.read(
                os.environ,
                host=host,
                port=settings.port,
                database_url=url,
                redis_url=redis,
                guests=True,
                admin_key=new_key(mode=Mode.TEST),
            )
        event_loop_with_fewer_wakeups.run(_demo(settings, open_page=open_ and sys.stdout.isatty(), verbose=verbose))


async def _demo(settings: config.Settings, *, open_page: bool, verbose: bool) -> None:
    from earmark.cli.demo_event import seed
    from earmark.server import child_process_main, processes

    processes.refuse(settings)
    await open_and_maintain_databases.migrate(settings.database_url)
    event_id = await seed(settings)
    out = Console(highlight=False, soft_wrap=True)

    def ready(url: str) -> None:
        # Without the key: `ps` shows a browser's command line to every user, and browsers keep addresses.
        page = f"{url}/"
        out.print(f"Earmark demo: a theatre ({event_id}), on {settings.database_url.partition(':')[0]}.")
        out.print(f"  page  {page}")
        out.print(f"  url   {url}")
        out.print(f"  key   {settings.admin_key}")
        out.print(f"  docs  {url}/docs")
        out.print("Ctrl-C to stop.")
        if open_page:
            webbrowser.open(page)

    await processes.serve(settings, ready=ready, command=child_process_main.command(verbose=verbose))
    out.print("Stopped.")


def serve(
    *,
    host: Host = None,
    port: Port = None,
    database: Database = None,
    redis: Redis = None,
    guests: Annotated[bool | None, Parameter(help="Let anonymous buyers in (`POST /v1/guests`).")] = None,
    embedded_workers: Annotated[
        bool | None, Parameter(help="Run the workers in this server. Else run `earmark worker` beside it.")
    ] = None,
    processes: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=1, lte=config.PROCESSES_MAX),
            help="How many processes serve on the port. Else EARMARK_PROCESSES, else 1. More need PostgreSQL.",
        ),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Serve the API and the page.

    Needs a migrated database and EARMARK_ADMIN_KEY.
    """
    settings = config.read(
        os.environ,
        host=host,
        port=port,
        database_url=database,
        redis_url=redis,
        guests=guests,
        embedded_workers=embedded_workers,
        processes=processes,
    )
    logs.configure("debug" if verbose else settings.log)
    if settings.admin_key is None:
        from earmark.api.auth.keys_and_tokens import new_key

        example = f"export EARMARK_ADMIN_KEY={new_key(mode=Mode.LIVE)}"
        raise SetupError(problem=f"Set EARMARK_ADMIN_KEY to a secret of your own, for example: {example}")
    from earmark.server import event_loop_with_fewer_wakeups

    _refuse_memory(settings)
    event_loop_with_fewer_wakeups.run(_serve(settings, verbose=verbose))


async def _serve(settings: config.Settings, *, verbose: bool) -> None:
    from earmark.server import child_process_main, processes

    out = Console(highlight=False, soft_wrap=True)

    def ready(url: str) -> None:
        out.print(f"Earmark serves {url}" + (f" with {settings.processes} processes" if settings.processes > 1 else ""))

    await processes.serve(settings, ready=ready, command=child_process_main.command(verbose=verbose))
    out.print("Stopped.")


def worker(*, database: Database = None, redis: Redis = None, verbose: Verbose = False) -> None:
    """Run the workers beside several servers.

    The sweeper expires due holds, the reconciler completes payments, the relay publishes journal entries, the webhook
    dispatcher delivers webhooks, and the janitor deletes old idempotency records and delivery logs.
    """
    settings = config.read(os.environ, database_url=database, redis_url=redis)
    logs.configure("debug" if verbose else settings.log)
    _refuse_memory(settings)
    asyncio.run(_run_worker(settings))


async def _run_worker(settings: config.Settings) -> None:
    from earmark.engine.ports.observer import NullObserver
    from earmark.observability.tracing import open_tracing
    from earmark.wiring.runtime import open_runtime
    from earmark.workers import loop

    tracing = open_tracing() if settings.tracing else None
    observer = tracing.around(NullObserver()) if tracing else None
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    out = Console(highlight=False, soft_wrap=True)
    async with open_runtime(settings, workers=True, sandbox=False, observer=observer) as runtime:
        out.print(f"Earmark workers: {', '.join(worker.name for worker in runtime.workers)}.")
        await loop.run(runtime.workers, stop, heartbeat=runtime.heartbeat)
    out.print("Stopped.")


def _refuse_memory(settings: config.Settings) -> None:
    if settings.database_url.startswith("memory:"):
        raise SetupError(
            problem="The memory database is for tests: it lives in one process and forgets. Use SQLite or PostgreSQL."
        )
