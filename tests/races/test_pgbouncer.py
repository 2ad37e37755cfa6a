"""Behind a real PgBouncer in transaction mode: two transactions of one till may run on two connections of the server.

What a till leaves on a connection, another till finds there: statements that it prepared, settings that it changed.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.conftest import unavailable
from tests.pgbouncer import Bouncer, start_bouncer

from earmark.engine.commands import Decided, Hold
from earmark.engine.engine import Engine
from earmark.engine.group_commit import BatchQueue
from earmark.errors import SeatsTaken, SetupError, StoreUnavailable
from earmark.store import queries
from earmark.store.postgres import PostgresStore, maps
from earmark.store.postgres import store as module
from earmark.testservers import ServerUnavailable

from .commands import EVENT, IDS, a_cancel, a_confirm, a_hold, a_play
from .optimistic_writes import idempotency
from .postgres_proxy import Wire
from .support import PATIENCE_SECONDS, VERBS, granted, until
from .test_hot_seat import BUYERS, rush

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from earmark.clock import MovableClock

    from .support import House

TURNS = 4
CROWD = 12


@pytest.fixture
def start() -> Iterator[Callable[..., Bouncer]]:
    """Starts poolers of the test's own; they leave no connection behind."""
    with ExitStack() as stack:

        def started(url: str, **knobs: Any) -> Bouncer:
            try:
                return stack.enter_context(start_bouncer(url, **knobs))
            except ServerUnavailable as reason:
                unavailable(reason)
                raise

        yield started


@pytest.fixture
def narrow(postgres_url: str, start: Callable[..., Bouncer]) -> Bouncer:
    """One connection for everybody, and an operator who lets anybody ask for any setting of ours at the start."""
    return start(postgres_url, connections=1, ignores=list(module.SETTINGS))


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


async def test_a_pooler_that_the_url_does_not_name_turns_us_away(
    bouncer: Bouncer, postgres_url: str, clock: MovableClock
) -> None:
    """As PgBouncer is by default: settings for a session are refused at the start, before anything is sold."""
    with pytest.raises(SetupError, match="unsupported startup parameter"):
        await PostgresStore.connect(bouncer.to(postgres_url).partition("?")[0], clock=clock)


async def test_control_without_the_flag_two_processes_meet_in_their_statements(
    narrow: Bouncer, process: Callable[..., Any]
) -> None:
    """With settings ignored, the second process finds the name of its first statement taken by the other's."""
    one = await process(narrow.url)
    assert await one.read_event(EVENT) is None
    with pytest.raises(SetupError, match="already exists"):
        await process(narrow.url)


async def test_with_the_flag_processes_leave_each_other_nothing(
    narrow: Bouncer, postgres_url: str, process: Callable[..., Any]
) -> None:
    """Three of them on one connection, each with every verb and every way to read, the map in pages included."""
    for number in range(1, 4):
        store = await process(narrow.to(postgres_url))
        await store.check()
        engine = Engine(store, ids=IDS)
        if number == 1:
            await engine.create(a_play())
        sold = granted(await engine.confirm(a_confirm(granted(await engine.hold(a_hold(f"A{number}", units=1))))))
        granted(await engine.hold(a_hold(f"B{number}")))
        granted(await engine.cancel(a_cancel(sold)))
        assert not await store.find_flaws(limit=10)
        assert [on.seat.id for on in (await store.read_map(EVENT)).seats if on.owner_state == "held"] == [
            f"B{seat}" for seat in range(number, 0, -1)
        ]


