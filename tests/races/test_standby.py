"""A synchronous standby that is missing: commits hang, and no client gets more than is known.

The server is one of the file's own, for its settings apply to all its clients.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.conftest import unavailable

from earmark.clock import MovableClock
from earmark.domain.id_types import SeatId, SeatRef
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.engine.commands_and_results import Hold, Replayed
from earmark.engine.engine import Engine
from earmark.engine.ports.seat_admission import Busy
from earmark.errors import Outage, OutcomeUnknown, RowBusy, SeatsTaken, StoreUnavailable
from earmark.store import postgres
from earmark.store.postgres import PostgresStore
from earmark.testservers import ServerUnavailable, start_postgres
from earmark.testservers.postgres import URL_VARIABLE

from .commands import IDS, a_hold, a_play
from .optimistic_writes import idempotency
from .support import CONTEXT, VERBS, granted, until
from .test_hung_database import served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

SECONDS = 0.3
CONNECTIONS_MAX = 4
SPARE = 2
SEATS = [f"{row}{number}" for row in "AB" for number in range(1, 9)]
BACKENDS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'earmark'"
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' LIMIT 1"


@pytest.fixture(scope="module")
def standby_url() -> Iterator[str]:
    """A database on a server whose settings a test may change."""
    if os.environ.get(URL_VARIABLE):
        pytest.skip("NOT TESTED: settings of a server that is not started by the tests are left alone.")
    try:
        server = start_postgres(settings={"fsync": "off", "autovacuum": "off"})
    except ServerUnavailable as reason:
        unavailable(reason)
    with server:
        asyncio.run(postgres.migrate(server.url()))
        yield server.url()


class Observer:
    """A connection that never waits for a standby."""

    def __init__(self, connection: Any, url: str) -> None:
        self.connection = connection
        self._url = url

    async def lose_standby(self) -> None:
        """From now on commits wait for a standby that is not there."""
        await self._set("'not_here'")
        # The checkpointer informs all sessions of it, some time after this one has seen the setting: a commit shows it.
        probe = await asyncpg.connect(self._url)
        pid, hangs = probe.get_server_pid(), False
        while not hangs:
            commit = asyncio.ensure_future(probe.execute("SELECT pg_logical_emit_message(true, 'probe', '')"))
            while not commit.done() and not hangs:
                hangs = await self.waiting() == pid
        await self.connection.execute("SELECT pg_terminate_backend($1)", pid)
        await asyncio.wait({commit})
        commit.exception()
        await until(lambda: self.connection.fetchval("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $1", pid))

    async def find_standby(self) -> None:
        """From now on commits wait for none, and those that wait continue."""
        await self._set("''")

    async def waiting(self) -> int:
        """A backend that waits for the standby."""
        return int(await self.connection.fetchval(WAITING) or 0)

    async def _set(self, names: str) -> None:
        await self.connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = {names}")
        await self.connection.execute("SELECT pg_reload_conf()")
        await until(lambda: self.connection.fetchval(f"SELECT current_setting('synchronous_standby_names') = {names}"))


@pytest.fixture
async def observer(standby_url: str) -> AsyncIterator[Observer]:
    """For the length of a test, after which nothing waits any more."""
    connection = await asyncpg.connect(standby_url, server_settings={"synchronous_commit": "local"})
    observer = Observer(connection, standby_url)
    yield observer
    await observer.find_standby()
    await until(lambda: connection.fetchval(BACKENDS.replace("count(*)", "count(*) = 0")))
    await connection.execute("SET session_replication_role = replica")
    for table in ("journal", "buyer_totals", "seats", "pools", "bookings", "events"):
        await connection.execute(f"DELETE FROM {table}")
    await connection.close()


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[Engine]:
    """An engine with little patience, and a play to sell."""
    store = await PostgresStore.connect(url, clock=MovableClock(), connections_max=CONNECTIONS_MAX)
    engine = Engine(store, ids=IDS, transaction_seconds_max=SECONDS, **settings)
    try:
        await engine.create_event(a_play())
        yield engine
    finally:
        await engine.close()


@pytest.fixture(autouse=True)
def quick_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was lost is looked for at once."""
    monkeypatch.setattr("earmark.engine.engine.LOOKUP_SECONDS", 0.01)


