"""The database as a second lock server, used while the first one does not answer.

Every lock is guarded by one of the two: the database is asked only when the primary did not answer, and when neither
answers the caller is refused. Mutual exclusion is not guaranteed for a moment at each switch:

- When the primary stops, its holders still hold their locks, and the database does not know of them.
- When the primary answers again, holders in the database still hold their locks, and the primary does not know of them.
- Processes do not switch at the same moment, so that one may ask the primary while another asks the database.

Two holders of one key may therefore exist at once, for as long as a lock of the first one lives. The fence sets them
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

    from earmark.locks.backend_protocol import Backend, Claim, Grant, Holding

T = TypeVar("T")

logger = logging.getLogger("earmark.locks")


class FallbackLeases:
    """Two backends as one. A grant's `backend` is the one that gave it, which also releases it."""

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
        """Give it back to the backend that granted it."""
        return bool(await grant.backend.release(grant))

    async def extend(self, grant: Grant, *, ttl: float) -> bool:
        """Extend it in the backend that granted it."""
        return bool(await grant.backend.extend(grant, ttl=ttl))

    async def holdings(self, *, match: str = "*", limit: int = 1000) -> list[Holding]:
        """What is held in either, so a key may appear twice. A backend that does not answer adds nothing."""
        answers = await self._both(
            self._primary.holdings(match=match, limit=limit), self._database.holdings(match=match, limit=limit)
        )
        found = [holding for answer in answers if not isinstance(answer, LocksUnavailable) for holding in answer]
        return sorted(found, key=lambda holding: holding.key)[:limit]

    async def find(self, key: str) -> Holding | None:
        """The lease of this key, in the primary before the database. A backend that does not answer adds nothing."""
        answers = await self._both(self._primary.find(key), self._database.find(key))
        return next((answer for answer in answers if answer and not isinstance(answer, LocksUnavailable)), None)

    async def evict(self, key: str) -> bool:
        """From both. Raises when no backend that answered had it, and one did not answer."""
        answers = await self._both(self._primary.evict(key), self._database.evict(key))
        if any(answer is True for answer in answers):
            return True
        for answer in answers:
            if isinstance(answer, LocksUnavailable):
                raise answer
        return False

    async def ping(self) -> None:
        """Return if one of them answers: that is enough to lock."""
        await self._both(self._primary.ping(), self._database.ping())

    async def close(self) -> None:
        """Close the primary and the database."""
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
        """What each of them answers; the `LocksUnavailable` of one is an answer too, but raised if both give it."""
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
        """Log once that the primary stopped answering."""
        if not self._gone:
            self._gone = True
            said = "%s does not answer, so that %s guards the locks: %s"
            logger.warning(said, self._primary.name, self._database.name, gone.because)

    def _note_back(self) -> None:
        """Log once that the primary answers again."""
        if self._gone:
            self._gone = False
            logger.info("%s answers again and guards the locks", self._primary.name)
