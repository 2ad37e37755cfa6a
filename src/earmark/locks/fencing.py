"""Fences from the database, for leases that live elsewhere.

A number that a lock server counts is as durable as that server: Redis may lose its data while its clock goes back, and
the nodes of a Redlock have no common count at all. A row in PostgreSQL has neither trouble. `Fenced` puts such a number
on the grants of any backend:

    lease won ──▶ number fetched ──▶ lease still good? ──yes──▶ granted
                        │                    └──no──▶ given back, LockLost
                        └──no answer──▶ given back, LocksUnavailable

It costs one statement for each grant, and locks cannot be had while the database is gone. A call takes as long as its
parts: the lease, the number and, when that fails, the way back each have the deadline of whoever is asked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from earmark.locks.errors import LockLost, LocksUnavailable
from earmark.locks.ports import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from earmark.locks.ports import Backend, Claim, Grant, Holding
    from earmark.locks.postgres import PostgresLeases

logger = logging.getLogger("earmark.locks")


class Fences(Protocol):
    """Counts for each key."""

    name: str

    async def next(self, keys: Sequence[str]) -> int:
        """One number that is greater than all that were given for any of these keys before."""
        ...

    async def last(self, keys: Sequence[str]) -> Mapping[str, int]:
        """The number given last, for those keys that have one."""
        ...

    async def ping(self) -> None:
        """Return if it answers, raise `LocksUnavailable` if not."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class DatabaseFences:
    """Counts in the rows of `PostgresLeases`, without touching the leases that may be in them."""

    name = "postgresql"

    def __init__(self, leases: PostgresLeases) -> None:
        self._leases = leases

    async def next(self, keys: Sequence[str]) -> int:
        """Never used twice: a number whose answer was lost is skipped."""
        return await self._leases.next_fence(keys)

    async def last(self, keys: Sequence[str]) -> Mapping[str, int]:
        """By primary key."""
        return await self._leases.last_fences(keys)

    async def ping(self) -> None:
        """Ask the database."""
        await self._leases.ping()

    async def close(self) -> None:
        """Close the database's pool; whoever shares it may close it again."""
        await self._leases.close()


class Fenced:
    """A backend whose grants are numbered by somebody else.

    The grant's `backend` stays the one that gave the lease. A repeat with the same token has the same lease, and a new
    number that is greater.
    """

    def __init__(self, backend: Backend, fences: Fences, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = f"{backend.name}, fenced by {fences.name}"
        self.groups = backend.groups | {Group.FENCE}
        self._backend = backend
        self._fences = fences
        self._clock = clock
        self._returning: set[asyncio.Task[None]] = set()

    async def acquire(self, claim: Claim) -> Grant:
        """The lease, then its number."""
        grant = await self._backend.acquire(claim)
        try:
            grant.fence = await self._fences.next(claim.keys)
        except asyncio.CancelledError:
            self._give_back(grant)
            raise
        except BaseException:
            # Shielded: cancelled meanwhile, it goes on all the same.
            await asyncio.shield(self._give_back(grant))
            raise
        # A number fetched after the lease ran out may be greater than the one of the next holder, who has the lock by
        # then: a resource that checks numbers would let the late one in and turn the right one away.
        if self._clock() >= grant.until:
            await asyncio.shield(self._give_back(grant))
            raise LockLost(keys=claim.keys, because="it ran out before its fence was known")
        return grant

    async def release(self, grant: Grant) -> bool:
        """By whoever gave the lease."""
        return await self._backend.release(grant)

    async def extend(self, grant: Grant, *, ttl: float) -> bool:
        """By whoever gave the lease; the number stays."""
        return await self._backend.extend(grant, ttl=ttl)

    async def holdings(self, *, match: str = "*", limit: int = 1000) -> list[Holding]:
        """Who holds what, with the numbers that were given; without any where these cannot be read."""
        return await self._numbered(await self._backend.holdings(match=match, limit=limit))

    async def find(self, key: str) -> Holding | None:
        """Who holds this key, likewise."""
        holding = await self._backend.find(key)
        return None if holding is None else (await self._numbered([holding]))[0]

    async def evict(self, key: str) -> bool:
        """Take a key from whoever has it."""
        return await self._backend.evict(key)

    async def ping(self) -> None:
        """Both must answer for a lock to be had."""
        await self._backend.ping()
        await self._fences.ping()

    async def close(self) -> None:
        """Finish giving back, then let go of both."""
        if self._returning:
            await asyncio.wait(set(self._returning))
        try:
            await self._backend.close()
        finally:
            await self._fences.close()

    async def _numbered(self, found: list[Holding]) -> list[Holding]:
        try:
            fences = await self._fences.last([holding.key for holding in found])
        except LocksUnavailable as gone:
            logger.warning("the fences of locks cannot be read: %s", gone.because)
            fences = {}
        return [msgspec.structs.replace(holding, fence=fences.get(holding.key)) for holding in found]

    def _give_back(self, grant: Grant) -> asyncio.Task[None]:
        task = asyncio.create_task(self._return(grant))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)
        return task

    async def _return(self, grant: Grant) -> None:
        try:
            await self._backend.release(grant)
        except LocksUnavailable as gone:
            keys = ", ".join(grant.claim.keys)
            logger.warning("a lock on %s is left behind; it runs out by itself: %s", keys, gone.because)
