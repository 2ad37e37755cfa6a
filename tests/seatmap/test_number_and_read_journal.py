"""Numbers per event: without a gap, in an order that makes sense, one relay at a time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from tests.seatmap.conftest import assert_published_in_order, drain, entry, numbered_entries, open_play, write
from tests.sqlite_files import make_migrated

from earmark.domain.id_types import BookingId, EventId
from earmark.engine.ports.number_and_read_journal import START, UNSENT_COUNTED_MAX, Lag
from earmark.store import load_named_sql
from earmark.store.postgres import PostgresStore
from earmark.store.postgres.number_and_read_journal import LOCKS
from earmark.store.postgres.session_settings import SETTINGS
from earmark.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store
    from earmark.library import Earmark
    from earmark.uuids import Uuid7Ids

PLAY = EventId("play")
SQL = load_named_sql.sql("postgres", "number_and_read_journal.sql")


async def test_each_event_counts_its_own_entries_from_one(shop: Earmark, store: Store) -> None:
    """A follower of one event needs no other."""
    await open_play(shop, "opera")
    held = await shop.hold("play", buyer="alice", seats=["A1"])
    await shop.confirm(held.id, payment_id="till-1")
    told = await drain(store)
    assert [(one.entry.event_id, one.sequence, one.entry.verb) for one in told] == [
        ("opera", 1, "create_event"),
        ("play", 1, "create_event"),
        ("play", 2, "hold"),
        ("play", 3, "confirm"),
    ]
    assert await drain(store) == []
    await shop.hold("play", buyer="bob", seats=["A2"])
    assert [one.sequence for one in await drain(store)] == [4]
    assert_published_in_order(await numbered_entries(store))


async def test_the_lag_is_what_no_relay_has_numbered(shop: Earmark, store: Store, clock: MovableClock) -> None:
    """How many, and since when; nothing once a relay has run."""
    await drain(store)
    assert await store.outbox.lag(limit=10) == Lag(unsent=0, oldest_at=None)
    held = await shop.hold("play", buyer="alice", seats=["A1"])
    clock.advance(60)
    await shop.hold("play", buyer="alice", seats=["A2"])
    lag = await store.outbox.lag(limit=10)
    assert (lag.unsent, lag.oldest_at) == (2, held.created_at)
    assert (await store.outbox.lag(limit=1)).unsent == 1
    await drain(store)
    assert (await store.outbox.lag(limit=10)).unsent == 0


async def test_a_round_is_bounded_and_the_next_one_goes_on(shop: Earmark, store: Store) -> None:
    """However much is unsent, a round takes little, and says that something is left."""
    await open_play(shop, "opera")
    for number in range(1, 5):
        await shop.hold("play", buyer="alice", seats=[f"A{number}"])
    first = await store.outbox.number(after=START, limit=2)
    assert [one.entry.event_id for one in first.entries] == ["opera", "play"]
    assert (first.after, first.more) == ("play", True)
    end = await store.outbox.number(after=first.after, limit=2)
    assert (list(end.entries), end.after, end.more) == ([], START, False)
    assert [one.sequence for one in await drain(store, limit=2)] == [2, 3, 4, 5]


async def test_a_reader_of_the_count_gets_no_more(shop: Earmark, store: Store) -> None:
    """The numbers are given all the same."""
    await shop.hold("play", buyer="alice", seats=["A1"])
    numbering = await store.outbox.number(after=START, limit=10, tell=False)
    assert (numbering.count, list(numbering.entries)) == (2, [])
    assert_published_in_order(await numbered_entries(store))
    assert len(await numbered_entries(store)) == 2


async def test_versions_keep_their_order_whatever_clocks_and_ids_say(store: Store, ids: Uuid7Ids) -> None:
    """A server whose clock is behind makes ids that sort first, and a transaction that waited has an older moment."""
    now = datetime.now(UTC)
    early, booking = ids.entry_id(), ids.booking_id()
    first = entry(ids, booking_id=booking, version=1, at=now)
    second = entry(ids, booking_id=booking, version=2, id=early, at=now - timedelta(seconds=5), before="held")
    third = entry(ids, booking_id=booking, version=3, at=now - timedelta(seconds=9), before="held")
    other = entry(ids, booking_id=ids.booking_id(), at=now - timedelta(seconds=1))
    assert second.id < first.id, "else nothing is shown here"
    await write(store, second, third, first, other)
    told = await drain(store)
    assert [one.entry.id for one in told] == [other.id, first.id, second.id, third.id]


async def test_a_bounded_round_never_leaves_an_older_version_behind(store: Store, ids: Uuid7Ids) -> None:
    """The limit cuts anywhere; older entries of the same booking are included."""
    booking = ids.booking_id()
    entries = [entry(ids, booking_id=booking, version=version) for version in (4, 3, 2, 1)]
    await write(store, *entries)
    told = (await store.outbox.number(after=START, limit=1)).entries
    assert told
    assert [one.entry.version for one in told] == list(range(1, len(told) + 1))
    await drain(store, limit=1)
    assert_published_in_order(await numbered_entries(store))
    assert len(await numbered_entries(store)) == 4


async def test_a_follower_reads_on_from_the_last_number_it_saw(shop: Earmark, store: Store) -> None:
    """What was published while it was away is in the journal, with all that the audit knows."""
    held = await shop.hold("play", buyer="alice", seats=["A1"])
    await shop.release(held.id)
    told = await drain(store)
    assert await store.outbox.read_numbered(PLAY, after=1, limit=1) == [told[1]]
    assert await store.outbox.read_numbered(PLAY, after=2, limit=9) == [told[2]]
    assert await store.outbox.read_numbered(PLAY, after=3, limit=9) == []
    history = await store.read_history(BookingId(UUID(held.id)))
    assert [one.entry for one in told[1:]] == history
    assert told[1].entry.facts["buyer"] == "alice"


async def test_entries_are_counted_whether_they_have_a_number_or_not(shop: Earmark, store: Store) -> None:
    """The count moves with every change, at once, and with nothing else."""
    unknown = EventId("unknown")
    assert await store.outbox.count([PLAY, unknown]) == {PLAY: 1, unknown: 0}
    await drain(store)
    assert await store.outbox.count([PLAY]) == {PLAY: 1}
    held = await shop.hold("play", buyer="alice", seats=["A1"])
    assert await store.outbox.count([PLAY]) == {PLAY: 2}
    await store.outbox.number(after=START, limit=1)
    await shop.release(held.id)
    assert await store.outbox.count([PLAY]) == {PLAY: 3}
    await drain(store)
    assert await store.outbox.count([PLAY]) == {PLAY: 3}
    assert await store.outbox.count([]) == {}


async def test_a_long_backlog_is_not_counted(store: Store, ids: Uuid7Ids) -> None:
    """A read stays quick where no relay runs; an unknown count is then reported as unknown, and not guessed."""
    await write(store, *(entry(ids) for _ in range(UNSENT_COUNTED_MAX)))
    assert await store.outbox.count([PLAY]) == {PLAY: UNSENT_COUNTED_MAX}
    await write(store, entry(ids))
    assert await store.outbox.count([PLAY]) == {PLAY: None}
    await store.outbox.number(after=START, limit=1)
    assert await store.outbox.count([PLAY]) == {PLAY: UNSENT_COUNTED_MAX + 1}


@pytest.fixture(params=["sqlite", "postgres"])
async def two_stores(
    request: pytest.FixtureRequest, tmp_path: Path, clock: MovableClock
) -> AsyncIterator[tuple[Store, Store]]:
    """Two stores over one database, as two processes have them."""
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        both: Any = [await PostgresStore.connect(url, clock=clock) for _ in range(2)]
    else:
        path = tmp_path / "twins.sqlite3"
        await make_migrated(path)
        both = [await SqliteStore.open(path, clock=clock) for _ in range(2)]
    yield both[0], both[1]
    for store in both:
        await store.close()


async def test_relays_that_race_number_everything_once_and_in_order(
    two_stores: tuple[Store, Store], shop_over: Callable[[Store], Earmark]
) -> None:
    """Two relays, two servers that book, three events: every entry has one number, and no number is missing."""
    shops = [shop_over(store) for store in two_stores]
    events = ["play", "opera", "film"]
    for event in events:
        await open_play(shops[0], event)
    selling = True
    told: list[Any] = []

    async def relay(store: Store) -> None:
        after = START
        while True:
            last = not selling and after == START
            numbering = await store.outbox.number(after=after, limit=7)
            told.extend(numbering.entries)
            after = numbering.after
            if last and not numbering.entries and not numbering.more:
                return

    async def buy(shop: Earmark, event: str, number: int) -> None:
        held = await shop.hold(event, buyer=f"buyer-{number}", seats=[f"A{number}"])
        held = await shop.extend(held.id, seconds=60)
        done = shop.confirm(held.id, payment_id=f"{event}-{number}") if number % 2 else shop.release(held.id)
        await done

    relays = asyncio.gather(*(relay(store) for store in two_stores))
    await asyncio.gather(*(buy(shops[number % 2], event, number) for event in events for number in range(1, 11)))
    selling = False
    await asyncio.wait_for(relays, timeout=60)
    for event in events:
        stored = await numbered_entries(two_stores[0], event)
        assert len(stored) == 1 + 10 * 3
        assert_published_in_order(stored)
        own = sorted((one for one in told if one.entry.event_id == event), key=lambda one: one.sequence)
        assert own == stored, "what was published is what was numbered, each once"


@pytest.fixture
async def other_relay(postgres_url: str) -> AsyncIterator[Any]:
    """A relay that a test drives, and that stops wherever the test wants it to."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    if not connection.is_closed():
        connection.terminate()


