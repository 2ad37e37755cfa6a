"""Markers: an advisory sign that work on something is in progress.

A marker says "busy" and expires by itself, but no caller has to check it, and it may expire before the work is done.
Use a lock where two at once would do harm, and a fence where a lost lock would.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Self

from earmark.locks.backend_protocol import Claim
from earmark.locks.errors import AlreadyMarked, LockBusy, LocksUnavailable
from earmark.locks.with_blocks_by_caller import BlockEntries

if TYPE_CHECKING:
    from types import TracebackType

    from earmark.locks.backend_protocol import Grant
    from earmark.locks.lock_manager import Locks

logger = logging.getLogger("earmark.locks")

MARKER_START = "marker:"


class Marker:
    """A sign that one caller sets. Only that caller clears it; else it expires.

    Entered with `async with`, it is set while the block runs, and `AlreadyMarked` is raised if it is set already.
    """

    def __init__(self, locks: Locks, key: str, ttl: float) -> None:
        self.key = key
        self._name = f"{MARKER_START}{key}"
        self._locks = locks
        self._ttl = ttl
        self._grant: Grant | None = None
        self._entered = BlockEntries()

    async def set(self) -> bool:
        """Set it. False if another caller has set it already."""
        grant = await self.claim()
        if grant is None:
            return False
        self._grant = grant
        return True

    async def is_set(self) -> bool:
        """Whether any caller has set it. By the time you act on it, that may have changed."""
        return await self._locks.backend().find(self._name) is not None

    async def clear(self) -> bool:
        """Clear it. False if it had expired, or was not set by this object."""
        grant, self._grant = self._grant, None
        return grant is not None and await grant.backend.release(grant)

    async def __aenter__(self) -> Self:
        grant = await self.claim()
        if grant is None:
            raise AlreadyMarked(key=self.key)
        self._entered.add(asyncio.current_task(), grant)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.unclaim(self._entered.pop(asyncio.current_task()))

    async def claim(self) -> Grant | None:
        """Set it and return the grant, for `unclaim`; None if it is set already."""
        claim = Claim((self._name,), secrets.token_hex(16), self._ttl, 0.0, self._locks.holder)
        try:
            return await self._locks.backend().acquire(claim)
        except LockBusy:
            return None

    async def unclaim(self, grant: Grant) -> None:
        """Clear it at the end of a block. A failure is logged and not raised: the work is done."""
        try:
            if not await grant.backend.release(grant):
                logger.warning("the marker on %s was gone before it was cleared", self.key)
        except LocksUnavailable as outage:
            logger.error("could not clear the marker on %s: %s", self.key, outage.because)  # noqa: TRY400
