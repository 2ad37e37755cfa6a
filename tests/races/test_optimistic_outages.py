"""The line breaks while a draft is under way: what is then said is true, and no connection is lost by it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from earmark.engine.commands import Decided, Hold, Replayed
from earmark.engine.engine import Engine
from earmark.errors import OutcomeUnknown, RowBusy, StoreUnavailable

from .commands import IDS, a_confirm, a_hold
from .optimistic_writes import idempotency
from .postgres_proxy import Wire
from .support import VERBS, granted, has_ended, in_time, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.engine.ports.store import Changes

    from .support import House, Till

CONNECTIONS_MAX = 6
NOBODY_WORKS = """
    SELECT count(*) = 0 FROM pg_stat_activity
    WHERE application_name = 'earmark' AND datname = current_database() AND state <> 'idle'
"""
END_ALL = """
    SELECT count(pg_terminate_backend(pid))
    FROM pg_stat_activity
    WHERE application_name = 'earmark' AND datname = current_database()
"""


@pytest.fixture
async def wire(services: House) -> AsyncIterator[Wire]:
    """A line to the house."""
    async with Wire(services.url) as wire:
        yield wire


@pytest.fixture(autouse=True)
def quick_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was lost is looked for at once."""
    monkeypatch.setattr("earmark.engine.engine.LOOKUP_SECONDS", 0.01)


async def drafting_till(services: House, *stops: str, memory: bool = False, url: str | None = None) -> Till:
    """One that has drafted before: its statements are prepared, so that the next thing it sends is the thing itself."""
    payments = await services.payments(drafts=True, memory=memory, connections_max=CONNECTIONS_MAX, url=url)
    granted(await payments.ask(a_hold("B9", buyer="eve")).outcome())
    payments.stop_at(*stops)
    payments.store.ran.clear()
    return payments


async def test_a_line_cut_before_the_write_is_sent_is_decided_once_more(services: House) -> None:
    """It is certain that nothing was kept, so the buyer is served over another connection, once."""
    payments = (await drafting_till(services, "before write")).ask(a_hold("A1"))
    await payments.reached("before write")
    await services.observer.execute("SELECT pg_terminate_backend($1)", payments.store.stage.pid)
    await until(lambda: has_ended(payments.store.connection))
    held = granted(await payments.outcome())
    assert payments.store.ran == ["look", "look"]
    assert await services.owner("A1") == held.id
    assert not await services.flaws()


async def a_batch_whose_answer_is_lost(services: House, wire: Wire) -> tuple[Engine, list[Changes], list[Any]]:
    """Four holds travel together; their write arrives and is kept, and its answer does not come back."""
    payments = await drafting_till(services, "before write", url=wire.url)
    engine = Engine(payments.store, ids=IDS, lanes=1)
    heard: list[Changes] = []
    engine.listen(heard.append)
    asks = [a_hold(f"A{n}", buyer=f"buyer-{n}", idempotency=idempotency(f"key-{n}")) for n in range(1, 5)]
    asked = [asyncio.ensure_future(engine.hold(ask)) for ask in asks]
    await payments.reached("before write", asked[0])
    wire.lose_answers()
    payments.go()
    await until(lambda: services.owner("A1"))
    wire.cut()
    return engine, heard, await asyncio.gather(*asked, return_exceptions=True)


async def test_a_write_that_was_kept_and_not_answered_is_found(services: House, wire: Wire) -> None:
    """The engine looks for the entries, whose ids it made, and answers everybody; nothing is carried out again."""
    _, _, told = await a_batch_whose_answer_is_lost(services, wire)
    for n, outcome in enumerate(told, start=1):
        assert granted(outcome).id == await services.owner(f"A{n}")
    assert await services.observer.fetchval("SELECT count(*) FROM bookings") == 1 + 4
    assert not await services.flaws()


async def test_whoever_listens_hears_of_a_write_that_is_in_doubt(services: House, wire: Wire) -> None:
    """To look again costs little; to believe what is not so costs more."""
    _, heard, _ = await a_batch_whose_answer_is_lost(services, wire)
    assert [booking.buyer for changes in heard for booking in changes.opened] == [f"buyer-{n}" for n in range(1, 5)]


