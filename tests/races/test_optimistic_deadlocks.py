"""Optimistic writes lock as they write, in the order of their arrays: no two transactions wait in a circle."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
import pytest

from earmark.clock import MovableClock
from earmark.engine.commands_and_results import Decided
from earmark.engine.engine import Engine
from earmark.errors import SeatsTaken
from earmark.store.postgres import PostgresStore
from earmark.store.postgres.optimistic_transaction_connections import PreparedConnection
from earmark.store.postgres.rows_cached_for_optimistic_write import SeatCache
from earmark.store.postgres.session_settings import SETTINGS

from . import shortcuts
from .commands import IDS, a_cancel, a_confirm, a_hold, a_play, a_release
from .support import AS_BUILT, CONTEXT, VERBS, ForwardingTransaction, Shortcut, granted, without_fresh_seats

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from earmark.domain.id_types import TotalRef
    from earmark.engine.commands_and_results import Command

    from .support import RaceDatabase

# Kinds of tables a plan may have been made on: PostgreSQL plans once, and then keeps to it.
_FILL = """
    SET session_replication_role = replica;
    INSERT INTO bookings (id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at)
    SELECT gen_random_uuid(), 'e' || n % 9, 'b' || n, 'live', 'released', '{}', 1, 'EUR', now(), now()
      FROM generate_series(1, 3000) n;
    INSERT INTO seats (event_id, id, price, position)
    SELECT 'e' || n % 9, 'S' || n, 1, n FROM generate_series(1, 3000) n;
    INSERT INTO pools (event_id, id, capacity, price, position)
    SELECT 'e' || n % 9, 'S' || n, 1, 1, n FROM generate_series(1, 3000) n;
    INSERT INTO buyer_totals SELECT 'e' || n % 9, 'b' || n, 1 FROM generate_series(1, 3000) n;
    RESET session_replication_role;
    ANALYZE bookings, seats, pools, buyer_totals"""
TABLES = {
    "as-created": "SELECT 1",
    "analyzed-almost-empty": "ANALYZE bookings, seats, pools, buyer_totals",
    "emptied": """
        INSERT INTO events (id, name, currency, mode, created_at) VALUES ('over', 'Over', 'EUR', 'live', now());
        INSERT INTO seats (event_id, id, price, position) SELECT 'over', 'S' || n, 1, n FROM generate_series(1, 1000) n;
        DELETE FROM seats WHERE event_id = 'over'; ANALYZE bookings, seats, pools, buyer_totals""",
    "large": _FILL,
}
_EXPLAIN = """
    LOAD 'auto_explain';
    SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;
    SET auto_explain.log_level = notice; SET auto_explain.log_format = json"""
_FOUR_POOLS = """
    INSERT INTO pools (event_id, id, capacity, price, position)
    SELECT 'play', id, 10, 500, 2 FROM unnest('{GB,GC,GD}'::text[]) AS p (id)"""
IN_ORDER = {
    "ModifyTable",
    "Nested Loop",
    "Function Scan",
    "Index Scan",
    "Subquery Scan",
    "LockRows",
    "Result",
}


async def two_batches_cross(
    database: RaceDatabase, *, blocker: str, first: Sequence[Command], second: Sequence[Command], shortcut: Shortcut
) -> list[Any]:
    """Each optimistic write stops in the middle of a statement, at a row that a third has; then both go on."""
    await database.observer.execute(shortcut.prepare)
    third = await asyncpg.connect(database.url)
    in_the_way = third.transaction()
    await in_the_way.start()
    await third.execute(blocker)
    one = (await database.server(drafts=True, connections_max=6)).submit_batch(*first)
    await one.waits_for_a_lock()
    other = (await database.server(drafts=True, connections_max=6, shortcut=shortcut)).submit_batch(*second)
    await other.waits_for_a_lock()
    await in_the_way.rollback()
    await third.close()
    return [*await one.outcome(), *await other.outcome()]


async def crossing(database: RaceDatabase, kind: str) -> tuple[str, list[Command], list[Command]]:
    """Two batches want the first and the last row of four; in between, each finds a row that a third has."""
    if kind == "moves":
        b = [await database.held(f"A{n}", buyer=f"buyer-{n}") for n in range(1, 5)]
        blocker = f"SELECT FROM bookings WHERE id IN ('{b[1].id}', '{b[2].id}') FOR UPDATE"
        return blocker, [a_release(b[n]) for n in (3, 1, 0)], [a_release(b[n]) for n in (0, 2, 3)]
    if kind == "totals":
        for n in range(1, 5):
            await database.held(f"A{n}", buyer=f"buyer-{n}")
        blocker = "SELECT FROM buyer_totals WHERE buyer IN ('buyer-2', 'buyer-3') FOR UPDATE"
        first: list[Command] = [a_hold(f"A{n + 4}", buyer=f"buyer-{n}") for n in (4, 2, 1)]
        return blocker, first, [a_hold(f"B{n}", buyer=f"buyer-{n}") for n in (1, 3, 4)]
    if kind == "pools":
        await database.observer.execute(_FOUR_POOLS)
        blocker = "SELECT FROM pools WHERE id IN ('GB', 'GC') FOR UPDATE"
        return blocker, [units_of("GD", "GB", "GA", buyer="ann")], [units_of("GA", "GC", "GD", buyer="bob")]
    blocker = "SELECT FROM seats WHERE id IN ('A2', 'A3') FOR UPDATE"
    return blocker, [a_hold("A4", "A2", "A1", buyer="ann")], [a_hold("A1", "A3", "A4", buyer="bob")]


def units_of(*pools: str, buyer: str) -> Command:
    return msgspec.structs.replace(a_hold("A1" if buyer == "ann" else "A2", buyer=buyer), pools=dict.fromkeys(pools, 1))


KINDS = pytest.mark.parametrize("kind", ["moves", "totals", "pools", "seats"])


@KINDS
async def test_an_optimistic_write_that_locks_the_last_row_first_deadlocks(
    bare_database: RaceDatabase, kind: str
) -> None:
    """The control: one has the first row and wants the last, the other has the last and wants the first."""
    blocker, first, second = await crossing(bare_database, kind)
    backwards = shortcuts.LOCKS_BACKWARDS[kind]
    await two_batches_cross(bare_database, blocker=blocker, first=first, second=second, shortcut=backwards)
    assert await bare_database.deadlocks() == 1


@KINDS
async def test_optimistic_writes_over_the_same_rows_lock_them_in_one_order(
    either_database: RaceDatabase, kind: str
) -> None:
    """Whatever the order of the requests: one waits for the other, and then is decided again."""
    blocker, first, second = await crossing(either_database, kind)
    told = await two_batches_cross(either_database, blocker=blocker, first=first, second=second, shortcut=AS_BUILT)
    assert {type(outcome) for outcome in told} <= {Decided, SeatsTaken}
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


async def test_a_takeover_for_a_new_buyer_does_not_deadlock(either_database: RaceDatabase) -> None:
    """It adds a total that was not there and lowers one that was; another write wants both, in the order of names."""
    await either_database.held("B1", buyer="mia")
    lapsed = await either_database.held("A1", buyer="zed", ttl_seconds=1)
    either_database.clock.advance(2)
    told = await two_batches_cross(
        either_database,
        blocker="SELECT FROM buyer_totals WHERE buyer = 'mia' FOR UPDATE",
        first=[a_hold("B2", buyer="ann"), a_hold("B3", buyer="mia"), a_hold("B4", buyer="zed")],
        second=[a_hold("A1", buyer="ann")],
        shortcut=AS_BUILT,
    )
    assert {granted(outcome).state for outcome in told} == {"held"}
    assert await either_database.state(lapsed) == "expired"
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


class _StopsWhenTotalsAreMade(ForwardingTransaction):
    async def lock_totals(self, refs: Collection[TotalRef]) -> dict[TotalRef, int]:
        fetch = self.inner.fetch

        async def stopping(name: str, *arguments: object) -> Any:
            found = await fetch(name, *arguments)
            if name == "make_totals":
                await self.breakpoints.reach("after make_totals")
            return found

        self.inner.fetch = stopping
        locked: dict[TotalRef, int] = await self.inner.lock_totals(refs)
        return locked


async def test_an_optimistic_write_and_one_under_locks_lock_totals_in_one_order(either_database: RaceDatabase) -> None:
    """The one under locks has made a new buyer's total; the optimistic one raised another, and wants the new one."""
    await either_database.held("A1", buyer="bob")
    locking = await either_database.server("after make_totals", shortcut=Shortcut(warp=_StopsWhenTotalsAreMade))
    locking.submit_batch(a_hold("A2", buyer="bob"), a_hold("A3", buyer="zed"))
    await locking.reached("after make_totals")
    decided_without_locks = await either_database.server(drafts=True, connections_max=6)
    decided_without_locks.submit_batch(a_hold("B2", buyer="bob"), a_hold("B3", buyer="zed"))
    await decided_without_locks.waits_for_a_lock()
    told = [await locking.outcome(), await decided_without_locks.outcome()]
    assert not [outcome for outcome in told if isinstance(outcome, Exception)]
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


