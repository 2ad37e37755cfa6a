"""The rules stand in the schema: hand-written SQL that breaks them is refused by the database itself.

Every refusal has its control: the very same SQL passes on a database that was built without the guards.
"""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from earmark.domain.booking_state_machine import EDGES, State
from earmark.store import load_named_sql
from earmark.store.both_databases.pending_migrations import migrations

from .hand_written_sql_databases import BARE, GUARDED, Kind, Worlds, in_one_loop, opened
from .payment_flaws import MONEY_PLANTED
from .sql_refused import ALLOWED, BREAKS, PAYMENT, POSTGRES_BREAKS, SQLITE_BREAKS, a_hold_like
from .steps_support import Refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from .sql_refused import Break
    from .steps_support import SqlClient, World


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worlds]:
    made = Worlds(request, tmp_path_factory.mktemp("worlds"))
    yield made
    await made.close()


@pytest.fixture
def world(worlds: Worlds, request: pytest.FixtureRequest) -> World:
    kind: Kind = request.param
    return worlds.of(kind)


@pytest.fixture
def own_world(worlds: Worlds, request: pytest.FixtureRequest) -> Iterator[World]:
    kind: Kind = request.param
    yield from worlds.copy(kind)


def _named(broken: Break) -> str:
    return broken.attempt.replace(" ", "_")


async def _prepare(client: SqlClient, world: World, attempt: Break) -> None:
    for sql in attempt.first:
        await client.run(world.fill(sql))


@in_one_loop
@pytest.mark.parametrize("world", GUARDED, indirect=True, ids=str)
@pytest.mark.parametrize("broken", BREAKS, ids=_named)
async def test_hand_written_sql_that_breaks_the_law_is_refused(world: World, broken: Break) -> None:
    """Whatever a program or a person believes, the database refuses it, and says by which rule."""
    async with world.sql_client() as client:
        await _prepare(client, world, broken)
        with pytest.raises(Refused, match=broken.rule):
            await client.run(world.fill(broken.sql))


@in_one_loop
@pytest.mark.parametrize("world", BARE, indirect=True, ids=str)
@pytest.mark.parametrize("broken", BREAKS, ids=_named)
async def test_control_without_the_guards_the_same_sql_passes(world: World, broken: Break) -> None:
    """So it is the guard that refuses, and nothing else."""
    async with world.sql_client() as client:
        await _prepare(client, world, broken)
        await client.run(world.fill(broken.sql))


@in_one_loop
@pytest.mark.parametrize("world", GUARDED[:1], indirect=True, ids=str)
@pytest.mark.parametrize("broken", SQLITE_BREAKS, ids=_named)
async def test_sqlite_has_no_way_round_the_law(world: World, broken: Break) -> None:
    """REPLACE asks no trigger on DELETE, and a shell keeps no foreign keys: the guards close both ways."""
    async with world.sql_client() as client:
        await _prepare(client, world, broken)
        with pytest.raises(Refused, match=broken.rule):
            await client.run(world.fill(broken.sql))


@in_one_loop
@pytest.mark.parametrize("world", BARE[:1], indirect=True, ids=str)
@pytest.mark.parametrize("broken", SQLITE_BREAKS, ids=_named)
async def test_control_without_the_guards_sqlite_lets_it_pass(world: World, broken: Break) -> None:
    """These ways are open in SQLite itself."""
    async with world.sql_client() as client:
        await _prepare(client, world, broken)
        await client.run(world.fill(broken.sql))


@in_one_loop
@pytest.mark.parametrize("world", GUARDED[1:], indirect=True, ids=str)
@pytest.mark.parametrize("broken", POSTGRES_BREAKS, ids=_named)
async def test_postgresql_has_no_way_round_the_law(world: World, broken: Break) -> None:
    """TRUNCATE asks no guard of rows, so it has guards of its own."""
    async with world.sql_client() as client:
        with pytest.raises(Refused, match=broken.rule):
            await client.run(broken.sql)


