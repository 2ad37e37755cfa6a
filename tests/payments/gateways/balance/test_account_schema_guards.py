"""The rules of accounts in the schema: what neither a program nor hand-written SQL can do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import asyncpg
import pytest

from earmark.domain.live_or_test_mode import Mode
from earmark.domain.prepaid_account import Draw
from earmark.store import postgres, sqlite
from earmark.store.postgres import PostgresStore
from earmark.store.sqlite import SqliteStore
from earmark.store.sqlite.open_connection import connect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from earmark.clock import MovableClock
    from earmark.engine.prepaid_accounts import Accounts

WAITING, TAKEN, DECLINED = (UUID(int=number) for number in (1, 2, 3))
NEXT = "UPDATE accounts SET number = number + 1, balance = balance + {0}, set_aside = set_aside + {1} WHERE id = 'gift'"
ENTRY = (
    "INSERT INTO account_entries (account_id, number, kind, id, amount, aside, balance, set_aside, at, payment_id) "
    "SELECT id, number, '{0}', '{1}', {2}, {3}, balance, set_aside, created_at, {4} FROM accounts WHERE id = 'gift'"
)

STRANGE = (
    "INSERT INTO account_payments (id, account_id, currency, mode, amount, automatic, created_at) "
    f"SELECT '{UUID(int=9)}', id, 'USD', mode, 1, mode = 'live', created_at FROM accounts"
)


class Break(NamedTuple):
    """Statements that break a rule, and the guard that refuses them."""

    what: str
    guard: str
    statements: tuple[str, ...]


def posting(kind: str, key: str, amount: int, aside: int, payment: UUID | None = None) -> tuple[str, str]:
    """The statements that change an account and add its entry, as Earmark writes them."""
    named = f"'{payment}'" if payment else "NULL"
    return NEXT.format(amount, aside), ENTRY.format(kind, key, amount, aside, named)


BREAKS = [
    Break("a balance below zero", "balance_never_negative", posting("taken", str(WAITING), -1000, 0, WAITING)),
    Break(
        "more set aside than there is",
        "set_aside_within_the_balance",
        posting("set_aside", str(WAITING), 0, 1000, WAITING),
    ),
    Break("a balance without an entry", "account_moves_by_an_entry", ("UPDATE accounts SET balance = 900",)),
    Break("a step without an entry", "account_is_its_last_entry", (NEXT.format(50, 0),)),
    Break(
        "an entry without a step",
        "account_is_its_last_entry",
        (
            ENTRY.format("credited", "x", 50, 0, "NULL")
            .replace("number, '", "number + 1, '")
            .replace(", balance, set_aside, created_at", ", balance + 50, set_aside, created_at"),
        ),
    ),
    Break(
        "an entry that does not add up",
        "entries_add_up",
        (NEXT.format(50, 0), ENTRY.format("credited", "x", 60, 0, "NULL")),
    ),
    Break("the same credit twice", "effect_is_there_once", posting("credited", "first", 500, 0)),
    Break("the same payment taken twice", "effect_is_there_once", posting("taken", str(TAKEN), -100, 0, TAKEN)),
    Break("a credit that takes", "entry_does_what_it_says", posting("credited", "x", -50, 0)),
    Break("a refund of no payment", "entry_is_of_a_payment", posting("given_back", "x", 50, 0)),
    Break("money back that was not taken", "draw_gives_back_what_it_took", posting("given_back", "x", 101, 0, TAKEN)),
    Break("money back of what waits", "draw_gives_back_what_it_took", posting("given_back", "x", 1, 0, WAITING)),
    Break("another amount than the order's", "entry_of_its_payment", posting("let_go", str(WAITING), 0, -50, WAITING)),
    Break("a draw that was declined", "entry_of_its_payment", posting("taken", str(DECLINED), -100, 0, DECLINED)),
    Break("an account that is richer at birth", "account_begins_empty", ("INSERT INTO accounts {head} 5)",)),
    Break("another currency", "account_moves_by_an_entry", ("UPDATE accounts SET currency = 'USD'",)),
    Break("another code", "account_keeps_its_code", ("UPDATE accounts SET code_digest = 'x'",)),
    Break("a code emptied", "account_keeps_its_code", ("UPDATE accounts SET code_digest = ''",)),
    Break("an account forgotten", "account_stays", ("DELETE FROM accounts",)),
    Break("an entry rewritten", "account_entry_stays", ("UPDATE account_entries SET reason = 'x'",)),
    Break("an entry forgotten", "account_entry_stays", ("DELETE FROM account_entries",)),
    Break("a draw rewritten", "account_payment_stays", ("UPDATE account_payments SET code = NULL",)),
    Break("a draw forgotten", "account_payment_stays", ("DELETE FROM account_payments",)),
    Break(
        "a draw in another currency",
        "draw_of_its_account",
        (STRANGE,),
    ),
]
RIGHT = [
    *posting("credited", "x", 50, 0),
    *posting("let_go", str(WAITING), 0, -100, WAITING),
    *posting("given_back", "y", 100, 0, TAKEN),
]
"""The control: correct statements, sent the same way, are accepted."""
HEAD = "(id, currency, mode, created_at, code_digest, balance) VALUES ('new', 'EUR', 'live', {0}, 'x',"


def written(one: Break, *, now: str) -> list[str]:
    return [statement.replace("{head}", HEAD.format(now)) for statement in one.statements]


async def fill(accounts: Accounts, clock: MovableClock) -> None:
    """Open an account with 500, of which 100 were taken and 100 are set aside."""
    await accounts.open("gift", digests=[bytes(32)], currency="EUR", mode=Mode.LIVE)
    await accounts.credit("gift", 500, entry_id="first")
    for payment_id, amount, automatic in ((WAITING, 100, False), (TAKEN, 100, True), (DECLINED, 9999, True)):
        await accounts.draw(
            Draw(
                payment_id=payment_id,
                account_id="gift",
                currency="EUR",
                mode=Mode.LIVE,
                amount=amount,
                automatic=automatic,
                created_at=clock.now(),
            )
        )


async def unchanged(accounts: Accounts, breaking: Callable[[], Awaitable[None]]) -> None:
    """Check that the account and its entries are the same after the refused statements."""
    before = await accounts.read("gift"), await accounts.entries("gift")
    await breaking()
    assert (await accounts.read("gift"), await accounts.entries("gift")) == before


async def test_postgres_accepts_correct_statements(unguarded_postgres_url: str, clock: MovableClock) -> None:
    """The guards accept correct statements and refuse TRUNCATE. They come with their tables' migration."""
    await postgres.migrate(unguarded_postgres_url, without=("guards",))
    store = await PostgresStore.connect(unguarded_postgres_url, clock=clock)
    await fill(store.accounts, clock)
    connection: Any = await asyncpg.connect(unguarded_postgres_url)
    try:
        for change, entry in zip(RIGHT[::2], RIGHT[1::2], strict=True):
            async with connection.transaction():
                await connection.execute(change)
                await connection.execute(entry)
        with pytest.raises(asyncpg.CheckViolationError, match="truncate"):
            await connection.execute("TRUNCATE accounts, account_entries, account_payments")
    finally:
        await connection.close()
    account = await store.accounts.read("gift")
    assert account is not None
    assert (account.balance, account.set_aside) == (550, 0)
    await store.close()


