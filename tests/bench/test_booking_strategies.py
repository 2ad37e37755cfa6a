from __future__ import annotations

import asyncio
import json
import os
import re
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests import skip_summary

from earmark.bench.booking.strategies import STRATEGIES, shared_hold_and_confirm
from earmark.bench.booking.strategies.redis_lock import LockThenWrite
from earmark.bench.booking.strategy_protocol import StrategySettings, Want
from earmark.bench.named_sql import named_sql
from earmark.store import postgres
from earmark.store.postgres.migrate import split_url
from earmark.testservers import ServerUnavailable, start_valkey
from earmark.wiring import open_and_maintain_databases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from uuid import UUID

    from earmark.bench.booking.strategy_protocol import Strategy
    from earmark.testservers import Postgres

FOLDER = Path(shared_hold_and_confirm.__file__).parent
OURS = ("earmark", "earmark_redis")
SEVERAL = 3
LAPSE_SECONDS_MAX = 10
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
ROWS = {
    "bookings": "SELECT * FROM bookings WHERE event_id = $1 ORDER BY id",
    "seats": "SELECT * FROM seats WHERE event_id = $1 ORDER BY id",
    "pools": "SELECT * FROM pools WHERE event_id = $1 ORDER BY id",
    "buyer_totals": "SELECT * FROM buyer_totals WHERE event_id = $1 ORDER BY buyer",
    "outside_payments": "SELECT p.* FROM outside_payments p JOIN bookings b ON b.id = p.booking_id "
    "WHERE b.event_id = $1 ORDER BY p.payment_id",
    "journal": "SELECT * FROM journal WHERE event_id = $1 AND booking_id IS NOT NULL ORDER BY booking_id, version",
}
LIVE = "SELECT count(*) FROM bookings WHERE event_id = $1 AND state IN ('held', 'confirmed')"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
EVENT = """
INSERT INTO events (id, name, currency, mode, created_at, sale_closes_at, per_buyer_max)
VALUES ($1, 'A show', 'EUR', 'test', now(), $2, $3)
"""
SEATS = """
INSERT INTO seats (event_id, id, price, position, blocked)
SELECT $1, 'A' || n, 1000 * n, n, n = 5 FROM generate_series(1, 5) n
"""
POOLS = """
INSERT INTO pools (event_id, id, capacity, price, position) VALUES ($1, 'lawn', 10, 250, 1), ($1, 'bar', 10, 90, 2)
"""


@pytest.fixture(scope="module")
def redis() -> Iterator[tuple[str, ...]]:
    """Several independent servers, as a Redlock needs them."""
    try:
        servers = [start_valkey() for _ in range(SEVERAL)]
    except ServerUnavailable as reason:
        skip_summary.missing("NOT TESTED ON A REAL SERVER", reason)
    yield tuple(server.url for server in servers)
    for server in servers:
        server.close()


@asynccontextmanager
async def opened(name: str, url: str, redis: tuple[str, ...], **place: Any) -> AsyncIterator[Strategy]:
    strategy = await STRATEGIES[name].open(StrategySettings(database=url, redis=redis, **place))
    try:
        yield strategy
    finally:
        await strategy.close()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(split_url(url)[0])
    try:
        yield connection
    finally:
        await connection.close()


async def make_event(url: str, event_id: str, *, closed: bool = False, per_buyer_max: int | None = None) -> None:
    """Five seats, the last of them blocked, and two pools of ten."""
    async with connected(url) as connection:
        closes_at = await connection.fetchval("SELECT now() - interval '1 s'") if closed else None
        await connection.execute(EVENT, event_id, closes_at, per_buyer_max)
        await connection.execute(SEATS, event_id)
        await connection.execute(POOLS, event_id)


def wanted(event_id: str, number: int = 1, **other: Any) -> Want:
    asked = {"seats": ("A2", "A1"), "pools": {"lawn": 3, "bar": 1}} | other
    return Want(event_id=event_id, buyer=f"buyer-{number}", key=f"{event_id}-{number}", **asked)


