"""Accounts (gift cards, credit), their entries and draws: an account is locked before it is judged and changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from earmark.domain.prepaid_account import Account, AccountEntry, Draw
from earmark.store.both_databases.named_statement_runner_protocols import SECONDS_MAX, from_row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime
    from uuid import UUID

    from earmark.domain.live_or_test_mode import Mode
    from earmark.domain.prepaid_account import EntryKind
    from earmark.engine.prepaid_accounts import AccountSteps
    from earmark.store.both_databases.named_statement_runner_protocols import StatementStore, StatementTransaction

T = TypeVar("T")


class StoredAccounts:
    """The accounts of a store. `digest` is how its database keeps the HMAC of a code."""

    def __init__(
        self,
        store: StatementStore,
        *,
        digest: Callable[[bytes], object] = bytes,
        retry_on: tuple[type[Exception], ...] = (),
    ) -> None:
        self._store = store
        self._digest = digest
        self._retry_on = retry_on

    async def transact(self, work: Callable[[AccountSteps], Awaitable[T]]) -> T:
        """Once more where another account was given the same entry meanwhile: then the work finds that entry."""

        async def run(transaction: StatementTransaction) -> T:
            opening = await transaction.begin([])
            return await work(StoredAccountSteps(transaction, now=opening.now, digest=self._digest))

        try:
            return await self._store.transact(run, within=SECONDS_MAX)
        except self._retry_on:
            return await self._store.transact(run, within=SECONDS_MAX)

    async def read(self, account_id: str) -> Account | None:
        """An account by its id, for showing."""
        found = await self._store.read_rows("read_account", account_id)
        return from_row(found[0], Account) if found else None

    async def find_code(self, digests: Sequence[bytes]) -> str | None:
        """By the index of digests."""
        found = await self._store.read_rows("find_code", [self._digest(digest) for digest in digests])
        return str(found[0]["id"]) if found else None

    async def entries(self, account_id: str, *, after: int, limit: int) -> list[AccountEntry]:
        """The entries of an account after a number, oldest first."""
        found = await self._store.read_rows("list_account_entries", account_id, after, limit)
        return [from_row(row, AccountEntry) for row in found]

    async def find(self, payment_id: UUID) -> Draw | None:
        """The draw of a payment, with what its entries add up to."""
        found = await self._store.read_rows("find_draw", payment_id)
        return from_row(found[0], Draw) if found else None

    async def find_entry(self, kind: EntryKind, entry_id: str) -> AccountEntry | None:
        """By the index that keeps it unique."""
        found = await self._store.read_rows("find_account_entry", kind.value, entry_id)
        return from_row(found[0], AccountEntry) if found else None

    async def draws(self, *, mode: Mode, since: datetime, after: UUID, limit: int) -> list[Draw]:
        """By the index of their age."""
        return [from_row(row, Draw) for row in await self._store.read_rows("list_draws", mode, since, after, limit)]


class StoredAccountSteps:
    """One transaction: what is read after the lock is as the transaction before left it."""

    def __init__(self, transaction: StatementTransaction, *, now: datetime, digest: Callable[[bytes], object]) -> None:
        self._transaction = transaction
        self._digest = digest
        self.now = now

    async def lock(self, account_id: str) -> Account | None:
        """Wait for the transaction that has it."""
        found = await self._transaction.fetch("lock_account", account_id)
        return from_row(found[0], Account) if found else None

    async def find(self, payment_id: UUID) -> Draw | None:
        """The draw of a payment, with what its entries add up to."""
        found = await self._transaction.fetch("find_draw", payment_id)
        return from_row(found[0], Draw) if found else None

    async def find_entry(self, kind: EntryKind, entry_id: str) -> AccountEntry | None:
        """By the index that keeps it unique."""
        found = await self._transaction.fetch("find_account_entry", kind.value, entry_id)
        return from_row(found[0], AccountEntry) if found else None

    async def find_code(self, digests: Sequence[bytes]) -> str | None:
        """By the index of digests."""
        found = await self._transaction.fetch("find_code", [self._digest(digest) for digest in digests])
        return str(found[0]["id"]) if found else None

    async def open(self, account: Account, entry: AccountEntry, digest: bytes) -> bool:
        """False where there is an account of this id or code. A transaction that opens the same one is waited for."""
        a = account
        columns = (a.id, a.currency, a.mode, a.created_at, self._digest(digest))
        if not await self._transaction.execute("open_account", *columns):
            return False
        await self._insert(entry)
        return True

    async def draw(self, draw: Draw) -> bool:
        """False where this payment has one. A transaction that records the same one is waited for."""
        d = draw
        columns = (d.payment_id, d.account_id, d.currency, d.mode, d.amount, d.automatic, d.created_at, d.code)
        return bool(await self._transaction.execute("insert_draw", *columns))

    async def post(self, entry: AccountEntry) -> None:
        """An account that was locked and judged can be changed: one that cannot is our bug."""
        change = (entry.account_id, entry.number, entry.amount, entry.aside)
        changed = await self._transaction.execute("change_account", *change)
        assert changed == 1, f"account {entry.account_id} was not locked, or is not good for it"
        await self._insert(entry)

    async def _insert(self, entry: AccountEntry) -> None:
        e = entry
        what = (e.account_id, e.number, e.kind.value, e.id, e.amount, e.aside, e.balance, e.set_aside)
        await self._transaction.execute("insert_account_entry", *what, e.at, e.payment_id, e.reason)
