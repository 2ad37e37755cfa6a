"""A server that is asked to stop does so, at once and in order."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from .support import answered, calling, earmark, free_port, readiness, serve

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Not a measurement: a server that still runs after this long is waiting for something that will not come.
STOP_SECONDS_MAX = 5.0


@pytest.mark.parametrize("kind, number", [("sqlite", signal.SIGTERM), ("postgres", signal.SIGINT)])
async def test_a_server_stops_when_asked_even_with_connections_open(
    new_database: Callable[[str], str], tmp_path: Path, kind: str, number: signal.Signals
) -> None:
    """Exit code 0, soon, though clients keep their connections open: idle ones, silent ones and used ones."""
    service = serve(database=new_database(kind), directory=tmp_path)
    try:
        with ExitStack() as stack:
            for said in (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"):
                silent = stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
                silent.sendall(said)
            async with calling(service) as shop:
                event = await shop.theatre()
                await asyncio.gather(*(shop.states(event) for _ in range(10)))
                service.signal(number)
                code = await asyncio.to_thread(service.gone, within=STOP_SECONDS_MAX)
        assert code == 0, service.log()
        assert readiness(service.port) is None
    finally:
        service.stop()


async def test_a_server_does_not_start_on_a_database_that_is_not_migrated(tmp_path: Path) -> None:
    """It says which command is missing instead of failing at the first request."""
    database = f"sqlite:///{tmp_path / 'empty.sqlite3'}"
    arguments = ("serve", "--host", "127.0.0.1", "--port", str(free_port()), "--database", database)
    done = await asyncio.to_thread(earmark, *arguments, EARMARK_ADMIN_KEY=f"ek_test_{secrets.token_hex(16)}")
    assert done.returncode != 0
    assert "earmark migrate" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


async def test_migrating_twice_changes_nothing(new_database: Callable[[str], str], tmp_path: Path) -> None:
    """The command can be part of every deployment."""
    database = new_database("sqlite")
    service = serve(database=database, directory=tmp_path)
    try:
        async with calling(service) as shop:
            event = await shop.theatre()
            await shop.held(event, seats=["A1"])
            before = await shop.picture(event)
            done = await asyncio.to_thread(earmark, "migrate", "--database", database)
            assert done.returncode == 0, done.stdout + done.stderr
            assert await shop.picture(event) == before
            answered(await shop.http.get("/readyz"), 200)
    finally:
        service.stop()
