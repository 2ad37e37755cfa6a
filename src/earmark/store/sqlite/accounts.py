"""The accounts in SQLite: one writer, who is alone with the account, and a guarded update all the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from earmark.domain.account import Account, AccountEntry, Draw, EntryKind
from earmark.store import queries
from earmark.store.sqlite import rows

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from earmark.engine.accounts import AccountSteps

T = TypeVar("T")

SECONDS_MAX = 10.0


class SqliteAccounts:
    """Writing in the writer's thread, reading in a reader's."""

    def __init__(self, transact: Callable[..., Awaitable[Any]], *, look: Callable[..., Awaitable[Any]]) -> None:
        self._transact = transact
        self._look = look
        self._sql = queries.sql("sqlite", "accounts.sql")

    async def transact(self, work: Callable[[AccountSteps], Awaitable[T]]) -> T:
        """One hop to the writer and back."""

        async def run(transaction: Any) -> T:
            opening = await transaction.begin([])
            return await work(SqliteAccountSteps(transaction, sql=self._sql, now=opening.now))

        done: T = await self._transact(run, within=SECONDS_MAX)
        return done

    async def read(self, account_id: str) -> Account | None:
        """By primary key."""
        found = await self._fetch("read_account", account_id)
        return _account(found[0]) if found else None

    async def find_code(self, digests: Sequence[bytes]) -> str | None:
        """By the index of digests."""
        found = await self._fetch("find_code", _listed(digests))
        return str(found[0]["id"]) if found else None

    async def entries(self, account_id: str, *, after: int, limit: int) -> list[AccountEntry]:
        """By primary key."""
        return [_entry(row) for row in await self._fetch("list_account_entries", account_id, after, limit)]

    async def find(self, payment_id: UUID) -> Draw | None:
        """By primary key."""
        found = await self._fetch("find_draw", str(payment_id))
        return _draw(found[0]) if found else None

    async def find_entry(self, kind: EntryKind, entry_id: str) -> AccountEntry | None:
        """By the index that keeps it unique."""
        found = await self._fetch("find_account_entry", kind.value, entry_id)
        return _entry(found[0]) if found else None

    async def draws(self, *, live: bool, since: datetime, after: UUID, limit: int) -> list[Draw]:
        """By the index of their age."""
        found = await self._fetch("list_draws", live, rows.to_moment(since), str(after), limit)
        return [_draw(row) for row in found]

    async def _fetch(self, name: str, *arguments: object) -> list[Any]:
        def look(connection: sqlite3.Connection) -> list[Any]:
            return connection.execute(self._sql[name], arguments).fetchall()

        found: list[Any] = await self._look(look, within=SECONDS_MAX)
        return found


class SqliteAccountSteps:
    """The one transaction that is writing."""

    def __init__(self, transaction: Any, *, sql: dict[str, str], now: datetime) -> None:
        self._transaction = transaction
        self._connection: sqlite3.Connection = transaction._connection  # noqa: SLF001 (the store's own transaction)
        self._sql = sql
        self.now = now

    async def lock(self, account_id: str) -> Account | None:
        """`BEGIN IMMEDIATE` has locked everything."""
        found = self._one("read_account", account_id)
        return _account(found) if found else None

    async def find(self, payment_id: UUID) -> Draw | None:
        """By primary key."""
        found = self._one("find_draw", str(payment_id))
        return _draw(found) if found else None

    async def find_entry(self, kind: EntryKind, entry_id: str) -> AccountEntry | None:
        """By the index that keeps it unique."""
        found = self._one("find_account_entry", kind.value, entry_id)
        return _entry(found) if found else None

    async def find_code(self, digests: Sequence[bytes]) -> str | None:
        """By the index of digests."""
        found = self._one("find_code", _listed(digests))
        return str(found["id"]) if found else None

    async def open(self, account: Account, entry: AccountEntry, digest: bytes) -> bool:
        """First come, first served."""
        a = account
        if not self._write("open_account", a.id, a.currency, a.live, rows.to_moment(a.created_at), digest.hex()):
            return False
        self._insert(entry)
        return True

    async def draw(self, draw: Draw) -> bool:
        """First come, first served."""
        d = draw
        head = (str(d.payment_id), d.account_id, d.currency, d.live, d.amount, d.automatic)
        return self._write("insert_draw", *head, rows.to_moment(d.created_at), d.code)

    async def post(self, entry: AccountEntry) -> None:
        """An account that was judged is there to be changed: one that is not is our bug."""
        changed = self._write("change_account", entry.account_id, entry.number, entry.amount, entry.aside)
        assert changed, f"account {entry.account_id} was not locked, or is not good for it"
        self._insert(entry)

    def _insert(self, entry: AccountEntry) -> None:
        e = entry
        what = (e.account_id, e.number, e.kind.value, e.id, e.amount, e.aside, e.balance, e.set_aside)
        payment_id = None if e.payment_id is None else str(e.payment_id)
        self._write("insert_account_entry", *what, rows.to_moment(e.at), payment_id, e.reason)

    def _write(self, name: str, *arguments: object) -> bool:
        self._transaction.wrote = True
        return self._connection.execute(self._sql[name], arguments).rowcount == 1

    def _one(self, name: str, *arguments: object) -> Any:
        return self._connection.execute(self._sql[name], arguments).fetchone()


def _listed(digests: Sequence[bytes]) -> str:
    """As JSON, so that one query takes any number of them."""
    return json.dumps([digest.hex() for digest in digests])


def _account(row: sqlite3.Row) -> Account:
    return Account(**dict(row) | {"live": bool(row["live"]), "created_at": rows.moment(row["created_at"])})


def _entry(row: sqlite3.Row) -> AccountEntry:
    payment_id = None if row["payment_id"] is None else UUID(row["payment_id"])
    typed = {"kind": EntryKind(row["kind"]), "at": rows.moment(row["at"]), "payment_id": payment_id}
    return AccountEntry(**dict(row) | typed)


def _draw(row: sqlite3.Row) -> Draw:
    typed = {"payment_id": UUID(row["payment_id"]), "created_at": rows.moment(row["created_at"])}
    return Draw(**dict(row) | typed | {"live": bool(row["live"]), "automatic": bool(row["automatic"])})
