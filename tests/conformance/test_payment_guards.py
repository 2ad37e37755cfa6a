"""The rules of the money stand in the schema, and the verifier sees what was done where they did not.

Every refusal has its control: the very same SQL passes on a database that was built without the guards.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import asyncpg
import pytest
import pytest_asyncio

from earmark.domain.payment import EDGES, PaymentState
from earmark.store import load_named_sql
from earmark.store.both_databases.pending_migrations import migrations

from .hand_written_sql_databases import BARE, GUARDED, Kind, Worlds, in_one_loop, opened
from .payment_flaws import MONEY_IN_ORDER, MONEY_PLANTED
from .payment_sql_refused import (
    LATE,
    MONEY,
    MONEY_ALLOWED,
    MONEY_BREAKS,
    MONEY_BREAKS_OF_POSTGRES,
    MONEY_BREAKS_OF_SQLITE,
    MORE,
    NEW,
    SALE,
    a_payment,
    a_refund,
    on,
)
from .steps_support import Refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from .payment_flaws import Planted
    from .sql_refused import Break
    from .steps_support import SqlClient, World


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worlds]:
    made = Worlds(request, tmp_path_factory.mktemp("money"))
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


def _named(one: Break | Planted) -> str:
    return one[0].replace(" ", "_")


async def _run(client: SqlClient, world: World, statements: Sequence[str]) -> None:
    for sql in statements:
        await client.run(world.fill(sql))


async def _is_refused(world: World, broken: Break) -> None:
    async with world.sql_client() as client:
        await _run(client, world, [*MONEY, *broken.first])
        with pytest.raises(Refused, match=broken.rule):
            await client.run(world.fill(broken.sql))


async def _passes(world: World, broken: Break) -> None:
    async with world.sql_client() as client:
        await _run(client, world, [*MONEY, *broken.first, broken.sql])


# -- what the guards refuse ---------------------------------------------------------------------------------------


@in_one_loop
@pytest.mark.parametrize("world", GUARDED, indirect=True, ids=str)
@pytest.mark.parametrize("broken", MONEY_BREAKS, ids=_named)
async def test_hand_written_sql_that_breaks_the_law_of_the_money_is_refused(world: World, broken: Break) -> None:
    """Whatever a program or a person believes, the database refuses it, and says by which rule."""
    await _is_refused(world, broken)


@in_one_loop
@pytest.mark.parametrize("world", BARE, indirect=True, ids=str)
@pytest.mark.parametrize("broken", MONEY_BREAKS, ids=_named)
async def test_control_without_the_guards_the_same_sql_passes(world: World, broken: Break) -> None:
    """So it is the guard that refuses, and nothing else."""
    await _passes(world, broken)


@in_one_loop
@pytest.mark.parametrize("world", GUARDED[:1], indirect=True, ids=str)
@pytest.mark.parametrize("broken", MONEY_BREAKS_OF_SQLITE, ids=_named)
async def test_sqlite_has_no_way_round_the_law_of_the_money(world: World, broken: Break) -> None:
    """REPLACE, a shell without foreign keys, and columns that take any type: each way is closed."""
    await _is_refused(world, broken)


@in_one_loop
@pytest.mark.parametrize("world", BARE[:1], indirect=True, ids=str)
@pytest.mark.parametrize("broken", MONEY_BREAKS_OF_SQLITE, ids=_named)
async def test_control_without_the_guards_sqlite_lets_it_pass(world: World, broken: Break) -> None:
    """These ways are open in SQLite itself."""
    await _passes(world, broken)


@in_one_loop
@pytest.mark.parametrize("world", GUARDED[1:], indirect=True, ids=str)
@pytest.mark.parametrize("broken", MONEY_BREAKS_OF_POSTGRES, ids=_named)
async def test_postgresql_has_no_way_round_the_law_of_the_money(world: World, broken: Break) -> None:
    """TRUNCATE asks no guard of rows, and no foreign key leads to the bookings."""
    await _is_refused(world, broken)


@in_one_loop
@pytest.mark.parametrize("world", BARE[1:], indirect=True, ids=str)
@pytest.mark.parametrize("broken", MONEY_BREAKS_OF_POSTGRES, ids=_named)
async def test_control_without_the_guards_postgresql_lets_it_pass(world: World, broken: Break) -> None:
    """A table is empty in an instant."""
    await _passes(world, broken)


@in_one_loop
@pytest.mark.parametrize("world", GUARDED, indirect=True, ids=str)
@pytest.mark.parametrize("allowed", MONEY_ALLOWED.values(), ids=MONEY_ALLOWED.keys())
async def test_the_guards_let_pass_what_the_law_of_the_money_allows(world: World, allowed: list[str]) -> None:
    """A guard that refuses too much would be turned off."""
    async with world.sql_client() as client:
        await _run(client, world, [*MONEY, *allowed])
        assert int(await client.look("SELECT count(*) FROM payments")) >= 3


CALLED = "SELECT payment_id FROM callbacks WHERE gateway = 'bank' AND id = 'evt_1'"


@in_one_loop
@pytest.mark.parametrize("replace", ["REPLACE INTO", "INSERT OR REPLACE INTO"])
@pytest.mark.parametrize("world, remembered", [(GUARDED[0], LATE), (BARE[0], SALE)], indirect=["world"], ids=str)
async def test_sqlite_does_not_give_a_callback_to_another_payment(world: World, remembered: str, replace: str) -> None:
    """Who comes second gives way, as the program's own insert does; without the guards the first one is lost."""
    async with world.sql_client() as client:
        await _run(client, world, MONEY)
        await client.run(f"{replace} callbacks (gateway, id, payment_id, at) VALUES ('bank', 'evt_1', '{SALE}', 0)")
        assert await client.look(CALLED) == remembered


