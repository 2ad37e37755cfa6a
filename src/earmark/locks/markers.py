"""Markers: a sign on the door that something is being worked on.

A marker is advisory. It tells others "busy" and goes away by itself, but nobody is made to look at it, and it may
vanish before the work is done. Use a lock where two at once would do harm, and a fence where that matters.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from earmark.locks.errors import LockBusy
from earmark.locks.ports import Claim

if TYPE_CHECKING:
    from earmark.locks.locks import Locks
    from earmark.locks.ports import Grant

MARKER_START = "marker:"


class Marker:
    """A sign that one caller puts up. Only who put it up takes it down; else it goes when its time is over."""

    def __init__(self, locks: Locks, key: str, ttl: float) -> None:
        self.key = key
        self._name = f"{MARKER_START}{key}"
        self._locks = locks
        self._ttl = ttl
        self._grant: Grant | None = None

    async def set(self) -> bool:
        """Put it up. False if there is one already: somebody is at it."""
        claim = Claim((self._name,), secrets.token_hex(16), self._ttl, 0.0, self._locks.holder)
        try:
            self._grant = await self._locks.backend().acquire(claim)
        except LockBusy:
            return False
        return True

    async def is_set(self) -> bool:
        """Whether anybody has put one up. By the time you act on it, that may have changed."""
        return await self._locks.backend().find(self._name) is not None

    async def clear(self) -> bool:
        """Take one's own down. False if it was not there any more, or never one's own."""
        grant, self._grant = self._grant, None
        return grant is not None and await grant.backend.release(grant)