async def test_a_key_tells_what_became_of_a_write_that_could_not_be_found(
    services: House, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could look: everybody hears that the outcome is unknown, and a repeat is told what it was."""
    monkeypatch.setattr("earmark.engine.engine.LOOKUPS_MAX", 0)
    engine, _, told = await a_batch_whose_answer_is_lost(services, wire)
    assert [type(outcome) for outcome in told] == [OutcomeUnknown] * 4
    replayed = await engine.hold(a_hold("A1", buyer="buyer-1", idempotency=idempotency("key-1")))
    assert isinstance(replayed, Replayed)
    assert replayed.record.body == str(await services.owner("A1")).encode()
    assert not await services.flaws()


async def test_a_write_that_never_arrived_stays_unknown_and_its_key_is_free(services: House, wire: Wire) -> None:
    """It was sent, so nothing is certain; a repeat carries it out, once."""
    payments = (await drafting_till(services, "before write", url=wire.url)).ask(
        a_hold("A1", idempotency=idempotency())
    )
    await payments.reached("before write")
    wire.lose_questions()
    payments.go()
    await asyncio.sleep(0)
    wire.cut()
    outcome = await payments.outcome()
    assert isinstance(outcome, OutcomeUnknown), repr(outcome)
    assert await services.owner("A1") is None
    held = granted(await payments.ask(a_hold("A1", idempotency=idempotency())).outcome())
    assert await services.owner("A1") == held.id
    assert not await services.flaws()


async def test_a_line_cut_during_the_look_is_tried_on_another_connection(services: House, wire: Wire) -> None:
    """Nothing was sent that could change anything."""
    payments = (await drafting_till(services, "before begin", url=wire.url)).ask(a_hold("A1"))
    await payments.reached("before begin")
    wire.lose_answers()
    payments.go()
    await asyncio.sleep(0)
    wire.cut()
    held = granted(await payments.outcome())
    assert payments.store.ran == ["look", "look"]
    assert await services.owner("A1") == held.id
    assert not await services.flaws()


async def test_a_look_is_tried_on_one_other_connection_and_on_no_third(services: House, wire: Wire) -> None:
    """Where the second breaks, too, the database is unavailable; nothing was kept."""
    payments = (await drafting_till(services, "before begin", url=wire.url)).ask(a_hold("A1"))
    await payments.reached("before begin")
    wire.lose_answers()
    wire.lets = _never
    payments.go()
    await asyncio.sleep(0)
    wire.cut()
    await until(lambda: wire._lines)
    wire.cut()
    assert isinstance(await payments.outcome(), StoreUnavailable)
    wire.lets = None
    granted(await payments.ask(a_hold("A1")).outcome())
    assert not await services.flaws()


async def _never() -> bool:
    return False


@pytest.mark.parametrize("from_memory", [False, True])
async def test_connections_that_ended_while_nobody_used_them_hurt_nobody(services: House, *, from_memory: bool) -> None:
    """A server that was restarted: the next hold is simply served, and never said to be in doubt."""
    payments = await drafting_till(services, memory=from_memory)
    await until(lambda: payments.store._recall._houses or not from_memory)
    assert await services.observer.fetchval(END_ALL) > 0
    connections = [holder._con for holder in payments.store._pool._holders]
    await until(lambda: all(connection is None or connection.is_closed() for connection in connections))
    held = granted(await payments.ask(a_hold("A2")).outcome())
    assert set(payments.store.ran) == {"memory" if from_memory else "look"}
    assert await services.owner("A2") == held.id
    assert not await services.flaws()


@pytest.mark.parametrize("from_memory", [False, True])
async def test_a_connection_that_heard_goodbye_and_is_not_closed_yet_hurts_nobody(
    services: House, wire: Wire, *, from_memory: bool
) -> None:
    """It looks open, and nothing can be sent on it: the next hold takes another, and is never said to be in doubt."""
    payments = await drafting_till(services, memory=from_memory, url=wire.url)
    await until(lambda: payments.store._recall._houses or not from_memory)
    wire.keep_open()
    await services.observer.fetchval(END_ALL)
    await until(lambda: wire.hung_up)
    await asyncio.sleep(0.01)
    assert not has_ended(payments.store.connection)
    held = granted(await payments.ask(a_hold("A2")).outcome())
    assert set(payments.store.ran) == {"memory" if from_memory else "look"}
    assert await services.owner("A2") == held.id
    assert not await services.flaws()


@asynccontextmanager
async def in_the_way(services: House) -> AsyncIterator[None]:
    """A third has the first seats, for the length of a `with`."""
    third = await asyncpg.connect(services.url)
    try:
        await third.execute("BEGIN")
        await third.execute("SELECT FROM seats WHERE id IN ('A1', 'A2', 'A3') FOR UPDATE")
        yield
    finally:
        await third.close()


async def test_a_statement_that_was_cancelled_kept_nothing(services: House) -> None:
    """The server says so itself; its connections are as good as before, however often it happens."""
    payments = await drafting_till(services)
    for _ in range(CONNECTIONS_MAX + 1):
        async with in_the_way(services):
            await payments.ask(a_hold("A1", idempotency=idempotency())).waits_for_a_lock()
            await services.observer.execute("SELECT pg_cancel_backend($1)", payments.store.stage.pid)
            assert isinstance(await payments.outcome(), StoreUnavailable)
    assert await services.owner("A1") is None
    granted(await payments.ask(a_hold("A1", idempotency=idempotency())).outcome())
    assert not await services.flaws()


async def test_a_row_that_stays_locked_costs_a_draft_only_those_who_need_it(services: House) -> None:
    """The others of the batch are decided without the request that needs the row."""
    payments = await drafting_till(services, "before write")
    payments.store.lock_seconds = 0.05
    engine = Engine(payments.store, ids=IDS, lanes=1)
    async with in_the_way(services):
        asked = [asyncio.ensure_future(engine.hold(a_hold(f"A{n}", buyer=f"buyer-{n}"))) for n in range(3, 7)]
        await payments.reached("before write", asked[0])
        payments.go()
        told = await in_time(asyncio.gather(*asked, return_exceptions=True))
    assert [type(outcome) for outcome in told] == [RowBusy, Decided, Decided, Decided]
    assert not await services.flaws()


@pytest.mark.parametrize("ended_by", ["its deadline", "its caller"])
async def test_a_draft_that_is_given_up_in_the_middle_loses_no_connection(services: House, ended_by: str) -> None:
    """The connection is cut, for nobody knows what comes back on it; the key tells what became of the write."""
    payments = await services.payments(drafts=True, connections_max=2)
    within = 0.6 if ended_by == "its deadline" else 5
    for n in range(1, 4):
        hold = partial(VERBS[Hold], batch=[a_hold(f"A{n}", idempotency=idempotency(f"key-{n}"))])
        async with in_the_way(services):
            doing = asyncio.ensure_future(payments.store.transact(hold, within=within, draft=True))
            await payments.waits_for_a_lock(doing)
            if ended_by == "its caller":
                doing.cancel()
            (told,) = await in_time(asyncio.gather(doing, return_exceptions=True))
            assert isinstance(told, OutcomeUnknown if ended_by == "its deadline" else asyncio.CancelledError)
            assert has_ended(payments.store.connection)
    for n in range(1, 4):
        outcome = await payments.ask(a_hold(f"A{n}", idempotency=idempotency(f"key-{n}"))).outcome()
        assert isinstance(outcome, Decided | Replayed), repr(outcome)
    assert await services.observer.fetchval("SELECT count(*) FROM bookings") == 3
    assert not await services.flaws()


async def test_drafts_leave_connections_for_everybody_else(services: House) -> None:
    """However few there are: what drafts keep by them is not what a read or a lock needs."""
    payments = await services.payments(drafts=True, connections_max=2)
    async with asyncio.timeout(2):
        held = await asyncio.gather(*(payments.engine.hold(a_hold(f"A{n}", buyer=f"b{n}")) for n in (1, 2)))
        sold = (payments.engine.confirm(a_confirm(granted(outcome))) for outcome in held)
        await asyncio.gather(*sold, payments.engine.hold(a_hold("A3")))
        assert await payments.engine.store.read_event(granted(held[0]).event_id)
