"""Maintenance, over every store: idempotency records are removed, the journal stays, counts can be corrected."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from earmark.domain.id_types import Buyer, EntryId, EventId, PoolId, PoolRef, TotalRef
from earmark.domain.idempotency_record import IdempotencyKey, IdempotencyRecord
from earmark.domain.journal_entry import Entry
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor, Decided, KeyedRequest, Replayed
from earmark.engine.ports.heartbeats import HeartbeatReport, Process
from earmark.engine.ports.number_and_read_journal import START
from earmark.engine.ports.store import Changes
from earmark.store import load_named_sql
from earmark.store.postgres import PostgresStore
from earmark.store.postgres.session_settings import SETTINGS
from earmark.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.engine.ports.store import Store, Transaction
    from earmark.uuids import Uuid7Ids

    from .conftest import Shop

Memos = Callable[..., KeyedRequest]
DAY = 86_400
GA = PoolRef(EventId("concert"), PoolId("GA"))
ADA = TotalRef(EventId("concert"), Buyer("ada"))


async def by_hand(store: Store, sql: str) -> None:
    """SQL that no verb would run."""
    if isinstance(store, SqliteStore):
        await store.access.read_after_commit(lambda connection: connection.execute(sql), within=5)
    else:
        assert isinstance(store, PostgresStore)
        await store.pool.execute(sql)


async def story(shop: Shop, booking: Booking) -> list[Entry]:
    """The history of a booking, without idempotency records."""
    return [msgspec.structs.replace(entry, key=None, memory=None) for entry in await shop.history(booking)]


async def drift(store: Store) -> None:
    """The pool counts two more than is held, and Ada's total one more than she has."""
    await by_hand(store, "UPDATE pools SET held = held + 2 WHERE id = 'GA'")
    await by_hand(store, "UPDATE buyer_totals SET units = units + 1 WHERE buyer = 'ada'")


async def test_a_key_is_replayed_to_its_last_second_and_then_decided_anew(
    shop: Shop, store: Store, idempotency: Memos, clock: MovableClock
) -> None:
    """A day is a day: a second before it is over the answer is the first one, and then the seat is asked for anew."""
    await shop.create()
    first = await shop.engine.hold(shop.ask_hold("ada", "A1", ttl=60, idempotency=idempotency("k")))
    clock.advance(DAY - 1)
    assert (await store.upkeep.forget_keys(seconds=DAY, limit=100)).cleared == 0
    again = await shop.engine.hold(shop.ask_hold("ada", "A1", ttl=60, idempotency=idempotency("k")))
    assert isinstance(again, Replayed)
    clock.advance(2)
    assert (await store.upkeep.forget_keys(seconds=DAY, limit=100)).cleared == 1
    anew = await shop.engine.hold(shop.ask_hold("ada", "A1", ttl=60, idempotency=idempotency("k")))
    assert isinstance(first, Decided)
    assert isinstance(anew, Decided)
    assert anew.value.id != first.value.id


async def test_what_happened_stays_when_a_key_forgets(
    shop: Shop, store: Store, idempotency: Memos, clock: MovableClock
) -> None:
    """The journal is the audit and the outbox: its entries and their numbers are never touched."""
    await shop.create(idempotency=idempotency("c"))
    held = await shop.engine.hold(shop.ask_hold("ada", "A1", idempotency=idempotency("k")))
    assert isinstance(held, Decided)
    await store.outbox.number(after=START, limit=100)
    before = await story(shop, held.value)
    numbered = await store.outbox.read_numbered(EventId("concert"), after=0, limit=100)
    clock.advance(DAY + 1)
    assert (await store.upkeep.forget_keys(seconds=DAY, limit=100)).cleared == 2
    assert await story(shop, held.value) == before
    told = await store.outbox.read_numbered(EventId("concert"), after=0, limit=100)
    assert [one.entry.id for one in told] == [one.entry.id for one in numbered]
    assert [one.sequence for one in told] == [1, 2]


