"""The keys in PostgreSQL: found by the hash of a secret, changed under the lock of their row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from earmark.domain.api_key import ApiKey, Scope
from earmark.store import queries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from earmark.domain.ids import KeyId
    from earmark.engine.api_keys import KeySteps

T = TypeVar("T")

SECONDS_MAX = 10.0


class PostgresKeys:
    """Writing in transactions of the store, reading over its connections."""

    def __init__(self, transact: Callable[..., Awaitable[Any]], *, read: Callable[..., Awaitable[list[Any]]]) -> None:
        self._transact = transact
        self._read = read
        self._sql = queries.sql("postgres", "keys.sql")

    async def transact(self, work: Callable[[KeySteps], Awaitable[T]]) -> T:
        """One transaction of the store's."""

        async def run(transaction: Any) -> T:
            opening = await transaction.begin([])
            return await work(PostgresKeySteps(transaction, sql=self._sql, now=opening.now))

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
        return [_key(row) for row in await self._read("list_keys", after, limit)]

    async def _one(self, name: str, argument: object) -> ApiKey | None:
        found = await self._read(name, argument)
        return _key(found[0]) if found else None


class PostgresKeySteps:
    """One transaction, READ COMMITTED."""

    def __init__(self, transaction: Any, *, sql: dict[str, str], now: datetime) -> None:
        self._transaction = transaction
        self._connection = transaction._connection  # noqa: SLF001 (the store's own transaction)
        self._sql = sql
        self.now = now

    async def lock(self, key_id: KeyId) -> ApiKey | None:
        """Waits for whoever has it."""
        found = await self._connection.fetchrow(self._sql["lock_key"], key_id)
        return _key(found) if found else None

    async def insert(self, key: ApiKey) -> bool:
        """Waits for a twin that is making the same one, and then knows."""
        k = key
        self._transaction.wrote = True
        columns = (k.id, k.name, k.live, " ".join(sorted(k.scopes)), k.hash, k.created_at, k.expires_at)
        return bool(await self._connection.fetch(self._sql["insert_key"], *columns))

    async def change(self, key: ApiKey) -> None:
        """A key that was locked is there to be changed."""
        k = key
        self._transaction.wrote = True
        columns = (k.id, k.hash, k.old_hash, k.rotated_at, k.old_until, k.revoked_at)
        status: str = await self._connection.execute(self._sql["change_key"], *columns)
        assert status == "UPDATE 1", f"key {key.id} was not locked"


def _key(row: Any) -> ApiKey:
    return ApiKey(**dict(row) | {"scopes": frozenset(map(Scope, row["scopes"].split()))})
