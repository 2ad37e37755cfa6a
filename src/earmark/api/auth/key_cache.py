"""The keyring: what this process has lately seen of the stored keys.

What was seen counts for one second, counted from before it was asked for, so a revocation is felt everywhere within
one. A key that is in use is looked at again before that second is over, behind those who use it: nobody waits. Of
strangers only a few are looked up at a time, and each is asked about once a second at most: a flood of wrong keys fills
neither the memory nor the database, and never gets in the way of keys that were good before. What an address shows that
has shown too many wrong keys, and what finds no place among those few, is looked for by `all_keys.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

from earmark.api.auth.key_snapshot import KeySnapshot
from earmark.api.middleware.deadlines import Deadline
from earmark.domain.ids import KeyId
from earmark.errors import Outage, Overloaded, StoreUnavailable
from earmark.observability import logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.domain.api_key import ApiKey
    from earmark.engine.api_keys import Keys

    Handle = bytes | str

K = TypeVar("K")
V = TypeVar("V")

SEEN_SECONDS = 1.0
AGAIN_SECONDS = 0.5
LOOK_SECONDS_MAX = 3.0
STRANGERS_AT_ONCE = 4
STRANGERS_WAITING_MAX = 200
KEPT_MAX = 10_000

log = logs.get()


class Seen:
    """A key as it was at a moment; None for one that there was not."""

    __slots__ = ("again_at", "at", "key")

    def __init__(self, key: ApiKey | None, *, at: float) -> None:
        self.key = key
        self.at = at
        self.again_at = at + AGAIN_SECONDS


class Bounded(OrderedDict[K, V], Generic[K, V]):
    """A dictionary of the newest so many."""

    def __init__(self, size_max: int) -> None:
        super().__init__()
        self._size_max = size_max

    def put(self, name: K, value: V) -> None:
        """The newest; the oldest makes room."""
        self[name] = value
        self.move_to_end(name)
        if len(self) > self._size_max:
            self.popitem(last=False)


class KeyCache:
    """Looks keys up by the hash of a secret (bytes) or by id (text), and remembers what it saw for a second."""

    def __init__(self, keys: Keys, *, timer: Callable[[], float], kept_max: int = KEPT_MAX) -> None:
        self._keys = keys
        self._timer = timer
        self._known: Bounded[Handle, Seen] = Bounded(kept_max)
        """Keys that there are. Those that were seen too long ago stay here to be known when they come again."""
        self._strangers: Bounded[Handle, Seen] = Bounded(kept_max)
        self._looks: dict[Handle, asyncio.Task[ApiKey | None]] = {}
        self._turns = asyncio.Semaphore(STRANGERS_AT_ONCE)
        self._patience = Deadline(LOOK_SECONDS_MAX)
        self._all_keys = KeySnapshot(keys, timer=timer, deadline=self._patience)
        self._waiting = 0
        """How many strangers are looked up, or wait for their turn."""

    def glance(self, handle: Handle) -> Seen | None:
        """What was seen of it within the last second; None when somebody has to `look`."""
        seen = self._known.get(handle) or self._strangers.get(handle)
        return seen if seen is not None and self._timer() - seen.at < SEEN_SECONDS else None

    def keep_fresh(self, handle: Handle, seen: Seen) -> None:
        """Of a key that is in use: look again before what was seen is too old, and let nobody wait for it."""
        now = self._timer()
        if now >= seen.again_at and handle not in self._looks:
            seen.again_at = now + AGAIN_SECONDS
            self._start(handle)

    def knows(self, handle: Handle) -> bool:
        """Whether there was such a key when it was last looked at, however long ago."""
        return handle in self._known

    async def look(self, handle: Handle) -> ApiKey | None:
        """Ask the store, together with whoever asks the same. Raises an `Outage` when it does not say."""
        look = self._looks.get(handle)
        if look is None:
            if isinstance(handle, bytes) and self._is_stranger(handle) and self._waiting >= STRANGERS_WAITING_MAX:
                return await self._look_in_a_crowd(handle)
            look = self._start(handle)
        return await asyncio.shield(look)

    async def look_among_all(self, secret_hash: bytes) -> ApiKey | None:
        """The same, together with all who come from suspicious addresses: they wait, and cost the store one look."""
        key, _ = await self._look_in_all_keys(secret_hash)
        return key

    async def close(self) -> None:
        """Nobody asks any more."""
        await self._all_keys.close()
        for look in list(self._looks.values()):
            look.cancel()
        if self._looks:
            await asyncio.wait(self._looks.values())
        await self._patience.close()

    async def _look_in_a_crowd(self, secret_hash: bytes) -> ApiKey | None:
        """Without a place in the strangers' line: no crowd of wrong keys turns a good one away."""
        key, certain = await self._look_in_all_keys(secret_hash)
        if not certain:
            raise Overloaded
        return key

    async def _look_in_all_keys(self, secret_hash: bytes) -> tuple[ApiKey | None, bool]:
        """The key, and whether that is certain: where there are too many keys to read them all, a miss is not."""
        if lately := self._all_keys.find_lately(secret_hash, seconds=SEEN_SECONDS):
            self._remember(secret_hash, lately[0], at=lately[1])
            return lately[0], True
        found = await self._all_keys.read()
        key = found.keys.get(secret_hash)
        if key is not None or found.whole:
            self._remember(secret_hash, key, at=found.at)
        return key, key is not None or found.whole

    def _remember(self, handle: Handle, key: ApiKey | None, *, at: float) -> None:
        if key is None:
            self._known.pop(handle, None)
            self._strangers.put(handle, Seen(None, at=at))
        else:
            self._strangers.pop(handle, None)
            self._known.put(handle, Seen(key, at=at))

    def _is_stranger(self, handle: Handle) -> bool:
        """Whether it may be a guess. The id of a key comes out of a token that this service signed, and is none."""
        return isinstance(handle, bytes) and handle not in self._known

    def _start(self, handle: Handle) -> asyncio.Task[ApiKey | None]:
        stranger = self._is_stranger(handle)
        look = asyncio.get_running_loop().create_task(self._look(handle, stranger=stranger))
        self._looks[handle] = look
        self._waiting += stranger
        look.add_done_callback(lambda _: self._ended(handle, look, stranger=stranger))
        return look

    def _ended(self, handle: Handle, look: asyncio.Task[ApiKey | None], *, stranger: bool) -> None:
        del self._looks[handle]
        self._waiting -= stranger
        # Also where nobody waits for it: the next who comes asks again.
        if not look.cancelled() and (failure := look.exception()) is not None and not isinstance(failure, Outage):
            log.error("key", outcome="failed", because=repr(failure))

    async def _look(self, handle: Handle, *, stranger: bool) -> ApiKey | None:
        async with self._turns if stranger else contextlib.nullcontext():
            return await self._ask(handle)

    async def _ask(self, handle: Handle) -> ApiKey | None:
        at = self._timer()
        asked = self._keys.find(handle) if isinstance(handle, bytes) else self._keys.read(KeyId(handle))
        try:
            key = await self._patience.within(asked)
        except TimeoutError:
            raise StoreUnavailable(because="the database did not say whose key this is") from None
        self._remember(handle, key, at=at)
        return key
