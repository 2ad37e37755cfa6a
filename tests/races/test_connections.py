"""The connections of the PostgreSQL store: none is lost without need, none is kept that no longer serves."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from earmark.bench.prepare_and_count_rows import BenchDatabase
from earmark.clock import MovableClock
from earmark.domain.default_limits_for_all_events import Policy
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.engine.commands_and_results import Decided, Hold
from earmark.engine.engine import Engine
from earmark.engine.ports.store import RowsNeeded
from earmark.errors import RowBusy, SetupError, StoreUnavailable
from earmark.store import load_named_sql
from earmark.store.postgres import connect_to_writable_host, session_settings
from earmark.store.postgres.driver_errors import only_reads
from earmark.store.postgres.store import PostgresStore

from .commands import EVENT, IDS, a_hold, a_play, an_extend
from .postgres_proxy import PostgresProxy, TcpPostgresProxy, a_frozen_host
from .support import CONTEXT, VERBS, granted, in_time, until
from .test_hung_database import served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

PIDS = """
    SELECT array_agg(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'earmark'
"""
SECONDS = 0.4


@pytest.fixture
async def observer(postgres_url: str) -> AsyncIterator[Any]:
    """A connection beside the store's, which also changes settings of the whole database until the test is over."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.execute("SET default_transaction_read_only = off")
    await connection.execute(f'ALTER DATABASE "{_name(postgres_url)}" RESET ALL')
    await connection.close()


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[Engine]:
    """An engine over a store of its own, with a play to sell."""
    store = await PostgresStore.connect(url, clock=MovableClock())
    engine = Engine(store, ids=IDS, **settings)
    try:
        if await store.read_event(EVENT) is None:
            await engine.create_event(a_play())
        yield engine
    finally:
        await engine.close()


def _name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


async def backends_used(observer: Any, times: int, ask: Callable[[int], Awaitable[object]]) -> int:
    """How many backends a store has had in all, over so many requests."""
    seen: set[int] = set()
    for number in range(times):
        await ask(number)
        seen.update(await observer.fetchval(PIDS))
    return len(seen)


async def test_a_limit_per_buyer_for_all_events_costs_no_connections(postgres_url: str, observer: Any) -> None:
    """An optimistic write that finds that locks are needed leaves a connection on which nothing is under way."""
    async with opened(postgres_url, policy=Policy(per_buyer_max=4)) as engine:

        async def hold(number: int) -> None:
            granted(await engine.hold(a_hold(units=1, buyer=f"buyer-{number}", ttl_seconds=1)))
            engine.store._clock.advance(2)  # type: ignore[attr-defined]

        assert await backends_used(observer, 50, hold) <= 4


@pytest.mark.parametrize("restrained", [True, False])
async def test_a_page_of_seats_is_read_by_one_process(
    postgres_url: str, observer: Any, monkeypatch: pytest.MonkeyPatch, *, restrained: bool
) -> None:
    """PostgreSQL plans no parallel workers for a page of a large event; without the setting it does."""
    await BenchDatabase(observer, postgres_url).open_event("large", seats=60_000)
    await observer.execute("ANALYZE seats")
    # Make parallel plans free, so that 60,000 seats are enough.
    for cost in ("setup_cost", "tuple_cost"):
        await observer.execute(f'ALTER DATABASE "{_name(postgres_url)}" SET parallel_{cost} = 0')
    for kind in ("table", "index"):
        await observer.execute(f'ALTER DATABASE "{_name(postgres_url)}" SET min_parallel_{kind}_scan_size = 0')
    if not restrained:
        monkeypatch.delitem(session_settings.SETTINGS, "max_parallel_workers_per_gather")
    async with opened(postgres_url) as engine, engine.store.pool.acquire() as connection:  # type: ignore[attr-defined]
        await connection.execute(f"PREPARE page (text, text, bigint) AS {engine.store._sql['read_free_seats']}")  # type: ignore[attr-defined]
        plan = await connection.fetch("EXPLAIN EXECUTE page ('large', '', 2000)")
    assert ("Gather" in str(plan)) is not restrained


@pytest.mark.parametrize("raised", ["needs locks", "our own bug"])
async def test_what_a_verb_raises_between_two_calls_costs_no_connection(
    postgres_url: str, observer: Any, raised: str
) -> None:
    """As when a booking is cancelled whose payment a gateway has: payments are decided under locks."""

    async def work(transaction: Any) -> None:
        await transaction.begin([], RowsNeeded(bookings=[IDS.booking_id()]))
        assert raised == "needs locks", "our own bug"
        await transaction.lock_payments([IDS.payment_id()])

    async with opened(postgres_url) as engine:

        async def ask(_: int) -> None:
            try:
                await engine.store.transact(work, within=5, optimistic=True)
            except AssertionError:
                assert raised == "our own bug"

        assert await backends_used(observer, 20, ask) <= 2


async def hold_alone(engine: Engine, seat: str, *, within: float = SECONDS) -> Any:
    """One hold, by the fast path."""
    hold = partial(VERBS[Hold], batch=[a_hold(seat, buyer=seat)], context=CONTEXT)
    (outcome,) = await engine.store.transact(hold, within=within, optimistic=True)
    return outcome


@pytest.mark.parametrize("old", [True, False])
async def test_an_old_connection_of_the_fast_path_is_not_used_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, *, old: bool
) -> None:
    """A connection that a firewall dropped silently is closed by its age; before, it delays one request."""
    loop = asyncio.get_running_loop()
    async with PostgresProxy(postgres_url) as proxy, opened(proxy.url) as engine:
        granted(await hold_alone(engine, "A1", within=5))
        proxy.lose_requests()
        began = loop.time
        monkeypatch.setattr(loop, "time", lambda: began() + (3600 if old else 0))
        try:
            if old:
                granted(await hold_alone(engine, "A2", within=5))
            else:
                with pytest.raises(StoreUnavailable):
                    await hold_alone(engine, "A2")
        finally:
            proxy.cut()


