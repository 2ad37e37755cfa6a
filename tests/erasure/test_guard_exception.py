"""What the guards let pass: one function, in its own transaction, by the owner of the tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.migration.test_application_role import owner, role, url_of

from earmark.errors import SetupError
from earmark.store import load_named_sql
from earmark.store.both_databases.replace_buyer_name_in_texts import KEPT_FIELDS, new_pseudonym
from earmark.wiring import open_and_maintain_databases

from .conftest import ANN, HOURS, Place, ShopApi, fill, shop_api_over
from .test_erase_buyer import bookings_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.clock import MovableClock
    from earmark.store.sqlite import SqliteStore

__all__ = ["owner", "role"]

FORGED = f"erased-{'f' * 32}"
RENAMES = {
    "bookings": f"UPDATE bookings SET buyer = '{FORGED}'",
    "buyer_totals": f"UPDATE buyer_totals SET buyer = '{FORGED}' WHERE units > 0 AND buyer = '{ANN}'",
    "journal": "UPDATE journal SET actor = 'another'",
    "stored answers": "UPDATE journal SET answer_body = '' WHERE key IS NOT NULL",
    "payments": "UPDATE payments SET method = 'another'",
    "outside_payments": "UPDATE outside_payments SET payment_id = 'another' WHERE payment_id = 'till bob'",
}
"""What only an erasure may do."""
MORE = {
    "the event of a booking": "UPDATE bookings SET event_id = 'gala', buyer = $1",
    "the units of a total": "UPDATE buyer_totals SET units = units + 1, buyer = $1 WHERE units > 0",
    "what an entry tells": "UPDATE journal SET verb = 'cancel' WHERE $1::text IS NOT NULL",
    "the status of an answer": "UPDATE journal SET answer_status = 9 WHERE key IS NOT NULL AND $1::text IS NOT NULL",
    "the amount of a payment": "UPDATE payments SET amount = amount + 1 WHERE $1::text IS NOT NULL",
    "the booking of an outside payment": "UPDATE outside_payments SET booking_id = NULL WHERE $1::text > ''",
}
"""What no erasure may do."""
OPEN = "INSERT INTO erasures (pseudonym, transaction) VALUES ($1, pg_current_xact_id())"


@pytest.fixture
async def shop_role(postgres_place: Place, role: str) -> str:
    """The role that servers connect as."""
    await open_and_maintain_databases.migrate(postgres_place.url, application_role=role)
    return role


@pytest.fixture
async def served(postgres_place: Place, shop_role: str) -> AsyncIterator[Any]:
    """A session of that role."""
    connection = await asyncpg.connect(url_of(shop_role, postgres_place.url))
    yield connection
    await connection.close()


@pytest.fixture
def place(postgres_place: Place) -> Place:
    """Roles are PostgreSQL's."""
    return postgres_place


async def test_the_application_role_gets_the_name_of_the_role_that_may(
    place: Place, named: ShopApi, shop_role: str
) -> None:
    """And where to name it."""
    with pytest.raises(SetupError, match=r"owns the tables.*--database postgresql://.*EARMARK_DATABASE_URL"):
        await open_and_maintain_databases.erase_buyer(url_of(shop_role, place.url), ANN, clock=place.clock)
    assert named.answers


async def test_the_application_role_may_not_call_the_function(named: ShopApi, served: Any) -> None:
    """Nor write the row that the guards look at."""
    assert named.answers
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="earmark_erase_buyer"):
        await served.execute("SELECT earmark_erase_buyer($1, $2, now(), $3)", ANN, new_pseudonym(), list(KEPT_FIELDS))
    for attack in ("INSERT INTO erasures DEFAULT VALUES", "UPDATE erasures SET pseudonym = ''", "TABLE erasures"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="erasures"):
            await served.execute(attack)


@pytest.mark.parametrize("what", RENAMES)
async def test_the_guards_refuse_the_application_role(named: ShopApi, served: Any, what: str) -> None:
    """As before there was an exception."""
    assert named.answers
    with pytest.raises(asyncpg.CheckViolationError):
        await served.execute(RENAMES[what])


