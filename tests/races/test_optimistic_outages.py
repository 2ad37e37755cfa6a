"""A connection breaks during an optimistic write: the answer is true, and the pool loses no connection by it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from earmark.engine.commands_and_results import Decided, Hold, Replayed
from earmark.engine.engine import Engine
from earmark.errors import OutcomeUnknown, RowBusy, StoreUnavailable

from .commands import IDS, a_confirm, a_hold
from .optimistic_writes import idempotency
from .postgres_proxy import PostgresProxy
from .support import CONTEXT, VERBS, granted, has_ended, in_time, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.engine.ports.store import Changes

    from .support import RaceDatabase, Server

CONNECTIONS_MAX = 6
NO_BACKEND_IS_ACTIVE = """
    SELECT count(*) = 0 FROM pg_stat_activity
    WHERE application_name = 'earmark' AND datname = current_database() AND state <> 'idle'
"""
END_ALL = """
    SELECT count(pg_terminate_backend(pid))
    FROM pg_stat_activity
    WHERE application_name = 'earmark' AND datname = current_database()
"""


@pytest.fixture
async def proxy(database: RaceDatabase) -> AsyncIterator[PostgresProxy]:
    """A proxy in front of the database."""
    async with PostgresProxy(database.url) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def quick_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was lost is looked for at once."""
    monkeypatch.setattr("earmark.engine.engine.LOOKUP_SECONDS", 0.01)


async def optimistic_server(
    database: RaceDatabase, *stops: str, memory: bool = False, url: str | None = None
) -> Server:
    """One that has drafted before: its statements are prepared, so that the next thing it sends is the thing itself."""
    server = await database.server(drafts=True, memory=memory, connections_max=CONNECTIONS_MAX, url=url)
    granted(await server.submit(a_hold("B9", buyer="eve")).outcome())
    server.stop_at(*stops)
    server.store.ran.clear()
    return server


async def test_a_connection_cut_before_the_write_is_sent_is_decided_once_more(database: RaceDatabase) -> None:
    """It is certain that nothing was kept, so the buyer is served over another connection, once."""
    server = (await optimistic_server(database, "before write")).submit(a_hold("A1"))
    await server.reached("before write")
    await database.observer.execute("SELECT pg_terminate_backend($1)", server.store.breakpoints.pid)
    await until(lambda: has_ended(server.store.connection))
    held = granted(await server.outcome())
    assert server.store.ran == ["look", "look"]
    assert await database.owner("A1") == held.id
    assert not await database.flaws()


async def a_batch_whose_answer_is_lost(
    database: RaceDatabase, proxy: PostgresProxy
) -> tuple[Engine, list[Changes], list[Any]]:
    """Four holds form one batch; their write arrives and is kept, and its answer is lost."""
    server = await optimistic_server(database, "before write", url=proxy.url)
    engine = Engine(server.store, ids=IDS, connection_slots=1)
    heard: list[Changes] = []
    engine.listen(heard.append)
    asks = [a_hold(f"A{n}", buyer=f"buyer-{n}", idempotency=idempotency(f"key-{n}")) for n in range(1, 5)]
    asked = [asyncio.ensure_future(engine.hold(ask)) for ask in asks]
    await server.reached("before write", asked[0])
    proxy.lose_answers()
    server.go()
    await until(lambda: database.owner("A1"))
    proxy.cut()
    return engine, heard, await asyncio.gather(*asked, return_exceptions=True)


async def test_a_write_that_was_kept_and_not_answered_is_found(database: RaceDatabase, proxy: PostgresProxy) -> None:
    """The engine looks for the entries, whose ids it made, and answers every request; nothing is carried out again."""
    _, _, told = await a_batch_whose_answer_is_lost(database, proxy)
    for n, outcome in enumerate(told, start=1):
        assert granted(outcome).id == await database.owner(f"A{n}")
    assert await database.observer.fetchval("SELECT count(*) FROM bookings") == 1 + 4
    assert not await database.flaws()


async def test_listeners_learn_of_a_write_whose_outcome_is_unknown(
    database: RaceDatabase, proxy: PostgresProxy
) -> None:
    """Another read costs little; a wrong cache costs more."""
    _, heard, _ = await a_batch_whose_answer_is_lost(database, proxy)
    assert [booking.buyer for changes in heard for booking in changes.opened] == [f"buyer-{n}" for n in range(1, 5)]


