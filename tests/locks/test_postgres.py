from __future__ import annotations

import asyncio
import os
import re
import time
from contextlib import asynccontextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from earmark.locks import postgres
from earmark.locks.backend_protocol import Claim, Group
from earmark.locks.errors import LockBusy, LocksUnavailable, TimeRefused
from earmark.locks.postgres import PostgresLeases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from earmark.locks.backend_protocol import Backend, Grant
    from earmark.testservers import Postgres

SECONDS_MAX = 20.0
"""For what is not about deadlines: far above what a busy machine needs."""


def claim(*keys: str, token: str, ttl: float = 60.0, wait: float = 0.0) -> Claim:
    return Claim(tuple(sorted(keys)), token, ttl, wait, f"holder of {token}")


def number_of(grant: Grant) -> int:
    assert grant.fence is not None
    return grant.fence


@pytest.fixture(scope="module")
def url(postgres_server: Postgres) -> Iterator[str]:
    """A database for the tests of this file."""
    name = f"earmark_leases_{os.getpid()}"
    postgres_server.create_database(name)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
async def database(url: str) -> AsyncIterator[Any]:
    """A session beside those of the leases, which finds an empty table, or none yet."""
    connection = await asyncpg.connect(url)
    await connection.execute("DROP TABLE IF EXISTS earmark_locks")
    yield connection
    await connection.close()


@pytest.fixture
async def open_leases(url: str, database: Any) -> AsyncIterator[Callable[..., PostgresLeases]]:
    """Opens leases on the database, and closes them after the test."""
    assert database
    opened: list[PostgresLeases] = []

    def open_one(*, query: str = "", **knobs: Any) -> PostgresLeases:
        address = url + (("&" if "?" in url else "?") + query if query else "")
        opened.append(PostgresLeases(address, **{"timeout": SECONDS_MAX, **knobs}))
        return opened[-1]

    yield open_one
    for leases in opened:
        await leases.close()


@pytest.fixture
def leases(open_leases: Callable[..., PostgresLeases]) -> PostgresLeases:
    """Leases on an empty table."""
    return open_leases()


@asynccontextmanager
async def table_locked(url: str) -> AsyncIterator[None]:
    """Callers that want a lease meanwhile get no answer."""
    blocker = await asyncpg.connect(url)
    try:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE earmark_locks IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await blocker.close()


async def until_true(fact: Callable[[], Any]) -> None:
    for _ in range(int(SECONDS_MAX * 100)):
        if await fact():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it never came true")


