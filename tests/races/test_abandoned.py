"""Backends that were left in the middle of a call: how they are counted, and what counting them costs others."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from earmark.clock import MovableClock
from earmark.store.postgres import abandoned as counting
from earmark.store.postgres import connections as module
from earmark.store.postgres.store import PostgresStore

from .support import until
from .wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from earmark.store.postgres.connections import Connections

SECONDS = 0.5
CONNECTIONS_MAX = 4
REQUESTS = 8


@asynccontextmanager
async def opened(url: str, *, connections_max: int = CONNECTIONS_MAX) -> AsyncIterator[Connections]:
    """The connections of a store of its own."""
    store = await PostgresStore.connect(url, clock=MovableClock(), connections_max=connections_max)
    try:
        yield store._connections
    finally:
        await store.close()


def leave(connections: Connections, pids: Iterable[int]) -> None:
    """Cut connections in the middle of a call, of which each backend has the process id that the test wants."""
    for pid in pids:
        connection = SimpleNamespace(is_closed=lambda: False, get_server_pid=partial(int, pid), terminate=lambda: None)
        connections.abandon(connection)


async def fill(connections: Connections) -> None:
    """Open every connection that the pool may have."""
    held = [await connections.acquire() for _ in range(connections.connections_max)]
    for connection in held:
        await connections.release(connection)


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer about them is waited for less long than in a shop."""
    monkeypatch.setattr(counting, "ANSWER_SECONDS_MAX", SECONDS)
    monkeypatch.setattr(module, "ANSWER_SECONDS_MAX", SECONDS, raising=False)


def check_all(connections: Connections) -> list[asyncio.Future[None]]:
    """Requests that come at one moment, each about to begin a transaction."""
    return [asyncio.ensure_future(connections.check_commits()) for _ in range(REQUESTS)]


@pytest.mark.usefixtures("little_patience")
async def test_one_request_asks_and_the_others_wait_without_a_connection(postgres_url: str) -> None:
    """While PostgreSQL does not answer about them, reads find the other connections free."""
    async with Wire(postgres_url) as wire, opened(wire.url) as connections:
        await fill(connections)
        leave(connections, range(1, 3))
        wire.lose_answers()
        checks = check_all(connections)
        await until(connections.abandoned.lock.locked)
        assert connections.pool.get_idle_size() == CONNECTIONS_MAX - 1
        assert not any(check.done() for check in checks)
        await asyncio.wait(checks)
        wire.cut()


@pytest.mark.usefixtures("little_patience")
async def test_a_question_without_an_answer_is_not_asked_again_by_each_request(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With so many left that nothing can be begun, eight requests are refused after one wait, and not after eight."""
    asked: list[object] = []
    recount = counting.Abandoned.recount

    async def counted(self: Any, fetch: Any, **believed: Any) -> int:
        asked.append(fetch)
        return await recount(self, fetch, **believed)

    monkeypatch.setattr(counting.Abandoned, "recount", counted)
    async with Wire(postgres_url) as wire, opened(wire.url) as connections:
        await fill(connections)
        leave(connections, range(1, CONNECTIONS_MAX + 1))
        wire.lose_answers()
        told = await asyncio.gather(*check_all(connections), return_exceptions=True)
        wire.cut()
    assert {getattr(refusal, "why", None) for refusal in told} == {"commits_hang"}
    assert len(asked) == 1


@pytest.mark.usefixtures("little_patience")
async def test_a_check_does_not_wait_for_a_connection_for_ever(postgres_url: str) -> None:
    """All of them are at work: what was known last decides."""
    async with opened(postgres_url) as connections:
        busy = [await connections.acquire() for _ in range(CONNECTIONS_MAX)]
        leave(connections, range(1, 3))
        try:
            async with asyncio.timeout(10 * SECONDS):
                await connections.check_commits()
        finally:
            for connection in busy:
                await connections.release(connection)


async def test_requests_that_wait_for_the_answer_go_by_it(postgres_url: str) -> None:
    """Every connection counts as in use; as PostgreSQL knows none of them, requests that come at once all go on."""
    async with opened(postgres_url) as connections:
        leave(connections, range(1, CONNECTIONS_MAX + 1))
        await asyncio.gather(*check_all(connections))
        assert len(connections.abandoned) == 0