async def plans_of_an_optimistic_write(url: str, *, tables: str) -> list[dict[str, Any]]:
    """The plan of every statement inside the call that writes, made on tables like these, as PostgreSQL reports it."""
    clock = MovableClock()
    store = await PostgresStore.connect(url, clock=clock)
    engine = Engine(store, ids=IDS)
    await engine.create_event(a_play())
    held = granted(await engine.hold(a_hold("B9", buyer="eve", units=1)))
    told: list[str] = []

    def collect(_: object, message: Any) -> None:
        told.append(message.message)

    async def run(*batch: Command) -> list[Any]:
        outcomes: list[Any] = await store.transact(
            partial(VERBS[type(batch[0])], batch=batch, context=CONTEXT), within=5, optimistic=True
        )
        return outcomes

    # A new connection, which plans for these tables, and the only one for optimistic writes.
    await store.seat_cache.close()
    store.seat_cache = SeatCache(without_fresh_seats, bookings_max=0)
    await store._idle.close()
    await store.pool.expire_connections()
    connection = await store.pool.acquire()
    prepared = PreparedConnection(connection)
    store._idle.waiting.append(prepared)
    try:
        await connection.execute(tables)
        await connection.execute(_EXPLAIN)
        connection.add_log_listener(collect)
        await run(a_hold("A1", "A2", buyer="ann", units=1, ttl_seconds=1), a_hold("A3", buyer="bob", ttl_seconds=1))
        clock.advance(2)
        taken = await run(a_hold("A1", buyer="cid", units=1), a_hold("A4", "A5", buyer="dan"))
        await run(*(a_confirm(granted(outcome)) for outcome in taken))
        await run(a_cancel(granted(taken[1]), "A4"))
        await run(a_release(held))
        assert store._idle.waiting == [prepared]
        connection.remove_log_listener(collect)
    finally:
        await engine.close()
    plans = [json.loads(message[message.index("{") :]) for message in told if "plan:" in message]
    return [plan for plan in plans if "unnest(" in plan["Query Text"] and "earmark_write" not in plan["Query Text"]]


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """A plan's nodes, from the outside in; subplans that only compute a value are left out."""
    inner = [one for one in plan.get("Plans", ()) if one["Parent Relationship"] not in {"SubPlan", "InitPlan"}]
    return [plan, *(node for one in inner for node in nodes(one))]