@in_one_loop
@pytest.mark.parametrize("world", BARE[1:], indirect=True, ids=str)
@pytest.mark.parametrize("broken", POSTGRES_BREAKS, ids=_named)
async def test_control_without_the_guards_postgresql_lets_it_pass(world: World, broken: Break) -> None:
    """A table is empty in an instant."""
    async with world.sql_client() as client:
        await client.run(broken.sql)


PAYER = "SELECT booking_id FROM outside_payments WHERE payment_id = 'p1'"


@in_one_loop
@pytest.mark.parametrize("replace", ["REPLACE INTO", "INSERT OR REPLACE INTO"])
@pytest.mark.parametrize("world, payer", [(GUARDED[0], "sold"), (BARE[0], "held")], indirect=["world"], ids=str)
async def test_sqlite_does_not_give_a_payment_to_another_booking(world: World, payer: str, replace: str) -> None:
    """Who comes second gives way, as the program's own insert does; without the guards the first one is lost."""
    async with world.sql_client() as client:
        await client.run(world.fill(PAYMENT))
        values = "(payment_id, booking_id, mode) VALUES ('p1', '{held}', 'live')"
        await client.run(world.fill(f"{replace} outside_payments {values}"))
        assert await client.look(PAYER) == world.names[payer]


RECLAIM = "UPDATE bookings SET state = 'confirmed' WHERE id = '{expired}'"
LOST = {
    "given to another": [a_hold_like("expired"), "UPDATE seats SET booking_id = '{new}' WHERE id = 'A3'"],
    "blocked": ["UPDATE seats SET blocked = true WHERE id = 'A3'"],
    "set free": ["UPDATE seats SET booking_id = NULL WHERE id = 'A3'"],
}


@in_one_loop
@pytest.mark.parametrize("world", GUARDED, indirect=True, ids=str)
@pytest.mark.parametrize("lost", LOST.values(), ids=LOST.keys())
async def test_an_expired_booking_comes_back_only_with_all_its_seats(world: World, lost: list[str]) -> None:
    """Late money confirms nothing whose seats are gone."""
    async with world.sql_client() as client:
        for sql in lost:
            await client.run(world.fill(sql))
        with pytest.raises(Refused, match="booking_reclaims_every_seat"):
            await client.run(world.fill(RECLAIM))


@in_one_loop
@pytest.mark.parametrize("world", BARE, indirect=True, ids=str)
@pytest.mark.parametrize("lost", LOST.values(), ids=LOST.keys())
async def test_control_without_the_guards_it_comes_back_without_them(world: World, lost: list[str]) -> None:
    """A sale without a seat, as it happens where nothing stands in the way."""
    async with world.sql_client() as client:
        for sql in lost:
            await client.run(world.fill(sql))
        await client.run(world.fill(RECLAIM))


@in_one_loop
@pytest.mark.parametrize("own_world", GUARDED, indirect=True, ids=str)
async def test_an_expired_booking_that_comes_back_raises_the_fence(own_world: World) -> None:
    """Even when it is done by hand: a hold that saw the seat free has to look again."""
    async with own_world.sql_client(keep=True) as client:
        await client.run(own_world.fill(RECLAIM))
    async with opened(own_world.place) as store:
        fences = {on_map.seat.id: on_map.fence for on_map in (await store.read_map("show")).seats}  # type: ignore[arg-type]
    assert fences == {"A1": 0, "A2": 0, "A3": 1, "A4": 0, "A5": 0, "A6": 0}


@in_one_loop
@pytest.mark.parametrize("world", GUARDED, indirect=True, ids=str)
@pytest.mark.parametrize("allowed", ALLOWED.values(), ids=ALLOWED.keys())
async def test_the_guards_let_pass_what_the_law_allows(world: World, allowed: list[str]) -> None:
    """A guard that refuses too much would be turned off."""
    async with world.sql_client() as client:
        await client.run("UPDATE events SET per_buyer_max = 1")
        for sql in allowed:
            await client.run(world.fill(sql))


