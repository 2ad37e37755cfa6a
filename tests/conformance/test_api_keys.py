"""API keys, on every store: one conformance suite, and the guards of the schema."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import asyncpg
import pytest

from earmark.domain.api_key import ApiKey, Scope
from earmark.domain.id_types import KeyId
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import InvalidRequest

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store
    from earmark.store.postgres import PostgresStore
    from earmark.store.sqlite import SqliteStore

SELL = frozenset({Scope.SELL})


def hashed(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


async def make(store: Store, key_id: str = "k1", *, seconds: float | None = None) -> ApiKey:
    return await store.keys.create(
        KeyId(key_id),
        name="till",
        mode=Mode.TEST,
        scopes=SELL,
        secret_hash=hashed(f"secret of {key_id}"),
        seconds=seconds,
    )


async def test_a_key_is_found_by_its_secret_and_by_its_id(store: Store) -> None:
    """What was written is what is read, whichever way."""
    made = await make(store)
    assert (made.name, made.mode, made.scopes, made.revoked_at) == ("till", Mode.TEST, SELL, None)
    assert await store.keys.find(hashed("secret of k1")) == made
    assert await store.keys.read(KeyId("k1")) == made
    assert await store.keys.find(hashed("another")) is None
    assert await store.keys.read(KeyId("k2")) is None


async def test_keys_are_listed_by_id_page_by_page(store: Store) -> None:
    """With the revoked ones: an operator who looks for a leak wants to see them."""
    for key_id in ("k3", "k1", "k2"):
        await make(store, key_id)
    await store.keys.revoke(KeyId("k2"))
    assert [key.id for key in await store.keys.list_all()] == ["k1", "k2", "k3"]
    assert [key.id for key in await store.keys.list_all(after="k1", limit=1)] == ["k2"]


async def test_one_id_is_one_key(store: Store) -> None:
    """A second of the same id is refused, and the first stays as it is."""
    made = await make(store)
    with pytest.raises(InvalidRequest):
        await store.keys.create(
            KeyId("k1"), name="other", mode=Mode.LIVE, scopes=frozenset({Scope.OPS}), secret_hash=hashed("other")
        )
    assert await store.keys.list_all() == [made]


@pytest.mark.parametrize("scopes", [frozenset(), frozenset({Scope.BUY}), frozenset({Scope.SELL, Scope.BUY})])
async def test_a_key_has_scopes_that_keys_can_have(store: Store, scopes: frozenset[Scope]) -> None:
    """To buy is for tokens, and a key that may do nothing is a mistake."""
    with pytest.raises(InvalidRequest):
        await store.keys.create(KeyId("k1"), name="till", mode=Mode.TEST, scopes=scopes, secret_hash=hashed("x"))
    assert await store.keys.list_all() == []


async def test_two_secrets_open_a_rotated_key_until_the_old_one_s_time_is_over(
    store: Store, clock: MovableClock
) -> None:
    """A rotation has no moment at which neither the old nor the new secret is good; a third is never good."""
    await make(store)
    await store.keys.rotate(KeyId("k1"), secret_hash=hashed("second"), grace_seconds=60)
    for secret in ("secret of k1", "second"):
        found = await store.keys.find(hashed(secret))
        assert found is not None
        assert hashed(secret) in found.hashes_at(clock.now())
    clock.advance(61)
    found = await store.keys.find(hashed("secret of k1"))
    assert found is not None
    assert found.hashes_at(clock.now()) == (hashed("second"),)
    await store.keys.rotate(KeyId("k1"), secret_hash=hashed("third"), grace_seconds=60)
    assert await store.keys.find(hashed("secret of k1")) is None


async def test_a_revoked_key_stays_revoked(store: Store, clock: MovableClock) -> None:
    """No secret opens it, none can be added, and to revoke it again changes nothing."""
    await make(store)
    revoked = await store.keys.revoke(KeyId("k1"))
    assert revoked.hashes_at(clock.now()) == ()
    clock.advance(5)
    assert await store.keys.revoke(KeyId("k1")) == revoked
    with pytest.raises(InvalidRequest):
        await store.keys.rotate(KeyId("k1"), secret_hash=hashed("second"), grace_seconds=0)
    assert await store.keys.read(KeyId("k1")) == revoked


async def test_a_key_ends_at_its_moment(store: Store, clock: MovableClock) -> None:
    """Half-open, like every other time here."""
    key = await make(store, seconds=60)
    assert key.expires_at is not None
    assert key.is_active_at(clock.now())
    assert not key.is_active_at(key.expires_at)
    clock.advance(61)
    with pytest.raises(InvalidRequest):
        await store.keys.rotate(KeyId("k1"), secret_hash=hashed("second"), grace_seconds=0)


@pytest.mark.parametrize("verb", ["rotate", "revoke"])
async def test_a_key_that_is_not_there_cannot_be_changed(store: Store, verb: str) -> None:
    """A wrong id is refused, and nothing is made."""
    unknown, keys = KeyId("unknown"), store.keys
    change = (
        keys.revoke(unknown) if verb == "revoke" else keys.rotate(unknown, secret_hash=hashed("x"), grace_seconds=0)
    )
    with pytest.raises(InvalidRequest):
        await change
    assert await store.keys.list_all() == []


async def test_a_rotation_that_meets_a_revocation_does_not_bring_the_key_back(store: Store) -> None:
    """Whichever comes first, the key is revoked in the end."""
    await make(store)
    await asyncio.gather(
        store.keys.revoke(KeyId("k1")),
        *(store.keys.rotate(KeyId("k1"), secret_hash=hashed(f"new {n}"), grace_seconds=60) for n in range(5)),
        return_exceptions=True,
    )
    left = await store.keys.read(KeyId("k1"))
    assert left is not None
    assert left.revoked_at is not None


BREAKS = {
    "a secret where a hash should be": "UPDATE api_keys SET hash = 'ek_test_something'",
    "an unknown scope": "UPDATE api_keys SET scopes = 'everything'",
    "another kind": "UPDATE api_keys SET mode = CASE mode WHEN 'test' THEN 'live' ELSE 'test' END",
    "a longer life": "UPDATE api_keys SET expires_at = NULL",
    "a revocation undone": "UPDATE api_keys SET revoked_at = NULL WHERE id = 'k2'",
    "a key deleted": "DELETE FROM api_keys",
    "an old secret without an end": "UPDATE api_keys SET old_hash = hash WHERE id = 'k1'",
}


@pytest.mark.parametrize("name", BREAKS)
async def test_postgresql_keeps_a_key_what_it_is(postgres_store: PostgresStore, name: str) -> None:
    """Also from hand-written SQL, the schema refuses what would make a key more than it was."""
    await _two_keys(postgres_store)
    before = await postgres_store.keys.list_all()
    async with postgres_store.pool.acquire() as connection:
        with pytest.raises(asyncpg.PostgresError):
            await connection.execute(BREAKS[name])
    assert await postgres_store.keys.list_all() == before


@pytest.mark.parametrize("name", BREAKS)
async def test_sqlite_keeps_a_key_what_it_is(sqlite_store: SqliteStore, name: str) -> None:
    """The same guards stand there."""
    import sqlite3

    await _two_keys(sqlite_store)
    before = await sqlite_store.keys.list_all()
    connection = sqlite3.connect(sqlite_store.access.file)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(BREAKS[name])
    connection.close()
    assert await sqlite_store.keys.list_all() == before


async def test_a_guard_lets_through_what_is_allowed(postgres_store: PostgresStore) -> None:
    """The control: a key may be called something else."""
    await _two_keys(postgres_store)
    async with postgres_store.pool.acquire() as connection:
        assert await connection.execute("UPDATE api_keys SET name = 'x' WHERE id = 'k1'") == "UPDATE 1"


async def _two_keys(store: Store) -> None:
    await make(store, seconds=600)
    await make(store, "k2", seconds=600)
    await store.keys.revoke(KeyId("k2"))
