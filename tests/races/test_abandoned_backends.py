"""Backends that a client left in the middle of a call: how they are counted, and what counting them costs requests."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from earmark.clock import MovableClock
from earmark.store.postgres import connections as module
from earmark.store.postgres import count_abandoned_backends as counting
from earmark.store.postgres.store import PostgresStore

from .postgres_proxy import PostgresProxy, TcpPostgresProxy
from .support import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from earmark.store.postgres.connections import PostgresConnections

SECONDS = 0.5
CONNECTIONS_MAX = 4
REQUESTS = 8


@asynccontextmanager
async def opened(url: str, *, connections_max: int = CONNECTIONS_MAX) -> AsyncIterator[PostgresConnections]:
    """The connections of a store of its own."""
    store = await PostgresStore.connect(url, clock=MovableClock(), connections_max=connections_max)
    try:
        yield store._connections
    finally:
        await store.close()


def leave(connections: PostgresConnections, pids: Iterable[int]) -> None:
    """Cut connections in the middle of a call, of which each backend has the process id that the test wants."""
    for pid in pids:
        connection = SimpleNamespace(is_closed=lambda: False, get_server_pid=partial(int, pid), terminate=lambda: None)
        connection.server = connections.abandoned.server
        connections.abandon(connection)


async def fill(connections: PostgresConnections) -> None:
    """Open every connection that the pool may have."""
    held = [await connections.acquire() for _ in range(connections.connections_max)]
    for connection in held:
        await connections.release(connection)


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer about them is waited for less long than in a shop."""
    monkeypatch.setattr(counting, "ANSWER_SECONDS_MAX", SECONDS)
    monkeypatch.setattr(module, "ANSWER_SECONDS_MAX", SECONDS)


def check_all(connections: PostgresConnections) -> list[asyncio.Future[None]]:
    """Requests that come at one moment, each about to begin a transaction."""
    return [asyncio.ensure_future(connections.check_commits()) for _ in range(REQUESTS)]


@pytest.mark.usefixtures("little_patience")
async def test_one_request_queries_and_the_others_wait_without_a_connection(postgres_url: str) -> None:
    """While PostgreSQL does not answer about them, reads find the other connections free."""
    async with PostgresProxy(postgres_url) as proxy, opened(proxy.url) as connections:
        await fill(connections)
        leave(connections, range(1, 3))
        proxy.lose_answers()
        checks = check_all(connections)
        await until(connections.abandoned.lock.locked)
        assert connections.pool.get_idle_size() == CONNECTIONS_MAX - 1
        assert not any(check.done() for check in checks)
        await asyncio.wait(checks)
        proxy.cut()


