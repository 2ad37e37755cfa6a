"""Behind a real PgBouncer in transaction mode: two transactions of one server may run on two of its connections.

What a server leaves on a connection, another server finds there: prepared statements, changed settings.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.conftest import unavailable
from tests.pgbouncer import PgBouncer, start_pgbouncer

from earmark.engine.commands_and_results import Decided, Hold
from earmark.engine.engine import Engine
from earmark.engine.group_commit import BatchQueue
from earmark.errors import SeatsTaken, SetupError, StoreUnavailable
from earmark.store import load_named_sql
from earmark.store.postgres import PostgresStore, seat_map, session_settings
from earmark.testservers import ServerUnavailable

from .commands import EVENT, IDS, a_cancel, a_confirm, a_hold, a_play
from .optimistic_writes import idempotency
from .postgres_proxy import PostgresProxy
from .support import PATIENCE_SECONDS, VERBS, granted, until
from .test_hot_seat import BUYERS, hold_all_at_once

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from earmark.clock import MovableClock

    from .support import RaceDatabase

TURNS = 4
CLIENTS = 12


@pytest.fixture
def start() -> Iterator[Callable[..., PgBouncer]]:
    """Starts poolers of the test's own; they leave no connection behind."""
    with ExitStack() as stack:

        def started(url: str, **knobs: Any) -> PgBouncer:
            try:
                return stack.enter_context(start_pgbouncer(url, **knobs))
            except ServerUnavailable as reason:
                unavailable(reason)
                raise

        yield started


@pytest.fixture
def narrow(postgres_url: str, start: Callable[..., PgBouncer]) -> PgBouncer:
    """One connection for all clients, and a configuration that lets clients set our settings at the start."""
    return start(postgres_url, connections=1, ignores=list(session_settings.SETTINGS))


