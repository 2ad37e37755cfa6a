"""The keys in SQLite: found by the hash of a secret, changed by the one writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from earmark.domain.api_key import ApiKey, Scope
from earmark.store import queries
from earmark.store.sqlite import rows

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from earmark.domain.ids import KeyId
    from earmark.engine.api_keys import KeySteps

T = TypeVar("T")

SECONDS_MAX = 10.0


class SqliteKeys:
    """Writing in the writer's thread, reading in a reader's."""

    def __init__(self, transact: Callable[..., Awaitable[Any]], *, look: Callable[..., Awaitable[Any]]) -> None:
        self._transact = transact
        self._look = look
        self._sql = queries.sql("sqlite", "keys.sql")

    async def transact(self, work: Callable[[KeySteps], Awaitable[T]]) -> T:
        """One hop to the writer and back."""

        async def run(transaction: Any) -> T:
            opening = await transaction.begin([])
            return await work(SqliteKeySteps(transaction, sql=self._sql, now=opening.now))

        done: T = await self._transact(run, within=SECONDS_MAX)
        return done

    async def find(self, secret_hash: bytes) -> ApiKey | None:
        """By one of the two indexes that keep hashes unique."""
        return await self._one("find_key", secret_hash)

    async def read(self, key_id: KeyId) -> ApiKey | None:
        """By primary key."""
        return await self._one("read_key", key_id)

    async def list_all(self, *, after: str, limit: int) -> list[ApiKey]:
        """By primary key."""
        return [_key(row) for row in await self._fetch("list_keys", after, limit)]

    async def _one(self, name: str, argument: object) -> ApiKey | None:
        found = await self._fetch(name, argument)
        return _key(found[0]) if found else None

    async def _fetch(self, name: str, *arguments: object) -> list[Any]:
        def look(connection: sqlite3.Connection) -> list[Any]:
            return connection.execute(self._sql[name], arguments).fetchall()

        found: list[Any] = await self._look(look, within=SECONDS_MAX)
        return found


class SqliteKeySteps:
    """The one transaction that is writing."""

    def __init__(self, transaction: Any, *, sql: dict[str, str], now: datetime) -> None:
        self._transaction = transaction
        self._connection: sqlite3.Connection = transaction._connection  # noqa: SLF001 (the store's own transaction)
        self._sql = sql
        self.now = now

    async def lock(self, key_id: KeyId) -> ApiKey | None:
        """`BEGIN IMMEDIATE` has locked everything."""
        found = self._connection.execute(self._sql["read_key"], (key_id,)).fetchone()
        return _key(found) if found else None

    async def insert(self, key: ApiKey) -> bool:
        """First come, first served."""
        k = key
        head = (k.id, k.name, k.live, " ".join(sorted(k.scopes)), k.hash)
        return self._write("insert_key", *head, rows.to_moment(k.created_at), rows.to_moment_or_none(k.expires_at))

    async def change(self, key: ApiKey) -> None:
        """A key that was locked is there to be changed."""
        k = key
        times = [rows.to_moment_or_none(at) for at in (k.rotated_at, k.old_until, k.revoked_at)]
        assert self._write("change_key", k.id, k.hash, k.old_hash, *times), f"key {key.id} was not locked"

    def _write(self, name: str, *arguments: object) -> bool:
        self._transaction.wrote = True
        return self._connection.execute(self._sql[name], arguments).rowcount == 1


def _key(row: sqlite3.Row) -> ApiKey:
    plain = dict(row)
    times = ("expires_at", "rotated_at", "old_until", "revoked_at")
    typed = {name: rows.moment_or_none(plain[name]) for name in times}
    scopes = frozenset(map(Scope, plain["scopes"].split()))
    created_at = rows.moment(plain["created_at"])
    return ApiKey(**plain | typed | {"live": bool(plain["live"]), "scopes": scopes, "created_at": created_at})
