"""A request of the buyer while the name is erased is neither lost nor half erased."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from earmark.errors import StoreUnavailable
from earmark.store import load_named_sql
from earmark.store.both_databases.replace_buyer_name_in_texts import KEPT_FIELDS, Unnamer, new_pseudonym
from earmark.store.postgres import erase_buyer
from earmark.store.sqlite.erase_buyer import _add_functions as teach

from .conftest import ANN, HOURS, Place, ShopApi, event_body, shop_api_over
from .test_erase_buyer import bookings_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.store.sqlite import SqliteStore

ERASE = "SELECT earmark_erase_buyer($1, $2, statement_timestamp() + $3::interval, $4)"


@pytest.fixture
def place(postgres_place: Place) -> Place:
    """SQLite has one writer: there is nothing to interleave."""
    return postgres_place


@pytest.fixture
async def connections(place: Place) -> AsyncIterator[list[Any]]:
    """Sessions whose transactions a test holds open."""
    opened = [await asyncpg.connect(place.url) for _ in range(3)]
    yield opened
    for connection in opened:
        await connection.close()


async def until_waiting(watch: Any, name: str) -> None:
    """Until a session of this program waits for a lock."""
    asked = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock')"
    async with asyncio.timeout(30):
        while not await watch.fetchval(asked, name):  # noqa: ASYNC110 (another process's fact)
            await asyncio.sleep(0.01)


async def one_sale(place: Place, shop_api: ShopApi) -> str:
    """A sale at a show that has begun since; its sale has no end."""
    await shop_api.post("events", event_body(place, "show"), key="show")
    sold = await shop_api.post("bookings", {"event_id": "show", "buyer": ANN, "seats": ["A1"]}, key="1")
    await shop_api.post(f"bookings/{sold['id']}/confirm", {"payment_id": "till"}, key="2")
    place.clock.advance(2 * HOURS)
    booking_id: str = sold["id"]
    return booking_id


async def hold_in(connection: Any, place: Place, *, seat: str) -> None:
    """What a hold writes, in the transaction of this connection, which stays open."""
    now = await connection.fetchval("SELECT statement_timestamp() + $1::interval", place.clock.offset)
    booking_id = await connection.fetchval("SELECT gen_random_uuid()")
    await connection.execute(
        """INSERT INTO bookings (id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at)
           VALUES ($1, 'show', $2, 'test', 'held', jsonb_build_object('seats', jsonb_build_array(
                   jsonb_build_object('id', $4::text, 'price', 4500)), 'pools', '[]'::jsonb),
                   4500, 'EUR', $3::timestamptz, $3::timestamptz + interval '5 minutes')""",
        booking_id,
        ANN,
        now,
        seat,
    )
    await connection.execute(
        """INSERT INTO journal (id, event_id, booking_id, version, verb, after, actor, at, facts)
           VALUES (gen_random_uuid(), 'show', $1, 1, 'hold', 'held', 'shop', $2,
                   jsonb_build_object('buyer', $3::text))""",
        booking_id,
        now,
        ANN,
    )
    await connection.execute("UPDATE buyer_totals SET units = units + 1 WHERE event_id = 'show' AND buyer = $1", ANN)
    await connection.execute("UPDATE seats SET booking_id = $1 WHERE event_id = 'show' AND id = $2", booking_id, seat)


async def test_a_hold_that_was_under_way_stops_the_erasure(place: Place, connections: list[Any]) -> None:
    """The erasure waits for the total that the hold has locked, and then sees the hold: nothing is changed."""
    holder, _, watch = connections
    async with shop_api_over(place) as shop_api:
        await one_sale(place, shop_api)
    async with holder.transaction():
        await hold_in(holder, place, seat="A2")
        erasing = asyncio.create_task(place.erase())
        await until_waiting(watch, "earmark erase-buyer")
    done = await erasing
    assert [obstacle.why for obstacle in done.obstacles] == ["it is held"]
    assert len(await bookings_of(place, buyer=ANN)) == 2
    assert await place.store.find_flaws(limit=10) == []


async def test_without_the_lock_on_totals_the_hold_is_half_erased(place: Place, connections: list[Any]) -> None:
    """The control: an erasure that looks before it locks the totals renames the total of a hold that it never saw."""
    holder, owner, watch = connections
    async with shop_api_over(place) as shop_api:
        await one_sale(place, shop_api)
    source = await owner.fetchval("SELECT pg_get_functiondef('earmark_erase_buyer'::regproc)")
    lock = "PERFORM FROM buyer_totals"
    weakened = source.replace(source[source.index(lock) : source.index(";", source.index(lock)) + 1], "")
    assert weakened != source
    try:
        await owner.execute(weakened)
        async with holder.transaction():
            await hold_in(holder, place, seat="A2")
            erasing = asyncio.create_task(place.erase())
            await until_waiting(watch, "earmark erase-buyer")
        await erasing
        broken = [flaw.row for flaw in await place.store.find_flaws(limit=10)]
        assert any(ANN in row and "total 0" in row for row in broken), broken
    finally:
        await owner.execute(source)


@pytest.mark.parametrize("way", ["draft", "locks"])
async def test_a_hold_that_comes_while_the_name_is_erased_is_whole(
    place: Place, connections: list[Any], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the total, makes one of its own, and keeps the old name: neither lost nor half renamed."""
    if way == "locks":
        monkeypatch.setattr(place.store, "pgbouncer", True)  # without optimistic writes
    owner, watch, _ = connections
    async with shop_api_over(place) as shop_api:
        sold = await one_sale(place, shop_api)
        scope = owner.transaction()
        await scope.start()
        alias = new_pseudonym()
        await owner.execute(ERASE, ANN, alias, place.clock.offset, list(KEPT_FIELDS))
        holding = asyncio.create_task(
            shop_api.post("bookings", {"event_id": "show", "buyer": ANN, "seats": ["A2"]}, key="meanwhile")
        )
        await until_waiting(watch, "earmark")
        await scope.commit()
        held = await holding
    assert held["buyer"] == ANN
    assert [str(booking.id) for booking in await bookings_of(place, buyer=ANN)] == [held["id"]]
    assert [str(booking.id) for booking in await bookings_of(place, buyer=alias)] == [sold]
    assert await place.store.find_flaws(limit=10) == []