async def lapse(url: str, booking_id: UUID, *, by_hand: bool = True) -> None:
    """Move the hold's time into the past. A cache that remembers the hold does not notice this."""
    deadline = time.monotonic() + LAPSE_SECONDS_MAX
    async with connected(url) as connection:
        if by_hand:
            earlier = "UPDATE bookings SET expires_at = now() - interval '1 s' WHERE id = $1"
            await connection.execute(earlier, booking_id)
        while not await connection.fetchval("SELECT expires_at <= now() FROM bookings WHERE id = $1", booking_id):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)


async def count(url: str, statement: str, *arguments: object) -> int:
    async with connected(url) as connection:
        found: int = await connection.fetchval(statement, *arguments)
        return found


async def rows(url: str, event_id: str, bookings: list[UUID | None]) -> dict[str, list[dict[str, Any]]]:
    """Every column of every row of an event, with ids and times made comparable."""
    async with connected(url) as connection:
        found = {table: await connection.fetch(sql, event_id) for table, sql in ROWS.items()}
    names = {str(booking): f"booking-{number}" for number, booking in enumerate(bookings)} | {event_id: "event"}
    return {table: [_plain(row, table, names) for row in rows] for table, rows in found.items()}


def _plain(row: Any, table: str, names: dict[str, str]) -> dict[str, Any]:
    told = {}
    for column, value in row.items():
        if column in {"lines", "facts"}:
            told[column] = json.loads(value)
        elif column == "answer_body":
            told[column] = json.loads(value) if value else None
        elif column == "request_hash":
            told[column] = len(value) if value else None
        elif (table, column) != ("journal", "id"):
            told[column] = value
    text = json.dumps(told, default=str)
    for one, name in names.items():
        text = text.replace(one, name)
    plain: dict[str, Any] = json.loads(TIME.sub("a time", text))
    return plain


async def flow(name: str, url: str, redis: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
    """One is sold; one expires and is held by another buyer."""
    event_id = f"show-{name}"
    await make_event(url, event_id)
    async with opened(name, url, redis, connections=3) as strategy:
        sold = await strategy.hold(wanted(event_id))
        assert sold is not None
        assert await strategy.confirm(sold, payment_id=f"{event_id}-paid", key=f"{event_id}-confirm")
        lapsed = await strategy.hold(wanted(event_id, 2, seats=("A3", "A4"), pools={}, ttl_seconds=1))
        assert lapsed is not None
        await lapse(url, lapsed, by_hand=name != "earmark_redis")
        held = await strategy.hold(wanted(event_id, 3, seats=("A4",), pools={"bar": 2}))
        assert held is not None
    written = await rows(url, event_id, [sold, lapsed, held])
    # The seat of a lapsed hold is free, whether it still points to it or not.
    stray = next(seat for seat in written["seats"] if seat["id"] == "A3")
    assert stray.pop("booking_id") in {None, "booking-1"}
    return written


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in {"single_phase", "earmark"}])
async def test_every_strategy_writes_the_rows_that_earmark_writes(
    name: str, postgres_url: str, redis: tuple[str, ...]
) -> None:
    """Only what keeps two buyers apart may differ: else a comparison of speed would compare other things too."""
    theirs = await flow(name, postgres_url, redis)
    assert [len(found) for found in theirs.values()] == [3, 5, 2, 3, 1, 5]
    if not _of_earmark:
        _of_earmark.update(await flow("earmark", postgres_url, redis))
    assert theirs == _of_earmark
    assert not await flaws(postgres_url)


_of_earmark: dict[str, list[dict[str, Any]]] = {}
"""Written once; all strategies are compared with it."""


async def flaws(url: str) -> Sequence[object]:
    store = await open_and_maintain_databases.open_store(url)
    try:
        return await store.find_flaws(limit=10)
    finally:
        await store.close()