@in_one_loop
@pytest.mark.parametrize("world", GUARDED, indirect=True, ids=str)
async def test_a_published_entry_keeps_its_number(world: World) -> None:
    """The number is given once."""
    async with world.sql_client() as client:
        one = world.fill("WHERE booking_id = '{sold}' AND version = 1")
        await client.run(f"UPDATE journal SET sequence = 7 {one}")
        with pytest.raises(Refused, match="journal_is_append_only"):
            await client.run(f"UPDATE journal SET sequence = 8 {one}")
        with pytest.raises(Refused, match="journal_is_append_only"):
            await client.run(f"UPDATE journal SET sequence = NULL {one}")


@in_one_loop
@pytest.mark.parametrize("world", GUARDED, indirect=True, ids=str)
@pytest.mark.parametrize("source, target", list(product(State, State)))
async def test_the_schema_knows_the_very_moves_of_the_law(world: World, source: State, target: State) -> None:
    """Every edge of the table of moves passes, and no other."""
    async with world.sql_client() as client:
        for state in _way_to(source):
            await _move(client, world, state)
        if source == target or (source, target) in EDGES:
            await _move(client, world, target)
        else:
            with pytest.raises(Refused, match="booking_moves_along_an_edge"):
                await _move(client, world, target)


async def _move(client: SqlClient, world: World, state: State) -> None:
    await client.run(world.fill(f"UPDATE bookings SET state = '{state}' WHERE id = '{{held}}'"))


def _way_to(state: State) -> list[State]:
    """The states a held booking passes on its shortest way there."""
    ways: dict[State, list[State]] = {State.HELD: []}
    for _ in State:
        for source, target in sorted(EDGES):
            if source in ways and target not in ways:
                assert source is not None
                ways[target] = [*ways[source], target]
    return ways[state]


# -- what the verifier sees when the guards were off ---------------------------------------------------------------

NO_BOOKING = "00000000-0000-0000-0000-000000000009"
PLANTED = {
    "seat_of_one_active_booking": (
        """UPDATE bookings SET lines = '{{"seats": [{{"id": "A1", "price": 1}}], "pools": []}}' WHERE id = '{sold}'""",
        "seat A1 of show",
    ),
    "active_booking_owns_its_seats": ("UPDATE seats SET booking_id = NULL WHERE id = 'A2'", "{sold}"),
    "owner_lists_its_seats": ("UPDATE seats SET booking_id = '{sold}' WHERE id = 'A6'", "seat A6 of show"),
    "blocked_seat_is_nobodys": ("UPDATE seats SET blocked = true WHERE id = 'A1'", "seat A1 of show"),
    "pool_within_capacity": ("UPDATE pools SET capacity = 1", "pool GA of show: capacity 1, held 2, sold 0"),
    "pool_counts_its_bookings": (
        "UPDATE pools SET held = 1, sold = 1",
        "held 1 and sold 1, but its bookings say 2 and 0",
    ),
    "total_counts_its_bookings": (
        "DELETE FROM buyer_totals WHERE buyer = 'ann'",
        "buyer ann at show: total 0, but the bookings say 3",
    ),
    "journal_has_no_gap": ("DELETE FROM journal WHERE booking_id = '{sold}' AND version = 1", "{sold}"),
    "journal_ends_where_the_booking_stands": (
        "UPDATE bookings SET state = 'failed' WHERE id = '{released}'",
        "booking {released} is failed, but its journal ends with released",
    ),
    "booking_resolves_once": (
        "UPDATE journal SET before = 'held', after = 'released' WHERE booking_id = '{sold}' AND version = 1",
        "booking {sold} resolved as released, then confirmed",
    ),
    "journal_follows_the_moves": (
        "UPDATE journal SET before = 'paying' WHERE booking_id = '{sold}' AND version = 2",
        "booking {sold}: version 1 ended held, version 2 began paying",
    ),
    "booking_of_an_event": (
        "UPDATE bookings SET event_id = 'gone' WHERE id = '{released}'",
        "booking {released} belongs to gone, which is not there",
    ),
    "payment_of_a_booking": (
        "INSERT INTO outside_payments (payment_id, mode, booking_id) SELECT 'p-x', 'live', '" + NO_BOOKING + "'",
        f"payment p-x belongs to booking {NO_BOOKING}, which is not there",
    ),
    "payment_of_its_mode": (
        "INSERT INTO outside_payments (payment_id, booking_id, mode) VALUES ('p-x', '{sold}', 'test')",
        "payment p-x and booking {sold} are of different modes",
    ),
}


