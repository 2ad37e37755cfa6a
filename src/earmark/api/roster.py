"""The roster: all stored keys at once, for callers from an address that has shown too many wrong ones, and for a crowd.

To look such a caller's key up by itself would let a guesser ask the store as often as it likes, and to refuse it would
lock out a good key behind the same address. So their keys wait, and are looked for together among all keys that there
are. However many wait, the roster is read once a second at most, so guesses cost the store no more than that.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, NamedTuple

from earmark.engine.keys import LIST_MAX
from earmark.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.api.deadline import Deadline
    from earmark.domain.key import ApiKey
    from earmark.engine.keys import Keys

PAUSE_SECONDS = 1.0
PAGE = LIST_MAX
KEYS_MAX = 10_000


class Found(NamedTuple):
    """All keys, or the first so many, by the hashes of their secrets."""

    at: float
    """From before they were read."""
    keys: dict[bytes, ApiKey]
    whole: bool
    """False where there are more keys than are read."""


class Roster:
    """Reads all keys, once for all callers who wait."""

    def __init__(self, keys: Keys, *, timer: Callable[[], float], deadline: Deadline) -> None:
        self._keys = keys
        self._timer = timer
        self._deadline = deadline
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[Found] | None = None
        """Not begun yet: a caller who comes now can still wait for it."""
        self._readings: set[asyncio.Task[Found]] = set()
        self._read_at = -math.inf

    async def read(self) -> Found:
        """All keys as they are after this call. Raises an `Outage` when the store does not say."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._read())
            self._readings.add(self._next)
            self._next.add_done_callback(self._ended)
        return await asyncio.shield(self._next)

    async def close(self) -> None:
        """Nothing is read any more."""
        readings = list(self._readings)
        for reading in readings:
            reading.cancel()
        await asyncio.gather(*readings, return_exceptions=True)

    async def _read(self) -> Found:
        async with self._turn:
            await asyncio.sleep(max(0.0, self._read_at + PAUSE_SECONDS - self._timer()))
            # A caller who comes from here on may have a key that is not read any more: that caller waits for the next.
            self._next = None
            self._read_at = at = self._timer()
            try:
                return await self._deadline.within(self._all(at))
            except TimeoutError:
                raise StoreUnavailable(because="the database did not say which keys there are") from None

    async def _all(self, at: float) -> Found:
        found, after = dict[bytes, "ApiKey"](), ""
        for _ in range(0, KEYS_MAX, PAGE):
            page = await self._keys.list_all(after=after, limit=PAGE)
            for key in page:
                if key.old_hash is not None:
                    found.setdefault(key.old_hash, key)
                found[key.hash] = key
            if len(page) < PAGE:
                return Found(at, found, whole=True)
            after = page[-1].id
        return Found(at, found, whole=False)

    def _ended(self, reading: asyncio.Task[Found]) -> None:
        self._readings.discard(reading)
        if self._next is reading:
            self._next = None
        if not reading.cancelled():
            # Each caller who waited has heard of a failure.
            reading.exception()
