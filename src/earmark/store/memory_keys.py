"""The keys in memory. Nothing here waits, so whoever works is alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from earmark.domain.api_key import ApiKey
    from earmark.domain.ids import KeyId
    from earmark.engine.api_keys import KeySteps
    from earmark.engine.ports.store import Clock

T = TypeVar("T")


class MemoryKeys:
    """A transaction works on a copy, which takes the place of the table when it ends well."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._keys: dict[KeyId, ApiKey] = {}

    async def transact(self, work: Callable[[KeySteps], Awaitable[T]]) -> T:
        """At once, and alone."""
        steps = MemoryKeySteps(dict(self._keys), now=self._clock.now())
        result = await work(steps)
        self._keys = steps.keys
        return result

    async def find(self, secret_hash: bytes) -> ApiKey | None:
        """One by one."""
        return next((key for key in self._keys.values() if secret_hash in {key.hash, key.old_hash}), None)

    async def read(self, key_id: KeyId) -> ApiKey | None:
        """By id."""
        return self._keys.get(key_id)

    async def list_all(self, *, after: str, limit: int) -> list[ApiKey]:
        """By id."""
        return [key for key_id, key in sorted(self._keys.items()) if key_id > after][:limit]


class MemoryKeySteps:
    """The one transaction that is writing."""

    def __init__(self, keys: dict[KeyId, ApiKey], *, now: datetime) -> None:
        self.keys = keys
        self.now = now

    async def lock(self, key_id: KeyId) -> ApiKey | None:
        """Nobody else is here."""
        return self.keys.get(key_id)

    async def insert(self, key: ApiKey) -> bool:
        """First come, first served."""
        return self.keys.setdefault(key.id, key) is key

    async def change(self, key: ApiKey) -> None:
        """In place of what was there."""
        self.keys[key.id] = key
