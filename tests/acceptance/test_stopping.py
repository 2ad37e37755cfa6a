"""A server that gets SIGTERM stops, soon and in order."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from .continuous_buyers import RequestCounts, follow, probe
from .support import answered, calling, earmark, free_port, readiness, serve

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Not a measurement: a server that still runs after this long is waiting for something that will not come.
STOP_SECONDS_MAX = 5.0
LOAD_SECONDS_MAX = 60.0

PROOF = bool(os.environ.get("EARMARK_PROOF"))
STREAMS = 100 if PROOF else 10
BUYERS = 100 if PROOF else 10
"""Twice: so many keep a connection, and so many come and go."""
ENOUGH = 2000 if PROOF else 100
"""Answers, before the server gets SIGTERM."""
DRAINED = pytest.param("1", id="drained")
DRAINS = [pytest.param("0", id="at-once"), DRAINED] if PROOF else [DRAINED]


@pytest.mark.parametrize("kind, number", [("sqlite", signal.SIGTERM), ("postgres", signal.SIGINT)])
async def test_a_server_stops_on_sigterm_even_with_connections_open(
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
                code = await asyncio.to_thread(service.gone, within=STOP_SECONDS_MAX if PROOF else LOAD_SECONDS_MAX)
        assert code == 0, service.log()
        assert readiness(service.port) is None
    finally:
        service.stop()


@pytest.mark.parametrize("drain", DRAINS)
@pytest.mark.parametrize("kind", ["sqlite", *(["postgres"] if PROOF else [])])
async def test_a_server_that_stops_under_load_loses_no_request(
    new_database: Callable[[str], str], tmp_path: Path, kind: str, drain: str
) -> None:
    """Streams get a last event, kept connections a last answer, and the database has exactly what buyers were answered.

    A load balancer that polls sees the server ready, then not ready while it drains, then gone.
    """
    database = new_database(kind)
    service = serve(database=database, directory=tmp_path, EARMARK_DRAIN_SECONDS=drain)
    try:
        async with calling(service) as shop:
            event = (await shop.create_event(pools=[{"id": "GA", "capacity": 1_000_000, "price": 100}]))["id"]
        requests = RequestCounts(service=service, event=event)
        opened = [asyncio.Event() for _ in range(STREAMS)]
        streams = [asyncio.create_task(follow(service, event, one)) for one in opened]
        await asyncio.gather(*(one.wait() for one in opened))
        async with asyncio.timeout(LOAD_SECONDS_MAX), asyncio.TaskGroup() as buyers:
            for _ in range(BUYERS):
                buyers.create_task(requests.buy_on_one_connection(enough=ENOUGH))
                buyers.create_task(requests.buy_on_new_connections(enough=ENOUGH))
            probing = buyers.create_task(probe(service))
            await requests.going.wait()
            signalled = time.monotonic()
            service.signal(signal.SIGTERM)
            code = await asyncio.to_thread(service.gone, within=LOAD_SECONDS_MAX)
            took = time.monotonic() - signalled
        assert code == 0, service.log()
        assert not PROOF or took < STOP_SECONDS_MAX
        seen = probing.result()
        assert seen == sorted(seen), "once it was not ready it was never ready again"
        assert {200, 503} >= set(seen) >= ({200} if drain == "0" else {200, 503})
        assert requests.lost == []
        assert set(requests.answers) == {201}
        assert requests.closing >= BUYERS, "every kept connection got a last answer that closes it"
        assert requests.refused == BUYERS
        for events in await asyncio.gather(*streams):
            assert (events[0], events[-1]) == ("snapshot", "end")
        again = serve(database=database, directory=tmp_path, key=service.key)
        try:
            async with calling(again) as shop:
                assert (await shop.pool(event))["held"] == len(requests.answers)
        finally:
            again.stop()
    finally:
        service.stop()


async def test_a_server_that_drains_reports_not_ready_and_still_answers(
    new_database: Callable[[str], str], tmp_path: Path
) -> None:
    """A load balancer sees that it is not ready before connections are refused."""
    service = serve(database=new_database("sqlite"), directory=tmp_path, EARMARK_DRAIN_SECONDS="2")
    try:
        async with calling(service) as shop:
            answered(await shop.http.get("/readyz"), 200)
            service.signal(signal.SIGTERM)
            async with asyncio.timeout(LOAD_SECONDS_MAX):
                while (ready := await shop.http.get("/readyz")).status_code == 200:  # noqa: ASYNC110 (a signal arrives when it does)
                    await asyncio.sleep(0)
            assert (ready.status_code, ready.json()["code"], ready.headers["connection"]) == (503, "stopping", "close")
            answered(await shop.http.get("/healthz"), 200)
        assert await asyncio.to_thread(service.gone, within=LOAD_SECONDS_MAX) == 0
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