async def test_an_event_that_another_relay_has_claimed_is_skipped(
    postgres_store: PostgresStore, shop_over: Callable[[Store], Earmark], other_relay: Any
) -> None:
    """Its entries are the other one's; the other events are not kept waiting."""
    shop = shop_over(postgres_store)
    await open_play(shop, "play")
    await open_play(shop, "opera")
    async with other_relay.transaction():
        claimed = await other_relay.fetch(SQL["claim_events"], "opera", 10, LOCKS)
        assert [(row["event_id"], row["claimed"]) for row in claimed] == [("play", True)]
        assert len(await other_relay.fetch(SQL["number_entries"], ["play"], 10)) == 1
        assert [one.entry.event_id for one in await drain(postgres_store)] == ["opera"]
    await shop.hold("play", buyer="alice", seats=["A1"])
    assert [one.sequence for one in await drain(postgres_store)] == [2]


async def test_without_the_claim_relays_give_numbers_that_others_have_given(
    postgres_store: PostgresStore, shop_over: Callable[[Store], Earmark], other_relay: Any, ids: Uuid7Ids
) -> None:
    """The control: the second counts from what it sees, and only the schema is left to refuse it."""
    shop = shop_over(postgres_store)
    await open_play(shop)
    await drain(postgres_store)
    await shop.hold("play", buyer="alice", seats=["A1"])
    async with other_relay.transaction():
        (first,) = await other_relay.fetch(SQL["number_entries"], ["play"], 10)
        await write(postgres_store, entry(ids, verb="change_event", at=datetime.now(UTC) - timedelta(hours=1)))
        second = asyncio.create_task(postgres_store.pool.fetch(SQL["number_entries"], ["play"], 10))
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while not await other_relay.fetchval(waits):  # noqa: ASYNC110 (only the server knows)
            await asyncio.sleep(0.01)
    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        await second
    assert first["sequence"] == 2
    assert [one.sequence for one in await drain(postgres_store)] == [3]