async def test_single_phase_differs_in_nothing_but_that_it_is_sold_at_once(
    postgres_url: str, redis: tuple[str, ...]
) -> None:
    """The same sale in the end, with a journal that shows it: sold first, and paid later or never."""
    sold: dict[str, Any] = {}
    for name in ("single_phase", "earmark"):
        event_id = f"show-{name}"
        await make_event(postgres_url, event_id)
        async with opened(name, postgres_url, redis, connections=3) as strategy:
            booking = await strategy.hold(wanted(event_id))
            assert booking is not None
            assert await strategy.confirm(booking, payment_id=f"{event_id}-paid", key=f"{event_id}-confirm")
            assert await strategy.hold(wanted(event_id, 2, seats=("A3",), pools={})) is not None
        sold[name] = await rows(postgres_url, event_id, [booking])
        told = [(row["before"], row["after"]) for row in sold[name].pop("journal")[:2]]
        begins = "confirmed" if name == "single_phase" else "held"
        assert told == [(None, begins), (begins, "confirmed")]
        states = [row["state"] for row in sold[name]["bookings"]]
        assert states == ["confirmed", begins], "who has not paid yet"
        del sold[name]["bookings"][1], sold[name]["seats"]
    assert sold["single_phase"] == sold["earmark"]
    assert not await flaws(postgres_url)


@pytest.mark.parametrize("name", STRATEGIES)
async def test_every_strategy_keeps_the_rules_of_a_sale(name: str, postgres_url: str, redis: tuple[str, ...]) -> None:
    """Keys, limits, payments and empty pools mean the same in all of them: none is faster by leaving a rule out."""
    event_id, limited, closed = "show", "limited", "closed"
    await make_event(postgres_url, event_id)
    await make_event(postgres_url, limited, per_buyer_max=3)
    await make_event(postgres_url, closed, closed=True)
    async with opened(name, postgres_url, redis, connections=3) as strategy:
        held = await strategy.hold(wanted(event_id))
        assert held is not None
        assert await strategy.hold(wanted(event_id)) == held, "the same key again is the same booking"
        assert await strategy.hold(wanted(event_id, seats=("A3",))) is None, "the key was for something else"
        assert await strategy.hold(wanted(event_id, 2, seats=("A3", "A2"))) is None, "all or nothing"
        assert await strategy.hold(wanted(event_id, 3, seats=("A5",))) is None, "blocked"
        assert await strategy.hold(wanted(event_id, 4, seats=("B9",))) is None, "unknown"
        assert await strategy.hold(wanted(event_id, 5, seats=(), pools={"lawn": 8})) is None, "exhausted"
        assert await strategy.hold(wanted(closed)) is None, "closed"
        assert await strategy.hold(wanted(limited, pools={"lawn": 2})) is None, "four for one buyer"
        other = await strategy.hold(wanted(limited, pools={"lawn": 1}))
        assert other is not None
        assert await strategy.confirm(held, payment_id="paid", key="confirm")
        assert await strategy.confirm(held, payment_id="paid", key="confirm"), "the same key again"
        assert not await strategy.confirm(other, payment_id="paid", key="confirm-other"), "one payment, one booking"
        assert not await strategy.confirm(held, payment_id="paid-twice", key="confirm-twice"), "it has its payment"
        await lapse(postgres_url, other)
        late = await strategy.confirm(other, payment_id="late", key="confirm-late")
        assert late is (name == "single_phase"), "money that comes too late finds the hold gone, if there was one"
    counted = [await count(postgres_url, f"SELECT count(*) FROM {table}") for table in ("bookings", "outside_payments")]
    assert counted == [2, 1 + late]
    assert not await flaws(postgres_url)


@pytest.fixture(scope="module")
def bare_url(postgres_server: Postgres) -> Iterator[str]:
    """A database without guards."""
    name = f"earmark_unguarded_{os.getpid()}"
    postgres_server.create_database(name)
    asyncio.run(postgres.migrate(postgres_server.url(name), without=("guards",)))
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