async def test_a_map_that_was_cut_short_leaves_no_name_behind(
    narrow: Bouncer, postgres_url: str, process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader gives up between two pages: the next process on that connection reads the whole map."""
    one = await process(narrow.to(postgres_url))
    await Engine(one, ids=IDS).create(a_play())
    with monkeypatch.context() as patched:
        patched.setattr(maps, "_decode", lambda _page: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await one.read_map(EVENT)
    other = await process(narrow.to(postgres_url))
    assert len((await other.read_map(EVENT)).seats) == 18


async def test_control_a_cursor_of_the_driver_has_a_name_that_stays(
    narrow: Bouncer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why the map is not read by one: even without a cache its statement is named, and outlives the transaction."""
    statement = queries.sql("postgres")["read_map"]

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


async def what_a_stranger_finds(bouncer: Bouncer) -> list[str]:
    """The settings that whoever comes next has without having asked for them."""
    stranger = await asyncpg.connect(bouncer.url, statement_cache_size=0)
    try:
        return [await stranger.fetchval(f"SHOW {name}") for name in ("lock_timeout", "plan_cache_mode")]
    finally:
        await stranger.close()


async def settings_at_work(store: PostgresStore) -> list[str]:
    """The settings that a verb runs under."""

    async def look(transaction: Any) -> list[str]:
        ask = transaction._connection.fetchval
        return [await ask(f"SHOW {name}") for name in ("lock_timeout", "plan_cache_mode")]

    return await store.transact(look, within=5)


OURS, DEFAULTS = ["5s", "force_generic_plan"], ["0", "auto"]


async def test_settings_end_with_the_transaction(
    narrow: Bouncer, postgres_url: str, process: Callable[..., Any]
) -> None:
    """A verb has its settings, and whoever is given the connection next has the server's own."""
    store = await process(narrow.to(postgres_url))
    assert await settings_at_work(store) == OURS
    assert isinstance(await Engine(store, ids=IDS).create(a_play()), Decided)
    assert await what_a_stranger_finds(narrow) == DEFAULTS


async def test_control_settings_of_a_session_are_left_to_strangers(
    narrow: Bouncer, postgres_url: str, process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without LOCAL somebody else's statements would give up after five seconds, and never know why."""
    monkeypatch.setattr(module, "_SET_LOCAL", module._SET_LOCAL.replace("SET LOCAL", "SET"))
    store = await process(narrow.to(postgres_url))
    assert isinstance(await Engine(store, ids=IDS).create(a_play()), Decided)
    assert await what_a_stranger_finds(narrow) == OURS


# races


async def test_behind_a_pooler_one_of_five_hundred_gets_the_seat(
    services: House, start: Callable[..., Bouncer]
) -> None:
    """Two tills that share four connections of the server: one owner, everybody answered."""
    assert await rush(services, through=start(services.url).to(services.url)) == (1, BUYERS - 1, 1)
    assert not await services.flaws()


async def alone(engine: Engine, ask: Hold) -> Any:
    """In a transaction of its own: in the engine's line they would travel together."""
    lane: BatchQueue[Hold] = BatchQueue(partial(engine.run, VERBS[Hold]), relieve=engine.relieve)
    return await lane.submit(ask, within=PATIENCE_SECONDS)


async def test_behind_a_pooler_claims_in_opposite_order_never_wait_in_a_circle(
    services: House, start: Callable[..., Bouncer]
) -> None:
    """A1 to A4 from both ends, with units, by two tills that try nothing again: one winner each time, no deadlock."""
    bouncer = start(services.url)
    payment_services = [await services.payments(url=bouncer.to(services.url), connections_max=CROWD) for _ in range(2)]
    seats = [f"A{number}" for number in range(1, 5)]
    for turn in range(TURNS):
        asks = [a_hold(*seats[:: 1 if n % 2 else -1], buyer=f"{turn}-{n}", units=1) for n in range(CROWD)]
        asked = (alone(payment_services[n // 2 % 2].engine, ask) for n, ask in enumerate(asks))
        told = await asyncio.gather(*asked, return_exceptions=True)
        (winner,) = [one for one in told if isinstance(one, Decided)]
        assert sum(isinstance(one, SeatsTaken) for one in told) == CROWD - 1
        sold = granted(await payment_services[0].engine.confirm(a_confirm(granted(winner))))
        granted(await payment_services[1].engine.cancel(a_cancel(sold)))
    assert not await services.flaws()
    bouncer.close()
    assert await services.deadlocks() == 0


async def test_behind_a_pooler_twins_have_one_effect(
    bouncer: Bouncer, postgres_url: str, process: Callable[..., Any]
) -> None:
    """One key, two processes, many repeats at once: one booking, and everybody hears of that one."""
    engines = [Engine(await process(bouncer.to(postgres_url)), ids=IDS) for _ in range(2)]
    await engines[0].create(a_play())
    for turn in range(1, TURNS):
        asks = [a_hold(f"A{turn}", idempotency=idempotency(f"key-{turn}")) for _ in range(CROWD)]
        told = await asyncio.gather(*(engines[n % 2].hold(ask) for n, ask in enumerate(asks)))
        assert sum(isinstance(one, Decided) for one in told) == 1
        assert len({one.record.body for one in told if one.record}) == 1
    assert not await engines[1].store.find_flaws(limit=10)


# outages


async def test_a_commit_whose_answer_is_lost_is_found_through_the_pooler(
    services: House, start: Callable[..., Bouncer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was kept, and the line broke before anybody heard: the next connection, to whichever backend, finds it."""
    monkeypatch.setattr("earmark.engine.engine.LOOKUP_SECONDS", 0.01)
    async with Wire(start(services.url).to(services.url)) as wire:
        payments = await services.payments("after write", url=f"{wire.url}&pgbouncer=true")
        payments.ask(a_hold("A1"))
        await payments.reached("after write")
        wire.lose_answers()
        payments.go()
        await until(lambda: services.owner("A1"))
        wire.cut()
        assert granted(await payments.outcome()).id == await services.owner("A1")
    assert await services.observer.fetchval("SELECT count(*) FROM bookings") == 1


async def test_a_pooler_that_dies_takes_with_it_what_was_not_committed(
    services: House, start: Callable[..., Bouncer]
) -> None:
    """Killed in the middle of a hold: it is said to have failed, nothing of it stays, and the next one is served."""
    bouncer = start(services.url)
    payments = await services.payments("before write", url=bouncer.to(services.url))
    payments.ask(a_hold("A1"))
    await payments.reached("before write")
    bouncer.kill()
    assert isinstance(await payments.outcome(), StoreUnavailable)
    bouncer.start()
    assert await services.owner("A1") is None
    assert granted(await payments.ask(a_hold("A1")).outcome()).id == await services.owner("A1")
    assert not await services.flaws()