async def test_sqlite_accepts_correct_statements(tmp_path: Path, clock: MovableClock) -> None:
    """The guards accept correct statements, and REPLACE changes no entry."""
    path = tmp_path / "earmark.sqlite3"
    await sqlite.migrate(path)
    store = await SqliteStore.open(path, clock=clock)
    await fill(store.accounts, clock)
    with closing(connect(path, mode="rw")) as connection:
        for change, entry in zip(RIGHT[::2], RIGHT[1::2], strict=True):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(change)
            connection.execute(entry)
            connection.execute("COMMIT")
        for table in ("accounts", "account_payments"):
            connection.execute(f"REPLACE INTO {table} SELECT * FROM {table}")
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("REPLACE INTO account_entries SELECT * FROM account_entries LIMIT 1")
    account = await store.accounts.read("gift")
    assert account is not None
    assert (account.balance, account.set_aside) == (550, 0)
    await store.close()


@pytest.mark.parametrize("one", BREAKS, ids=lambda one: one.what)
async def test_postgres_refuses(one: Break, postgres_url: str, clock: MovableClock) -> None:
    """The named guard refuses each break."""
    store = await PostgresStore.connect(postgres_url, clock=clock)
    await fill(store.accounts, clock)

    async def breaking() -> None:
        connection: Any = await asyncpg.connect(postgres_url)
        try:
            statements = "; ".join(written(one, now="now()"))
            # Sent together, they are one transaction.
            with pytest.raises(asyncpg.IntegrityConstraintViolationError) as refused:
                await connection.execute(statements)
            assert refused.value.constraint_name == one.guard
        finally:
            await connection.close()

    await unchanged(store.accounts, breaking)
    await store.close()


@pytest.mark.parametrize("one", BREAKS, ids=lambda one: one.what)
async def test_sqlite_refuses(one: Break, tmp_path: Path, clock: MovableClock) -> None:
    """A guard of the same name refuses each break, or a foreign key, which has no name in SQLite."""
    path = tmp_path / "earmark.sqlite3"
    await sqlite.migrate(path)
    store = await SqliteStore.open(path, clock=clock)
    await fill(store.accounts, clock)

    async def breaking() -> None:
        with closing(connect(path, mode="rw")) as connection:
            statements = "; ".join(["BEGIN IMMEDIATE", *written(one, now="1"), "COMMIT;"])
            with pytest.raises(sqlite3.IntegrityError) as refused:
                connection.executescript(statements)
        assert one.guard in str(refused.value) or "FOREIGN KEY" in str(refused.value)

    await unchanged(store.accounts, breaking)
    await store.close()