async def winners(strategy: Strategy, url: str, event_id: str, *, held_up: bool = False, buyers: int = 12) -> int:
    """How many of the buyers that come at once for one seat have it, by the database.

    Where a strategy has no moment to pause in, its buyers are `held_up` by a lock on the seat until some of them wait.
    """
    await make_event(url, event_id)
    wants = [wanted(event_id, number, seats=("A1",), pools={}) for number in range(buyers)]
    async with connected(url) as connection, connected(url) as watcher:
        blocking = connection.transaction()
        await blocking.start()
        if held_up:
            await connection.execute("SELECT FROM seats WHERE event_id = $1 AND id = 'A1' FOR UPDATE", event_id)
        racing = asyncio.gather(*map(strategy.hold, wants))
        deadline = time.monotonic() + LAPSE_SECONDS_MAX
        while held_up and await watcher.fetchval(WAITING) < 2:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await blocking.rollback()
        await racing
    return await count(url, LIVE, event_id)


async def test_naive_sells_to_every_buyer_who_looked_in_time(bare_url: str) -> None:
    """The fault that all other strategies prevent."""
    async with opened("naive", bare_url, (), pause_seconds=0.05) as strategy:
        assert await winners(strategy, bare_url, "naive") > 1


GUARDS = {
    "for_update": ("lock_seat", "FOR UPDATE OF s"),
    "for_update_nowait": ("lock_to_hold", "FOR UPDATE OF s NOWAIT"),
    "for_update_in_two_statements": ("lock_to_hold", "FOR UPDATE OF s"),
    "single_phase": ("lock_seats", "FOR UPDATE OF s"),
    "optimistic": ("point_seats_as_seen", "AND s.booking_id IS NULL AND s.fence = seen.fence"),
    "advisory": ("lock_names", "pg_advisory_xact_lock(n.name)"),
    "cte": ("hold", "FOR UPDATE"),
}
"""The clause of each strategy that keeps two buyers apart."""


class NoLocks:
    """Locks that are always granted."""

    @asynccontextmanager
    async def all_of(self, names: Sequence[str]) -> AsyncIterator[None]:
        """Grant all locks."""
        assert names
        yield

    async def close(self) -> None:
        """There are no connections to close."""


def disarm(strategy: Any, name: str) -> None:
    if isinstance(strategy, LockThenWrite):
        strategy._locks = NoLocks()
        return
    statement, guard = GUARDS[name]
    sql = dict(strategy.database.sql)
    assert sql[statement].count(guard) == 1
    strategy.database.sql = sql | {statement: sql[statement].replace(guard, "1" if name == "advisory" else "")}


@pytest.mark.parametrize("name", [*GUARDS, "redis_lock", "redlock"])
async def test_without_its_guard_a_strategy_is_naive(name: str, bare_url: str, redis: tuple[str, ...]) -> None:
    """The control: this clause keeps two buyers apart, and a race notices if it is missing."""
    async with opened(name, bare_url, redis, pause_seconds=0.05) as strategy:
        disarm(strategy, name)
        assert await winners(strategy, bare_url, name, held_up=name == "cte") > 1


def test_every_file_opens_with_its_idea_and_its_flaw() -> None:
    """Each file says what the strategy is for and where it fails."""
    files = [FOLDER / f"{'earmark_engine' if name in OURS else name}.py" for name in STRATEGIES]
    opening = {file.name: file.read_text(encoding="utf-8").partition('"""\n')[0] for file in files}
    assert all("\nThe idea: " in text and "\nThe flaw: " in text for text in opening.values())
    shared = {"__init__.py", "shared_hold_and_confirm.py", "build_rows_all_strategies_write.py"}
    assert {file.name for file in FOLDER.glob("*.py")} == opening.keys() | shared, "a file that is not listed"


def test_every_statement_has_a_reason_and_a_use() -> None:
    """A reader needs the reason of a query, and must not find SQL that is never used."""
    code = "".join(file.read_text(encoding="utf-8") for file in FOLDER.glob("*.py"))
    for file in (FOLDER / "sql").glob("*.sql"):
        named = re.findall(r"^-- name: (\w+)\n(-- )?", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert [name for name, _ in named] == list(named_sql(shared_hold_and_confirm.__package__, file.stem))
        assert all(reason and f'"{name}"' in code for name, reason in named), file.name