async def blocked_in(database: Any) -> bool:
    """Whether a session waits for a lock that another session has."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(await database.fetchval(waiting))


async def test_it_stands_behind_the_port(leases: PostgresLeases) -> None:
    """PostgreSQL has no queue, and declares that; the rest it can do."""
    backend: Backend = leases
    assert backend.groups == {Group.FENCE, Group.MANY}
    await backend.ping()


async def test_making_locks_contacts_no_server() -> None:
    """A program starts while its database is down, and gets the error when it locks."""
    leases = PostgresLeases("postgresql://nobody@127.0.0.1:1/nowhere", timeout=SECONDS_MAX)
    with pytest.raises(LocksUnavailable):
        await leases.ping()
    with pytest.raises(LocksUnavailable):
        await leases.acquire(claim("a:1", token="A"))
    assert not leases._returning
    await leases.close()


async def test_a_taken_key_is_refused_and_had_after_the_release(leases: PostgresLeases) -> None:
    """One holder at a time, fail-fast by default."""
    held = await leases.acquire(claim("a:1", token="A"))
    with pytest.raises(LockBusy) as refused:
        await leases.acquire(claim("a:1", token="B"))
    assert refused.value.keys == ["a:1"]
    assert await leases.release(held) is True
    assert (await leases.acquire(claim("a:1", token="B"))).claim.token == "B"


async def test_of_a_hundred_at_once_one_has_it(open_leases: Callable[..., PostgresLeases]) -> None:
    """Two pools race for one new key, and for its table too."""
    pools = [open_leases(), open_leases()]
    asked = [pools[number % 2].acquire(claim("a:1", token=f"T{number}")) for number in range(100)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, LockBusy) for answer in answers) == 99


async def test_asking_before_taking_gives_it_to_several(database: Any, url: str) -> None:
    """The control: without one statement that asks and takes, both of two take."""
    await database.execute("CREATE TABLE IF NOT EXISTS naive (key text, token text)")
    other = await asyncpg.connect(url)
    free = [not await session.fetchval("SELECT count(*) FROM naive WHERE key = 'a:1'") for session in (database, other)]
    for session in (database, other):
        await session.execute("INSERT INTO naive VALUES ('a:1', 'mine')")
    await other.close()
    assert free == [True, True]
    assert await database.fetchval("SELECT count(*) FROM naive") == 2


async def test_the_table_is_made_once_by_many_at_once(
    open_leases: Callable[..., PostgresLeases], database: Any
) -> None:
    """CREATE TABLE IF NOT EXISTS fails when two sessions create it at the same moment; no caller sees that."""
    for _ in range(5):
        await database.execute("DROP TABLE IF EXISTS earmark_locks")
        pools = [open_leases(connections_max=1) for _ in range(8)]
        for pool in pools:
            await pool.ping()
        grants = await asyncio.gather(
            *(pool.acquire(claim(f"a:{number}", token="A")) for number, pool in enumerate(pools))
        )
        assert len(grants) == 8
        for pool in pools:
            await pool.close()


async def test_several_keys_are_had_together_or_not_at_all(leases: PostgresLeases, database: Any) -> None:
    """The refusal names what is taken, and leaves the others as they were."""
    await leases.acquire(claim("a:2", "a:4", token="A"))
    with pytest.raises(LockBusy) as refused:
        await leases.acquire(claim("a:1", "a:2", "a:3", "a:4", token="B"))
    assert refused.value.keys == ["a:2", "a:4"]
    assert [holding.key for holding in await leases.holdings()] == ["a:2", "a:4"]
    assert await database.fetchval("SELECT count(*) FROM earmark_locks") == 2


async def test_opposite_orders_never_deadlock(
    open_leases: Callable[..., PostgresLeases], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acquiring, extending, numbering and releasing take their rows in one order; the server cut nothing."""
    monkeypatch.setattr(postgres, "TRIES_MAX", 2)  # One for the missing table.
    monkeypatch.setattr(postgres, "TOO_EARLY", ())
    pools = [open_leases(), open_leases()]
    done = 0

    async def work(number: int) -> None:
        nonlocal done
        keys = ("a:1", "a:2", "a:3") if number % 2 else ("a:3", "b:1", "a:1")
        pool = pools[number % 2]
        for turn in range(5):
            grant = await pool.acquire(claim(*keys, token=f"T{number}.{turn}", wait=SECONDS_MAX))
            await pool.next_fence(sorted(keys, reverse=True))
            assert await pool.extend(grant, ttl=70)
            done += await pool.release(grant)

    await asyncio.gather(*(work(number) for number in range(8)))
    assert done == 40


@pytest.mark.parametrize("verb", ["acquire", "next_fence", "extend", "release"])
async def test_rows_are_taken_in_order_of_key(leases: PostgresLeases, database: Any, url: str, verb: str) -> None:
    """A caller that is stopped at the first key has none of the others yet; a cycle of waiters cannot form."""
    mine = claim("a:1", "a:2", "a:3", token="A")
    grant = await leases.acquire(mine)
    asks: dict[str, Callable[[], Any]] = {
        "acquire": lambda: leases.acquire(mine),
        "next_fence": lambda: leases.next_fence(mine.keys),
        "extend": lambda: leases.extend(grant, ttl=70),
        "release": lambda: leases.release(grant),
    }
    other = await asyncpg.connect(url)
    async with other.transaction():
        await other.execute("SELECT 1 FROM earmark_locks WHERE key = 'a:1' FOR UPDATE")
        asking = asyncio.create_task(asks[verb]())
        await until_true(lambda: blocked_in(database))
        free = await database.fetch("SELECT key FROM earmark_locks ORDER BY key FOR UPDATE SKIP LOCKED")
    assert await asking
    await other.close()
    assert [row["key"] for row in free] == ["a:2", "a:3"]