# -- the moves ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_the_schema_names_the_very_edges_of_the_law(dialect: str) -> None:
    """Each once, and no other."""
    guards = "".join(step.sql for step in migrations(dialect))
    triggers = re.findall(r"CREATE TRIGGER payment_moves_along_an_edge.*?NOT IN \((.*?)\n\s*\)", guards, re.DOTALL)
    assert triggers, "the guard has another shape now"
    edges = re.findall(r"\('(\w+)', '(\w+)'\)", triggers[-1])
    assert len(edges) == len(set(edges))
    assert set(edges) == {(source, target) for source, target in EDGES}


@in_one_loop
@pytest.mark.parametrize("world", GUARDED, indirect=True, ids=str)
@pytest.mark.parametrize("source", PaymentState)
async def test_the_schema_lets_a_payment_move_along_an_edge_only(world: World, source: PaymentState) -> None:
    """Every edge that the rules allow passes, as does staying; every other move is refused."""
    way = [a_payment(NEW, "sold"), *(on(NEW, f"state = '{state}'") for state in _way_to(source))]
    async with world.sql_client() as client:
        await _run(client, world, [*way, on(NEW, f"state = '{source}'")])
        for target in PaymentState:
            if target is not source and (source, target) not in EDGES:
                with pytest.raises(Refused, match="payment_moves_along_an_edge"):
                    await client.run(on(NEW, f"state = '{target}'"))
    for target in PaymentState:
        if (source, target) in EDGES:
            async with world.sql_client() as client:
                await _run(client, world, [*way, on(NEW, f"state = '{target}'")])
                assert await client.look(f"SELECT state FROM payments WHERE id = '{NEW}'") == target


def _way_to(state: PaymentState) -> list[PaymentState]:
    """The states a new payment passes on its shortest way there."""
    ways: dict[PaymentState, list[PaymentState]] = {PaymentState.PENDING: []}
    for _ in PaymentState:
        for source, target in sorted(EDGES):
            if source in ways and target not in ways:
                ways[target] = [*ways[source], target]
    return ways[state]


# -- two at once --------------------------------------------------------------------------------------------------

WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
OWED = "SELECT sum(amount) FROM refunds"


async def _both_refund(world: World) -> BaseException | None:
    """Two sessions that each add a refund of 400 to a payment that owes 400 more; what became of the second."""
    async with world.sql_client(keep=True) as client:
        await _run(client, world, [*MONEY, on(SALE, "refunding = 800")])
    async with world.sql_client(keep=True) as first:
        await first.run(a_refund(MORE, SALE, "400"))
        second = asyncio.create_task(_add(world.place, a_refund(NEW, SALE, "400")))
        while not second.done() and await first.look(WAITING) == "0":  # noqa: ASYNC110 (only the server knows)
            await asyncio.sleep(0.01)
    [outcome] = await asyncio.gather(second, return_exceptions=True)
    return outcome


async def _add(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


@in_one_loop
@pytest.mark.parametrize("own_world", GUARDED[1:], indirect=True, ids=str)
async def test_two_refunds_at_once_are_not_more_than_is_owed(own_world: World) -> None:
    """The second waits for the first, counts it, and is refused."""
    outcome = await _both_refund(own_world)
    assert isinstance(outcome, asyncpg.CheckViolationError)
    assert outcome.constraint_name == "refunds_within_what_is_owed"
    async with own_world.sql_client() as client:
        assert await client.look(OWED) == "800"


@in_one_loop
@pytest.mark.parametrize("own_world", BARE[1:], indirect=True, ids=str)
async def test_control_without_the_guards_both_refunds_are_kept(own_world: World) -> None:
    """Each saw only its own."""
    assert await _both_refund(own_world) is None
    async with own_world.sql_client() as client:
        assert await client.look(OWED) == "1200"


# -- what the verifier sees when the guards were off --------------------------------------------------------------


@in_one_loop
@pytest.mark.parametrize("own_world", BARE, indirect=True, ids=str)
@pytest.mark.parametrize("planted", MONEY_PLANTED, ids=_named)
async def test_a_planted_flaw_of_the_money_is_found_and_named(own_world: World, planted: Planted) -> None:
    """Each rule of the verifier sees its own kind of damage and names the row; before, there is nothing to see."""
    dialect = "postgres" if isinstance(own_world.place, str) else "sqlite"
    promise, _, rule = load_named_sql.load(dialect, "find_broken_invariants.sql")[planted.rule].why.partition(": ")
    async with opened(own_world.place) as store:
        async with own_world.sql_client(keep=True) as client:
            await _run(client, own_world, MONEY)
        assert await store.find_flaws(limit=10) == []
        async with own_world.sql_client(keep=True) as client:
            await client.run(own_world.fill(planted.sql))
        found = [flaw for flaw in await store.find_flaws(limit=10) if flaw.rule == rule]
    assert [flaw.promise for flaw in found] == [promise] == ["P3"]
    assert own_world.fill(planted.row) in found[0].row


@in_one_loop
@pytest.mark.parametrize("own_world", BARE, indirect=True, ids=str)
@pytest.mark.parametrize("right", MONEY_IN_ORDER.values(), ids=MONEY_IN_ORDER.keys())
async def test_what_looks_odd_and_is_right_is_no_flaw_of_the_money(own_world: World, right: list[str]) -> None:
    """A verifier that cries wolf is not listened to."""
    async with own_world.sql_client(keep=True) as client:
        await _run(client, own_world, [*MONEY, *right])
    async with opened(own_world.place) as store:
        assert [flaw for flaw in await store.find_flaws(limit=10) if flaw.promise == "P3"] == []
