"""All stored keys at once, for callers from an address that has shown too many wrong ones, and for a crowd.

To look such a caller's key up by itself would let a guesser ask the store as often as it likes, and to refuse it would
lock out a good key behind the same address. So their keys are looked for together among all keys that there are: first
among those that were read within the last second, and a key that is not there waits for the next reading. However many
wait, all keys are read once a second at most, so guesses cost the store no more than that. Those who wait are told in
groups, so that other requests have their turn between two groups, and beyond a number no more of them may wait.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, NamedTuple

from earmark.engine.api_keys import LIST_MAX
from earmark.errors import Overloaded, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.api.middleware.deadlines import Deadline
    from earmark.domain.api_key import ApiKey
    from earmark.engine.api_keys import Keys

PAUSE_SECONDS = 1.0
PAGE = LIST_MAX
KEYS_MAX = 10_000
WAITING_MAX = 1000
PORTION = 50
"""Callers who are told in one turn of the event loop."""


class Found(NamedTuple):
    """All keys, or the first so many, by the hashes of their secrets."""

    at: float
    """From before they were read."""
    keys: dict[bytes, ApiKey]
    whole: bool
    """False where there are more keys than are read."""


class KeySnapshot:
    """Reads all keys, once for all callers who wait."""

    def __init__(self, keys: Keys, *, timer: Callable[[], float], deadline: Deadline) -> None:
        self._keys = keys
        self._timer = timer
        self._deadline = deadline
        self._waiting: list[asyncio.Future[Found]] = []
        """For the next reading, which has not begun."""
        self._waiting_count = 0
        """These, and those of the reading before who have not been told yet."""
        self._readings: asyncio.Task[None] | None = None
        self._read_at = -math.inf
        self._latest: Found | None = None

    def find_lately(self, secret_hash: bytes, *, seconds: float) -> tuple[ApiKey, float] | None:
        """A key as it was at a moment within the last so many seconds; None where it was not seen then."""
        latest = self._latest
        if latest is None or self._timer() - latest.at >= seconds:
            return None
        key = latest.keys.get(secret_hash)
        return (key, latest.at) if key is not None else None

    async def read(self) -> Found:
        """All keys as they are after this call. Raises an `Outage`: the store does not say, or too many wait."""
        if self._waiting_count >= WAITING_MAX:
            raise Overloaded
        told: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        self._waiting.append(told)
        if self._readings is None:
            self._readings = asyncio.get_running_loop().create_task(self._read_while_awaited())
            self._readings.add_done_callback(self._ended)
        self._waiting_count += 1
        try:
            return await told
        finally:
            self._waiting_count -= 1

    async def close(self) -> None:
        """Nothing is read any more."""
        if self._readings is not None:
            self._readings.cancel()
            await asyncio.gather(self._readings, return_exceptions=True)

    async def _read_while_awaited(self) -> None:
        waiting: list[asyncio.Future[Found]] = []
        try:
            while self._waiting:
                await asyncio.sleep(max(0.0, self._read_at + PAUSE_SECONDS - self._timer()))
                # A caller who comes from here on may have a key that is not read any more, and waits for the next.
                waiting, self._waiting = self._waiting, []
                await _tell(waiting, await self._read())
            # At once: a caller who comes before the task is done needs another one.
            self._readings = None
        finally:
            for told in waiting:
                told.cancel()

    def _ended(self, readings: asyncio.Task[None]) -> None:
        """A caller who was not told, because it was cancelled, perhaps before it began, waits no longer."""
        if self._readings is not readings:
            return
        self._readings = None
        waiting, self._waiting = self._waiting, []
        for told in waiting:
            told.cancel()

    async def _read(self) -> Found | Exception:
        self._read_at = at = self._timer()
        try:
            self._latest = await self._deadline.within(self._all(at))
        except TimeoutError:
            return StoreUnavailable(because="the database did not say which keys there are")
        except Exception as failure:  # noqa: BLE001 -- each caller who waits hears of it
            return failure
        return self._latest

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


async def _tell(waiting: list[asyncio.Future[Found]], found: Found | Exception) -> None:
    """In groups, with a turn for other requests after each."""
    for start in range(0, len(waiting), PORTION):
        for told in waiting[start : start + PORTION]:
            if told.done():
                continue
            if isinstance(found, Exception):
                told.set_exception(found)
            else:
                told.set_result(found)
        await asyncio.sleep(0)
