"""Keys: who may speak for the shop, each change in one transaction.

Every verb locks the key before it judges it. Ids and secrets arrive from outside, and of a secret only its hash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from earmark.domain import api_key as key_rules
from earmark.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from earmark.domain.api_key import ApiKey, Scope
    from earmark.domain.id_types import KeyId
    from earmark.domain.live_or_test_mode import Mode

T = TypeVar("T")

LIST_MAX = 500


class KeySteps(Protocol):
    """What one transaction can do."""

    now: datetime

    async def lock(self, key_id: KeyId) -> ApiKey | None:
        """Lock the key: no other transaction changes it until this one ends."""
        ...

    async def insert(self, key: ApiKey) -> bool:
        """A new key; False when there is one of this id."""
        ...

    async def change(self, key: ApiKey) -> None:
        """The key as it is from now on: its secrets, and whether it was revoked. It was locked before."""
        ...


class KeyBook(Protocol):
    """Where the keys are kept."""

    async def transact(self, work: Callable[[KeySteps], Awaitable[T]]) -> T:
        """All of it or nothing. The work awaits nothing but its steps, and may be run again."""
        ...

    async def find(self, secret_hash: bytes) -> ApiKey | None:
        """The key that this is, or was last, the hash of. The caller checks whether it is still valid."""
        ...

    async def read(self, key_id: KeyId) -> ApiKey | None:
        """The key of this id; None when there is none."""
        ...

    async def list_all(self, *, after: str, limit: int) -> list[ApiKey]:
        """By id, behind this one."""
        ...


class Keys:
    """What can be done with keys, over any store."""

    def __init__(self, book: KeyBook) -> None:
        self._book = book
        self.find = book.find
        self.read = book.read

    async def create(
        self,
        key_id: KeyId,
        *,
        name: str,
        mode: Mode,
        scopes: frozenset[Scope],
        secret_hash: bytes,
        seconds: float | None = None,
    ) -> ApiKey:
        """A new key, good at once."""

        async def work(steps: KeySteps) -> ApiKey:
            key = key_rules.new_key(
                key_id, name=name, mode=mode, scopes=scopes, secret_hash=secret_hash, now=steps.now, seconds=seconds
            )
            if not await steps.insert(key):
                raise InvalidRequest.at("key_id", "names a key that is there already")
            return key

        return await self._book.transact(work)

    async def rotate(self, key_id: KeyId, *, secret_hash: bytes, grace_seconds: float) -> ApiKey:
        """A new secret for the same key. The old one is good for so long, and one before that no more."""

        async def work(steps: KeySteps) -> ApiKey:
            key = key_rules.rotated(
                await _locked(steps, key_id), secret_hash=secret_hash, grace_seconds=grace_seconds, now=steps.now
            )
            await steps.change(key)
            return key

        return await self._book.transact(work)

    async def revoke(self, key_id: KeyId) -> ApiKey:
        """Never good again; revoking it once more changes nothing."""

        async def work(steps: KeySteps) -> ApiKey:
            before = await _locked(steps, key_id)
            after = key_rules.revoked(before, now=steps.now)
            if after is not before:
                await steps.change(after)
            return after

        return await self._book.transact(work)

    async def list_all(self, *, after: str = "", limit: int = LIST_MAX) -> list[ApiKey]:
        """All keys, the revoked ones too, by id."""
        return await self._book.list_all(after=after, limit=limit)


class KeepsKeys(Protocol):
    """A store that keeps keys."""

    @property
    def keys(self) -> Keys:
        """The API keys of this store."""
        ...


async def _locked(steps: KeySteps, key_id: KeyId) -> ApiKey:
    key = await steps.lock(key_id)
    if key is None:
        raise InvalidRequest.at("key_id", "names no key")
    return key