@pytest.mark.parametrize("optimistic", [True, False])
async def test_commits_that_hang_leave_few_backends(standby_url: str, observer: Observer, *, optimistic: bool) -> None:
    """They are not ended by cutting their connections, so they count; once the standby is back, sales continue."""
    async with opened(standby_url) as engine:
        await observer.lose_standby()
        most = 0
        for seat in SEATS:
            hold = partial(VERBS[Hold], batch=[a_hold(seat, buyer=seat)], context=CONTEXT)
            with pytest.raises(Outage):
                await engine.store.transact(hold, within=SECONDS, optimistic=optimistic)
            most = max(most, await observer.connection.fetchval(BACKENDS))
        assert most <= CONNECTIONS_MAX + SPARE
        assert await engine.store.read_event(a_hold().event_id) is not None
        await observer.find_standby()
        hold = partial(VERBS[Hold], batch=[a_hold("A9")], context=CONTEXT)

        async def is_granted() -> bool:
            try:
                granted((await engine.store.transact(hold, within=5, optimistic=optimistic))[0])
            except StoreUnavailable:
                return False
            return True

        await until(is_granted)
        assert not await engine.store.find_flaws(limit=10)


async def test_a_server_whose_commits_hang_is_not_ready(
    standby_url: str, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients are sent elsewhere until commits are answered again."""
    monkeypatch.setattr("earmark.store.postgres.startup_and_invariant_checks.HANGING_SECONDS", 0.1)
    async with opened(standby_url) as engine, served(standby_url, seconds=5) as (client, _):
        assert (await client.get("/readyz")).status_code == 200
        await observer.lose_standby()
        with pytest.raises(Outage):
            await engine.hold(a_hold("A1"))

        async def is_not_ready() -> bool:
            told = await client.get("/readyz")
            return (told.status_code, told.json().get("why")) == (503, "commits_hang")

        await until(is_not_ready)
        await observer.find_standby()

        async def is_ready() -> bool:
            return (await client.get("/readyz")).status_code == 200

        await until(is_ready)


@pytest.mark.parametrize("optimistic", [True, False])
async def test_a_cancelled_wait_for_the_standby_leaves_the_outcome_unknown(
    standby_url: str, observer: Observer, monkeypatch: pytest.MonkeyPatch, *, optimistic: bool
) -> None:
    """PostgreSQL reports success, with a warning: one machine alone has it, and to find it there proves nothing."""
    monkeypatch.setattr("earmark.store.postgres.store.STANDBY_SECONDS", SECONDS, raising=False)
    async with opened(standby_url) as engine:
        engine._transaction_seconds_max = 5
        ask = a_hold("A1", idempotency=idempotency())
        await observer.lose_standby()
        asked = asyncio.ensure_future(engine.run(VERBS[Hold], lambda: [ask], optimistic=optimistic))
        await until(observer.waiting)
        await observer.connection.execute("SELECT pg_cancel_backend($1)", await observer.waiting())
        with pytest.raises(OutcomeUnknown):
            await asked
        owner = await observer.connection.fetchval("SELECT booking_id FROM seats WHERE id = 'A1'")
        assert owner == ask.booking_id
        await observer.find_standby()
        assert isinstance(await engine.hold(a_hold("A1", idempotency=idempotency())), Replayed)


async def test_a_commit_that_reached_the_standby_after_all_is_found(
    standby_url: str, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait was cancelled, and the standby then came: what is looked up is there, and is answered."""
    monkeypatch.setattr("earmark.store.postgres.store.STANDBY_SECONDS", 5.0, raising=False)
    async with opened(standby_url) as engine:
        engine._transaction_seconds_max = 5
        ask = a_hold("A1")
        await observer.lose_standby()
        asked = asyncio.ensure_future(engine.run(VERBS[Hold], lambda: [ask], optimistic=True))
        await until(observer.waiting)
        first = await observer.waiting()
        await observer.connection.execute("SELECT pg_cancel_backend($1)", first)

        async def another_waits() -> bool:
            return await observer.waiting() not in {0, first} or asked.done()

        await until(another_waits)
        assert not asked.done()
        await observer.find_standby()
        granted((await asked)[0])


class Refusing:
    """Redis, which says that every seat is taken."""

    async def admit(self, *_: object, **__: object) -> Busy:
        """Never."""
        return Busy((SeatId("A1"),))

    def record_grant(self, *_: object, **__: object) -> None:
        """Nothing is granted here."""

    withdraw = drop_hints = record_grant

    async def close(self) -> None:
        """Nothing is open."""


async def replay(engine: Engine, path: str) -> Any:
    """The same request again, by one of the ways that lead to its stored answer."""
    ask = a_hold("A1", idempotency=idempotency("k"))
    assert ask.idempotency is not None
    match path:
        case "a batch without locks":
            return (await engine.run(VERBS[Hold], lambda: [ask], optimistic=True))[0]
        case "a batch under locks":
            return (await engine.run(VERBS[Hold], lambda: [ask]))[0]
        case "a hold that admission turned away":
            return await engine._hold_admitted(ask, Refusing(), within=10)
        case _:
            return await engine.look_up_key(IdempotencyKey(*ask.idempotency.key))


@pytest.mark.parametrize(
    "path",
    ["a batch without locks", "a batch under locks", "a hold that admission turned away", "the look-up of a key"],
)
async def test_a_replay_waits_for_the_standby_too(standby_url: str, observer: Observer, path: str) -> None:
    """What is replayed may be on one machine alone: no client gets it until the standby has it."""
    async with opened(standby_url) as engine:
        granted(await engine.hold(a_hold("A1", idempotency=idempotency("k"))))
        await observer.lose_standby()
        with pytest.raises(OutcomeUnknown):
            await replay(engine, path)
        assert await observer.waiting()
        await observer.find_standby()
        told = await replay(engine, path)
        assert told.record.status == 201


async def test_a_locked_row_is_named_without_a_wait_for_the_standby(standby_url: str, observer: Observer) -> None:
    """To find it, the rows beside it are locked for a moment, and nothing of that is committed."""
    ask = a_hold("A1", "A2")
    async with opened(standby_url) as engine:
        await observer.lose_standby()
        async with observer.connection.transaction():
            await observer.connection.execute("SELECT 1 FROM seats WHERE id = 'A1' FOR NO KEY UPDATE")
            with pytest.raises(RowBusy) as busy:
                await engine.run(VERBS[Hold], lambda: [ask], lock_seconds=0.05)
        assert ("seats", SeatRef(ask.event_id, SeatId("A1"))) in busy.value.rows


async def test_an_unrelated_refusal_does_not_wait_for_the_standby(standby_url: str, observer: Observer) -> None:
    """Of two refused holds whose keys are looked up together, only the one that is a repeat waits for its answer."""
    async with opened(standby_url) as engine:
        granted(await engine.hold(a_hold("A2", idempotency=idempotency("mine"))))
        await observer.lose_standby()
        asks = [a_hold("A2", idempotency=idempotency(key)) for key in ("mine", "another")]
        mine, another = await asyncio.gather(
            *(engine._hold_admitted(ask, Refusing(), within=10) for ask in asks), return_exceptions=True
        )
        assert isinstance(mine, OutcomeUnknown)
        assert isinstance(another, SeatsTaken)
        await observer.find_standby()


async def test_without_a_standby_a_replay_writes_nothing(standby_url: str, observer: Observer) -> None:
    """Nor does it query: the setting is read with the key."""
    async with opened(standby_url) as engine:
        granted(await engine.hold(a_hold("A1", idempotency=idempotency("k"))))
        store: Any = engine.store
        store._sql = {**store._sql, "wait_for_standby": "SELECT 1 / 0"}
        assert not await observer.waiting()
        for path in ("a batch without locks", "a batch under locks"):
            assert (await replay(engine, path)).record.status == 201
