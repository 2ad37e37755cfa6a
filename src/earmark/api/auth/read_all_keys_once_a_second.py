"""Reads all stored keys at once, for callers from an address that has sent too many wrong keys, and under load.

Looking up each such caller's key by itself would let a guesser query the store as often as it likes; refusing it would
lock out a valid key behind the same address. So these keys are searched together among all stored keys: first among
those read within the last second, else in the next read. However many callers wait, all keys are read at most once a
second, so guesses cost the store no more than that. Waiting callers are resumed in groups, so that other requests run
between two groups, and above a maximum no more callers may wait.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, NamedTuple

from earmark.engine.api_keys import LIST_MAX
from earmark.errors import Overloaded, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.api.middleware.run_handler_within_deadline import Deadline
    from earmark.domain.api_key import ApiKey
    from earmark.engine.api_keys import Keys

PAUSE_SECONDS = 1.0
PAGE = LIST_MAX
KEYS_MAX = 10_000
WAITING_MAX = 1000
NOTIFIED_AT_ONCE = 50
"""Waiting callers that are resumed in one iteration of the event loop."""


class AllKeys(NamedTuple):
    """All keys, or the first `KEYS_MAX`, by the hashes of their secrets."""

    at: float
    """The time before they were read."""
    keys: dict[bytes, ApiKey]
    whole: bool
    """False where there are more keys than `KEYS_MAX`."""


class KeySnapshot:
    """Reads all keys, once for all waiting callers."""

    def __init__(self, keys: Keys, *, timer: Callable[[], float], deadline: Deadline) -> None:
        self._keys = keys
        self._timer = timer
        self._deadline = deadline
        self._waiting: list[asyncio.Future[AllKeys]] = []
        """Callers of the next read, which has not begun."""
        self._waiting_count = 0
        """These, and the callers of the read before that have not been resumed yet."""
        self._readings: asyncio.Task[None] | None = None
        self._read_at = -math.inf
        self._latest: AllKeys | None = None

    def find_recent(self, secret_hash: bytes, *, seconds: float) -> tuple[ApiKey, float] | None:
        """A key of a read within the last `seconds`, and when that was; None where that read had no such key."""
        latest = self._latest
        if latest is None or self._timer() - latest.at >= seconds:
            return None
        key = latest.keys.get(secret_hash)
        return (key, latest.at) if key is not None else None

    async def read(self) -> AllKeys:
        """All keys as they are after this call. Raises an `Outage` when the store fails or too many callers wait."""
        if self._waiting_count >= WAITING_MAX:
            raise Overloaded
        result: asyncio.Future[AllKeys] = asyncio.get_running_loop().create_future()
        self._waiting.append(result)
        if self._readings is None:
            self._readings = asyncio.get_running_loop().create_task(self._read_while_awaited())
            self._readings.add_done_callback(self._ended)
        self._waiting_count += 1
        try:
            return await result
        finally:
            self._waiting_count -= 1

    async def close(self) -> None:
        """Cancel the read under way; its callers are cancelled with it."""
        if self._readings is not None:
            self._readings.cancel()
            await asyncio.gather(self._readings, return_exceptions=True)

    async def _read_while_awaited(self) -> None:
        waiting: list[asyncio.Future[AllKeys]] = []
        try:
            while self._waiting:
                await asyncio.sleep(max(0.0, self._read_at + PAUSE_SECONDS - self._timer()))
                # A caller that arrives from here on may have a key newer than this read, and waits for the next.
                waiting, self._waiting = self._waiting, []
                await _notify(waiting, await self._read())
            # Before the task is done: a caller that arrives in between needs a new task.
            self._readings = None
        finally:
            for result in waiting:
                result.cancel()

    def _ended(self, readings: asyncio.Task[None]) -> None:
        """Cancel the callers that still wait, where the task was cancelled, perhaps before it began."""
        if self._readings is not readings:
            return
        self._readings = None
        waiting, self._waiting = self._waiting, []
        for result in waiting:
            result.cancel()

    async def _read(self) -> AllKeys | Exception:
        self._read_at = at = self._timer()
        try:
            self._latest = await self._deadline.within(self._all(at))
        except TimeoutError:
            return StoreUnavailable(because="the database did not answer in time which keys exist")
        except Exception as failure:  # noqa: BLE001 -- raised in each waiting caller
            return failure
        return self._latest

    async def _all(self, at: float) -> AllKeys:
        found, after = dict[bytes, "ApiKey"](), ""
        for _ in range(0, KEYS_MAX, PAGE):
            page = await self._keys.list_all(after=after, limit=PAGE)
            for key in page:
                if key.old_hash is not None:
                    found.setdefault(key.old_hash, key)
                found[key.hash] = key
            if len(page) < PAGE:
                return AllKeys(at, found, whole=True)
            after = page[-1].id
        return AllKeys(at, found, whole=False)


async def _notify(waiting: list[asyncio.Future[AllKeys]], found: AllKeys | Exception) -> None:
    """Resume the callers in groups; other requests run after each group."""
    for start in range(0, len(waiting), NOTIFIED_AT_ONCE):
        for result in waiting[start : start + NOTIFIED_AT_ONCE]:
            if result.done():
                continue
            if isinstance(found, Exception):
                result.set_exception(found)
            else:
                result.set_result(found)
        await asyncio.sleep(0)