@pytest.mark.parametrize("what", RENAMES)
async def test_a_role_that_was_granted_too_much_is_refused_all_the_same(
    named: ShopApi, owner: Any, served: Any, shop_role: str, what: str
) -> None:
    """The row may be there, and a temporary table of the same name before it: the role still owns no table."""
    assert named.answers
    await owner.execute(f'GRANT ALL ON erasures TO "{shop_role}"')
    await owner.execute(f'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO "{shop_role}"')
    async with served.transaction():
        call = "SELECT earmark_erase_buyer($1, $2, now() + interval '1 day', $3)"
        with pytest.raises(asyncpg.CheckViolationError):
            async with served.transaction():
                await served.execute(call, ANN, FORGED, list(KEPT_FIELDS))
        await served.execute(OPEN, FORGED)
        await served.execute("CREATE TEMP TABLE erasures AS SELECT * FROM public.erasures")
        with pytest.raises(asyncpg.CheckViolationError):
            async with served.transaction():
                await served.execute(RENAMES[what])


async def test_without_the_owner_check_that_role_could(named: ShopApi, owner: Any, served: Any, shop_role: str) -> None:
    """The control: with the guards' check always true, every one of these renames is made."""
    assert named.answers
    await owner.execute(f'GRANT ALL ON erasures TO "{shop_role}"')
    source = await owner.fetchval("SELECT pg_get_functiondef('earmark_is_erasing'::regproc)")
    weakened = source.replace("IF owned IS NOT TRUE THEN", "IF false THEN")
    assert weakened != source
    try:
        await owner.execute(weakened)
        async with served.transaction():
            await served.execute(OPEN, FORGED)
            for rename in RENAMES.values():
                scope = served.transaction()
                await scope.start()
                await served.execute(rename)
                await scope.rollback()
    finally:
        await owner.execute(source)


@pytest.mark.parametrize("what", RENAMES)
async def test_the_owner_needs_an_open_erasure(named: ShopApi, owner: Any, what: str) -> None:
    """Without the function, the owner's statement is refused; a row of another transaction opens nothing."""
    assert named.answers
    await owner.execute(OPEN, FORGED)
    with pytest.raises(asyncpg.CheckViolationError):
        await owner.execute(RENAMES[what])


@pytest.mark.parametrize("what", MORE)
async def test_an_open_erasure_changes_no_more_than_names(named: ShopApi, owner: Any, what: str) -> None:
    """What was sold, counted, paid and published stays under the guards."""
    assert named.answers
    async with owner.transaction():
        await owner.execute(OPEN, FORGED)
        with pytest.raises(asyncpg.CheckViolationError):
            async with owner.transaction():
                await owner.execute(MORE[what], FORGED)


async def test_nothing_stays_open(place: Place, named: ShopApi, owner: Any) -> None:
    """After an erasure."""
    assert named.answers
    assert any((await place.erase()).changed.values())
    assert await owner.fetch("SELECT FROM erasures WHERE pseudonym IS NOT NULL OR transaction IS NOT NULL") == []
    with pytest.raises(asyncpg.CheckViolationError):
        await owner.execute(RENAMES["journal"])


GUARDS = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name"


async def test_sqlite_has_the_same_guards_before_and_after(sqlite_store: SqliteStore, clock: MovableClock) -> None:
    """The same statements are refused, by the same triggers to the letter; also after an erasure that was refused."""
    own = Place(
        url=f"sqlite:///{sqlite_store.access.file}", store=sqlite_store, clock=clock, file=sqlite_store.access.file
    )
    async with shop_api_over(own) as shop_api:
        await fill(own, shop_api)
    with closing(sqlite3.connect(sqlite_store.access.file, isolation_level=None)) as connection:
        guards = connection.execute(GUARDS).fetchall()
        assert (await own.erase()).obstacles
        assert connection.execute(GUARDS).fetchall() == guards
        clock.advance(2 * HOURS)
        assert any((await own.erase(dry_run=True)).changed.values())
        assert any((await own.erase()).changed.values())
        assert connection.execute(GUARDS).fetchall() == guards
        for rename in RENAMES.values():
            with pytest.raises(sqlite3.IntegrityError, match="earmark:"):
                connection.execute(rename.replace(ANN, "bob"))


async def test_sqlite_refuses_an_erasure_that_leaves_its_guards_in_place(
    sqlite_store: SqliteStore, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with a guard that the erasure does not know nothing is changed, and every row has its name."""
    own = Place(
        url=f"sqlite:///{sqlite_store.access.file}", store=sqlite_store, clock=clock, file=sqlite_store.access.file
    )
    async with shop_api_over(own) as shop_api:
        await fill(own, shop_api)
    clock.advance(2 * HOURS)
    sql = load_named_sql.sql("sqlite", "erase_buyer.sql")
    monkeypatch.setattr(load_named_sql, "sql", lambda *_: sql | {"read_guards": "SELECT 1 WHERE false"})
    before = await bookings_of(own)
    with pytest.raises(sqlite3.IntegrityError, match="earmark:"):
        await own.erase()
    assert await bookings_of(own) == before
