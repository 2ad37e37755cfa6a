"""The vigil: whoever was let in and stays is looked at again, for as long as they stay.

A stream outlives the moment at which its key was shown. Twice a second each key that streams rest on is asked about,
once for all of them, and those that no longer stand are ended. A store that does not say ends nobody: a key is never
called wrong by guessing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.api_key import ApiKey
from earmark.errors import Outage
from earmark.observability import logs

if TYPE_CHECKING:
    from earmark.api.auth.key_cache import KeyCache

Handle = bytes | str
ROUND_SECONDS = 0.5

log = logs.get()


class OpenStream(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Somebody who stays: whether they may by what the key is now, and how to end it."""

    handle: Handle
    stands: Callable[[ApiKey | None], bool]
    end: Callable[[], None]


class StreamRevocation:
    """One task for all who stay, while there are any."""

    def __init__(self, ring: KeyCache) -> None:
        self._ring = ring
        self._watched: dict[Handle, set[OpenStream]] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self, watched: OpenStream) -> None:
        """Look after somebody."""
        self._watched.setdefault(watched.handle, set()).add(watched)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep())

    def leave(self, watched: OpenStream) -> None:
        """They are gone; with the last one, all is quiet."""
        group = self._watched.get(watched.handle, set())
        group.discard(watched)
        if not group:
            self._watched.pop(watched.handle, None)
        if not self._watched and self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        """Nobody stays any more."""
        task, self._task = self._task, None
        self._watched.clear()
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            await asyncio.gather(*(self._look(handle) for handle in list(self._watched)))

    async def _look(self, handle: Handle) -> None:
        try:
            key = await self._ring.look(handle)
        except Outage:
            return
        except Exception:
            log.exception("key", outcome="failed")
            return
        for watched in list(self._watched.get(handle, ())):
            if not watched.stands(key):
                watched.end()