def in_the_order_of_keys(plan: dict[str, Any]) -> bool:
    """Whether rows are visited as the array says, which is sorted, or as the primary key says, which is the same."""
    found = nodes(plan)
    if not {node["Node Type"] for node in found} <= IN_ORDER:
        return False
    joins = [node for node in found if node["Node Type"] == "Nested Loop"]
    outer = [join["Plans"][0] for join in joins]
    return all(
        node["Node Type"] == "Function Scan"
        or (node.get("Index Name", "").endswith("_pkey") and node["Scan Direction"] == "Forward")
        for node in outer
    )


@pytest.mark.parametrize("tables", TABLES.values(), ids=TABLES)
async def test_every_optimistic_statement_visits_its_rows_in_the_order_of_keys(postgres_url: str, tables: str) -> None:
    """An update of many rows locks them as its plan visits them, and a plan is kept for as long as its connection."""
    plans = await plans_of_an_optimistic_write(postgres_url, tables=tables)
    writing = [plan for plan in plans if nodes(plan["Plan"])[0]["Node Type"] in {"ModifyTable", "Nested Loop"}]
    written = {(node.get("Operation"), node.get("Relation Name")) for plan in writing for node in nodes(plan["Plan"])}
    assert {
        *(("Update", table) for table in ("bookings", "buyer_totals", "pools", "seats")),
        *(("Insert", table) for table in ("bookings", "journal", "buyer_totals", "outside_payments")),
    } <= written
    assert not [plan["Query Text"] for plan in writing if not in_the_order_of_keys(plan["Plan"])]


async def test_without_the_settings_a_plan_may_visit_rows_as_they_lie(postgres_url: str, monkeypatch: Any) -> None:
    """The control: on a large table PostgreSQL would rather read the table whole and sort or hash the array."""
    for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin"):
        monkeypatch.setitem(SETTINGS, name, "on")
    plans = await plans_of_an_optimistic_write(postgres_url, tables=TABLES["analyzed-almost-empty"])
    assert [plan["Query Text"] for plan in plans if not in_the_order_of_keys(plan["Plan"])]