async def test_a_walk_is_bounded_and_the_next_goes_on_where_it_stopped(
    shop: Shop, store: Store, idempotency: Memos, clock: MovableClock
) -> None:
    """However long the journal is, a round looks at a few entries, and none of them twice."""
    await shop.create()
    for number in range(1, 5):
        await shop.engine.hold(shop.ask_hold("ada", f"A{number}", idempotency=idempotency(f"k{number}")))
    clock.advance(DAY + 1)
    await shop.create("tomorrow", idempotency=idempotency("new"))
    rounds = [await store.upkeep.forget_keys(seconds=DAY, limit=2) for _ in range(4)]
    assert [(one.cleared, one.more) for one in rounds] == [(1, True), (2, True), (1, False), (0, False)]
    again = await shop.engine.create_event(shop.ask_create("tomorrow", idempotency=idempotency("new")))
    assert isinstance(again, Replayed)


async def test_only_a_walk_from_the_start_meets_an_entry_of_a_clock_that_was_behind(
    shop: Shop, store: Store, idempotency: Memos, clock: MovableClock, ids: Uuid7Ids
) -> None:
    """Its id sorts among entries that were passed long ago. It is remembered for longer, which does no harm."""
    late = ids.entry_id()
    await shop.create(idempotency=idempotency("c"))
    clock.advance(DAY + 1)
    assert (await store.upkeep.forget_keys(seconds=DAY, limit=10)).cleared == 1
    key, memory = IdempotencyKey("shop", "late"), IdempotencyRecord(request_hash=b"r", status=201, body=b"b")

    async def work(transaction: Transaction) -> None:
        at = (await transaction.begin([])).now - timedelta(seconds=DAY)
        entry = Entry(
            id=late, event_id=EventId("x"), verb="hold", at=at, actor="shop", facts={}, key=key, memory=memory
        )
        await transaction.write(Changes(entries=[entry]))

    await store.transact(work, within=10)
    assert (await store.upkeep.forget_keys(seconds=DAY, limit=10)).cleared == 0
    assert (await store.upkeep.forget_keys(seconds=DAY, limit=10, from_start=True)).cleared == 1


async def test_a_walk_that_meets_another_passes_by(
    postgres_store: PostgresStore, ids: Uuid7Ids, idempotency: Memos, clock: MovableClock
) -> None:
    """One janitor walks at a time, so that none goes on behind entries that another may yet give up."""
    from .conftest import Shop

    shop = Shop(postgres_store, ids=ids)
    await shop.create(idempotency=idempotency("c"))
    clock.advance(DAY + 1)
    async with postgres_store.pool.acquire() as connection, connection.transaction():
        await connection.fetch(
            load_named_sql.sql("postgres", "clear_keys_count_backlog_recount_pools.sql")["take_mark"], "keys"
        )
        assert (await postgres_store.upkeep.forget_keys(seconds=DAY, limit=10)).cleared == 0
    assert (await postgres_store.upkeep.forget_keys(seconds=DAY, limit=10)).cleared == 1


async def test_a_walk_touches_no_more_than_its_limit(
    postgres_url: str, postgres_store: PostgresStore, sqlite_store: SqliteStore, shop_of: Callable[[Store], Shop]
) -> None:
    """Along the primary key, on both databases: a journal of any length costs a round the same."""
    connection = await asyncpg.connect(postgres_url, server_settings=SETTINGS)
    sql = load_named_sql.sql("postgres", "clear_keys_count_backlog_recount_pools.sql")["walk_journal"]
    await connection.execute(f"PREPARE walk (uuid, timestamptz, integer) AS {sql}")
    await shop_of(postgres_store).create()
    plan = await connection.fetch(f"EXPLAIN EXECUTE walk ('{UUID(int=0)}', now(), 10)")
    await connection.close()
    told = "\n".join(row[0] for row in plan)
    assert "Index Scan using journal_pkey" in told
    assert "Sort" not in told
    with closing(sqlite3.connect(sqlite_store.access.file)) as file:
        sql = load_named_sql.sql("sqlite", "clear_keys_count_backlog_recount_pools.sql")["walk_journal"]
        (row,) = file.execute(f"EXPLAIN QUERY PLAN {sql}", ("", 0, 10)).fetchall()
    assert "SEARCH journal USING PRIMARY KEY" in row[3]