ADMISSIONS_RULE = "ticket_admits_once"
"""Its flaw is planted in the tests of tickets, here and among the races."""


@in_one_loop
@pytest.mark.parametrize("own_world", BARE, indirect=True, ids=str)
@pytest.mark.parametrize("name", PLANTED)
async def test_a_planted_flaw_is_found_and_named(own_world: World, name: str) -> None:
    """Each rule of the verifier sees its own kind of damage and names the row."""
    sql, row = PLANTED[name]
    product_name = "postgres" if isinstance(own_world.place, str) else "sqlite"
    promise, _, rule = load_named_sql.load(product_name, "find_broken_invariants.sql")[name].why.partition(": ")
    async with opened(own_world.place) as store:
        assert await store.find_flaws(limit=10) == []
        async with own_world.sql_client(keep=True) as client:
            await client.run(own_world.fill(sql))
        found = [flaw for flaw in await store.find_flaws(limit=10) if flaw.rule == rule]
    assert [flaw.promise for flaw in found] == [promise]
    assert own_world.fill(row) in found[0].row


def test_both_databases_are_verified_by_the_same_rules() -> None:
    """Same names, same order, same promises; and each has its planted flaw, here or beside its subject's guards."""
    rules = [
        [(query.name, query.why) for query in load_named_sql.load(product_name, "find_broken_invariants.sql").values()]
        for product_name in ("sqlite", "postgres")
    ]
    assert rules[0] == rules[1]
    money = dict.fromkeys(planted.rule for planted in MONEY_PLANTED)
    assert [name for name, _ in rules[0]] == [*PLANTED, *money, ADMISSIONS_RULE]


def test_both_databases_have_the_same_migrations() -> None:
    """What one gains, the other gains under the same number and name."""
    assert [str(step) for step in migrations("sqlite")] == [str(step) for step in migrations("postgres")]


# Some are told to a function that refuses by any name, and one is a unique key, which SQLite needs a trigger for.
RULE_OF_POSTGRES = re.compile(
    r"(?:ADD CONSTRAINT |CONSTRAINT = |CONSTRAINT (?=\w+ UNIQUE)|(?:account_change|keep_ticket)\()'?(?!TG_ARGV)(\w+)"
)
RULE_OF_SQLITE = re.compile(r"\((\w+)\)'\)")
# In SQLite those from the fourth on are constraints, as here, but for the last one, which is a foreign key.
ONLY_POSTGRES = {
    "booking_state_known",
    "code_opens_one_account",  # an index of that name in SQLite
    "nothing_is_truncated",
    "entry_is_queued_once",
    "mail_is_queued_once",
    "scan_is_there_once",
    "scopes_are_known",
    "ticket_is_there_once",
    "total_of_an_event",
    "buyer_cancel_limit_not_negative",  # a check of that name in SQLite's column
}
ONLY_SQLITE = {
    "booking_is_not_replaced",
    "key_is_never_deleted",
    "booking_with_seats_stays",
    "counts_are_integers",
    "event_is_not_replaced",
    "pool_is_not_replaced",
    "seat_is_not_replaced",
    "total_is_not_replaced",
}


def test_both_databases_refuse_by_the_same_rules() -> None:
    """Under one name each; what is beyond that closes a way that only one of them has."""
    in_postgres, in_sqlite = (
        {name for step in migrations(dialect) for name in rule.findall(step.sql)}
        for dialect, rule in (("postgres", RULE_OF_POSTGRES), ("sqlite", RULE_OF_SQLITE))
    )
    assert in_postgres - in_sqlite == ONLY_POSTGRES
    assert in_sqlite - in_postgres == ONLY_SQLITE
    assert {"booking_owns_every_seat", "seat_keeps_its_active_owner"} <= in_postgres & in_sqlite