async def test_the_operating_system_looks_after_connections_over_tcp(postgres_url: str) -> None:
    """The kernel detects an idle connection without a peer, and one whose packets are not acknowledged."""
    async with (
        TcpPostgresProxy(postgres_url) as proxy,
        opened(proxy.url) as engine,
        engine.store.pool.acquire() as connection,  # type: ignore[attr-defined]
    ):
        plug = connection._transport.get_extra_info("socket")
        assert plug.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert plug.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        assert plug.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 3
        assert plug.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
        assert plug.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000


async def test_a_read_on_a_broken_connection_is_tried_on_another(postgres_url: str) -> None:
    """A read changed nothing, so the store may repeat it."""
    async with PostgresProxy(postgres_url) as proxy, opened(proxy.url) as engine:
        proxy.lose_answers()
        reading = asyncio.ensure_future(engine.store.read_event(EVENT))
        await asyncio.sleep(0)
        proxy.cut()
        assert (await in_time(reading)) is not None


async def test_keys_are_looked_up_on_another_connection_when_one_breaks(postgres_url: str) -> None:
    """The connections of optimistic writes, on which they are looked up, break as others do."""
    key = IdempotencyKey("shop", "unused")
    async with PostgresProxy(postgres_url) as proxy, opened(proxy.url) as engine:
        assert not await engine.store.known_keys([key])
        proxy.lose_answers()
        looking = asyncio.ensure_future(engine.store.known_keys([key]))
        await asyncio.sleep(0)
        proxy.cut()
        assert (await in_time(looking)) == frozenset()


async def test_a_locked_transaction_on_a_broken_connection_is_tried_on_another(postgres_url: str) -> None:
    """What was written before its commit was sent is rolled back, so the work is run again from its start."""
    runs = 0

    async def work(transaction: Any) -> Any:
        nonlocal runs
        runs += 1
        await transaction.begin([])
        if runs == 1:
            proxy.lose_answers()
            asyncio.get_running_loop().call_soon(proxy.cut)
        return await transaction.lock_event(EVENT)

    async with PostgresProxy(postgres_url) as proxy, opened(proxy.url) as engine:
        assert (await in_time(engine.store.transact(work, within=5))).id == EVENT
    assert runs == 2


