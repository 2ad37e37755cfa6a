"""Fences from the database, for leases that live elsewhere.

A number that a lock server counts is as durable as that server: Redis may lose its data while its clock goes back, and
the nodes of a Redlock have no common count at all. A row in PostgreSQL has neither problem. `FencedLeases` puts such a
number on the grants of any backend:

    lease won ──▶ number fetched ──▶ lease still good? ──yes──▶ granted
                        │                    └──no──▶ given back, LockLost
                        └──no answer──▶ given back, LocksUnavailable

It costs one statement for each grant, and no lock is granted while the database is down. A call takes as long as its
parts: the lease, the number and, when that fails, the release each have the timeout of the server that is called.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from earmark.locks.backend_protocol import Group
from earmark.locks.errors import LockLost, LocksUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from earmark.locks.backend_protocol import Backend, Claim, Grant, Holding
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
        """Close the connections to what counts."""
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
        """The number given last for each key, read by primary key."""
        return await self._leases.last_fences(keys)

    async def ping(self) -> None:
        """Return if the database answers."""
        await self._leases.ping()

    async def close(self) -> None:
        """Close the database's pool. Closing it twice does no harm, for it may be shared."""
        await self._leases.close()


class FencedLeases:
    """A backend whose grants are numbered by `Fences`.

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
            # Shielded: the release goes on even if this call is cancelled meanwhile.
            await asyncio.shield(self._give_back(grant))
            raise
        # A number fetched after the lease ran out may be greater than that of the next holder, which has the lock by
        # then: a resource that checks numbers would accept the late holder and refuse the right one.
        if self._clock() >= grant.until:
            await asyncio.shield(self._give_back(grant))
            raise LockLost(keys=claim.keys, because="it ran out before its fence was known")
        return grant

    async def release(self, grant: Grant) -> bool:
        """Release the lease in the backend that granted it."""
        return await self._backend.release(grant)

    async def extend(self, grant: Grant, *, ttl: float) -> bool:
        """Extend the lease in the backend that granted it; the number stays."""
        return await self._backend.extend(grant, ttl=ttl)

    async def holdings(self, *, match: str = "*", limit: int = 1000) -> list[Holding]:
        """The leases, with the numbers that were given; without numbers where these cannot be read."""
        return await self._numbered(await self._backend.holdings(match=match, limit=limit))

    async def find(self, key: str) -> Holding | None:
        """The lease of this key, with its number where that can be read."""
        holding = await self._backend.find(key)
        return None if holding is None else (await self._numbered([holding]))[0]

    async def evict(self, key: str) -> bool:
        """Take a key from its holder."""
        return await self._backend.evict(key)

    async def ping(self) -> None:
        """Return if both answer: a lock needs both."""
        await self._backend.ping()
        await self._fences.ping()

    async def close(self) -> None:
        """Finish the releases in progress, then close both."""
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
