"""The roster: all stored keys at once, for callers from an address that has shown too many wrong ones, and for a crowd.

To look such a caller's key up by itself would let a guesser ask the store as often as it likes, and to refuse it would
lock out a good key behind the same address. So their keys wait, and are looked for together among all keys that there
are. However many wait, the roster is read once a second at most, so guesses cost the store no more than that.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from earmark.engine.keys import LIST_MAX
from earmark.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.api.deadline import Deadline
    from earmark.domain.key import ApiKey
    from earmark.engine.keys import Keys

PAUSE_SECONDS = 1.0
PORTION = 50
"""Callers who are told in one turn of the event loop."""
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
        self._waiters: list[asyncio.Future[Found]] | None = None
        """Of a reading that has not begun yet: a caller who comes now can still wait for it."""
        self._readings: set[asyncio.Task[None]] = set()
        self._read_at = -math.inf

    async def read(self) -> Found:
        """All keys as they are after this call. Raises an `Outage` when the store does not say."""
        running = asyncio.get_running_loop()
        if self._waiters is None:
            waiters: list[asyncio.Future[Found]] = []
            self._waiters = waiters
            reading = running.create_task(self._answer(waiters))
            self._readings.add(reading)
            reading.add_done_callback(partial(self._ended, waiters))
        answer: asyncio.Future[Found] = running.create_future()
        self._waiters.append(answer)
        return await answer

    async def close(self) -> None:
        """Nothing is read any more."""
        readings = list(self._readings)
        for reading in readings:
            reading.cancel()
        await asyncio.gather(*readings, return_exceptions=True)

    async def _answer(self, waiters: list[asyncio.Future[Found]]) -> None:
        """Read, and tell all who wait, so many in one turn of the event loop that other requests have theirs."""
        told = await self._outcome()
        for start in range(0, len(waiters), PORTION):
            for waiter in waiters[start : start + PORTION]:
                if not waiter.done():
                    told(waiter)
            await asyncio.sleep(0)

    async def _outcome(self) -> Callable[[asyncio.Future[Found]], None]:
        try:
            found = await self._read()
        except Exception as error:  # noqa: BLE001 (each caller who waited hears of it)
            failed = error
            return lambda waiter: waiter.set_exception(failed)
        return lambda waiter: waiter.set_result(found)

    def _ended(self, waiters: list[asyncio.Future[Found]], reading: asyncio.Task[None]) -> None:
        """Callers who were not told, because it was cancelled, perhaps before it began, wait no longer."""
        self._readings.discard(reading)
        if self._waiters is waiters:
            self._waiters = None
        for waiter in waiters:
            waiter.cancel()

    async def _read(self) -> Found:
        async with self._turn:
            await asyncio.sleep(max(0.0, self._read_at + PAUSE_SECONDS - self._timer()))
            # A caller who comes from here on may have a key that is not read any more: that caller waits for the next.
            self._waiters = None
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