@pytest.fixture
def shop_of(ids: Uuid7Ids) -> Callable[[Store], Shop]:
    from .conftest import Shop

    return lambda store: Shop(store, ids=ids)


async def test_heartbeats_are_written_and_removed(store: Store, clock: MovableClock) -> None:
    """One row per process and role with its newest state, removed when the process stops or was silent for too long."""
    one, two = (Process(id=UUID(int=n), host=f"host-{n}", version="1") for n in (1, 2))
    await store.heartbeats.write(
        one, [HeartbeatReport(role="relay", outcome="ok"), HeartbeatReport(role="sweeper", outcome="starting")]
    )
    began = (await store.heartbeats.read(limit=10)).heartbeats[0].beat_at
    clock.advance(10)
    await store.heartbeats.write(one, [HeartbeatReport(role="sweeper", outcome="unavailable", rounds=7)])
    await store.heartbeats.write(two, [HeartbeatReport(role="sweeper", outcome="ok", rounds=1)])
    roll = await store.heartbeats.read(limit=10)
    assert [(beat.role, beat.host, beat.outcome, beat.rounds) for beat in roll.heartbeats] == [
        ("relay", "host-1", "ok", 0),
        ("sweeper", "host-2", "ok", 1),
        ("sweeper", "host-1", "unavailable", 7),
    ]
    relay, _, sweeper = roll.heartbeats
    assert sweeper.started_at == relay.started_at == began <= relay.beat_at
    assert timedelta(seconds=10) <= sweeper.beat_at - sweeper.started_at <= roll.now - began
    assert await store.heartbeats.clear(seconds=10, limit=10) == 1
    await store.heartbeats.leave(two.id)
    assert [beat.process_id for beat in (await store.heartbeats.read(limit=10)).heartbeats] == [one.id]
    assert len((await store.heartbeats.read(limit=1)).heartbeats) == 1


async def test_what_is_left_undone_is_counted_with_its_age(shop: Shop, store: Store, clock: MovableClock) -> None:
    """Holds that no sweeper has ended, entries that no relay has numbered; and nothing where all is done."""
    await shop.create()
    await shop.hold("ada", "A1", ttl=60)
    await shop.hold("bob", "A2", ttl=600)
    clock.advance(70)
    left = await store.upkeep.backlog()
    assert (left.due, left.unsent) == (1, 3)
    assert left.due_since is not None
    assert left.unsent_since is not None
    assert timedelta(seconds=10) <= left.now - left.due_since < timedelta(seconds=70)
    assert timedelta(seconds=70) <= left.now - left.unsent_since
    await shop.engine.expire(limit=10)
    await store.outbox.number(after=START, limit=100)
    left = await store.upkeep.backlog()
    assert (left.due, left.due_since, left.unsent, left.unsent_since) == (0, None, 0, None)


async def test_the_holds_of_a_kind_are_counted_by_whether_they_live(
    shop: Shop, store: Store, clock: MovableClock
) -> None:
    """What was let go is no hold, what is of the other kind is not seen, and no more is counted than was asked for."""
    await shop.create()
    await shop.create("rehearsal", mode=Mode.TEST)
    await shop.hold("ada", "A1", ttl=60)
    for buyer, seat, ttl in (("bob", "A2", 600), ("cleo", "A3", 900)):
        await shop.hold(buyer, seat, ttl=ttl)
    await shop.release(await shop.hold("dan", "A4", ttl=600))
    await shop.hold("eve", "A1", event_id="rehearsal", actor=Actor(name="tester", mode=Mode.TEST))
    clock.advance(70)
    seen = await store.upkeep.holds(mode=Mode.LIVE, limit=100)
    assert (seen.held, seen.due) == (2, 1)
    assert seen.next_at is not None
    assert seen.due_since is not None
    assert seen.due_since <= seen.now < seen.next_at <= seen.now + timedelta(seconds=530)
    assert (await store.upkeep.holds(mode=Mode.LIVE, limit=2)).held == 1
    other = await store.upkeep.holds(mode=Mode.TEST, limit=100)
    assert (other.held, other.due, other.due_since) == (1, 0, None)


