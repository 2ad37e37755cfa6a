"""API keys: found by the hash of a secret, changed under the lock of their row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from earmark.domain.api_key import ApiKey
from earmark.store.both_databases.named_statement_runner_protocols import SECONDS_MAX, from_row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from earmark.domain.id_types import KeyId
    from earmark.engine.api_keys import KeySteps
    from earmark.store.both_databases.named_statement_runner_protocols import StatementStore, StatementTransaction

T = TypeVar("T")


class StoredKeys:
    """The API keys of a store."""

    def __init__(self, store: StatementStore) -> None:
        self._store = store

    async def transact(self, work: Callable[[KeySteps], Awaitable[T]]) -> T:
        """Run the work in one transaction of the store."""

        async def run(transaction: StatementTransaction) -> T:
            opening = await transaction.begin([])
            return await work(StoredKeySteps(transaction, now=opening.now))

        return await self._store.transact(run, within=SECONDS_MAX)

    async def find(self, secret_hash: bytes) -> ApiKey | None:
        """By one of the two indexes that keep hashes unique."""
        found = await self._store.read_rows("find_key", secret_hash)
        return _key(found[0]) if found else None

    async def read(self, key_id: KeyId) -> ApiKey | None:
        """A key by its id."""
        found = await self._store.read_rows("read_key", key_id)
        return _key(found[0]) if found else None

    async def list_all(self, *, after: str, limit: int) -> list[ApiKey]:
        """A page of keys, by id, with the revoked ones."""
        return [_key(row) for row in await self._store.read_rows("list_keys", after, limit)]


class StoredKeySteps:
    """One transaction, in which a key is locked before it is changed."""

    def __init__(self, transaction: StatementTransaction, *, now: datetime) -> None:
        self._transaction = transaction
        self.now = now

    async def lock(self, key_id: KeyId) -> ApiKey | None:
        """Wait for the transaction that has it."""
        found = await self._transaction.fetch("lock_key", key_id)
        return _key(found[0]) if found else None

    async def insert(self, key: ApiKey) -> bool:
        """False where there is one of this id. A transaction that makes the same one is waited for."""
        k = key
        columns = (k.id, k.name, k.mode, " ".join(sorted(k.scopes)), k.hash, k.created_at, k.expires_at)
        return bool(await self._transaction.execute("insert_key", *columns))

    async def change(self, key: ApiKey) -> None:
        """A key that was locked can be changed: one that cannot is our bug."""
        k = key
        columns = (k.id, k.hash, k.old_hash, k.rotated_at, k.old_until, k.revoked_at)
        written = await self._transaction.execute("change_key", *columns)
        assert written == 1, f"key {key.id} was not locked"


def _key(row: Any) -> ApiKey:
    return from_row(row, ApiKey, scopes=row["scopes"].split())
