"""The accounts in PostgreSQL: the account's row is locked first, and changed by a guarded update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from earmark.domain.account import Account, AccountEntry, Draw, EntryKind
from earmark.store import queries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime
    from uuid import UUID

    from earmark.engine.accounts import AccountSteps

T = TypeVar("T")

SECONDS_MAX = 10.0


class PostgresAccounts:
    """Writing in transactions of the store, reading over its connections."""

    def __init__(self, transact: Callable[..., Awaitable[Any]], *, read: Callable[..., Awaitable[list[Any]]]) -> None:
        self._transact = transact
        self._read = read
        self._sql = queries.sql("postgres", "accounts.sql")

    async def transact(self, work: Callable[[AccountSteps], Awaitable[T]]) -> T:
        """Again when another account was given the same effect meanwhile: then that is there to be seen."""

        async def run(transaction: Any) -> T:
            opening = await transaction.begin([])
            return await work(PostgresAccountSteps(transaction, sql=self._sql, now=opening.now))

        try:
            first: T = await self._transact(run, within=SECONDS_MAX)
        except asyncpg.UniqueViolationError:
            again: T = await self._transact(run, within=SECONDS_MAX)
            return again
        return first

    async def read(self, account_id: str) -> Account | None:
        """By primary key."""
        found = await self._read("read_account", account_id)
        return Account(**found[0]) if found else None

    async def find_code(self, digests: Sequence[bytes]) -> str | None:
        """By the index of digests."""
        found = await self._read("find_code", list(digests))
        return str(found[0]["id"]) if found else None

    async def entries(self, account_id: str, *, after: int, limit: int) -> list[AccountEntry]:
        """By primary key."""
        return [_entry(row) for row in await self._read("list_account_entries", account_id, after, limit)]

    async def find(self, payment_id: UUID) -> Draw | None:
        """By primary key."""
        found = await self._read("find_draw", payment_id)
        return Draw(**found[0]) if found else None

    async def find_entry(self, kind: EntryKind, entry_id: str) -> AccountEntry | None:
        """By the index that keeps it unique."""
        found = await self._read("find_account_entry", kind.value, entry_id)
        return _entry(found[0]) if found else None

    async def draws(self, *, live: bool, since: datetime, after: UUID, limit: int) -> list[Draw]:
        """By the index of their age."""
        return [Draw(**row) for row in await self._read("list_draws", live, since, after, limit)]


class PostgresAccountSteps:
    """One transaction, READ COMMITTED: what is looked at after the lock is as the one before left it."""

    def __init__(self, transaction: Any, *, sql: dict[str, str], now: datetime) -> None:
        self._transaction = transaction
        self._connection = transaction._connection  # noqa: SLF001 (the store's own transaction)
        self._sql = sql
        self.now = now

    async def lock(self, account_id: str) -> Account | None:
        """Waits for whoever has it."""
        found = await self._connection.fetchrow(self._sql["lock_account"], account_id)
        return Account(**found) if found else None

    async def find(self, payment_id: UUID) -> Draw | None:
        """By primary key."""
        found = await self._connection.fetchrow(self._sql["find_draw"], payment_id)
        return Draw(**found) if found else None

    async def find_entry(self, kind: EntryKind, entry_id: str) -> AccountEntry | None:
        """By the index that keeps it unique."""
        found = await self._connection.fetchrow(self._sql["find_account_entry"], kind.value, entry_id)
        return _entry(found) if found else None

    async def find_code(self, digests: Sequence[bytes]) -> str | None:
        """By the index of digests."""
        found: str | None = await self._connection.fetchval(self._sql["find_code"], list(digests))
        return found

    async def open(self, account: Account, entry: AccountEntry, digest: bytes) -> bool:
        """Waits for a twin that is opening the same one, and then knows."""
        a = account
        columns = (a.id, a.currency, a.live, a.created_at, digest)
        if not await self._connection.fetch(self._sql["open_account"], *columns):
            return False
        await self._insert(entry)
        return True

    async def draw(self, draw: Draw) -> bool:
        """Waits for a twin that is asking for the same payment, and then knows."""
        d = draw
        columns = (d.payment_id, d.account_id, d.currency, d.live, d.amount, d.automatic, d.created_at, d.code)
        self._transaction.wrote = True
        return bool(await self._connection.fetch(self._sql["insert_draw"], *columns))

    async def post(self, entry: AccountEntry) -> None:
        """An account that was locked and judged is there to be changed: one that is not is our bug."""
        change = (entry.account_id, entry.number, entry.amount, entry.aside)
        status: str = await self._connection.execute(self._sql["change_account"], *change)
        assert status == "UPDATE 1", f"account {entry.account_id} was not locked, or is not good for it"
        await self._insert(entry)

    async def _insert(self, entry: AccountEntry) -> None:
        self._transaction.wrote = True
        e = entry
        what = (e.account_id, e.number, e.kind.value, e.id, e.amount, e.aside, e.balance, e.set_aside)
        await self._connection.execute(self._sql["insert_account_entry"], *what, e.at, e.payment_id, e.reason)


def _entry(row: Any) -> AccountEntry:
    return AccountEntry(**dict(row) | {"kind": EntryKind(row["kind"])})