async def test_counts_that_drifted_are_set_to_what_the_bookings_say(shop: Shop, store: Store) -> None:
    """Held and sold units, and what buyers have; where nothing drifted nothing is set."""
    await shop.create()
    await shop.hold("ada", "A1", pools={"GA": 2})
    await shop.confirm(await shop.hold("bob", pools={"GA": 3}))
    assert await store.upkeep.recount(limit=10) == 0
    await drift(store)
    assert (await shop.pool())[1:] == (4, 3), "else nothing is shown here"
    assert await store.upkeep.recount(limit=1) == 1
    assert await store.upkeep.recount(limit=10) == 1
    assert (await shop.pool())[1:] == (2, 3)
    assert await store.upkeep.recount(limit=10) == 0
    assert await store.find_flaws(limit=1) == []


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
async def test_a_total_that_is_missing_is_made(shop: Shop, store: Store) -> None:
    """A count of nothing is a count that drifted, too."""
    await shop.create()
    await shop.hold("ada", "A1")
    await by_hand(store, "UPDATE buyer_totals SET units = 0")
    await by_hand(store, "DELETE FROM buyer_totals")
    assert [flaw.rule for flaw in await store.find_flaws(limit=1)] == [
        "a buyer's total is the sum of the buyer's active bookings"
    ]
    assert await store.upkeep.recount(limit=10) == 1
    assert await store.find_flaws(limit=1) == []


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
async def test_a_count_that_the_law_refuses_is_left_as_it_is(shop: Shop, store: Store) -> None:
    """A buyer has more than the limit: no count can correct that."""
    await shop.create()
    await shop.hold("ada", "A1", "A2", "A3")
    await by_hand(store, "UPDATE buyer_totals SET units = 0")
    await by_hand(store, "UPDATE events SET per_buyer_max = 2")
    assert await store.upkeep.recount(limit=10) == 0
    assert len(await store.find_flaws(limit=5)) == 1


async def test_a_recount_beside_holds_miscounts_nothing(
    postgres_store: PostgresStore, shop_of: Callable[[Store], Shop]
) -> None:
    """Each count is set under its lock: a hold that runs meanwhile has counted before, or counts after it."""
    shops = [shop_of(postgres_store) for _ in range(3)]
    await shops[0].create(pools={"GA": 1000}, seats=())

    async def book(shop: Shop, buyer: str) -> None:
        for _ in range(8):
            held = await shop.hold(buyer, pools={"GA": 1})
            await shop.release(held)
            await shop.hold(buyer, pools={"GA": 1})

    async def set_right() -> None:
        while not booking.done():
            await by_hand(postgres_store, "UPDATE pools SET held = held + 1 WHERE id = 'GA'")
            await by_hand(postgres_store, "UPDATE buyer_totals SET units = units + 1 WHERE buyer = 'b1'")
            await postgres_store.upkeep.recount(limit=10)

    booking: asyncio.Future[Any] = asyncio.gather(*(book(shops[n % 3], f"b{n}") for n in range(6)))
    await asyncio.gather(booking, set_right())
    await postgres_store.upkeep.recount(limit=10)
    assert await postgres_store.find_flaws(limit=5) == []
    assert (await shops[0].pool())[1:] == (48, 0)


def test_ids_of_entries_sort_by_age(ids: Uuid7Ids) -> None:
    """What every walk along the primary key rests on."""
    made: list[EntryId] = [ids.entry_id() for _ in range(1000)]
    assert made == sorted(made)
