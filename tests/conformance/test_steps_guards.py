"""The law stands in the schema: hand-written SQL that breaks it is refused by the database itself.

Every refusal has its control: the very same SQL passes on a database that was built without the guards.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import pytest

from earmark.domain.machine import EDGES, State
from earmark.store import queries
from earmark.store.migrations import migrations

from .steps_support import Refused
from .steps_worlds import BARE, GUARDED, Kind, Worlds, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .steps_support import Hand, World

BOOKING = "event_id, buyer, live, lines, total, currency, created_at, expires_at, version"
JOURNAL = "event_id, booking_id, verb, before, after, actor, reason, at, facts"


class Break(NamedTuple):
    """What somebody tries, in SQL that both databases read, and the rule that refuses it."""

    attempt: str
    rule: str
    sql: str


BREAKS = [
    Break("a pool sold below zero", "pool_never_negative", "UPDATE pools SET sold = -1"),
    Break("a pool held below zero", "pool_never_negative", "UPDATE pools SET held = held - 3"),
    Break("a capacity below zero", "pool_never_negative", "UPDATE pools SET capacity = -1, held = 0, sold = -1"),
    Break("a pool sold out twice", "pool_never_oversold", "UPDATE pools SET sold = sold + 4"),
    Break("a capacity below what is held", "pool_never_oversold", "UPDATE pools SET capacity = 1"),
    Break(
        "a new pool that is oversold",
        "pool_never_oversold",
        "INSERT INTO pools (event_id, id, capacity, held, sold, price, position) VALUES ('show', 'B', 1, 1, 1, 0, 1)",
    ),
    Break(
        "a new pool below zero",
        "pool_never_negative",
        "INSERT INTO pools (event_id, id, capacity, held, sold, price, position) VALUES ('show', 'B', 1, -1, 1, 0, 1)",
    ),
    Break("a total below zero", "total_never_negative", "UPDATE buyer_totals SET units = units - 4"),
    Break(
        "a new total below zero",
        "total_never_negative",
        "INSERT INTO buyer_totals (event_id, buyer, units) VALUES ('show', 'dan', -1)",
    ),
    Break(
        "a total above the limit", "buyer_stays_within_limit", "UPDATE buyer_totals SET units = 5 WHERE buyer = 'bob'"
    ),
    Break(
        "a new total above the limit",
        "buyer_stays_within_limit",
        "INSERT INTO buyer_totals (event_id, buyer, units) VALUES ('show', 'dan', 5)",
    ),
    Break("a price below zero", "booking_total_not_negative", "UPDATE bookings SET total = -1 WHERE id = '{held}'"),
    Break(
        "a booking that begins as sold",
        "booking_begins_held",
        f"INSERT INTO bookings (id, state, {BOOKING}) SELECT '{{new}}', 'confirmed', {BOOKING} "
        "FROM bookings WHERE id = '{released}'",
    ),
    Break(
        "a sale put back to held",
        "booking_moves_along_an_edge",
        "UPDATE bookings SET state = 'held' WHERE id = '{sold}'",
    ),
    Break(
        "a released hold confirmed",
        "booking_moves_along_an_edge",
        "UPDATE bookings SET state = 'confirmed' WHERE id = '{released}'",
    ),
    Break(
        "a state that nobody knows",
        "booking_",
        "UPDATE bookings SET state = 'sold' WHERE id = '{held}'",
    ),
    Break(
        "a held seat given away",
        "seat_keeps_its_live_owner",
        "UPDATE seats SET booking_id = '{released}' WHERE id = 'A1'",
    ),
    Break("a sold seat set free", "seat_keeps_its_live_owner", "UPDATE seats SET booking_id = NULL WHERE id = 'A2'"),
    Break("a sold seat blocked", "seat_keeps_its_live_owner", "UPDATE seats SET blocked = true WHERE id = 'A2'"),
    Break("a sold seat renamed", "seat_keeps_its_live_owner", "UPDATE seats SET id = 'Z9' WHERE id = 'A2'"),
    Break("a held seat removed", "seat_keeps_its_live_owner", "DELETE FROM seats WHERE id = 'A1'"),
    Break(
        "a blocked seat taken",
        "blocked_seat_is_not_taken",
        "UPDATE seats SET booking_id = '{released}' WHERE id = 'A5'",
    ),
    Break("an entry removed", "journal_is_append_only", "DELETE FROM journal WHERE booking_id = '{held}'"),
    Break("an entry rewritten", "journal_is_append_only", "UPDATE journal SET actor = 'nobody'"),
    Break("a reason made up", "journal_is_append_only", "UPDATE journal SET reason = 'because' WHERE version = 1"),
]

SQLITE_BREAKS = [
    Break(
        "a held seat replaced",
        "seat_is_not_replaced",
        "INSERT OR REPLACE INTO seats (event_id, id, price, position) VALUES ('show', 'A1', 1, 1)",
    ),
    Break(
        "a sold seat replaced by another that is renamed",
        "seat_is_not_replaced",
        "UPDATE OR REPLACE seats SET id = 'A2' WHERE id = 'A6'",
    ),
    Break(
        "a sale replaced by a hold",
        "booking_is_not_replaced",
        f"INSERT OR REPLACE INTO bookings (id, state, {BOOKING}) SELECT id, 'held', {BOOKING} "
        "FROM bookings WHERE id = '{sold}'",
    ),
    Break("a sale under a new id", "booking_keeps_its_id", "UPDATE bookings SET id = '{new}' WHERE id = '{sold}'"),
    Break("a sale removed under its seats", "booking_with_seats_stays", "DELETE FROM bookings WHERE id = '{sold}'"),
    Break(
        "an entry replaced by its id",
        "journal_is_append_only",
        f"INSERT OR REPLACE INTO journal (id, version, {JOURNAL}) SELECT id, 9, {JOURNAL} FROM journal",
    ),
    Break(
        "an entry replaced by its version",
        "journal_is_append_only",
        f"INSERT OR REPLACE INTO journal (id, version, {JOURNAL}) SELECT '{{new}}', version, {JOURNAL} FROM journal "
        "WHERE booking_id = '{held}'",
    ),
]


@pytest.fixture(scope="module")
def worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return Worlds(request, tmp_path_factory.mktemp("worlds"))


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


@pytest.mark.parametrize("world", GUARDED, indirect=True, ids=str)
@pytest.mark.parametrize("broken", BREAKS, ids=_named)
async def test_hand_written_sql_that_breaks_the_law_is_refused(world: World, broken: Break) -> None:
    """Whatever a program or a person believes, the database refuses it, and says by which rule."""
    async with world.hand() as hand:
        with pytest.raises(Refused, match=broken.rule):
            await hand.run(world.fill(broken.sql))


@pytest.mark.parametrize("world", BARE, indirect=True, ids=str)
@pytest.mark.parametrize("broken", BREAKS, ids=_named)
async def test_control_without_the_guards_the_same_sql_passes(world: World, broken: Break) -> None:
    """So it is the guard that refuses, and nothing else."""
    async with world.hand() as hand:
        await hand.run(world.fill(broken.sql))


@pytest.mark.parametrize("world", GUARDED[:1], indirect=True, ids=str)
@pytest.mark.parametrize("broken", SQLITE_BREAKS, ids=_named)
async def test_sqlite_has_no_way_round_the_law(world: World, broken: Break) -> None:
    """REPLACE asks no trigger on DELETE, and a shell keeps no foreign keys: the guards close both ways."""
    async with world.hand() as hand:
        with pytest.raises(Refused, match=broken.rule):
            await hand.run(world.fill(broken.sql))


@pytest.mark.parametrize("world", BARE[:1], indirect=True, ids=str)
@pytest.mark.parametrize("broken", SQLITE_BREAKS, ids=_named)
async def test_control_without_the_guards_sqlite_lets_it_pass(world: World, broken: Break) -> None:
    """These ways are open in SQLite itself."""
    async with world.hand() as hand:
        await hand.run(world.fill(broken.sql))


RECLAIM = "UPDATE bookings SET state = 'confirmed' WHERE id = '{expired}'"
LOST = {
    "given to another": "UPDATE seats SET booking_id = '{released}' WHERE id = 'A3'",
    "blocked": "UPDATE seats SET blocked = true WHERE id = 'A3'",
    "set free": "UPDATE seats SET booking_id = NULL WHERE id = 'A3'",
}


@pytest.mark.parametrize("world", GUARDED, indirect=True, ids=str)
@pytest.mark.parametrize("lost", LOST.values(), ids=LOST.keys())
async def test_an_expired_booking_comes_back_only_with_all_its_seats(world: World, lost: str) -> None:
    """Late money confirms nothing whose seats are gone."""
    async with world.hand() as hand:
        await hand.run(world.fill(lost))
        with pytest.raises(Refused, match="booking_reclaims_every_seat"):
            await hand.run(world.fill(RECLAIM))


@pytest.mark.parametrize("world", BARE, indirect=True, ids=str)
@pytest.mark.parametrize("lost", LOST.values(), ids=LOST.keys())
async def test_control_without_the_guards_it_comes_back_without_them(world: World, lost: str) -> None:
    """A sale without a seat, as it happens where nothing stands in the way."""
    async with world.hand() as hand:
        await hand.run(world.fill(lost))
        await hand.run(world.fill(RECLAIM))


@pytest.mark.parametrize("own_world", GUARDED, indirect=True, ids=str)
async def test_an_expired_booking_that_comes_back_raises_the_fence(own_world: World) -> None:
    """Even when it is done by hand: a hold that saw the seat free has to look again."""
    async with own_world.hand(keep=True) as hand:
        await hand.run(own_world.fill(RECLAIM))
    async with opened(own_world.place) as store:
        fences = {on_map.seat.id: on_map.fence for on_map in (await store.read_map("show")).seats}  # type: ignore[arg-type]
    assert fences == {"A1": 0, "A2": 0, "A3": 1, "A4": 0, "A5": 0, "A6": 0}


ALLOWED = {
    "an ended booking's seat is taken": "UPDATE seats SET booking_id = '{held}' WHERE id = 'A4'",
    "an ended booking's seat is blocked": "UPDATE seats SET blocked = true WHERE id = 'A4'",
    "a price changes under an owner": "UPDATE seats SET price = 7 WHERE id = 'A1'",
    "a blocked seat is opened": "UPDATE seats SET blocked = false WHERE id = 'A5'",
    "a total shrinks though it is above a new limit": "UPDATE buyer_totals SET units = units - 1 WHERE units > 0",
    "a published entry gets its number": "UPDATE journal SET sequence = 7 WHERE booking_id = '{held}'",
    "a key's time is over": "UPDATE journal SET caller = NULL, key = NULL, request_hash = NULL, answer_body = NULL",
}


@pytest.mark.parametrize("world", GUARDED, indirect=True, ids=str)
@pytest.mark.parametrize("sql", ALLOWED.values(), ids=ALLOWED.keys())
async def test_the_guards_let_pass_what_the_law_allows(world: World, sql: str) -> None:
    """A guard that refuses too much would be turned off."""
    async with world.hand() as hand:
        await hand.run("UPDATE events SET per_buyer_max = 1")
        await hand.run(world.fill(sql))


@pytest.mark.parametrize("world", GUARDED, indirect=True, ids=str)
async def test_a_published_entry_keeps_its_number(world: World) -> None:
    """The number is given once."""
    async with world.hand() as hand:
        await hand.run("UPDATE journal SET sequence = 7 WHERE version = 1")
        with pytest.raises(Refused, match="journal_is_append_only"):
            await hand.run("UPDATE journal SET sequence = 8 WHERE version = 1")
        with pytest.raises(Refused, match="journal_is_append_only"):
            await hand.run("UPDATE journal SET sequence = NULL WHERE version = 1")


@pytest.mark.parametrize("world", GUARDED, indirect=True, ids=str)
@pytest.mark.parametrize("source, target", list(product(State, State)))
async def test_the_schema_knows_the_very_moves_of_the_law(world: World, source: State, target: State) -> None:
    """Every edge of the table of moves passes, and no other."""
    async with world.hand() as hand:
        for state in _way_to(source):
            await _move(hand, world, state)
        if source == target or (source, target) in EDGES:
            await _move(hand, world, target)
        else:
            with pytest.raises(Refused, match="booking_moves_along_an_edge"):
                await _move(hand, world, target)


async def _move(hand: Hand, world: World, state: State) -> None:
    await hand.run(world.fill(f"UPDATE bookings SET state = '{state}' WHERE id = '{{held}}'"))


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

PLANTED = {
    "seat_of_one_live_booking": (
        """UPDATE bookings SET lines = '{{"seats": [{{"id": "A1", "price": 1}}], "pools": []}}' WHERE id = '{sold}'""",
        "seat A1 of show",
    ),
    "live_booking_owns_its_seats": ("UPDATE seats SET booking_id = NULL WHERE id = 'A2'", "{sold}"),
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
}


@pytest.mark.parametrize("own_world", BARE, indirect=True, ids=str)
@pytest.mark.parametrize("name", PLANTED)
async def test_a_planted_flaw_is_found_and_named(own_world: World, name: str) -> None:
    """Each rule of the verifier sees its own kind of damage and names the row."""
    sql, row = PLANTED[name]
    product_name = "postgres" if isinstance(own_world.place, str) else "sqlite"
    promise, _, rule = queries.load(product_name, "verify.sql")[name].why.partition(": ")
    async with opened(own_world.place) as store:
        assert await store.find_flaws(limit=10) == []
        async with own_world.hand(keep=True) as hand:
            await hand.run(own_world.fill(sql))
        found = [flaw for flaw in await store.find_flaws(limit=10) if flaw.rule == rule]
    assert [flaw.promise for flaw in found] == [promise]
    assert own_world.fill(row) in found[0].row


def test_both_databases_are_verified_by_the_same_rules() -> None:
    """Same names, same order, same promises; and each has its planted flaw above."""
    rules = [
        [(query.name, query.why) for query in queries.load(product_name, "verify.sql").values()]
        for product_name in ("sqlite", "postgres")
    ]
    assert rules[0] == rules[1]
    assert [name for name, _ in rules[0]] == list(PLANTED)


def test_both_databases_have_the_same_migrations() -> None:
    """What one gains, the other gains under the same number and name."""
    assert [str(step) for step in migrations("sqlite")] == [str(step) for step in migrations("postgres")]