async def test_rows_taken_in_opposite_orders_do_deadlock(leases: PostgresLeases, database: Any, url: str) -> None:
    """The control: the database cuts one of two sessions that update the same rows in opposite orders."""
    await leases.acquire(claim("a:1", "a:2", token="A"))
    other = await asyncpg.connect(url, server_settings={"deadlock_timeout": "10ms"})
    touch = "UPDATE earmark_locks SET fence = fence + 1 WHERE key = $1"
    first, second = database.transaction(), other.transaction()
    await first.start()
    await second.start()
    await database.execute(touch, "a:1")
    await other.execute(touch, "a:2")
    crossing = asyncio.create_task(database.execute(touch, "a:2"))
    with pytest.raises(asyncpg.DeadlockDetectedError):
        await other.execute(touch, "a:1")
    await second.rollback()
    await crossing
    await first.rollback()
    await other.close()


async def test_a_deadlock_that_others_cause_is_tried_again(
    leases: PostgresLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hand-written SQL may take rows in any order; a lease bears that."""
    await leases.acquire(claim("a:0", token="0"))
    cut = [asyncpg.DeadlockDetectedError("cut"), asyncpg.SerializationError("moved")]
    every = PostgresLeases._every

    async def sometimes_cut(self: PostgresLeases, *arguments: Any) -> list[Any]:
        if cut:
            raise cut.pop()
        return await every(self, *arguments)

    monkeypatch.setattr(PostgresLeases, "_every", sometimes_cut)
    assert (await leases.acquire(claim("a:1", token="A"))).fence
    assert cut == []


async def test_a_late_release_does_not_touch_the_next_holder(leases: PostgresLeases) -> None:
    """A runs out, B acquires, A releases, C tries: B's lease stands."""
    late = await leases.acquire(claim("a:1", token="A", ttl=0.02))
    await leases.acquire(claim("a:1", token="B", wait=SECONDS_MAX))
    assert await leases.release(late) is False
    assert await leases.extend(late, ttl=60) is False
    with pytest.raises(LockBusy):
        await leases.acquire(claim("a:1", token="C"))


async def test_the_database_judges_when_a_lease_ends(leases: PostgresLeases, database: Any) -> None:
    """However long a client thinks that it has, the row says."""
    late = await leases.acquire(claim("a:1", token="A", ttl=3600))
    assert late.until > time.monotonic()
    await database.execute("UPDATE earmark_locks SET expires_at = clock_timestamp()")
    assert await leases.extend(late, ttl=3600) is False
    assert await leases.holdings() == []
    assert await leases.find("a:1") is None
    assert (await leases.acquire(claim("a:1", token="B"))).claim.token == "B"
    assert await leases.release(late) is False


async def test_a_release_after_the_end_returns_false_even_if_the_key_is_free(
    leases: PostgresLeases, database: Any
) -> None:
    """A holder that worked past the end must learn of it."""
    late = await leases.acquire(claim("a:1", "a:2", token="A"))
    await database.execute("UPDATE earmark_locks SET expires_at = clock_timestamp() WHERE key = 'a:1'")
    assert await leases.release(late) is False
    assert await database.fetchval("SELECT count(token) FROM earmark_locks") == 0


async def test_a_client_never_believes_in_its_lease_longer_than_the_database(
    leases: PostgresLeases, database: Any
) -> None:
    """`until` counts from before the question, `expires_at` from after it."""
    left = "SELECT min(extract(epoch FROM expires_at - clock_timestamp()))::float8 FROM earmark_locks"

    async def client_minus_database() -> float:
        seconds = await database.fetchval(left)
        return float(grant.until - time.monotonic() - seconds)

    grant = await leases.acquire(claim("a:1", "a:2", token="A", ttl=50))
    assert await client_minus_database() <= 0
    assert await leases.extend(grant, ttl=500)
    assert await client_minus_database() <= 0


async def test_an_extension_never_shortens(leases: PostgresLeases) -> None:
    """A second watchdog with a shorter breath takes nothing away."""
    grant = await leases.acquire(claim("a:1", token="A", ttl=500))
    before = grant.until
    assert await leases.extend(grant, ttl=5)
    found = await leases.find("a:1")
    assert found
    assert grant.until == before
    assert found.ttl_seconds > 400


async def test_an_extension_is_all_or_nothing(leases: PostgresLeases, database: Any) -> None:
    """A lease that lost one key is lost; its other keys are not kept longer."""
    grant = await leases.acquire(claim("a:1", "a:2", token="A", ttl=50))
    assert await leases.evict("a:1") is True
    assert await leases.evict("a:1") is False
    assert await leases.extend(grant, ttl=5000) is False
    longest = "SELECT max(expires_at) < clock_timestamp() + interval '100 seconds' FROM earmark_locks"
    assert await database.fetchval(longest) is True


async def test_the_fence_grows_over_release_and_expiry(leases: PostgresLeases, database: Any) -> None:
    """Every grant of a key has a greater number, and it is about the time in microseconds, as Redis's is."""
    fences = []
    for number in range(3):
        grant = await leases.acquire(claim("a:1", token=f"T{number}"))
        fences.append(number_of(grant))
        if number == 1:
            await database.execute("UPDATE earmark_locks SET expires_at = clock_timestamp()")
        else:
            await leases.release(grant)
    assert fences == sorted(set(fences))
    assert abs(fences[0] / 1e6 - time.time()) < 3600


async def test_the_fence_grows_while_the_clock_goes_back(leases: PostgresLeases, database: Any) -> None:
    """The row remembers a number from the future, and the next one is above it."""
    first = await leases.acquire(claim("a:1", token="A"))
    await leases.release(first)
    ahead = number_of(first) + 10**12
    await database.execute("UPDATE earmark_locks SET fence = $1", ahead)
    assert (await leases.acquire(claim("a:1", token="B"))).fence == ahead + 1
    assert await leases.next_fence(["a:1"]) == ahead + 2


async def test_keys_taken_together_share_a_number_above_the_last_of_each(leases: PostgresLeases, database: Any) -> None:
    """One number is sent along with every write, whichever of the keys guards it."""
    first = await leases.acquire(claim("a:1", "a:2", token="A"))
    await leases.release(first)
    ahead = number_of(first) + 10**12
    await database.execute("UPDATE earmark_locks SET fence = $1 WHERE key = 'a:2'", ahead)
    both = await leases.acquire(claim("a:1", "a:2", token="B"))
    assert number_of(both) > ahead
    assert {holding.fence for holding in await leases.holdings()} == {both.fence}
    await leases.release(both)
    assert number_of(await leases.acquire(claim("a:1", token="C"))) > number_of(both)


async def test_the_same_token_again_keeps_its_number(leases: PostgresLeases, database: Any) -> None:
    """A caller that did not receive the answer tries again, and has what it had."""
    for keys in (("a:1",), ("b:1", "b:2")):
        first = await leases.acquire(claim(*keys, token="A", ttl=50))
        again = await leases.acquire(claim(*keys, token="A", ttl=500))
        assert again.fence == first.fence
        assert {found.ttl_seconds > 400 for found in await leases.holdings(match=f"{keys[0][0]}*")} == {True}
    await database.execute("UPDATE earmark_locks SET expires_at = clock_timestamp() WHERE key = 'a:1'")
    assert number_of(await leases.acquire(claim("a:1", token="A"))) > 0


async def test_a_number_for_another_server_leaves_the_lease_alone(leases: PostgresLeases, database: Any) -> None:
    """A key may be leased here and numbered for Redis: each has its own number, and the next is above both."""
    here = await leases.acquire(claim("a:1", token="A"))
    there = await leases.next_fence(["a:1"])
    assert there > number_of(here)
    found = await leases.find("a:1")
    assert found
    assert (found.token, found.fence) == ("A", here.fence)
    assert (await leases.acquire(claim("a:1", token="A"))).fence == here.fence
    assert await leases.last_fences(["a:1", "a:9"]) == {"a:1": there}
    assert await leases.release(here) is True
    assert number_of(await leases.acquire(claim("a:1", token="B"))) > there
    assert await leases.next_fence(["b:1"]) > 0
    assert await database.fetchval("SELECT token FROM earmark_locks WHERE key = 'b:1'") is None


async def test_a_waiter_has_it_after_the_release(open_leases: Callable[..., PostgresLeases]) -> None:
    """It asks again, at moments that chance spreads over a growing span."""
    spans: list[float] = []

    def jitter() -> float:
        spans.append(1.0)
        return 0.01

    leases = open_leases(jitter=jitter)
    held = await leases.acquire(claim("a:1", token="A"))
    waiting = asyncio.create_task(leases.acquire(claim("a:1", token="B", wait=SECONDS_MAX)))
    await until_true(lambda: asyncio.sleep(0, len(spans) > 3))
    await leases.release(held)
    assert (await waiting).claim.token == "B"


async def test_waiting_ends_at_its_deadline(open_leases: Callable[..., PostgresLeases]) -> None:
    """However long the pause would be, the last try is at the deadline."""
    leases = open_leases(jitter=lambda: 1e6)
    await leases.acquire(claim("a:1", token="A"))
    with pytest.raises(LockBusy) as refused:
        await leases.acquire(claim("a:1", "a:2", token="B", wait=0.05))
    assert refused.value.keys == ["a:1"]
    assert refused.value.waited_seconds is not None
    assert 0.05 <= refused.value.waited_seconds < SECONDS_MAX


async def test_pauses_grow_and_are_cut_by_chance(
    open_leases: Callable[..., PostgresLeases], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full jitter: any moment of the span; the span doubles up to its limit."""
    slept: list[float] = []
    leases = open_leases(jitter=lambda: 0.5)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 7:
            await leases.evict("a:1")

    await leases.acquire(claim("a:1", token="A"))
    monkeypatch.setattr(asyncio, "sleep", sleep)
    await leases.acquire(claim("a:1", token="B", wait=3600))
    assert slept == [0.005, 0.01, 0.02, 0.04, 0.08, 0.125, 0.125]


async def test_a_silent_database_is_given_up_at_the_deadline_and_nothing_is_left(
    open_leases: Callable[..., PostgresLeases], url: str, database: Any
) -> None:
    """The answer comes in time, and what was asked for does not happen later."""
    leases = open_leases(timeout=0.2)
    held = await leases.acquire(claim("a:0", token="0"))
    async with table_locked(url):
        for asked in (
            leases.acquire(claim("a:1", token="A")),
            leases.acquire(claim("a:1", "a:2", token="B", wait=3600)),
            leases.release(held),
            leases.extend(held, ttl=60),
            leases.holdings(),
            leases.next_fence(["a:1"]),
        ):
            with pytest.raises(LocksUnavailable):
                await asyncio.wait_for(asked, SECONDS_MAX)
        assert leases._returning
    await leases.close()
    assert await database.fetchval("SELECT count(*) FROM earmark_locks WHERE key <> 'a:0'") == 0


async def test_what_was_taken_without_an_answer_is_given_back(
    open_leases: Callable[..., PostgresLeases], database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effect happened and the answer was lost: the lease is released in the background."""
    leases = open_leases()
    await leases.acquire(claim("a:0", token="0"))
    every = PostgresLeases._every
    owner = "SELECT token FROM earmark_locks WHERE key = 'a:1'"
    owners = []

    async def lose_the_answer(self: PostgresLeases, connection: Any, query: str, *rest: Any) -> list[Any]:
        await every(self, connection, query, *rest)
        owners.append(await connection.fetchval(owner))
        raise asyncpg.ConnectionDoesNotExistError("lost")

    monkeypatch.setattr(PostgresLeases, "_every", lose_the_answer)
    with pytest.raises(LocksUnavailable):
        await leases.acquire(claim("a:1", token="A"))
    await asyncio.wait(set(leases._returning.values()))
    owners.append(await database.fetchval(owner))
    with pytest.raises(LocksUnavailable):
        await leases.acquire(claim("a:1", token="B"))
    monkeypatch.setattr(PostgresLeases, "_every", every)
    # Asked again under the same token, it waits for that first, and then keeps what it has.
    assert leases._returning
    await leases.acquire(claim("a:1", token="B"))
    await leases.close()
    owners.append(await database.fetchval(owner))
    assert owners == ["A", None, "B", "B"]


async def test_a_cancelled_acquire_leaves_nothing(
    open_leases: Callable[..., PostgresLeases], url: str, database: Any
) -> None:
    """Cancelled while the statement is on its way, it happens neither now nor later."""
    leases = open_leases()
    await leases.acquire(claim("a:0", token="0"))
    async with table_locked(url):
        for keys in (("a:1",), ("a:1", "a:2")):
            asking = asyncio.create_task(leases.acquire(claim(*keys, token="A", wait=60)))
            await until_true(lambda: blocked_in(database))
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
    await leases.close()
    assert await database.fetchval("SELECT count(token) FROM earmark_locks WHERE key <> 'a:0'") == 0


async def test_a_cancelled_acquire_at_any_moment_leaves_nothing(leases: PostgresLeases, database: Any) -> None:
    """Wherever in the exchange with the server it is hit."""
    await leases.acquire(claim("a:0", token="0"))
    for steps in range(40):
        keys = ("a:1",) if steps % 2 else ("a:1", "a:2")
        asking = asyncio.create_task(leases.acquire(claim(*keys, token=f"T{steps}")))
        for _ in range(steps // 2):
            await asyncio.sleep(0)
        asking.cancel()
        try:
            await leases.release(await asking)
        except asyncio.CancelledError:
            continue
        except LockBusy:
            continue
    await leases.close()
    assert await database.fetchval("SELECT count(token) FROM earmark_locks WHERE key <> 'a:0'") == 0


async def test_nothing_stays_open_while_a_lease_is_held(leases: PostgresLeases, database: Any) -> None:
    """No transaction, no advisory lock: a pooler may give the connection to any other client."""
    await leases.acquire(claim("a:1", "a:2", token="A"))
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    assert await database.fetchval(f"SELECT array_agg(DISTINCT state) {others}") == ["idle"]
    held = "FROM pg_locks WHERE pid <> pg_backend_pid() AND (locktype = 'advisory' OR relation = $1::regclass)"
    assert await database.fetchval(f"SELECT count(*) {held}", "earmark_locks") == 0


async def test_the_way_through_a_pooler_uses_no_session(
    open_leases: Callable[..., PostgresLeases], database: Any
) -> None:
    """`?pgbouncer=true`: no setting on the connection and no prepared statement, and all the rest the same."""
    leases = open_leases(query="pgbouncer=true")
    for keys in (("a:1",), ("a:1", "a:2")):
        grant = await leases.acquire(claim(*keys, token="A"))
        assert await leases.extend(grant, ttl=70)
        assert await leases.release(grant)
    pool = await leases._open()
    async with pool.acquire() as connection:
        assert await connection.fetchval("SHOW statement_timeout") == "0"
        assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''") == 0
    assert await database.fetchval("SELECT count(token) FROM earmark_locks") == 0


async def test_a_direct_connection_is_cut_by_the_server_too(open_leases: Callable[..., PostgresLeases]) -> None:
    """A client that is killed without a word leaves no statement that waits, and no open transaction."""
    leases = open_leases(timeout=7)
    pool = await leases._open()
    async with pool.acquire() as connection:
        shown = [
            await connection.fetchval(f"SHOW {name}")
            for name in ("statement_timeout", "idle_in_transaction_session_timeout", "default_transaction_isolation")
        ]
    assert shown == ["7s", "7s", "read committed"]


async def test_an_operator_sees_the_holder(leases: PostgresLeases) -> None:
    """By pattern, in order of key, with a limit."""
    for key in ("event:{opera}:seat:A1", "event:{opera}:seat:B1", "order:1"):
        await leases.acquire(claim(key, token=key))
    assert [found.key for found in await leases.holdings(match="event:{opera}:*")] == [
        "event:{opera}:seat:A1",
        "event:{opera}:seat:B1",
    ]
    assert [found.key for found in await leases.holdings(match="*[A-B]1", limit=1)] == ["event:{opera}:seat:A1"]
    (found,) = await leases.holdings(match="order:?")
    assert (found.holder, found.token) == ("holder of order:1", "order:1")
    assert found.age_seconds >= 0
    assert 0 < found.ttl_seconds <= 60
    assert await leases.find("order:1") is not None
    assert await leases.find("order:2") is None


async def test_a_prefix_keeps_two_programs_apart(open_leases: Callable[..., PostgresLeases]) -> None:
    """Two programs on one database are rivals only if they name themselves alike."""
    shop, till, also_shop = open_leases(prefix="shop"), open_leases(prefix="till"), open_leases(prefix="shop")
    await shop.acquire(claim("a:1", token="A"))
    await till.acquire(claim("a:1", token="B"))
    with pytest.raises(LockBusy) as refused:
        await also_shop.acquire(claim("a:1", token="C"))
    assert refused.value.keys == ["a:1"]
    assert [(found.key, found.token) for found in await shop.holdings()] == [("a:1", "A")]
    assert list(await till.last_fences(["a:1"])) == ["a:1"]
    assert await till.prune(0) == 0


async def test_pruning_deletes_only_rows_that_are_not_needed(
    leases: PostgresLeases, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held, young, or numbered ahead of the clock: these stay."""
    monkeypatch.setattr(postgres, "PRUNE_ROWS_MAX", 2)
    for number in range(6):
        grant = await leases.acquire(claim(f"a:{number}", token=f"T{number}"))
        if number:
            await leases.release(grant)
    assert await leases.prune(3600) == 0
    ahead = number_of(await leases.acquire(claim("b:1", token="B"))) + 10**12
    await leases.evict("b:1")
    await database.execute("UPDATE earmark_locks SET fence = $1 WHERE key = 'b:1'", ahead)
    assert await leases.prune(0) == 5
    left = await database.fetch("SELECT key FROM earmark_locks ORDER BY key")
    assert [row["key"] for row in left] == ["a:0", "b:1"]
    with pytest.raises(TimeRefused):
        await leases.prune(-1)


async def test_closed_leases_refuse(open_leases: Callable[..., PostgresLeases]) -> None:
    """Nothing is opened again after `close`; closing twice is fine."""
    leases = open_leases()
    await leases.acquire(claim("a:1", token="A"))
    await leases.close()
    await leases.close()
    with pytest.raises(LocksUnavailable, match="closed"):
        await leases.ping()


async def test_closing_does_not_wait_for_a_silent_database(
    open_leases: Callable[..., PostgresLeases], url: str, database: Any
) -> None:
    """Calls in progress fail, and the connections are closed."""
    leases = open_leases()
    await leases.acquire(claim("a:0", token="0"))
    async with table_locked(url):
        asking = asyncio.create_task(leases.acquire(claim("a:1", token="A")))
        await until_true(lambda: blocked_in(database))
        await asyncio.wait_for(leases.close(), SECONDS_MAX)
        with pytest.raises(LocksUnavailable):
            await asking


async def test_a_lost_connection_is_an_outage_and_not_the_end(leases: PostgresLeases, database: Any) -> None:
    """The database was started again: one refusal at most for each connection, then it works."""
    held = await leases.acquire(claim("a:1", token="A"))
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    await database.execute(f"SELECT pg_terminate_backend(pid) {others}")

    async def released() -> bool:
        try:
            return await leases.release(held)
        except LocksUnavailable:
            return False

    await until_true(released)
    assert await leases.find("a:1") is None


async def test_a_database_that_forbids_tables_says_so(
    open_leases: Callable[..., PostgresLeases], database: Any
) -> None:
    """The refusal says what an operator has to do; with a table that the operator made it works."""
    role = f"poor_{os.getpid()}"
    await database.execute(f"CREATE ROLE {role}; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    poor = open_leases(query=f"role={role}")
    try:
        with pytest.raises(LocksUnavailable, match="permission denied"):
            await poor.acquire(claim("a:1", token="A"))
        await database.execute(postgres._queries()["create_table"])
        await database.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON earmark_locks TO {role}")
        assert (await poor.acquire(claim("a:1", token="A"))).fence
    finally:
        await poor.close()
        await database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_the_schema_refuses_half_a_lease(leases: PostgresLeases, database: Any) -> None:
    """What the statements keep whole, the table keeps whole too."""
    await leases.acquire(claim("a:1", token="A"))
    with pytest.raises(asyncpg.CheckViolationError, match="lease_is_whole"):
        await database.execute("UPDATE earmark_locks SET token = NULL")
    with pytest.raises(asyncpg.CheckViolationError, match="fence_covers_lease"):
        await database.execute("UPDATE earmark_locks SET fence = lease_fence - 1")


def test_every_statement_has_a_reason_and_a_use() -> None:
    """Dead SQL is believed by the next reader, and a statement without a reason is a riddle."""
    text = (resources.files("earmark.locks") / "sql" / "postgres.sql").read_text(encoding="utf-8")
    names = re.findall(r"^-- name: (\w+)$", text, re.MULTILINE)
    code = (resources.files("earmark.locks") / "postgres.py").read_text(encoding="utf-8")
    assert sorted(postgres._queries()) == sorted(names)
    assert not [name for name in names if f'"{name}"' not in code]
