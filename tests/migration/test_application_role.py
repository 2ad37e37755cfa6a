"""The role that servers and workers connect as: it sells, and can neither rewrite what happened nor undo a guard."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from tests.acceptance.support import earmark as command
from tests.acceptance.support import serve

from earmark.domain.live_or_test_mode import Mode
from earmark.errors import SetupError
from earmark.library import Earmark
from earmark.store import load_named_sql
from earmark.store.both_databases.pending_migrations import migrations
from earmark.wiring import open_and_maintain_databases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

FORBIDDEN = {
    "switch the guards off": "ALTER TABLE journal DISABLE TRIGGER ALL",
    "switch all triggers off": "SET session_replication_role = replica",
    "drop a guard": "DROP TRIGGER outside_payment_stays ON outside_payments",
    "replace a guard": "CREATE OR REPLACE FUNCTION earmark_keep_journal() RETURNS trigger LANGUAGE sql AS ''",
    "empty the journal": "TRUNCATE journal",
    "delete what happened": "DELETE FROM journal",
    "delete bookings": "DELETE FROM bookings",
    "delete payments": "DELETE FROM payments",
    "pretend a migration": "INSERT INTO earmark_migrations (number, name, checksum) VALUES (9999, 'x', 'x')",
    "make a table": "CREATE TABLE mine (id integer)",
    "drop a table": "DROP TABLE seats",
}


@pytest.fixture
async def owner(postgres_url: str) -> AsyncIterator[Any]:
    """The connection of the role that owns the tables."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.fixture
async def role(owner: Any) -> AsyncIterator[str]:
    """A role that may log in, with a name that has to be quoted."""
    name = f"Shop-{secrets.token_hex(4)}"
    await owner.execute(f'CREATE ROLE "{name}" LOGIN')
    yield name
    await owner.execute(f'DROP OWNED BY "{name}"')
    await owner.execute(f'DROP ROLE "{name}"')


def url_of(role: str, url: str) -> str:
    """The same database, as another role."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{role}@{host}"))


async def test_the_role_does_all_that_a_shop_does(postgres_url: str, role: str) -> None:
    """Events, holds, sales, money there and back, and a check of every promise."""
    await open_and_maintain_databases.migrate(postgres_url, application_role=role)
    async with Earmark.open(url_of(role, postgres_url), migrate=False, mode=Mode.TEST) as shop:
        await shop.create_event(
            "play", name="A play", currency="EUR", seats={"A1": 500, "A2": 500}, pools={"GA": (9, 300)}
        )
        sold = await shop.hold("play", buyer="ann", seats=["A1"], pools={"GA": 2}, key="first")
        await shop.extend(sold.id, seconds=30)
        await shop.pay(sold.id, method="pm_card_visa", key="paying")
        assert (await shop.booking(sold.id)).state == "confirmed"
        await shop.cancel(sold.id)
        let_go = await shop.hold("play", buyer="bob", seats=["A2"])
        await shop.release(let_go.id)
        outside = await shop.hold("play", buyer="eve", seats=["A2"])
        await shop.confirm(outside.id, payment_id="till-1")
        assert not await shop.engine.store.find_flaws(limit=10)


async def test_servers_and_their_workers_run_as_that_role(postgres_url: str, role: str, tmp_path: Path) -> None:
    """Every worker has made a round, and `doctor` finds none that fails."""
    await open_and_maintain_databases.migrate(postgres_url, application_role=role)
    service = serve(database=url_of(role, postgres_url), directory=tmp_path, EARMARK_HEARTBEAT_SECONDS="1")
    try:
        for _ in range(30):
            told = command("doctor", "--database", url_of(role, postgres_url), EARMARK_ADMIN_KEY=service.key).stdout
            if "ok  workers" in told:
                break
        assert "ok  workers" in told
    finally:
        service.stop()
    assert "permission denied" not in service.log()


@pytest.mark.parametrize("attack", FORBIDDEN)
async def test_the_role_cannot(postgres_url: str, role: str, attack: str) -> None:
    """The server refuses it, whatever the role knows of Earmark."""
    await open_and_maintain_databases.migrate(postgres_url, application_role=role)
    connection = await asyncpg.connect(url_of(role, postgres_url))
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(FORBIDDEN[attack])
    finally:
        await connection.close()


async def test_the_owner_could(owner: Any) -> None:
    """The control: as the owner, the same statement succeeds."""
    transaction = owner.transaction()
    await transaction.start()
    await owner.execute(FORBIDDEN["switch the guards off"])
    await owner.execute(FORBIDDEN["empty the journal"])
    await transaction.rollback()


async def test_every_table_that_rows_are_deleted_from_is_granted(owner: Any, postgres_url: str, role: str) -> None:
    """Read from the queries themselves, so that a new one is not forgotten."""
    await open_and_maintain_databases.migrate(postgres_url, application_role=role)
    statements = load_named_sql.statements("postgres").values()
    deleted = {text.partition("DELETE FROM ")[2].split()[0] for text in statements if "DELETE FROM " in text}
    assert "buyer_totals" in deleted
    for table in deleted:
        assert await owner.fetchval("SELECT has_table_privilege($1, $2, 'DELETE')", role, table), table


GUARD_PATHS = re.findall(r"DO \$\$.*?END \$\$;", "".join(step.sql for step in migrations("postgres")), re.DOTALL)
"""The statement of the migrations that gives every guard its path."""
HIDES_THE_BOOKINGS = """
    CREATE TEMPORARY TABLE bookings AS SELECT * FROM bookings WHERE false;
    UPDATE seats SET booking_id = NULL;