@pytest.mark.usefixtures("little_patience")
async def test_a_query_without_an_answer_is_not_repeated_by_each_request(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With so many left that nothing can be begun, eight requests are refused after one wait, and not after eight."""
    asked: list[object] = []
    recount = counting.AbandonedBackends.recount

    async def counted(self: Any, fetch: Any, **believed: Any) -> int:
        asked.append(fetch)
        return await recount(self, fetch, **believed)

    monkeypatch.setattr(counting.AbandonedBackends, "recount", counted)
    async with PostgresProxy(postgres_url) as proxy, opened(proxy.url) as connections:
        await fill(connections)
        leave(connections, range(1, CONNECTIONS_MAX + 1))
        proxy.lose_answers()
        told = await asyncio.gather(*check_all(connections), return_exceptions=True)
        proxy.cut()
    assert {getattr(refusal, "why", None) for refusal in told} == {"commits_hang"}
    assert len(asked) == 1


@pytest.mark.usefixtures("little_patience")
async def test_a_check_does_not_wait_for_a_connection_for_ever(postgres_url: str) -> None:
    """All connections are in use: the last known count decides."""
    async with opened(postgres_url) as connections:
        busy = [await connections.acquire() for _ in range(CONNECTIONS_MAX)]
        leave(connections, range(1, 3))
        try:
            async with asyncio.timeout(10 * SECONDS):
                await connections.check_commits()
        finally:
            for connection in busy:
                await connections.release(connection)


async def test_requests_that_wait_for_the_count_use_it(postgres_url: str) -> None:
    """Every connection counts as in use; as PostgreSQL knows none of them, requests that come at once all go on."""
    async with opened(postgres_url) as connections:
        leave(connections, range(1, CONNECTIONS_MAX + 1))
        await asyncio.gather(*check_all(connections))
        assert len(connections.abandoned) == 0


async def recounted(connections: PostgresConnections) -> int:
    """How many are left, by a new query to PostgreSQL."""
    async with connections.borrow() as connection:
        await connections.abandoned.recount(connection.fetch, valid_seconds=0)
    return len(connections.abandoned)


@asynccontextmanager
async def running(url: str) -> AsyncIterator[int]:
    """A session in the middle of something, by its process id."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection.get_server_pid()
    finally:
        await connection.close()


async def test_a_running_backend_counts_until_it_has_ended(postgres_url: str) -> None:
    """The control: it is as old as the time since it was left, and of this role and database."""
    async with opened(postgres_url) as connections:
        connection = await connections.acquire()
        await connection.execute("BEGIN")
        sleeping = asyncio.ensure_future(connection.execute("SELECT pg_sleep(600)"))
        await asyncio.sleep(0)
        pid = connection.get_server_pid()
        connections.abandon(connection)
        await asyncio.wait({sleeping})
        await connections.release(connection)
        assert isinstance(sleeping.exception(), asyncpg.PostgresError)
        assert await recounted(connections) == 1
        async with connections.borrow() as another:
            await another.execute("SELECT pg_terminate_backend($1)", pid)

        async def none_is_left() -> bool:
            return await recounted(connections) == 0

        await until(none_is_left)


@pytest.mark.parametrize("seconds", [0, 60])
async def test_a_session_that_began_later_is_not_the_one_that_was_left(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """A number that PostgreSQL has given to a new session is forgotten. Left just now, it is that session."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    async with opened(postgres_url) as connections, running(postgres_url) as pid:
        monkeypatch.setattr(loop, "time", lambda: clock() - seconds)
        leave(connections, [pid])
        monkeypatch.setattr(loop, "time", clock)
        assert await recounted(connections) == (0 if seconds else 1)


async def test_a_process_of_the_server_itself_is_not_the_one_that_was_left(postgres_url: str) -> None:
    """It has no state, so it never looks idle."""
    async with opened(postgres_url) as connections:
        async with connections.borrow() as connection:
            pid = await connection.fetchval("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
        leave(connections, [pid])
        assert await recounted(connections) == 0


async def test_a_session_of_others_is_not_the_one_that_was_left(postgres_url: str, postgres_server: Any) -> None:
    """Neither one on another database, nor one of another role, which may be seen without its state."""
    role = f"stranger_{uuid4().hex}"
    postgres_server.psql(f"CREATE ROLE {role} LOGIN")
    user = urlsplit(postgres_url).username
    try:
        async with (
            opened(postgres_url) as connections,
            running(postgres_server.url("postgres")) as elsewhere,
            running(postgres_url.replace(f"{user}@", f"{role}@")) as stranger,
        ):
            leave(connections, [elsewhere, stranger])
            assert await recounted(connections) == 0
    finally:
        postgres_server.psql(f"DROP ROLE {role}")


async def test_a_session_that_may_not_see_its_own_role_forgets_none(postgres_url: str, postgres_server: Any) -> None:
    """The control: a role that takes another one on sees its sessions without state and age, and counts them all."""
    role = f"login_{uuid4().hex}"
    postgres_server.psql(f"CREATE ROLE {role} LOGIN; CREATE ROLE {role}_other; GRANT {role}_other TO {role}")
    postgres_server.psql(f"ALTER ROLE {role} SET role = {role}_other")
    url = postgres_url.replace(f"{urlsplit(postgres_url).username}@", f"{role}@")
    try:
        async with opened(url) as connections, running(url) as pid:
            leave(connections, [pid])
            assert await recounted(connections) == 1
    finally:
        postgres_server.psql(f"DROP ROLE {role}; DROP ROLE {role}_other")


ANOTHER_SERVER = "pg_postmaster_start_time() + interval '1 day'"


@pytest.mark.parametrize("is_another", [True, False])
async def test_what_was_left_on_another_server_is_forgotten(postgres_url: str, *, is_another: bool) -> None:
    """After a failover its numbers mean nothing, nor do those of connections that are cut after it.

    The control: one server that answers at two addresses still has the backends that were left on it.
    """
    async with TcpPostgresProxy(postgres_url) as old, TcpPostgresProxy(postgres_url) as new:
        url = new.url.replace("127.0.0.1", f"127.0.0.1:{old.port},127.0.0.1")
        async with opened(url) as connections, running(postgres_url) as pid:
            late = await connections.acquire()
            leave(connections, [pid])
            assert await recounted(connections) == 1
            assert old._server is not None
            old._server.close()
            if is_another:
                asked = connections._sql["which_server"].replace("pg_postmaster_start_time()", ANOTHER_SERVER)
                connections._sql = {**connections._sql, "which_server": asked}
            connections.renew_after(TimeoutError())
            another = await connections.acquire()
            assert len(connections.abandoned) == (0 if is_another else 1)
            connections.abandon(late)
            assert len(connections.abandoned) == (0 if is_another else 2)
            await connections.release(late)
            await connections.release(another)
