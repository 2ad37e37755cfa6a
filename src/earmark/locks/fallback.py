"""The database as a second lock server, for while the first one is gone.

What is never given up: somebody guards. The database is asked only when the primary did not answer, and when neither
answers the caller is refused. What *is* given up, for a moment at each switch:

- When the primary goes, whoever holds a lock there goes on holding it, and the database does not know of it.
- When the primary comes back, whoever holds a lock in the database goes on holding it, and the primary does not know.
- Processes do not switch at the same moment, so that one may ask the primary while another asks the database.

Two holders of one key may therefore exist at once, for as long as a lock of the first one lives. The fence tells them
apart if both numbers come from one count: use `fence="database"` with this, and let the resource refuse the smaller
number. With numbers of two origins the greater one may be the older holder's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from earmark.locks.errors import LockBusy, LocksUnavailable, QueueFull

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from earmark.locks.ports import Backend, Claim, Grant, Holding

T = TypeVar("T")

logger = logging.getLogger("earmark.locks")


class Fallback:
    """Two backends as one. A grant's `backend` is the one that gave it, and there it goes back."""

    def __init__(self, primary: Backend, database: Backend) -> None:
        self.name = f"{primary.name}, or else {database.name}"
        self.groups = primary.groups & database.groups
        self._primary = primary
        self._database = database
        self._gone = False

    async def acquire(self, claim: Claim) -> Grant:
        """From the primary; from the database if it does not answer."""
        began = time.monotonic()
        try:
            grant = await self._primary.acquire(claim)
        except LocksUnavailable as gone:
            self._note_gone(gone)
            return await self._acquire_instead(claim, waited=time.monotonic() - began, gone=gone)
        except (LockBusy, QueueFull):
            self._note_back()
            raise
        self._note_back()
        return grant

    async def release(self, grant: Grant) -> bool:
        """To whoever gave it."""
        return bool(await grant.backend.release(grant))

    async def extend(self, grant: Grant, *, ttl: float) -> bool:
        """By whoever gave it."""
        return bool(await grant.backend.extend(grant, ttl=ttl))

    async def holdings(self, *, match: str = "*", limit: int = 1000) -> list[Holding]:
        """What is held in either, so a key may be there twice. One that is gone adds nothing."""
        answers = await self._both(
            self._primary.holdings(match=match, limit=limit), self._database.holdings(match=match, limit=limit)
        )
        found = [holding for answer in answers if not isinstance(answer, LocksUnavailable) for holding in answer]
        return sorted(found, key=lambda holding: holding.key)[:limit]

    async def find(self, key: str) -> Holding | None:
        """Who holds this key, in the primary before the database. One that is gone adds nothing."""
        answers = await self._both(self._primary.find(key), self._database.find(key))
        return next((answer for answer in answers if answer and not isinstance(answer, LocksUnavailable)), None)

    async def evict(self, key: str) -> bool:
        """From both. Raises when nobody had it where it could be asked, and one could not be asked."""
        answers = await self._both(self._primary.evict(key), self._database.evict(key))
        if any(answer is True for answer in answers):
            return True
        for answer in answers:
            if isinstance(answer, LocksUnavailable):
                raise answer
        return False

    async def ping(self) -> None:
        """One that answers is enough for a lock to be had."""
        await self._both(self._primary.ping(), self._database.ping())

    async def close(self) -> None:
        """Let go of both."""
        try:
            await self._primary.close()
        finally:
            await self._database.close()

    async def _acquire_instead(self, claim: Claim, *, waited: float, gone: LocksUnavailable) -> Grant:
        # One deadline for both: what was waited for the primary is not waited again.
        rest = msgspec.structs.replace(claim, wait=max(0.0, claim.wait - waited))
        try:
            grant = await self._database.acquire(rest)
        except LocksUnavailable as also_gone:
            raise self._both_gone(gone, also_gone) from also_gone
        grant.claim = claim
        return grant

    async def _both(self, first: Awaitable[T], second: Awaitable[T]) -> list[T | LocksUnavailable]:
        """What each of them answers, where not answering is an answer too unless both give it."""
        answers: list[Any] = list(await asyncio.gather(first, second, return_exceptions=True))
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, LocksUnavailable):
                raise answer
        if all(isinstance(answer, LocksUnavailable) for answer in answers):
            raise self._both_gone(*answers)
        return answers

    def _both_gone(self, primary: LocksUnavailable, database: LocksUnavailable) -> LocksUnavailable:
        because = f"{self._primary.name}: {primary.because}; {self._database.name}: {database.because}"
        return LocksUnavailable(because=because)

    def _note_gone(self, gone: LocksUnavailable) -> None:
        """Said once, when it begins."""
        if not self._gone:
            self._gone = True
            said = "%s does not answer, so that %s guards the locks: %s"
            logger.warning(said, self._primary.name, self._database.name, gone.because)

    def _note_back(self) -> None:
        """Said once, when it ends."""
        if self._gone:
            self._gone = False
            logger.info("%s answers again and guards the locks", self._primary.name)
