"""The exception that PostgreSQL's guards make for sealing: the owner's alone, for one transaction, and for codes."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest
from tests.migration.sealed import CODE, SEALING, sell_as_before
from tests.payments.gateways.balance.account_shop import PRICE, execute, open_account, opened

CHANGES = {
    "a code": "UPDATE account_payments SET account_id = 'x'",
    "the id of an account": "UPDATE accounts SET id = 'x', code_digest = 'y'",
    "an entry's account": "UPDATE account_entries SET account_id = 'x'",
    "a method": "UPDATE payments SET method = 'x'",
    "an answer": "UPDATE journal SET answer_body = 'x', request_hash = 'y' WHERE key IS NOT NULL",
}
"""What sealing does, more or less."""
OTHERS = {
    "what was asked": "UPDATE account_payments SET amount = 1",
    "the money of an account": "UPDATE accounts SET balance = balance + 1",
    "the time of an account": "UPDATE accounts SET created_at = now()",
    "an entry's money": "UPDATE account_entries SET amount = amount + 1 WHERE kind = 'credited'",
    "an entry's id": "UPDATE account_entries SET id = 'x' WHERE kind = 'credited'",
    "an entry that is gone": "DELETE FROM account_entries",
    "an account that is gone": "DELETE FROM accounts",
    "the amount of a payment": "UPDATE payments SET method = 'x', amount = 1",
    "a payment that is gone": "DELETE FROM payments",
    "an actor": "UPDATE journal SET facts = '{}', actor = 'x'",
    "a gap in the journal": "DELETE FROM journal",
}
"""What it never does."""


@pytest.mark.parametrize("what", [*CHANGES, *OTHERS])
async def test_the_guards_refuse_without_a_sealing(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The owner of the tables too; and a sealing of another transaction is none."""
    await sell_as_before(postgres_url, monkeypatch, CODE)
    await execute(postgres_url, SEALING)
    with pytest.raises(asyncpg.CheckViolationError):
        await execute(postgres_url, "SET CONSTRAINTS ALL DEFERRED", (CHANGES | OTHERS)[what], keep=False)


@pytest.mark.parametrize("what", OTHERS)
async def test_the_guards_refuse_what_is_no_sealing(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The exception is for columns that held codes."""
    await sell_as_before(postgres_url, monkeypatch, CODE)
    with pytest.raises(asyncpg.CheckViolationError):
        await execute(postgres_url, SEALING, "SET CONSTRAINTS ALL DEFERRED", OTHERS[what], keep=False)


async def test_a_digest_that_is_there_stays(postgres_url: str) -> None:
    """Sealing gives an account its digest, and never another one."""
    async with opened(postgres_url) as shop:
        await open_account(shop.accounts, CODE, PRICE)
    for change in ("UPDATE accounts SET code_digest = 'x'", "UPDATE accounts SET code_digest = NULL"):
        with pytest.raises(asyncpg.CheckViolationError):
            await execute(postgres_url, SEALING, change, keep=False)


@pytest.mark.parametrize("what", CHANGES)
async def test_a_role_that_was_granted_too_much_is_refused_all_the_same(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The row may be there: the role owns no table. The control: the same statements as the owner are made."""
    await sell_as_before(postgres_url, monkeypatch, CODE)
    await execute(postgres_url, SEALING, "SET CONSTRAINTS ALL DEFERRED", CHANGES[what], keep=False)
    connection: Any = await asyncpg.connect(postgres_url)
    role = f"shop_{connection.get_server_pid()}"
    try:
        await connection.execute(f"CREATE ROLE {role}")
        await connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        await connection.execute(f"SET ROLE {role}")
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute("; ".join((SEALING, "SET CONSTRAINTS ALL DEFERRED", CHANGES[what])))
        await connection.execute("RESET ROLE")
        await connection.execute(f"DROP OWNED BY {role}")
        await connection.execute(f"DROP ROLE {role}")
    finally:
        await connection.close()


async def test_a_temporary_table_is_not_believed(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards read the table of their own schema, and their path is fixed again."""
    await sell_as_before(postgres_url, monkeypatch, CODE)
    lie = "CREATE TEMP TABLE sealings AS SELECT true AS one, pg_current_xact_id() AS transaction"
    with pytest.raises(asyncpg.CheckViolationError):
        await execute(postgres_url, lie, CHANGES["a method"], keep=False)