"""


async def test_the_guards_read_past_the_temporary_tables_of_a_session(postgres_url: str, role: str) -> None:
    """A session looks into its own temporary tables first: a guard that did so would find no booking to protect."""
    await open_and_maintain_databases.migrate(postgres_url, application_role=role)
    await _hold(postgres_url)
    connection = await asyncpg.connect(url_of(role, postgres_url))
    try:
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute(HIDES_THE_BOOKINGS)
    finally:
        await connection.close()


async def test_a_guard_without_a_path_of_its_own_is_misled(owner: Any, postgres_url: str, role: str) -> None:
    """The control: the same statements take a seat from the booking that has it."""
    await open_and_maintain_databases.migrate(postgres_url, application_role=role)
    await _hold(postgres_url)
    for guard in await owner.fetch(f"SELECT p.oid::regprocedure::text AS name {GUARDS}"):
        await owner.execute(f"ALTER FUNCTION {guard['name']} RESET search_path")
    connection = await asyncpg.connect(url_of(role, postgres_url))
    try:
        await connection.execute(HIDES_THE_BOOKINGS)
    finally:
        await connection.close()
        await owner.execute(GUARD_PATHS[0])
    async with Earmark.open(postgres_url, migrate=False) as shop:
        assert await shop.engine.store.find_flaws(limit=10)


async def test_every_guard_has_a_path_of_its_own(owner: Any) -> None:
    """A migration that replaces a guard says its path again."""
    paths = {
        row["name"]: row["path"] for row in await owner.fetch(f"SELECT p.proname AS name, p.proconfig AS path {GUARDS}")
    }
    assert len(paths) > 25
    assert {name for name, path in paths.items() if "search_path=public, pg_temp" not in path} == set()


GUARDS = """
    FROM pg_proc p
   WHERE p.pronamespace = current_schema()::regnamespace AND p.prorettype = 'trigger'::regtype
"""


async def _hold(url: str) -> None:
    async with Earmark.open(url, migrate=False) as shop:
        await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 500})
        await shop.hold("play", buyer="ann", seats=["A1"])


async def test_tables_of_another_program_are_not_granted(owner: Any, postgres_url: str, role: str) -> None:
    """They may stand in the same schema."""
    await owner.execute("CREATE TABLE letters (id integer GENERATED ALWAYS AS IDENTITY)")
    await open_and_maintain_databases.migrate(postgres_url, application_role=role)
    assert not await owner.fetchval("SELECT has_table_privilege($1, 'letters', 'SELECT')", role)
    assert await owner.fetchval("SELECT has_table_privilege($1, 'bookings', 'SELECT')", role)
    assert not await owner.fetchval("SELECT has_sequence_privilege($1, 'letters_id_seq', 'USAGE')", role)
    await owner.execute("DROP TABLE letters")


async def test_a_server_does_not_start_before_a_new_table_is_granted(owner: Any, postgres_url: str, role: str) -> None:
    """Else it would hold seats that cannot be paid. It says which command grants what is missing."""
    await open_and_maintain_databases.migrate(postgres_url, application_role=role)
    await owner.execute(f'REVOKE ALL ON payers, payment_keys FROM "{role}"')
    with pytest.raises(SetupError, match=f"payers, payment_keys.*--application-role {role}"):
        async with Earmark.open(url_of(role, postgres_url), migrate=False):
            pass
    await open_and_maintain_databases.migrate(postgres_url, application_role=role)
    async with Earmark.open(url_of(role, postgres_url), migrate=False) as shop:
        await shop.engine.store.check_ready()


async def test_a_role_that_makes_functions_is_refused(owner: Any, postgres_url: str, role: str) -> None:
    """One of the name of a built-in function, in the schema of the guards, could answer in its place."""
    await owner.execute(f'GRANT CREATE ON SCHEMA public TO "{role}"')
    with pytest.raises(SetupError, match="REVOKE CREATE ON SCHEMA public"):
        await open_and_maintain_databases.migrate(postgres_url, application_role=role)


async def test_a_role_that_could_undo_the_guards_is_refused(owner: Any, postgres_url: str, role: str) -> None:
    """A superuser, and a member of the role that owns the tables."""
    with pytest.raises(SetupError, match="superuser"):
        await open_and_maintain_databases.migrate(
            postgres_url, application_role=await owner.fetchval("SELECT current_user")
        )
    await owner.execute(f'GRANT "{await owner.fetchval("SELECT current_user")}" TO "{role}"')
    with pytest.raises(SetupError, match="owns the tables"):
        await open_and_maintain_databases.migrate(postgres_url, application_role=role)


async def test_a_role_that_is_not_there_is_named(postgres_url: str) -> None:
    """And the statement that makes it."""
    with pytest.raises(SetupError, match="CREATE ROLE shop LOGIN"):
        await open_and_maintain_databases.migrate(postgres_url, application_role="shop")


def test_sqlite_has_no_roles() -> None:
    """The command says so, and changes nothing."""
    told = command("migrate", "--database", "sqlite:///never-made.sqlite3", "--application-role", "shop")
    assert told.returncode == 1
    assert "Only PostgreSQL has roles" in told.stderr