async def test_a_read_that_took_too_long_is_not_tried_again(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time was for both attempts."""
    asked: list[str] = []
    monkeypatch.setattr("earmark.store.postgres.store.READ_SECONDS", SECONDS)
    async with PostgresProxy(postgres_url) as proxy, opened(proxy.url) as engine:
        fetch = asyncpg.Connection.fetch

        async def counted(self: Any, query: str, *arguments: Any, **named: Any) -> Any:
            asked.append(query)
            return await fetch(self, query, *arguments, **named)

        monkeypatch.setattr(asyncpg.Connection, "fetch", counted)
        proxy.lose_answers()
        with pytest.raises(StoreUnavailable):
            await in_time(engine.store.read_event(EVENT))
        proxy.cut()
    assert len(asked) == 1


def test_only_what_changes_nothing_is_tried_again() -> None:
    """By its text: no statement that writes or locks is taken for a read."""
    found = {name: only_reads(text) for name, text in load_named_sql.statements("postgres").items()}
    assert {"tell_beats", "claim_payments", "clear_beats", "leave_beats", "lock_bookings", "claim_keys"} <= {
        name for name, reads in found.items() if not reads
    }
    assert {"read_booking", "read_events", "list_bookings", "read_free_seats"} <= {
        name for name, reads in found.items() if reads
    }


async def test_a_value_that_cannot_be_sent_says_nothing_of_the_connection(postgres_url: str) -> None:
    """It is refused once, and no other connection is replaced for it."""
    runs = 0

    async def work(transaction: Any) -> None:
        nonlocal runs
        runs += 1
        await transaction.connection.fetch("SELECT $1::integer", 2**40)

    async with opened(postgres_url) as engine:
        store: Any = engine.store
        before = store._connections._generation
        with pytest.raises(asyncpg.DataError):
            await store.transact(work, within=5)
        assert (runs, store._connections._generation) == (1, before)


@pytest.mark.parametrize("way", ["draft", "locks"])
async def test_a_connection_to_a_server_that_takes_no_writes_is_ended(
    postgres_url: str, observer: Any, way: str
) -> None:
    """The primary was demoted; once there is one again, the next request finds it."""
    name = _name(postgres_url)
    async with opened(postgres_url) as engine:
        hold = partial(VERBS[Hold], batch=[a_hold("A1")], context=CONTEXT)
        await observer.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        await observer.fetchval(f"SELECT count(pg_terminate_backend(pid)) FROM unnest(({PIDS})) AS pid")
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await engine.store.transact(hold, within=5, optimistic=way == "draft")
        await observer.execute("SET default_transaction_read_only = off")
        await observer.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        granted(await soon(engine, hold, optimistic=way == "draft"))


async def soon(engine: Engine, hold: Any, *, optimistic: bool) -> Any:
    """The outcome, once all connections to the server without writes have ended: a tenth of a second or two."""
    for _ in range(500):
        try:
            (outcome,) = await engine.store.transact(hold, within=5, optimistic=optimistic)
        except StoreUnavailable:
            await asyncio.sleep(0.01)
        else:
            return outcome
    raise AssertionError("a connection to a server without writes is used for ever")


async def test_a_server_on_a_read_only_database_is_not_ready(postgres_url: str, observer: Any) -> None:
    """Load balancers send no requests there, and the reason is reported; once it takes writes it is ready again."""
    name = _name(postgres_url)
    async with served(postgres_url, seconds=5) as (client, _):
        assert (await client.get("/readyz")).status_code == 200
        await observer.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        await observer.fetchval(f"SELECT count(pg_terminate_backend(pid)) FROM unnest(({PIDS})) AS pid")

        async def is_read_only() -> bool:
            told = await client.get("/readyz")
            return (told.status_code, told.json().get("why")) == (503, "read_only")

        await until(is_read_only)
        await observer.execute("SET default_transaction_read_only = off")
        await observer.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        await observer.fetchval(f"SELECT count(pg_terminate_backend(pid)) FROM unnest(({PIDS})) AS pid")

        async def is_ready() -> bool:
            return (await client.get("/readyz")).status_code == 200

        await until(is_ready)


async def test_a_frozen_host_does_not_use_up_the_time_of_the_next(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old primary is frozen and its standby promoted: holds succeed, and the frozen host is not tried each time."""
    monkeypatch.setattr(connect_to_writable_host, "HOST_SECONDS_MAX", SECONDS)
    async with TcpPostgresProxy(postgres_url) as proxy, a_frozen_host() as (frozen, came):
        url = proxy.url.replace("127.0.0.1", f"127.0.0.1:{frozen},127.0.0.1")
        async with opened(url) as engine:
            granted(await hold_alone(engine, "A1", within=5))
            async with engine.store.pool.acquire(), engine.store.pool.acquire():  # type: ignore[attr-defined]
                assert len(came) == 1


class SwallowingProxy(TcpPostgresProxy):
    """The first connection hangs, as one whose packets are lost in a partition; the next ones do not."""

    swallowed: asyncio.StreamWriter | None = None

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.swallowed is None:
            self.swallowed = writer
        else:
            await super()._connect(reader, writer)


@pytest.mark.parametrize("attempts", [(SECONDS, 30.0), (SECONDS,)])
async def test_a_lone_host_that_was_silent_is_tried_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, attempts: tuple[float, ...]
) -> None:
    """A silent attempt is followed by a new connection. The control: with one attempt there is no database."""
    monkeypatch.setattr(connect_to_writable_host, "LONE_HOST_SECONDS", attempts)
    async with SwallowingProxy(postgres_url) as proxy:
        if len(attempts) > 1:
            store = await PostgresStore.connect(proxy.url, clock=MovableClock())
            await store.close()
        else:
            with pytest.raises(StoreUnavailable):
                await PostgresStore.connect(proxy.url, clock=MovableClock())
        assert proxy.swallowed is not None
        proxy.swallowed.transport.abort()


