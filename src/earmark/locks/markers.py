"""Markers: a sign that something is being worked on.

A marker is advisory. It tells others "busy" and goes away by itself, but no caller is made to look at it, and it may
vanish before the work is done. Use a lock where two at once would do harm, and a fence where that matters.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Self

from earmark.locks.entries import Entries
from earmark.locks.errors import AlreadyMarked, LockBusy, LocksUnavailable
from earmark.locks.ports import Claim

if TYPE_CHECKING:
    from types import TracebackType

    from earmark.locks.locks import Locks
    from earmark.locks.ports import Grant

logger = logging.getLogger("earmark.locks")

MARKER_START = "marker:"


class Marker:
    """A sign that one caller sets. Only its setter clears it; else it goes when its time is over.

    Entered with `async with`, it is set while the block runs, and `AlreadyMarked` is raised if it is set already.
    """

    def __init__(self, locks: Locks, key: str, ttl: float) -> None:
        self.key = key
        self._name = f"{MARKER_START}{key}"
        self._locks = locks
        self._ttl = ttl
        self._grant: Grant | None = None
        self._entered = Entries()

    async def set(self) -> bool:
        """Put it up. False if there is one already: another caller is at it."""
        grant = await self.claim()
        if grant is None:
            return False
        self._grant = grant
        return True

    async def is_set(self) -> bool:
        """Whether any caller has put one up. By the time you act on it, that may have changed."""
        return await self._locks.backend().find(self._name) is not None

    async def clear(self) -> bool:
        """Take one's own down. False if it was not there any more, or never one's own."""
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
        """What setting it gives, to hand to `unclaim`; None if it is set already."""
        claim = Claim((self._name,), secrets.token_hex(16), self._ttl, 0.0, self._locks.holder)
        try:
            return await self._locks.backend().acquire(claim)
        except LockBusy:
            return None

    async def unclaim(self, grant: Grant) -> None:
        """Clear what was set, at the end of a block. Whatever comes of it is logged: the work is done."""
        try:
            if not await grant.backend.release(grant):
                logger.warning("the marker on %s was gone before it was cleared", self.key)
        except LocksUnavailable as outage:
            logger.error("could not clear the marker on %s: %s", self.key, outage.because)  # noqa: TRY400
