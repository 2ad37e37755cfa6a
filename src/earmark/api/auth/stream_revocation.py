"""Ends open streams whose API key was revoked or has expired.

A stream stays open after its credential was checked. Twice a second each key with open streams is read again, once for
all its streams, and the streams whose credential is no longer valid are ended. While the store does not answer, no
stream is ended.
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
    """A stream, the key that it depends on, whether that key still allows it, and how to end the stream."""

    handle: Handle
    is_valid: Callable[[ApiKey | None], bool]
    end: Callable[[], None]


class StreamRevocation:
    """One task for all open streams; it runs while there are any."""

    def __init__(self, cache: KeyCache) -> None:
        self._cache = cache
        self._streams: dict[Handle, set[OpenStream]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, stream: OpenStream) -> None:
        """Check this stream's key from now on."""
        self._streams.setdefault(stream.handle, set()).add(stream)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def remove(self, stream: OpenStream) -> None:
        """Stop checking a stream that has ended; the task ends with the last one."""
        group = self._streams.get(stream.handle, set())
        group.discard(stream)
        if not group:
            self._streams.pop(stream.handle, None)
        if not self._streams and self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        """Stop checking all streams."""
        task, self._task = self._task, None
        self._streams.clear()
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            await asyncio.gather(*(self._check(handle) for handle in list(self._streams)))

    async def _check(self, handle: Handle) -> None:
        try:
            key = await self._cache.look_up(handle)
        except Outage:
            return
        except Exception:
            log.exception("key", outcome="failed")
            return
        for stream in list(self._streams.get(handle, ())):
            if not stream.is_valid(key):
                stream.end()
