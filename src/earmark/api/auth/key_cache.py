"""Caches stored API keys in this process for one second, so that a revocation takes effect everywhere within one.

The second is counted from before the store was queried. A key that is in use is read again in the background before it
is over, so its requests do not wait. Of unknown keys only a few are looked up at a time, and each at most once a
second: a flood of wrong keys fills neither the memory nor the database, and does not delay keys that were valid before.
Keys from an address that has sent too many wrong ones, and keys that exceed those few, are looked up in
`read_all_keys_once_a_second.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

from earmark.api.auth.read_all_keys_once_a_second import KeySnapshot
from earmark.api.middleware.run_handler_within_deadline import Deadline
from earmark.domain.id_types import KeyId
from earmark.errors import Outage, Overloaded, StoreUnavailable
from earmark.observability import logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.domain.api_key import ApiKey
    from earmark.engine.api_keys import Keys

    Handle = bytes | str

K = TypeVar("K")
V = TypeVar("V")

FRESH_SECONDS = 1.0
REFRESH_SECONDS = 0.5
LOOKUP_SECONDS_MAX = 3.0
UNKNOWN_AT_ONCE = 4
UNKNOWN_WAITING_MAX = 200
KEPT_MAX = 10_000

log = logs.get()


class CachedKey:
    """A key as the store had it at a moment; `key` is None where the store had none."""

    __slots__ = ("at", "key", "refresh_at")

    def __init__(self, key: ApiKey | None, *, at: float) -> None:
        self.key = key
        self.at = at
        self.refresh_at = at + REFRESH_SECONDS


class BoundedDict(OrderedDict[K, V], Generic[K, V]):
    """A dictionary that keeps only the newest `size_max` entries."""

    def __init__(self, size_max: int) -> None:
        super().__init__()
        self._size_max = size_max

    def put(self, name: K, value: V) -> None:
        """Add or replace an entry as the newest; the oldest is dropped when there are too many."""
        self[name] = value
        self.move_to_end(name)
        if len(self) > self._size_max:
            self.popitem(last=False)


class KeyCache:
    """Looks keys up by the hash of a secret (bytes) or by id (text), and caches the result for a second."""

    def __init__(self, keys: Keys, *, timer: Callable[[], float], kept_max: int = KEPT_MAX) -> None:
        self._keys = keys
        self._timer = timer
        self._known: BoundedDict[Handle, CachedKey] = BoundedDict(kept_max)
        """Keys that the store has. Entries older than a second stay, so that `knows` recognises the key."""
        self._missing: BoundedDict[Handle, CachedKey] = BoundedDict(kept_max)
        self._lookups: dict[Handle, asyncio.Task[ApiKey | None]] = {}
        self._slots = asyncio.Semaphore(UNKNOWN_AT_ONCE)
        self._deadline = Deadline(LOOKUP_SECONDS_MAX)
        self._snapshot = KeySnapshot(keys, timer=timer, deadline=self._deadline)
        self._waiting = 0
        """How many unknown keys are being looked up, or wait for a slot."""

    def cached(self, handle: Handle) -> CachedKey | None:
        """The entry, if it is younger than a second; None when the caller has to `look_up`."""
        seen = self._known.get(handle) or self._missing.get(handle)
        return seen if seen is not None and self._timer() - seen.at < FRESH_SECONDS else None

    def keep_fresh(self, handle: Handle, seen: CachedKey) -> None:
        """Read a key that is in use again in the background, before its entry is too old."""
        now = self._timer()
        if now >= seen.refresh_at and handle not in self._lookups:
            seen.refresh_at = now + REFRESH_SECONDS
            self._start(handle)

    def knows(self, handle: Handle) -> bool:
        """Whether the store had this key when it was last read, however long ago."""
        return handle in self._known

    async def look_up(self, handle: Handle) -> ApiKey | None:
        """Read the key from the store; concurrent callers share one read. Raises an `Outage` when the store fails."""
        lookup = self._lookups.get(handle)
        if lookup is None:
            if isinstance(handle, bytes) and self._is_unknown(handle) and self._waiting >= UNKNOWN_WAITING_MAX:
                return await self._look_up_when_busy(handle)
            lookup = self._start(handle)
        return await asyncio.shield(lookup)

    async def look_up_in_snapshot(self, secret_hash: bytes) -> ApiKey | None:
        """Like `look_up`, for suspicious addresses: all such callers wait for one read of all keys."""
        key, _ = await self._find_in_snapshot(secret_hash)
        return key

    async def close(self) -> None:
        """Cancel the lookups under way."""
        await self._snapshot.close()
        for lookup in list(self._lookups.values()):
            lookup.cancel()
        if self._lookups:
            await asyncio.wait(self._lookups.values())
        await self._deadline.close()

    async def _look_up_when_busy(self, secret_hash: bytes) -> ApiKey | None:
        """When too many unknown keys wait: look in the snapshot, so that wrong keys never keep out a valid one."""
        key, certain = await self._find_in_snapshot(secret_hash)
        if not certain:
            raise Overloaded
        return key

    async def _find_in_snapshot(self, secret_hash: bytes) -> tuple[ApiKey | None, bool]:
        """The key, and whether that is certain: a miss is not, where there are too many keys to read them all."""
        if recent := self._snapshot.find_recent(secret_hash, seconds=FRESH_SECONDS):
            self._store(secret_hash, recent[0], at=recent[1])
            return recent[0], True
        found = await self._snapshot.read()
        key = found.keys.get(secret_hash)
        if key is not None or found.whole:
            self._store(secret_hash, key, at=found.at)
        return key, key is not None or found.whole

    def _store(self, handle: Handle, key: ApiKey | None, *, at: float) -> None:
        if key is None:
            self._known.pop(handle, None)
            self._missing.put(handle, CachedKey(None, at=at))
        else:
            self._missing.pop(handle, None)
            self._known.put(handle, CachedKey(key, at=at))

    def _is_unknown(self, handle: Handle) -> bool:
        """Whether the handle may be a guess. A key's id cannot be: it comes from a token that this service signed."""
        return isinstance(handle, bytes) and handle not in self._known

    def _start(self, handle: Handle) -> asyncio.Task[ApiKey | None]:
        unknown = self._is_unknown(handle)
        lookup = asyncio.get_running_loop().create_task(self._look_up(handle, unknown=unknown))
        self._lookups[handle] = lookup
        self._waiting += unknown
        lookup.add_done_callback(lambda _: self._ended(handle, lookup, unknown=unknown))
        return lookup

    def _ended(self, handle: Handle, lookup: asyncio.Task[ApiKey | None], *, unknown: bool) -> None:
        del self._lookups[handle]
        self._waiting -= unknown
        # Logged here, for a refresh in the background has no caller to raise to. The next request looks up again.
        if not lookup.cancelled() and (failure := lookup.exception()) is not None and not isinstance(failure, Outage):
            log.error("key", outcome="failed", because=repr(failure))

    async def _look_up(self, handle: Handle, *, unknown: bool) -> ApiKey | None:
        async with self._slots if unknown else contextlib.nullcontext():
            return await self._read(handle)

    async def _read(self, handle: Handle) -> ApiKey | None:
        at = self._timer()
        read = self._keys.find(handle) if isinstance(handle, bytes) else self._keys.read(KeyId(handle))
        try:
            key = await self._deadline.within(read)
        except TimeoutError:
            raise StoreUnavailable(because="the database did not answer in time whose key this is") from None
        self._store(handle, key, at=at)
        return key