async def test_the_schema_gives_a_number_once(
    postgres_store: PostgresStore, shop_over: Callable[[Store], Earmark], other_relay: Any
) -> None:
    """Even hand-written SQL cannot give two entries of an event one number."""
    shop = shop_over(postgres_store)
    await open_play(shop)
    await drain(postgres_store)
    await shop.hold("play", buyer="alice", seats=["A1"])
    with pytest.raises(asyncpg.UniqueViolationError, match="journal_by_number"):
        await other_relay.execute("UPDATE journal SET sequence = 1 WHERE sequence IS NULL")
    assert [one.sequence for one in await drain(postgres_store)] == [2]


async def test_a_relay_killed_before_its_commit_leaves_no_gap(
    postgres_store: PostgresStore, shop_over: Callable[[Store], Earmark], other_relay: Any
) -> None:
    """Its numbers were never given, and its claim ends with it."""
    shop = shop_over(postgres_store)
    await open_play(shop)
    await other_relay.execute("BEGIN")
    await other_relay.fetch(SQL["claim_events"], "", 10, LOCKS)
    assert len(await other_relay.fetch(SQL["number_entries"], ["play"], 10)) == 1
    assert await drain(postgres_store) == []
    other_relay.terminate()
    told: list[Any] = []
    while not told:  # the server notices a cut connection in its own time
        told = await drain(postgres_store)
    assert [one.sequence for one in told] == [1]


async def test_the_plans_stop_at_the_limit(postgres_store: PostgresStore, postgres_url: str, ids: Uuid7Ids) -> None:
    """Neither a long journal nor a long backlog is walked, though the plans were made when both were empty."""
    asked = {
        "claim_events": ("text, bigint, integer", f"'', 10, {LOCKS}"),
        "number_entries": ("text[], bigint", "ARRAY['play'], 10"),
        "read_numbered": ("text, bigint, bigint", "'play', 0, 10"),
        "count_entries": ("text[], bigint", "ARRAY['play'], 10"),
        "read_lag": ("bigint", "10"),
    }
    connection = await asyncpg.connect(postgres_url, server_settings=SETTINGS)
    for name, (types, _) in asked.items():
        await connection.execute(f"PREPARE {name} ({types}) AS {SQL[name]}")
    bookings = [ids.booking_id() for _ in range(500)]
    numbered_entries = [entry(ids, booking_id=booking, version=version) for version in (1, 2) for booking in bookings]
    await write(postgres_store, *numbered_entries)
    await postgres_store.outbox.number(after=START, limit=300)
    for name, (_, given) in asked.items():
        explained = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {name} ({given})")
        assert max(_touched(msgspec.json.decode(explained)[0]["Plan"])) < 100, explained
    await connection.close()


def _touched(plan: dict[str, Any]) -> Iterator[float]:
    """How many rows each step of a plan has looked at."""
    removed = sum(value for name, value in plan.items() if name.startswith("Rows Removed"))
    yield plan["Actual Loops"] * (plan["Actual Rows"] + removed)
    for part in plan.get("Plans", []):
        yield from _touched(part)