async def test_a_lone_host_that_is_slow_has_longer_each_time(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the store could not connect to a server whose log-in takes longer than one attempt."""
    monkeypatch.setattr(connect_to_writable_host, "LONE_HOST_SECONDS", (0.05, 0.1, 30.0))

    async def slowly() -> bool:
        await asyncio.sleep(0.1)
        return True

    async with TcpPostgresProxy(postgres_url) as proxy:
        proxy.lets = slowly
        store = await PostgresStore.connect(proxy.url, clock=MovableClock())
        await store.close()
        assert len(proxy._lines) == 3


async def test_an_error_of_a_single_host_is_not_retried(postgres_url: str) -> None:
    """A database that does not exist is reported at once."""
    async with TcpPostgresProxy(postgres_url) as proxy:
        with pytest.raises(SetupError, match="does not exist"):
            await PostgresStore.connect(f"{proxy.url}_unknown", clock=MovableClock())
        assert len(proxy._lines) == 1


async def test_where_no_host_takes_writes_there_is_no_database(postgres_url: str, observer: Any) -> None:
    """Of several hosts one that takes writes is wanted; one that is named alone may be a replica."""
    await observer.execute(f'ALTER DATABASE "{_name(postgres_url)}" SET default_transaction_read_only = on')
    async with TcpPostgresProxy(postgres_url) as proxy:
        url = proxy.url.replace("127.0.0.1", f"127.0.0.1:{proxy.port},127.0.0.1")
        with pytest.raises(StoreUnavailable):
            await PostgresStore.connect(url, clock=MovableClock())
        alone = await PostgresStore.connect(proxy.url, clock=MovableClock())
        await alone.close()


def test_the_hosts_of_an_address() -> None:
    """As the driver reads them: in the authority or as parameters, with ports of their own or a common one."""
    assert connect_to_writable_host.hosts_of("postgresql://u:p@one:1,two:2/db") == [("one", 1), ("two", 2)]
    assert connect_to_writable_host.hosts_of("postgresql://one,two/db?port=7") == [("one", 7), ("two", 7)]
    assert connect_to_writable_host.hosts_of("postgresql:///db?host=/a,/b&port=1,2") == [("/a", 1), ("/b", 2)]
    assert connect_to_writable_host.hosts_of("postgresql://[::1]:5,[::2]/db") == [("::1", 5), ("::2", None)]
    assert connect_to_writable_host.hosts_of("postgresql:///db") == []


async def test_a_database_that_is_gone_leaves_no_traceback_of_the_driver(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests get the error; the driver's own attempts to reconnect are not for the log."""
    async with PostgresProxy(postgres_url) as proxy, opened(proxy.url) as engine:
        assert proxy._server is not None
        proxy._server.close()
        with caplog.at_level(logging.WARNING):
            proxy.cut()
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    await engine.store.read_event(EVENT)
        assert [record.name for record in caplog.records if record.name.startswith(("asyncpg", "asyncio"))] == []


async def test_a_roles_statement_timeout_makes_no_outage_of_a_locked_row(
    postgres_url: str, observer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shorter than the wait for a lock, it would cancel a batch of which most requests need another row."""
    monkeypatch.setattr("earmark.engine.wait_for_one_locked_row.LOCK_SECONDS_MAX", 0.3)
    await observer.execute(f"ALTER DATABASE \"{_name(postgres_url)}\" SET statement_timeout = '100ms'")
    async with opened(postgres_url, connection_slots=1) as engine:
        holds = [a_hold(f"A{n}", buyer=f"buyer-{n}") for n in (1, 2, 3)]
        async with observer.transaction():
            await observer.execute("SELECT FROM seats WHERE id = 'A1' FOR UPDATE")
            told = await asyncio.gather(*map(engine.hold, holds), return_exceptions=True)
    assert [type(outcome) for outcome in told] == [RowBusy, Decided, Decided]


@pytest.mark.parametrize("asked_for", [True, False])
async def test_the_isolation_of_a_connection_is_what_optimistic_writes_rely_on(
    postgres_url: str, observer: Any, monkeypatch: pytest.MonkeyPatch, *, asked_for: bool
) -> None:
    """The store checks each new connection. A pooler that drops the requested setting is refused at the start."""
    await observer.execute(
        f"ALTER DATABASE \"{_name(postgres_url)}\" SET default_transaction_isolation = 'repeatable read'"
    )
    if asked_for:
        async with opened(postgres_url) as engine:
            await engine.store.check()
            return
    monkeypatch.delitem(session_settings.SETTINGS, "default_transaction_isolation")
    with pytest.raises(SetupError, match="READ COMMITTED"):
        async with opened(postgres_url) as engine:
            await engine.store.check()


async def test_a_booking_is_read_with_the_moment_at_which_it_was_read(postgres_url: str) -> None:
    """The booking is extended in time, just after the read: the reader does not see it as expired."""
    async with opened(postgres_url) as engine:
        held = granted(await engine.hold(a_hold("A1", ttl_seconds=60)))
        store: Any = engine.store
        read, clock = store.read_rows, store._clock

        async def read_and_let_time_pass(name: str, *arguments: object) -> Any:
            found = await read(name, *arguments)
            if name in {"read_booking", "read_seat"}:
                store.read_rows = read
                granted(await engine.extend(an_extend(held)))
                clock.advance(61)
            return found

        store.read_rows = read_and_let_time_pass
        now, booking = await store.read_booking(held.id)
        assert booking is not None
        assert now < booking.expires_at
        held = booking
        store.read_rows = read_and_let_time_pass
        seen = await store.read_map(EVENT, seat_id="A1")
        assert seen.now < seen.seats[0].owner_expires_at


async def test_a_seat_that_does_not_exist_is_not_on_the_map(postgres_url: str) -> None:
    """The moment is read all the same."""
    async with opened(postgres_url) as engine:
        seen = await engine.store.read_map(EVENT, seat_id="Z99")  # type: ignore[arg-type]
        assert seen.seats == []