@pytest.fixture
async def process(clock: MovableClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    """Opens a store as a process of its own does: the driver names its statements by counting, each from the start."""
    opened: list[PostgresStore] = []

    async def begun(url: str) -> PostgresStore:
        monkeypatch.setattr("asyncpg.connection._uid", 0)
        store = await PostgresStore.connect(url, clock=clock)
        opened.append(store)
        return store

    yield begun
    for store in opened:
        await store.close()


# what is left on a connection


async def test_a_pooler_that_the_url_does_not_name_refuses_us(
    pgbouncer: PgBouncer, postgres_url: str, clock: MovableClock
) -> None:
    """As PgBouncer is by default: settings for a session are refused at the start, before anything is sold."""
    with pytest.raises(SetupError, match="unsupported startup parameter"):
        await PostgresStore.connect(pgbouncer.to(postgres_url).partition("?")[0], clock=clock)


async def test_control_without_the_flag_two_processes_collide_in_their_statements(
    narrow: PgBouncer, process: Callable[..., Any]
) -> None:
    """With settings ignored, the second process finds the name of its first statement taken by the other's."""
    one = await process(narrow.url)
    assert await one.read_event(EVENT) is None
    with pytest.raises(SetupError, match="already exists"):
        await process(narrow.url)


async def test_with_the_flag_processes_leave_nothing_on_a_connection(
    narrow: PgBouncer, postgres_url: str, process: Callable[..., Any]
) -> None:
    """Three of them on one connection, each with every verb and every way to read, the map in pages included."""
    for number in range(1, 4):
        store = await process(narrow.to(postgres_url))
        await store.check()
        engine = Engine(store, ids=IDS)
        if number == 1:
            await engine.create_event(a_play())
        sold = granted(await engine.confirm(a_confirm(granted(await engine.hold(a_hold(f"A{number}", units=1))))))
        granted(await engine.hold(a_hold(f"B{number}")))
        granted(await engine.cancel(a_cancel(sold)))
        assert not await store.find_flaws(limit=10)
        assert [on.seat.id for on in (await store.read_map(EVENT)).seats if on.owner_state == "held"] == [
            f"B{seat}" for seat in range(number, 0, -1)
        ]


async def test_a_map_that_was_cut_short_leaves_no_name_behind(
    narrow: PgBouncer, postgres_url: str, process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader gives up between two pages: the next process on that connection reads the whole map."""
    one = await process(narrow.to(postgres_url))
    await Engine(one, ids=IDS).create_event(a_play())
    with monkeypatch.context() as patched:
        patched.setattr(seat_map, "_decode", lambda _page: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await one.read_map(EVENT)
    other = await process(narrow.to(postgres_url))
    assert len((await other.read_map(EVENT)).seats) == 18


async def test_control_a_cursor_of_the_driver_has_a_name_that_stays(
    narrow: PgBouncer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why the map is not read by one: even without a cache its statement is named, and outlives the transaction."""
    statement = load_named_sql.sql("postgres", "seat_map.sql")["read_map"]

    async def read() -> None:
        monkeypatch.setattr("asyncpg.connection._uid", 0)
        connection = await asyncpg.connect(narrow.url, statement_cache_size=0)
        try:
            async with connection.transaction():
                await connection.cursor(statement, EVENT)
        finally:
            await connection.close()

    assert postgres_url
    await read()
    with pytest.raises(asyncpg.DuplicatePreparedStatementError):
        await read()


async def settings_of_the_next_client(pgbouncer: PgBouncer) -> list[str]:
    """The settings that the next client of the connection has without having set them."""
    stranger = await asyncpg.connect(pgbouncer.url, statement_cache_size=0)
    try:
        return [await stranger.fetchval(f"SHOW {name}") for name in ("lock_timeout", "plan_cache_mode")]
    finally:
        await stranger.close()


async def settings_of_a_verb(store: PostgresStore) -> list[str]:
    """The settings that a verb runs under."""

    async def look(transaction: Any) -> list[str]:
        ask = transaction.connection.fetchval
        return [await ask(f"SHOW {name}") for name in ("lock_timeout", "plan_cache_mode")]

    return await store.transact(look, within=5)


OURS, DEFAULTS = ["5s", "force_generic_plan"], ["0", "auto"]


async def test_settings_end_with_the_transaction(
    narrow: PgBouncer, postgres_url: str, process: Callable[..., Any]
) -> None:
    """A verb has its settings, and the next client of the connection has the server's own."""
    store = await process(narrow.to(postgres_url))
    assert await settings_of_a_verb(store) == OURS
    assert isinstance(await Engine(store, ids=IDS).create_event(a_play()), Decided)
    assert await settings_of_the_next_client(narrow) == DEFAULTS


async def test_control_settings_of_a_session_are_left_to_other_clients(
    narrow: PgBouncer, postgres_url: str, process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without LOCAL another client's statements would give up after five seconds, without a reason."""
    lasting = session_settings.SET_LOCAL.replace("SET LOCAL", "SET")
    monkeypatch.setattr("earmark.store.postgres.store.SET_LOCAL", lasting)
    store = await process(narrow.to(postgres_url))
    assert isinstance(await Engine(store, ids=IDS).create_event(a_play()), Decided)
    assert await settings_of_the_next_client(narrow) == OURS


# races


async def test_behind_a_pooler_one_of_five_hundred_gets_the_seat(
    database: RaceDatabase, start: Callable[..., PgBouncer]
) -> None:
    """Two servers that share four connections of PgBouncer: one owner, every request answered."""
    assert await hold_all_at_once(database, through=start(database.url).to(database.url)) == (1, BUYERS - 1, 1)
    assert not await database.flaws()


async def alone(engine: Engine, ask: Hold) -> Any:
    """In a transaction of its own: in the engine's queue they would form a batch."""
    queue: BatchQueue[Hold] = BatchQueue(
        partial(engine.run, VERBS[Hold]),
        make_room_in=engine.make_room_in,
        have_due=engine.have_due,
        row_waits=engine.row_waits,
    )
    return await queue.submit(ask, within=PATIENCE_SECONDS)


async def test_behind_a_pooler_claims_in_opposite_order_never_deadlock(
    database: RaceDatabase, start: Callable[..., PgBouncer]
) -> None:
    """A1 to A4 from both ends, with units, by two servers without retries: one winner each time, no deadlock."""
    pgbouncer = start(database.url)
    servers = [await database.server(url=pgbouncer.to(database.url), connections_max=CLIENTS) for _ in range(2)]
    seats = [f"A{number}" for number in range(1, 5)]
    for turn in range(TURNS):
        asks = [a_hold(*seats[:: 1 if n % 2 else -1], buyer=f"{turn}-{n}", units=1) for n in range(CLIENTS)]
        asked = (alone(servers[n // 2 % 2].engine, ask) for n, ask in enumerate(asks))
        told = await asyncio.gather(*asked, return_exceptions=True)
        (winner,) = [one for one in told if isinstance(one, Decided)]
        assert sum(isinstance(one, SeatsTaken) for one in told) == CLIENTS - 1
        sold = granted(await servers[0].engine.confirm(a_confirm(granted(winner))))
        granted(await servers[1].engine.cancel(a_cancel(sold)))
    assert not await database.flaws()
    pgbouncer.close()
    assert await database.deadlocks() == 0


async def test_behind_a_pooler_duplicates_have_one_effect(
    pgbouncer: PgBouncer, postgres_url: str, process: Callable[..., Any]
) -> None:
    """One key, two processes, many repeats at once: one booking, and every request gets that one."""
    engines = [Engine(await process(pgbouncer.to(postgres_url)), ids=IDS) for _ in range(2)]
    await engines[0].create_event(a_play())
    for turn in range(1, TURNS):
        asks = [a_hold(f"A{turn}", idempotency=idempotency(f"key-{turn}")) for _ in range(CLIENTS)]
        told = await asyncio.gather(*(engines[n % 2].hold(ask) for n, ask in enumerate(asks)))
        assert sum(isinstance(one, Decided) for one in told) == 1
        assert len({one.record.body for one in told if one.record}) == 1
    assert not await engines[1].store.find_flaws(limit=10)


# outages


async def test_a_commit_whose_answer_is_lost_is_found_through_the_pooler(
    database: RaceDatabase, start: Callable[..., PgBouncer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was kept, and the connection broke before the answer: the next connection, to any backend, finds it."""
    monkeypatch.setattr("earmark.engine.engine.LOOKUP_SECONDS", 0.01)
    async with PostgresProxy(start(database.url).to(database.url)) as proxy:
        server = await database.server("after write", url=f"{proxy.url}&pgbouncer=true")
        server.submit(a_hold("A1"))
        await server.reached("after write")
        proxy.lose_answers()
        server.go()
        await until(lambda: database.owner("A1"))
        proxy.cut()
        assert granted(await server.outcome()).id == await database.owner("A1")
    assert await database.observer.fetchval("SELECT count(*) FROM bookings") == 1


async def test_a_killed_pooler_loses_only_what_was_not_committed(
    database: RaceDatabase, start: Callable[..., PgBouncer]
) -> None:
    """Killed in the middle of a hold: it is reported as failed, nothing of it stays, and the next one is served."""
    pgbouncer = start(database.url)
    server = await database.server("before write", url=pgbouncer.to(database.url))
    server.submit(a_hold("A1"))
    await server.reached("before write")
    pgbouncer.kill()
    assert isinstance(await server.outcome(), StoreUnavailable)
    pgbouncer.start()
    assert await database.owner("A1") is None
    assert granted(await server.submit(a_hold("A1")).outcome()).id == await database.owner("A1")
    assert not await database.flaws()
