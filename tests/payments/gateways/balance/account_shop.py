"""A shop with accounts on a database that a test can read whole."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg

from earmark.domain.live_or_test_mode import Mode
from earmark.engine.engine import Engine
from earmark.library import Earmark
from earmark.payments.gateways.balance.account_access_codes import AccountCodes
from earmark.payments.gateways.balance.gateway import BalanceGateway
from earmark.uuids import Uuid7Ids
from earmark.wiring import open_and_maintain_databases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.domain.prepaid_account import Account
    from earmark.engine.ports.store import Store

SECRET = "b1946ac92492d2347c6235b4d2611184"
OLDER = "591785b794601e212b260e25925636fd"
CODES = AccountCodes([SECRET])
PRICE = 4500
SEATS = 20


class Shop:
    """An event of twenty seats at one price, paid from accounts."""

    def __init__(self, store: Store, gateway: BalanceGateway, *, event: str = "opera") -> None:
        self.store = store
        self.accounts: Any = store.accounts
        self.engine = Engine(store, ids=Uuid7Ids())
        self.earmark = Earmark(self.engine, gateways={"balance": gateway})
        self.event = event
        self._seats = iter(range(SEATS))

    async def open(self, code: str, amount: int = 0, *, currency: str = "EUR", mode: Mode = Mode.LIVE) -> Account:
        """Open an account with this code and balance."""
        return await open_account(self.accounts, code, amount, currency=currency, mode=mode)

    async def create_event(self) -> None:
        """Create the event."""
        seats = {f"A{number}": PRICE for number in range(SEATS)}
        await self.earmark.create_event(self.event, name="An opera", currency="EUR", seats=seats)

    async def hold(self) -> str:
        """Hold the next seat for a new buyer; returns the booking id."""
        number = next(self._seats)
        booking = await self.earmark.hold(self.event, buyer=f"buyer-{number}", seats=[f"A{number}"])
        return booking.id


async def open_account(
    accounts: Any,
    code: str,
    amount: int = 0,
    *,
    currency: str = "EUR",
    mode: Mode = Mode.LIVE,
    codes: AccountCodes = CODES,
) -> Account:
    """Open an account as `earmark accounts` does."""
    account_id = str(Uuid7Ids().entry_id())
    account: Account = await accounts.open(account_id, digests=codes.digests(code), currency=currency, mode=mode)
    if amount:
        account = await accounts.credit(account.id, amount, entry_id=f"first-{account.id}")
    return account


def is_postgres(url: str) -> bool:
    """Whether the URL is of PostgreSQL and not of SQLite."""
    return urlsplit(url).scheme != "sqlite"


async def execute(url: str, *statements: str, keep: bool = True) -> None:
    """Run statements in one transaction, past Earmark."""
    end = "COMMIT" if keep else "ROLLBACK"
    if not is_postgres(url):
        with closing(sqlite3.connect(open_and_maintain_databases.sqlite_path(url), isolation_level=None)) as connection:
            for statement in ("BEGIN IMMEDIATE", *statements, end):
                connection.execute(statement)
        return
    connection_: Any = await asyncpg.connect(url)
    try:
        await connection_.execute("; ".join(("BEGIN", *statements, end)))
    finally:
        await connection_.close()


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Shop]:
    """A shop on this database."""
    store: Any = await open_and_maintain_databases.open_store(url)
    shop = Shop(store, BalanceGateway(store.accounts, codes=CODES), **options)
    try:
        yield shop
    finally:
        await shop.earmark.payment_service.close()
        await shop.engine.close()


async def dump(url: str) -> dict[tuple[str, str], list[bytes]]:
    """All values of the database, by table and column."""
    if not is_postgres(url):
        with closing(sqlite3.connect(open_and_maintain_databases.sqlite_path(url))) as connection:
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            rows = {table: connection.execute(f'SELECT * FROM "{table}"') for table in tables}
            return {
                (table, column[0]): [_bytes(row[number]) for row in found]
                for table, cursor in rows.items()
                for found in [cursor.fetchall()]
                for number, column in enumerate(cursor.description)
            }
    connection_: Any = await asyncpg.connect(url)
    try:
        listed = await connection_.fetch("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        values_by_column: dict[tuple[str, str], list[bytes]] = {}
        for (table,) in listed:
            for row in await connection_.fetch(f'SELECT * FROM "{table}"'):
                for column, value in row.items():
                    values_by_column.setdefault((table, column), []).append(_bytes(value))
        return values_by_column
    finally:
        await connection_.close()


async def leaks(url: str, text: str | bytes) -> dict[tuple[str, str], int]:
    """In which tables and columns a text occurs, and how often."""
    sought = text.encode() if isinstance(text, str) else text
    counted = {place: sum(sought in value for value in values) for place, values in (await dump(url)).items()}
    return {place: count for place, count in counted.items() if count}


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