async def test_a_cancel_that_read_the_old_name_is_decided_again(place: Place, connections: list[Any]) -> None:
    """It waits for the booking, finds the pseudonym, and its stored answer has that."""
    owner, watch, _ = connections
    async with shop_api_over(place) as shop_api:
        sold = await one_sale(place, shop_api)
        scope = owner.transaction()
        await scope.start()
        await owner.execute(ERASE, ANN, new_pseudonym(), place.clock.offset, list(KEPT_FIELDS))
        cancelling = asyncio.create_task(shop_api.post(f"bookings/{sold}/cancel", key="cancel"))
        await until_waiting(watch, "earmark")
        await scope.commit()
        cancelled = await cancelling
    assert cancelled["state"] == "cancelled"
    assert await place.mentions() == []
    assert await place.store.find_flaws(limit=10) == []


async def test_a_booking_made_meanwhile_is_reported(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator is to run the command again; what was over is erased."""
    async with shop_api_over(place) as shop_api:
        await one_sale(place, shop_api)
        once = erase_buyer._once

        async def then_a_hold(*arguments: Any, **more: Any) -> Any:
            done = await once(*arguments, **more)
            await shop_api.post("bookings", {"event_id": "show", "buyer": ANN, "seats": ["A2"]}, key="meanwhile")
            return done

        monkeypatch.setattr(erase_buyer, "_once", then_a_hold)
        done = await place.erase()
    assert done.changed["bookings"] == 1
    assert "again" in done.warnings[0]
    assert len(await bookings_of(place, buyer=ANN)) == 1


async def test_an_answer_that_was_written_behind_the_erasure_is_found(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeat that read the booking before writes its answer after: the next pass of the same erasure renames it."""
    connection = await asyncpg.connect(place.url)
    async with shop_api_over(place) as shop_api:
        sold = await one_sale(place, shop_api)
    once = erase_buyer._once
    passes: list[Any] = []

    async def then_a_repeat(*arguments: Any, **more: Any) -> Any:
        done = await once(*arguments, **more)
        if not passes:
            await connection.execute(
                """INSERT INTO journal (id, event_id, version, verb, actor, at, facts,
                                        caller, key, answer_status, answer_body)
                   VALUES (gen_random_uuid(), 'show', 1, 'repeat', 'key:x', now(),
                           jsonb_build_object('booking_id', $1::text), 'key:x', 'late', 200,
                           convert_to(jsonb_build_object('buyer', $2::text)::text, 'UTF8'))""",
                sold,
                ANN,
            )
        passes.append(done)
        return done

    monkeypatch.setattr(erase_buyer, "_once", then_a_repeat)
    await place.erase()
    await connection.close()
    assert len(passes) == 3
    assert await place.mentions() == []


async def test_a_row_that_stays_locked_is_an_outage_and_changes_nothing(
    place: Place, connections: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The erasure gives up, and the booking keeps its name."""
    monkeypatch.setattr(erase_buyer, "LOCK_TIMEOUT", "SET LOCAL lock_timeout = '50ms'")
    holder, *_ = connections
    async with shop_api_over(place) as shop_api:
        sold = await one_sale(place, shop_api)
    async with holder.transaction():
        await holder.execute("SELECT FROM bookings WHERE id = $1 FOR UPDATE", sold)
        with pytest.raises(StoreUnavailable, match="nothing was changed"):
            await place.erase()
    assert len(await bookings_of(place, buyer=ANN)) == 1


async def test_a_row_that_is_locked_in_a_later_pass_is_not_called_no_change(
    place: Place, connections: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pass has committed: the error says what is erased, and to run the command again."""
    monkeypatch.setattr(erase_buyer, "LOCK_TIMEOUT", "SET LOCAL lock_timeout = '50ms'")
    holder, *_ = connections
    async with shop_api_over(place) as shop_api:
        sold = await one_sale(place, shop_api)
    once = erase_buyer._once
    scope = holder.transaction()

    async def then_a_lock(*arguments: Any, **more: Any) -> Any:
        done = await once(*arguments, **more)
        await scope.start()
        await holder.execute("SELECT FROM bookings WHERE id = $1 FOR UPDATE", sold)
        return done

    monkeypatch.setattr(erase_buyer, "_once", then_a_lock)
    with pytest.raises(StoreUnavailable, match="what was found before is erased, run the command again") as told:
        await place.erase()
    await scope.rollback()
    assert "nothing was changed" not in told.value.because
    assert await bookings_of(place, buyer=ANN) == []


async def test_a_message_that_a_relay_is_queueing_is_renamed_too(place: Place, connections: list[Any]) -> None:
    """The relay has read the name and not committed: the erasure waits for its entry, and then finds the delivery."""
    relaying, _, watch = connections
    async with shop_api_over(place) as shop_api:
        await shop_api.post("webhooks", {"url": "http://127.0.0.1:9/"}, key="hook")
        sold = await one_sale(place, shop_api)
    async with relaying.transaction():
        await number_and_queue(relaying, sold)
        erasing = asyncio.create_task(place.erase())
        await until_waiting(watch, "earmark erase-buyer")
    assert (await erasing).changed["deliveries"] == 1
    assert await place.mentions() == []


async def test_without_the_lock_on_entries_that_message_keeps_the_name(place: Place, connections: list[Any]) -> None:
    """The control: an erasure that looks at deliveries before it has the entries misses the message."""
    relaying, owner, watch = connections
    async with shop_api_over(place) as shop_api:
        await shop_api.post("webhooks", {"url": "http://127.0.0.1:9/"}, key="hook")
        sold = await one_sale(place, shop_api)
    source = await owner.fetchval("SELECT pg_get_functiondef('earmark_erase_buyer'::regproc)")
    lock = source.index("PERFORM FROM journal")
    # Deliveries first: the remainder of the function as it is.
    start, end = source.index("    UPDATE deliveries d"), source.index("    what := 'deliveries';")
    deliveries = source[start:end]
    weakened = source[:lock] + deliveries.lstrip() + source[lock:start] + source[end:]
    try:
        await owner.execute(weakened)
        async with relaying.transaction():
            await number_and_queue(relaying, sold)
            erasing = asyncio.create_task(once_over(place))
            await until_waiting(watch, "earmark erase-buyer")
        await erasing
        assert any(row.startswith("deliveries") for row in await place.mentions())
    finally:
        await owner.execute(source)


async def once_over(place: Place) -> None:
    """One pass of an erasure, under the command's name."""
    connection = await asyncpg.connect(place.url, server_settings={"application_name": "earmark erase-buyer"})
    await connection.execute(ERASE, ANN, new_pseudonym(), place.clock.offset, list(KEPT_FIELDS))
    await connection.close()


async def number_and_queue(connection: Any, booking_id: str) -> None:
    """What a relay writes for one entry, in the transaction of this connection, which stays open."""
    entry = await connection.fetchrow(
        "UPDATE journal SET sequence = 99 WHERE booking_id = $1 AND version = 1 RETURNING id, facts", booking_id
    )
    await connection.execute(
        """INSERT INTO deliveries (id, webhook_id, entry_id, type, body, created_at, due_at)
           SELECT gen_random_uuid(), w.id, $1, 'booking.held', convert_to($2::text, 'UTF8'), now(), now()
             FROM webhooks w""",
        entry["id"],
        entry["facts"],
    )


READ_WHOLE = """
SELECT relname FROM pg_stat_xact_user_tables
 WHERE seq_scan > 0 AND relname IN
       ('bookings', 'buyer_totals', 'deliveries', 'journal', 'outside_payments', 'payers', 'payment_keys', 'payments',
        'refunds')
"""
FILL = {
    "payment_keys": """INSERT INTO payment_keys (caller, key, request_hash, payment_id, opened_at)
                       SELECT 'key:x', n::text, '', gen_random_uuid(), now() FROM generate_series(1, 20000) n""",
    "refunds": """INSERT INTO refunds (id, payment_id, booking_id, amount, created_at, state)
                  SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1, now(), 'made'
                    FROM generate_series(1, 20000) n""",
}
CHOSEN = {
    "ANY (callers)": "ANY (ARRAY['buyer:ann'])",
    "ANY (paid)": "ANY (ARRAY[uuid '01a1ee52-b861-725e-b6fb-a7180ef8a5f4'])",
}


async def test_rows_are_found_by_index(place: Place, named: ShopApi, connections: list[Any]) -> None:
    """No table that grows with the shop is read whole where sequential scans are switched off."""
    owner, *_ = connections
    assert named.answers
    async with owner.transaction():
        await owner.execute("SET LOCAL enable_seqscan = off")
        await owner.execute(ERASE, ANN, new_pseudonym(), place.clock.offset, list(KEPT_FIELDS))
        assert await owner.fetch(READ_WHOLE) == []
        await owner.execute("SELECT FROM bookings WHERE total > 0")
        assert [row[0] for row in await owner.fetch(READ_WHOLE)] == ["bookings"], "the control"


@pytest.mark.parametrize("table", FILL)
async def test_a_full_table_is_searched_by_index(place: Place, connections: list[Any], table: str) -> None:
    """By the planner's own choice, over 20,000 rows that name other buyers; the control is the table without it."""
    owner, *_ = connections
    assert place.url
    source = await owner.fetchval("SELECT pg_get_functiondef('earmark_erase_buyer'::regproc)")
    start = source.index(f"FROM {table} q WHERE")
    search = source[start : source.index(") AS n", start)]
    for variable, value in CHOSEN.items():
        search = search.replace(variable, value)
    scope = owner.transaction()
    await scope.start()
    await owner.execute("SET LOCAL session_replication_role = replica")
    await owner.execute(FILL[table])
    await owner.execute(f"ANALYZE {table}")
    assert "Seq Scan" not in await plan_of(owner, search)
    await owner.execute(f"DROP INDEX {table}_by_payment")
    assert f"Seq Scan on {table}" in await plan_of(owner, search), "the control"
    await scope.rollback()


async def plan_of(connection: Any, search: str) -> str:
    """How PostgreSQL would read the rows."""
    return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN SELECT {search}"))


async def test_sqlite_searches_payment_keys_by_index(sqlite_store: SqliteStore) -> None:
    """By the caller and by the payment; the control is the table without that index."""
    with closing(sqlite3.connect(sqlite_store.access.file, isolation_level=None, cached_statements=0)) as connection:
        teach(connection, Unnamer(ANN, new_pseudonym()))
        asked = {"callers": "[]", "payments": "[]"}
        search = f"EXPLAIN QUERY PLAN {load_named_sql.sql('sqlite', 'erase_buyer.sql')['erase_payment_keys']}"
        assert "SCAN payment_keys" not in {row[3] for row in connection.execute(search, asked)}
        connection.execute("DROP INDEX payment_keys_by_payment")
        assert "SCAN payment_keys" in {row[3] for row in connection.execute(search, asked)}, "the control"