async def test_a_retry_with_the_key_gets_the_outcome_of_a_write_that_could_not_be_found(
    database: RaceDatabase, proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store could not look: every request gets `outcome_unknown`, and a retry gets the outcome."""
    monkeypatch.setattr("earmark.engine.engine.LOOKUPS_MAX", 0)
    engine, _, told = await a_batch_whose_answer_is_lost(database, proxy)
    assert [type(outcome) for outcome in told] == [OutcomeUnknown] * 4
    replayed = await engine.hold(a_hold("A1", buyer="buyer-1", idempotency=idempotency("key-1")))
    assert isinstance(replayed, Replayed)
    assert replayed.record.body == str(await database.owner("A1")).encode()
    assert not await database.flaws()


async def test_a_write_that_never_arrived_stays_unknown_and_its_key_is_free(
    database: RaceDatabase, proxy: PostgresProxy
) -> None:
    """It was sent, so nothing is certain; a repeat carries it out, once."""
    server = (await optimistic_server(database, "before write", url=proxy.url)).submit(
        a_hold("A1", idempotency=idempotency())
    )
    await server.reached("before write")
    proxy.lose_requests()
    server.go()
    await asyncio.sleep(0)
    proxy.cut()
    outcome = await server.outcome()
    assert isinstance(outcome, OutcomeUnknown), repr(outcome)
    assert await database.owner("A1") is None
    held = granted(await server.submit(a_hold("A1", idempotency=idempotency())).outcome())
    assert await database.owner("A1") == held.id
    assert not await database.flaws()


async def test_a_connection_cut_during_the_read_is_replaced(database: RaceDatabase, proxy: PostgresProxy) -> None:
    """Nothing was sent that could change anything."""
    server = (await optimistic_server(database, "before begin", url=proxy.url)).submit(a_hold("A1"))
    await server.reached("before begin")
    proxy.lose_answers()
    server.go()
    await asyncio.sleep(0)
    proxy.cut()
    held = granted(await server.outcome())
    assert server.store.ran == ["look", "look"]
    assert await database.owner("A1") == held.id
    assert not await database.flaws()


async def test_a_read_is_retried_on_one_other_connection_and_on_no_third(
    database: RaceDatabase, proxy: PostgresProxy
) -> None:
    """Where the second breaks, too, the database is unavailable; nothing was kept."""
    server = (await optimistic_server(database, "before begin", url=proxy.url)).submit(a_hold("A1"))
    await server.reached("before begin")
    proxy.lose_answers()
    proxy.lets = _never
    server.go()
    await asyncio.sleep(0)
    proxy.cut()
    await until(lambda: proxy._lines)
    proxy.cut()
    assert isinstance(await server.outcome(), StoreUnavailable)
    proxy.lets = None
    granted(await server.submit(a_hold("A1")).outcome())
    assert not await database.flaws()


async def _never() -> bool:
    return False


@pytest.mark.parametrize("from_cache", [False, True])
async def test_connections_that_ended_while_idle_fail_no_request(database: RaceDatabase, *, from_cache: bool) -> None:
    """A server that was restarted: the next hold is simply served, and its outcome is never unknown."""
    server = await optimistic_server(database, memory=from_cache)
    await until(lambda: server.store.seat_cache._events or not from_cache)
    assert await database.observer.fetchval(END_ALL) > 0
    connections = [holder._con for holder in server.store.pool._holders]
    await until(lambda: all(connection is None or connection.is_closed() for connection in connections))
    held = granted(await server.submit(a_hold("A2")).outcome())
    assert set(server.store.ran) == {"memory" if from_cache else "look"}
    assert await database.owner("A2") == held.id
    assert not await database.flaws()


@pytest.mark.parametrize("from_cache", [False, True])
async def test_a_connection_that_the_server_closed_fails_no_request(
    database: RaceDatabase, proxy: PostgresProxy, *, from_cache: bool
) -> None:
    """It looks open, and nothing can be sent on it: the next hold takes another, and its outcome is never unknown."""
    server = await optimistic_server(database, memory=from_cache, url=proxy.url)
    await until(lambda: server.store.seat_cache._events or not from_cache)
    proxy.keep_open()
    await database.observer.fetchval(END_ALL)
    await until(lambda: proxy.closed_by_server)
    await asyncio.sleep(0.01)
    assert not has_ended(server.store.connection)
    held = granted(await server.submit(a_hold("A2")).outcome())
    assert set(server.store.ran) == {"memory" if from_cache else "look"}
    assert await database.owner("A2") == held.id
    assert not await database.flaws()


@asynccontextmanager
async def in_the_way(database: RaceDatabase) -> AsyncIterator[None]:
    """A third has the first seats, for the length of a `with`."""
    third = await asyncpg.connect(database.url)
    try:
        await third.execute("BEGIN")
        await third.execute("SELECT FROM seats WHERE id IN ('A1', 'A2', 'A3') FOR UPDATE")
        yield
    finally:
        await third.close()


async def test_a_statement_that_was_cancelled_kept_nothing(database: RaceDatabase) -> None:
    """The server reports it; its connections are as good as before, however often it happens."""
    server = await optimistic_server(database)
    for _ in range(CONNECTIONS_MAX + 1):
        async with in_the_way(database):
            await server.submit(a_hold("A1", idempotency=idempotency())).waits_for_a_lock()
            await database.observer.execute("SELECT pg_cancel_backend($1)", server.store.breakpoints.pid)
            assert isinstance(await server.outcome(), StoreUnavailable)
    assert await database.owner("A1") is None
    granted(await server.submit(a_hold("A1", idempotency=idempotency())).outcome())
    assert not await database.flaws()


async def test_a_row_that_stays_locked_delays_only_the_optimistic_writes_that_need_it(database: RaceDatabase) -> None:
    """The others of the batch are decided without the request that needs the row."""
    server = await optimistic_server(database, "before write")
    server.store.lock_seconds = 0.05
    engine = Engine(server.store, ids=IDS, connection_slots=1)
    async with in_the_way(database):
        asked = [asyncio.ensure_future(engine.hold(a_hold(f"A{n}", buyer=f"buyer-{n}"))) for n in range(3, 7)]
        await server.reached("before write", asked[0])
        server.go()
        told = await in_time(asyncio.gather(*asked, return_exceptions=True))
    assert [type(outcome) for outcome in told] == [RowBusy, Decided, Decided, Decided]
    assert not await database.flaws()


@pytest.mark.parametrize("ended_by", ["its deadline", "its caller"])
async def test_an_abandoned_optimistic_write_loses_no_connection(database: RaceDatabase, ended_by: str) -> None:
    """The connection is closed, as its state is unknown; the key gives the outcome of the write."""
    server = await database.server(drafts=True, connections_max=2)
    within = 0.6 if ended_by == "its deadline" else 5
    for n in range(1, 4):
        hold = partial(VERBS[Hold], batch=[a_hold(f"A{n}", idempotency=idempotency(f"key-{n}"))], context=CONTEXT)
        async with in_the_way(database):
            doing = asyncio.ensure_future(server.store.transact(hold, within=within, optimistic=True))
            await server.waits_for_a_lock(doing)
            if ended_by == "its caller":
                doing.cancel()
            (told,) = await in_time(asyncio.gather(doing, return_exceptions=True))
            assert isinstance(told, OutcomeUnknown if ended_by == "its deadline" else asyncio.CancelledError)
            assert has_ended(server.store.connection)
    for n in range(1, 4):
        outcome = await server.submit(a_hold(f"A{n}", idempotency=idempotency(f"key-{n}"))).outcome()
        assert isinstance(outcome, Decided | Replayed), repr(outcome)
    assert await database.observer.fetchval("SELECT count(*) FROM bookings") == 3
    assert not await database.flaws()


async def test_optimistic_writes_leave_connections_for_other_requests(database: RaceDatabase) -> None:
    """However few there are: connections reserved for optimistic writes are not needed by a read or a lock."""
    server = await database.server(drafts=True, connections_max=2)
    async with asyncio.timeout(2):
        held = await asyncio.gather(*(server.engine.hold(a_hold(f"A{n}", buyer=f"b{n}")) for n in (1, 2)))
        sold = (server.engine.confirm(a_confirm(granted(outcome))) for outcome in held)
        await asyncio.gather(*sold, server.engine.hold(a_hold("A3")))
        assert await server.engine.store.read_event(granted(held[0]).event_id)
